"""What is kept of one long input: its states, one vector a token, and what is needed to show and to check them."""

from __future__ import annotations

import itertools
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..datastore import ExactStore, restore
from ..errors import UnlimiformerError
from ..text.windows import WindowSpec
from . import remote
from . import storage as disk

_KEYS = itertools.count(1)


@dataclass(frozen=True)
class RowSpec:
    """What a decoder-only model's row holds, in words, and the selection and block size that wanted it."""

    selection: str
    block: int
    layout: str


@dataclass(frozen=True)
class EncodingSpec:
    """What decides a memory's states, beside its text: digests of model and tokenizer, and how the text was read.

    `prefix` are the token ids in front of every window. `tokenizer` is None when there was none. `kept` is None
    for an encoder's states.
    """

    model: str
    tokenizer: str | None
    window: int
    overlap: float
    prefix: tuple[int, ...]
    dtype: str
    compute_dtype: str | None = None
    kept: RowSpec | None = None

    @classmethod
    def of(cls, told: dict[str, Any]) -> EncodingSpec:
        """From what JSON keeps of it."""
        kept = told.get("kept")
        return cls(**{**told, "prefix": tuple(told["prefix"]), "kept": None if kept is None else RowSpec(**kept)})

    @property
    def cut(self) -> WindowSpec:
        """How the text was cut."""
        return WindowSpec(self.window, self.overlap, causal=self.kept is not None)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a wrapper that reads as this text was read."""
        told = {"window": self.window, "overlap": self.overlap, "compute_dtype": self.compute_dtype}
        return told if self.kept is None else {**told, "selection": self.kept.selection, "block": self.kept.block}

    def differences(self, other: EncodingSpec, ignored: tuple[str, ...] = ()) -> list[str]:
        """What another recipe has otherwise, in words."""
        told = []
        for name in (each.name for each in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            if name in ignored or mine == theirs or (name == "tokenizer" and None in (mine, theirs)):
                continue
            if name in ("model", "tokenizer"):
                told.append(f"another {name}")
            elif name == "prefix":
                told.append("another prefix")
            elif name == "kept":
                if mine is None or theirs is None or mine.layout != theirs.layout:
                    told.append(_other_rows(mine, theirs))
            else:
                told.append(f"{name} {theirs} instead of {mine}")
        return told


@dataclass(eq=False)
class Memory:
    """One encoded input. A wrapped model attends to it; `save` and `load` keep it on disk.

    token_ids (S,): the prefix's tokens, then the text's. offsets (S, 2): characters of the source text that a token
    covers, (0, 0) where it covers none; None when they are not known. first_window (W, D): what the truncated model
    would see, kept for layers and heads that do not retrieve. batch_size: windows that were encoded together.
    recipe: None if the input was read in the model's forward.
    """

    store: ExactStore
    token_ids: Tensor
    recipe: EncodingSpec | None
    windows: int
    prefix_tokens: int = 0
    offsets: Tensor | None = None
    first_window: Tensor | None = None
    batch_size: int | None = None
    written_text: str | Path | None = field(default=None, repr=False)
    key: int = field(default_factory=lambda: next(_KEYS), repr=False)

    def __len__(self) -> int:
        return self.store.rows

    @property
    def prefix_ids(self) -> Tensor:
        """Token ids in front of the text, as indices."""
        return self.token_ids[: self.prefix_tokens].long()

    @property
    def text_ids(self) -> Tensor:
        """Token ids of the text, as indices."""
        return self.token_ids[self.prefix_tokens :].long()

    @property
    def text_tokens(self) -> int:
        """How many tokens the text has, without its prefix."""
        return len(self) - self.prefix_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the states and of what finds them."""
        return self.store.nbytes

    @property
    def text(self) -> str:
        """The source text, which offsets count in."""
        if self.written_text is None:
            raise UnlimiformerError("the memory was made from token ids and knows no text; index a text instead")
        if isinstance(self.written_text, Path):
            return self.written_text.read_bytes().decode("utf-8")
        return self.written_text

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the memory to a folder, whole or not at all; an older memory there is replaced."""
        if self.recipe is None:
            raise UnlimiformerError("the memory was read inside the model's own forward; make one with index()")
        search, beside = self.store.state_dict()
        about = describe(self.recipe, self.windows, self.batch_size, search)
        disk.write(Path(folder), about, {**self.arrays(), **beside})

    @classmethod
    def load(cls, folder: str | os.PathLike[str], verify: bool = True) -> Memory:
        """Opens a saved memory: its arrays stay on disk, mapped, and may be read by many processes at once.

        A damaged or foreign folder is refused. Without `verify` sizes are checked but not contents. A memory at a URL
        that fsspec knows is copied to the user's cache first.
        """
        source = remote.download(str(folder)) if remote.is_url(str(folder)) else Path(folder)
        about, arrays = disk.read(source, verify)
        recipe = EncodingSpec.of(about["recipe"])
        return cls(
            restore(about["search"], arrays, lambda name: disk.array_path(source, name)),
            arrays["token_ids"],
            recipe,
            about["windows"],
            len(recipe.prefix),
            arrays.get("offsets"),
            arrays.get("first_window"),
            about["batch_size"],
            disk.array_path(source, "text"),
        )

    def arrays(self) -> dict[str, Tensor]:
        """What is kept on disk, beside the arrays of a search."""
        text = None if self.written_text is None else torch.frombuffer(bytearray(self.text.encode()), dtype=torch.uint8)
        named = {
            "token_ids": self.token_ids.to(torch.int32),
            "offsets": self.offsets,
            "text": text,
            "first_window": self.first_window,
            "states": self.store.states,
            "scales": self.store.scales,
        }
        return {name: array for name, array in named.items() if array is not None}


def _other_rows(mine: RowSpec | None, theirs: RowSpec | None) -> str:
    if mine is None or theirs is None:
        return "another kind of model"
    for name in ("selection", "block"):
        if getattr(mine, name) != getattr(theirs, name):
            return f"{name} {getattr(theirs, name)} instead of {getattr(mine, name)}"
    return "other layers or heads"


def describe(recipe: EncodingSpec, windows: int, batch_size: int | None, search: dict[str, Any]) -> dict[str, Any]:
    """What a memory's folder says about it, beside its arrays; `search` is what its store says of itself."""
    return {"recipe": asdict(recipe), "windows": windows, "batch_size": batch_size, "search": search}
