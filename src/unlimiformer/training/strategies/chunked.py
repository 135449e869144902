"""Chunked training: every part of a document is an example of its own, with the whole document's answer."""

from __future__ import annotations

from torch import Tensor

from .base import Strategy


class Chunked(Strategy):
    """Each token is seen once."""

    name = "chunked"

    def inputs(self, ids: Tensor, room: int) -> list[Tensor]:
        """Parts of a window's size, side by side."""
        return list(ids.split(room))
