"""Helpers that know nothing of models: files, JSON Lines, the system, optional packages, plotting."""
