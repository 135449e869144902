"""Errors that a user can act on. Each message names what was given, what was expected and what to do.

A caller that retries catches the kind it can mend: `StorageError` may pass, `MemoryMismatchError` needs a new memory,
the others need another input.
"""

from __future__ import annotations


class UnlimiformerError(ValueError):
    """Base of all errors of this library; the command line prints the message on one line and exits with 2."""


class InputError(UnlimiformerError):
    """An input, option or setting that cannot be used."""


class UnsupportedModelError(UnlimiformerError):
    """A model that cannot be wrapped: an unknown family, unsound weights, or a variant that is not supported."""


class MemoryMismatchError(UnlimiformerError):
    """A stored memory that does not fit: made by another model or with other settings, unfinished, or damaged."""


class StorageError(UnlimiformerError):
    """The file system refused: a full disk, a read-only folder, a lock held by another process."""


class MissingPackageError(UnlimiformerError):
    """An optional package is not installed; the message names the extra that brings it."""
