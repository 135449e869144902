"""The settings of a wrapped model: one frozen, validated dataclass. Imports neither torch nor any model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from .errors import InputError

StoreName = Literal["exact", "auto", "ivf", "faiss"]
DTypeName = Literal["float32", "bfloat16", "int8"]
ComputeName = Literal["auto", "bfloat16"]
SelectionName = Literal["reread", "blocks", "blocks-by-layer", "top-k"]
PositionsName = Literal["consecutive", "as-encoded", "rescaled"]

_OLD_IVF_NAME = "cells"  # accepted as an alias; the memory.json of a stored memory still has it


@dataclass(frozen=True)
class UnlimiformerConfig:
    """How a long input is encoded, stored and retrieved from. None is a default that depends on the model.

    Parameters
    ----------
    top_k : encoder–decoder: tokens that each head attends to at each step; None: as many as the model's window has.
        Decoder-only: tokens of the document that are selected at most; None: 512, or 2,048 for a broad question.
    layers : decoder layers that retrieve; None: all. The other layers attend to the first window, like the truncated
        model; with selection "top-k" they see only the start and the end of the prompt.
    heads : heads that retrieve in those layers; None: all. The other heads attend to the first window. If blocks are
        selected, `layers` and `heads` name the heads that a decoder-only model selects by.
    window : tokens that are encoded at once; None: the encoder's limit, or 1,024 of a decoder-only model.
    overlap : share of a window that its neighbours encode too; None: 0.5, which keeps the middle half, as in the
        paper, or 0.25, which keeps the later three quarters, of a decoder-only model.
    prefix : text in front of every window (a question, as in SLED); a sequence gives each row of a batch its own.
        Decoder-only: an instruction before the document.
    store : how the states are searched. "exact" scans them all; "ivf" and "faiss" scan a part of them; "auto" is "ivf"
        for long texts if it was measured to be faster on this machine, else "exact". "cells" is the old name of "ivf".
    recall : for "ivf" and "faiss": the share of the exact top k's attention mass that must be retrieved, as measured
        when the store is built.
    dtype : of the stored states; None: the model's dtype. "int8" stores one scale per token.
    device : where the states are stored; None: the model's device.
    batch_size : windows that are encoded at once.
    compute_dtype : of the encoder's matrix products. "bfloat16" autocasts; "auto" does so for inputs of several windows
        and a float32 encoder, where that was measured to be faster on this machine; None: the model's dtype.
    selection : what a decoder-only model sees of a document. "reread" (None): the passages that its retrieval heads
        score highest, encoded again in the model's own window. "blocks", "blocks-by-layer": the stored states of such
        blocks, the same ones in all layers or each layer's own. "top-k": each head's own tokens at each step, as in
        the paper. Encoder–decoder: "top-k" (None), or with "reread" the passages that a prompt attends to are encoded
        again in one window behind it.
    positions : position ids of the selected tokens: "consecutive" (None), "as-encoded" (those in their window) or
        "rescaled" into one window.
    block : tokens of a block; None: 32.
    prompt_examples : put examples of short answers before a question about a fact to a decoder-only model; None: yes,
        if its context has room for them.
    focus : encoder–decoder with a prompt: the answer is generated from the passages that the prompt itself attends
        to, of at least this many tokens together. None or 0: from all tokens.
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
    prompt_examples: bool | None = None
    focus: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            object.__setattr__(self, name, _to_indices(name, getattr(self, name)))
        if isinstance(self.prefix, Sequence) and not isinstance(self.prefix, str):
            object.__setattr__(self, "prefix", tuple(self.prefix))
        if self.store == _OLD_IVF_NAME:
            object.__setattr__(self, "store", "ivf")
        for name in ("top_k", "window", "batch_size", "block", "focus"):
            value, least = getattr(self, name), 0 if name == "focus" else 1
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise InputError(f"{name} is {value!r}; expected a whole number of at least {least}")
        if self.overlap is not None and (not isinstance(self.overlap, (int, float)) or not 0 <= self.overlap < 1):
            raise InputError(f"overlap is {self.overlap!r}; expected 0 <= overlap < 1 (0.5 keeps the middle half)")
        if not isinstance(self.recall, (int, float)) or not 0 < self.recall < 1:
            raise InputError(f"recall is {self.recall!r}; expected a share between 0 and 1, such as 0.99")
        if self.prompt_examples is not None and not isinstance(self.prompt_examples, bool):
            raise InputError(f"prompt_examples is {self.prompt_examples!r}; expected True, False or None")
        _check_choice("store", self.store, get_args(StoreName))
        _check_choice("dtype", self.dtype, (None, *get_args(DTypeName)))
        _check_choice("compute_dtype", self.compute_dtype, (None, *get_args(ComputeName)))
        _check_choice("selection", self.selection, (None, *get_args(SelectionName)))
        _check_choice("positions", self.positions, (None, *get_args(PositionsName)))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """List the names of all settings, in order."""
        return tuple(field.name for field in fields(cls))


def _to_indices(name: str, value: Any) -> tuple[int, ...] | None:
    """Convert one index or several to a sorted tuple without duplicates."""
    if value is None:
        return None
    indices = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(index, int) and index >= 0 for index in indices):
        raise InputError(f"{name} is {value!r}; expected numbers counted from 0, or None for all")
    return tuple(sorted(set(indices)))


def _check_choice(name: str, value: Any, choices: tuple) -> None:
    if value not in choices:
        raise InputError(f"{name} is {value!r}; expected one of: {', '.join(str(choice) for choice in choices)}")
