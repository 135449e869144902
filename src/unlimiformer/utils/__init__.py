"""Helpers without knowledge of models: files, JSONL, the system, optional packages, plotting."""
