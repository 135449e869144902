"""Chunked training: each window-sized chunk of a document is one example with the document's answer."""

from __future__ import annotations

from torch import Tensor

from .base import Strategy

_SHORTEST_CHUNK = 10


class Chunked(Strategy):
    """Non-overlapping chunks of the whole document, however long it is.

    A last chunk of fewer than ten tokens is left out, as in the code of the paper's authors.
    """

    name = "chunked"
    limits_source = False

    def inputs(self, ids: Tensor, room: int) -> list[Tensor]:
        """Split the document into consecutive chunks of at most `room` tokens."""
        chunks = list(ids.split(room))
        return chunks[:-1] if len(chunks) > 1 and chunks[-1].shape[0] < _SHORTEST_CHUNK else chunks
