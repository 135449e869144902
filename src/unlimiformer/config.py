"""The settings of a wrapped model: one frozen, validated dataclass. Knows no torch and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from .errors import UnlimiformerError

StoreName = Literal["exact", "cells", "faiss"]
DTypeName = Literal["float32", "bfloat16", "int8"]
ComputeName = Literal["bfloat16"]
SelectionName = Literal["reread", "blocks", "blocks-by-layer", "top-k"]
PositionsName = Literal["consecutive", "as-encoded", "rescaled"]


@dataclass(frozen=True)
class UnlimiformerConfig:
    """How a long input is read, kept and searched.

    top_k: tokens that each head attends to at each step; None: the model's window. Of a decoder-only model: tokens of
        the document that are chosen, at most, without what completes their sentences; None: 256.
    layers: decoder layers that retrieve; None: all. The others attend to the first window, like the truncated model.
        Of a decoder-only model with selection "top-k": the others see head and tail of the prompt only.
    heads: heads that retrieve in those layers; None: all. The others attend to the first window. With a selection of
        blocks, layers and heads say which of a decoder-only model's heads may choose.
    window: tokens that are read at once; None: the encoder's own limit, or 1,024 of a decoder-only model.
    overlap: share of a window that its neighbours read too; None: 0.5, which keeps the middle half, as the paper does,
        or 0.25, which keeps the later three quarters of a decoder-only model's window.
    prefix: text in front of every window (a question, as SLED does); a sequence gives each row of a batch its own. Of
        a decoder-only model: an instruction before the document.
    store: how states are searched; "exact" scans them all, "cells" and "faiss" look into a part of them.
    recall: share of the attention of the exact k best tokens that such a part must hold, as measured when it is built.
    dtype: of the stored states; None: the model's own. "int8" keeps a scale a token.
    device: where the states are kept; None: the model's own.
    batch_size: windows encoded at once.
    compute_dtype: of the encoder's matrix products ("bfloat16" autocasts); None: the model's own.
    selection: what a decoder-only model sees of a document. "reread" (None): the blocks that its retrieving heads want,
        read again in the plain window. "blocks", "blocks-by-layer": such blocks as they were read, the same ones in all
        layers or each layer's own. "top-k": each head's own tokens at each step, as in the paper.
    positions: where these stand; "consecutive" (None), "as-encoded" (in their window) or "rescaled" into one window.
    block: tokens of a block; None: 32.
    focus: of an encoder–decoder that is given a prompt: tokens that its answer is written from, at least; they are the
        passages that the prompt itself looks at. None or 0: all tokens.
    """

    top_k: int | None = None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    window: int | None = None
    overlap: float | None = None
    prefix: str | tuple[str, ...] | None = None
    store: StoreName = "exact"
    recall: float = 0.99
    dtype: DTypeName | None = None
    device: str | None = None
    batch_size: int = 4
    compute_dtype: ComputeName | None = None
    selection: SelectionName | None = None
    positions: PositionsName | None = None
    block: int | None = None
    focus: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            object.__setattr__(self, name, _integers(name, getattr(self, name)))
        if isinstance(self.prefix, Sequence) and not isinstance(self.prefix, str):
            object.__setattr__(self, "prefix", tuple(self.prefix))
        for name in ("top_k", "window", "batch_size", "block", "focus"):
            value, least = getattr(self, name), 0 if name == "focus" else 1
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise UnlimiformerError(f"{name} is {value!r}; expected a whole number of at least {least}")
        if self.overlap is not None and (not isinstance(self.overlap, (int, float)) or not 0 <= self.overlap < 1):
            raise UnlimiformerError(
                f"overlap is {self.overlap!r}; expected 0 <= overlap < 1 (0.5 keeps the middle half)"
            )
        if not isinstance(self.recall, (int, float)) or not 0 < self.recall < 1:
            raise UnlimiformerError(f"recall is {self.recall!r}; expected a share between 0 and 1, such as 0.99")
        _one_of("store", self.store, get_args(StoreName))
        _one_of("dtype", self.dtype, (None, *get_args(DTypeName)))
        _one_of("compute_dtype", self.compute_dtype, (None, *get_args(ComputeName)))
        _one_of("selection", self.selection, (None, *get_args(SelectionName)))
        _one_of("positions", self.positions, (None, *get_args(PositionsName)))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The settings' names, in order."""
        return tuple(field.name for field in fields(cls))


def _integers(name: str, value) -> tuple[int, ...] | None:
    if value is None:
        return None
    items = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(item, int) and item >= 0 for item in items):
        raise UnlimiformerError(f"{name} is {value!r}; expected numbers counted from 0, or None for all")
    return tuple(sorted(set(items)))


def _one_of(name: str, value, allowed: tuple) -> None:
    if value not in allowed:
        known = ", ".join(str(item) for item in allowed)
        raise UnlimiformerError(f"{name} is {value!r}; expected one of: {known}")
