"""Connections to other evaluation tools; each module needs an optional package."""
