"""Retrieval training: every head of every layer retrieves in training as it does at test time."""

from __future__ import annotations

from .base import Strategy


class Retrieval(Strategy):
    """The defaults of the base class: training computes what evaluation computes."""

    name = "retrieval"
