"""Benchmarks that a user can repeat: every method in one run and one process, results as JSON, table and picture."""
