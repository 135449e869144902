"""Errors that a user can act on. Their text names what was given, what was expected and what to do."""

from __future__ import annotations


class UnlimiformerError(ValueError):
    """Bad input or settings; the command line prints its text on one line and exits with 2."""


class UnsupportedModelError(UnlimiformerError):
    """A model whose cross-attention is not known and could not be verified."""
