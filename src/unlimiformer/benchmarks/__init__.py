"""Benchmarks of speed and memory: in each module `run` measures and `report` gives the results as JSON."""
