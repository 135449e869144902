"""How inputs are encoded and attended to at the moment: one value, changed only inside a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...adapters import CrossAttention
from ...memory import Memory
from ...memory.indexer import DistractorPool
from ...provenance import AttentionTrace
from .attention import RetrievalPolicy

ObserveQueries = Callable[[int, CrossAttention, Tensor, list[Memory]], None]


@dataclass(frozen=True)
class AttentionContext:
    """What the hooks go by.

    Parameters
    ----------
    policies : what each decoder layer may attend to.
    focus : number of tokens that an answer is generated from; 0 means all. See `focus.py`.
    prefixes : token ids before every window, for each row of a batch; None uses the prefix of the settings.
    distractors : in training, states of other documents that are searched as well.
    trace : records all retrievals.
    observe : in training, called with every layer's number, cross-attention, queries (B, T, H, d) and memories.
    """

    policies: Sequence[RetrievalPolicy]
    focus: int = 0
    prefixes: Sequence[Tensor] | None = None
    distractors: DistractorPool | None = None
    trace: AttentionTrace | None = None
    observe: ObserveQueries | None = None
