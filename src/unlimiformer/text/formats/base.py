"""The contract of a file format from which text is taken."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..document_text import DocumentText


class Format(ABC):
    """One file format.

    `name` follows "is" in messages; `suffixes` are those of its files.
    """

    name: str
    suffixes: tuple[str, ...]

    @abstractmethod
    def recognises(self, head: bytes, suffix: str) -> bool:
        """Whether a file that begins with these bytes, and whose name ends so, is of this format."""

    @abstractmethod
    def extract(self, data: bytes, name: str) -> DocumentText:
        """The text of a file, which messages call `name`; raise `InputError` for one that cannot be read."""
