"""Chunked training: each window-sized chunk of a document is one example with the document's answer."""

from __future__ import annotations

from torch import Tensor

from .base import Strategy


class Chunked(Strategy):
    """Non-overlapping chunks, so that each token of a document is used once in an epoch."""

    name = "chunked"

    def inputs(self, ids: Tensor, room: int) -> list[Tensor]:
        """Split the document into consecutive chunks of at most `room` tokens."""
        return list(ids.split(room))
