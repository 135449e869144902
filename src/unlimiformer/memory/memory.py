"""A memory: the states of one long input, one vector per token, and what is needed to show and to check them."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..datastore import ExactStore, restore
from ..errors import InputError, MemoryMismatchError, UnlimiformerError
from ..text.citations import Citations
from ..text.document_text import Location, locations_from_json, locations_to_json
from ..text.windows import WindowSpec
from . import remote, storage
from .checks import check_parts

_KEYS = itertools.count(1)
_COLUMNS = re.compile(r"layer (\d+): (inputs|keys|keys and values)( of [\d, ]+)?")


@dataclass(frozen=True)
class RowSpec:
    """What a row of a decoder-only model's memory holds: `layout` in words, and the settings that chose it."""

    selection: str
    block: int
    layout: str

    @property
    def columns(self) -> list[tuple[int, str, tuple[int, ...]]]:
        """Layer, content and key-value heads of each part of a row, in order; no heads are named if it has all."""
        parts = [_COLUMNS.fullmatch(part) for part in self.layout.split("; ")]
        if not all(parts):
            raise MemoryMismatchError(
                f"a row of the memory holds {self.layout!r}, which is unknown; index the text again"
            )
        found = [part.groups(default="") for part in parts if part]
        return [(int(layer), content, tuple(map(int, re.findall(r"\d+", groups)))) for layer, content, groups in found]

    def covers(self, other: RowSpec) -> bool:
        """Whether its rows hold what those of `other` hold, or the keys of more heads."""
        if self.layout == other.layout:
            return True
        keys = {layer: set(groups) for layer, _, groups in self.columns}
        return all(groups and keys.get(layer, set()).issuperset(groups) for layer, _, groups in other.columns)


@dataclass(frozen=True)
class EncodingSpec:
    """Everything besides the text that decides a memory's states.

    Parameters
    ----------
    model, tokenizer : fingerprints; `tokenizer` is None when the input was token ids.
    window, overlap : how the text was cut.
    prefix : token ids that precede every window.
    dtype, compute_dtype : of the stored states, and of the encoder's matrix products.
    row : what a row holds, for decoder-only models; None for an encoder's states.
    """

    model: str
    tokenizer: str | None
    window: int
    overlap: float
    prefix: tuple[int, ...]
    dtype: str
    compute_dtype: str | None = None
    row: RowSpec | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EncodingSpec:
        """Read what `to_dict` gave; the key of `row` on disk is `kept`."""
        try:
            values = dict(values)
            row = values.pop("kept", None)
            values |= {"prefix": tuple(values["prefix"]), "row": None if row is None else RowSpec(**row)}
            return cls(**values)._checked()
        except (TypeError, KeyError, ValueError) as error:
            raise MemoryMismatchError(
                f"the memory's description of how it was made cannot be understood ({error}); index the text again"
            ) from None

    def _checked(self) -> EncodingSpec:
        """This spec; raise `TypeError` or `ValueError` for a value of another type, or that no encoding has."""
        row = self.row
        texts = [self.model, self.dtype, *(text for text in (self.tokenizer, self.compute_dtype) if text is not None)]
        texts += [] if row is None else [row.selection, row.layout]
        numbers = [self.window, *self.prefix, *([] if row is None else [row.block])]
        if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
            raise TypeError("a value is of another type")
        if not isinstance(self.overlap, int | float) or not 0 <= self.overlap < 1 or min(numbers) < 0:
            raise ValueError("a number is out of range")
        return self

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the inverse of `from_dict`."""
        values = asdict(self)
        values["kept"] = values.pop("row")
        return values

    @property
    def window_spec(self) -> WindowSpec:
        """How the text was cut into windows."""
        return WindowSpec(self.window, self.overlap, causal=self.row is not None)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a wrapper that encodes as this memory was encoded."""
        values = {"window": self.window, "overlap": self.overlap}
        return values if self.row is None else {**values, "selection": self.row.selection, "block": self.row.block}

    def differences(self, other: EncodingSpec, ignored: tuple[str, ...] = ()) -> list[str]:
        """Describe, for a message, what `other` has that this spec has not.

        The `compute_dtype` does not count: it changes states by rounding only, and machines choose it differently.
        """
        changes = []
        for name in (spec_field.name for spec_field in fields(self) if spec_field.name != "compute_dtype"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if name in ignored or mine == theirs or (name == "tokenizer" and None in (mine, theirs)):
                continue
            if name in ("model", "tokenizer", "prefix"):
                changes.append(f"another {name}")
            elif name == "row":
                if mine is None or theirs is None or not theirs.covers(mine):
                    changes.append(_row_difference(mine, theirs))
            else:
                changes.append(f"{name} {theirs} instead of {mine}")
        return changes


@dataclass(eq=False)
class Memory:
    """One encoded input. A wrapped model attends to it; `save` and `load` keep it on disk.

    Parameters
    ----------
    store : the states, and how they are searched.
    token_ids : (S,) the prefix's tokens, then the text's.
    spec : how it was encoded; None if it was encoded inside the model's own forward.
    windows : number of windows; 1 means that the input fits the model.
    offsets : (S, 2) characters of the text that each token covers, (0, 0) where it covers none; None if unknown.
    first_window : (W, D) what the truncated model would see, for layers and heads that do not retrieve.
    batch_size : number of windows that were encoded together.
    stored_text : the text, or the file that holds it.
    locations : where the pages of the text begin, or the times at which it is said.
    key : identifies the memory inside a running process.
    """

    store: ExactStore
    token_ids: Tensor
    spec: EncodingSpec | None
    windows: int
    prefix_tokens: int = 0
    offsets: Tensor | None = None
    first_window: Tensor | None = None
    batch_size: int | None = None
    stored_text: str | Path | None = field(default=None, repr=False)
    locations: tuple[Location, ...] = field(default=(), repr=False)
    key: int = field(default_factory=lambda: next(_KEYS), repr=False)

    @staticmethod
    def next_key() -> int:
        """A key that no other memory of this process has."""
        return next(_KEYS)

    def __len__(self) -> int:
        return self.store.rows

    @property
    def prefix_ids(self) -> Tensor:
        """Token ids of the prefix, as int64."""
        return self.token_ids[: self.prefix_tokens].long()

    @property
    def text_ids(self) -> Tensor:
        """Token ids of the text, as int64."""
        return self.token_ids[self.prefix_tokens :].long()

    @property
    def text_tokens(self) -> int:
        """Number of tokens of the text, without the prefix."""
        return len(self) - self.prefix_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the states and of their search index."""
        return self.store.nbytes

    @property
    def text(self) -> str:
        """The source text, in which `offsets` count characters."""
        if self.stored_text is None:
            raise InputError("the memory was made from token ids and has no text; index a text instead")
        if isinstance(self.stored_text, Path):
            try:
                return self.stored_text.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                raise MemoryMismatchError(
                    f"{self.stored_text} is no text: it is damaged; index the text again"
                ) from None
        return self.stored_text

    @cached_property
    def citations(self) -> Citations:
        """How places in the text are cited."""
        return Citations(self.text, self.locations)

    def character_spans(self, rows: Tensor) -> list[tuple[int, int]]:
        """Start and end, in the text, of each run of neighbouring rows (m,), which are in order."""
        if self.offsets is None:
            raise InputError("the memory was made from token ids and has no text; index a text instead")
        breaks = (rows.diff() > 1).nonzero()[:, 0] + 1
        runs = [self.offsets[run] for run in rows.tensor_split(breaks.cpu())]
        runs = [run[run[:, 1] > 0] for run in runs]  # special tokens cover no text
        return [(int(run[0, 0]), int(run[-1, 1])) for run in runs if run.numel()]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the memory to a folder, whole or not at all; an older memory there is replaced."""
        if self.spec is None:
            raise InputError("the memory was encoded inside the model's own forward; make one with index()")
        search, search_arrays = self.store.state_dict()
        about = describe(self.spec, self.windows, self.batch_size, search, self.locations)
        storage.write(Path(folder), about, {**self.arrays(), **search_arrays})

    @classmethod
    def load(cls, folder: str | os.PathLike[str], verify: bool = True) -> Memory:
        """Open a saved memory. Its arrays are memory-mapped, so many processes can share one that exceeds RAM.

        Parameters
        ----------
        folder : a folder, or a URL that fsspec knows; a memory at a URL is copied to the user's cache first.
        verify : compare every file with its checksum; otherwise only sizes are checked.
        """
        path = remote.download(str(folder)) if remote.is_url(str(folder)) else Path(folder)
        about, arrays = storage.read(path, verify)
        try:
            spec = EncodingSpec.from_dict(about["recipe"])
            check_parts(arrays, about, spec.window_spec, spec.prefix)
            return cls(
                restore(about["search"], arrays, lambda name: storage.array_path(path, name)),
                arrays["token_ids"],
                spec,
                about["windows"],
                len(spec.prefix),
                arrays.get("offsets"),
                arrays.get("first_window"),
                about["batch_size"],
                storage.array_path(path, "text"),
                locations_from_json(about.get("locations", [])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, UnlimiformerError):
                raise
            raise MemoryMismatchError(
                f"{path} has a description that cannot be understood ({type(error).__name__}: {error}); "
                "index the text again"
            ) from None

    def arrays(self) -> dict[str, Tensor]:
        """What is stored on disk, besides the arrays of a search index."""
        text = None if self.stored_text is None else torch.frombuffer(bytearray(self.text.encode()), dtype=torch.uint8)
        arrays = {
            "token_ids": self.token_ids.to(torch.int32),
            "offsets": self.offsets,
            "text": text,
            "first_window": self.first_window,
            "states": self.store.states,
            "scales": self.store.scales,
        }
        return {name: array for name, array in arrays.items() if array is not None}


def _row_difference(mine: RowSpec | None, theirs: RowSpec | None) -> str:
    if mine is None or theirs is None:
        return "another kind of model"
    for name in ("selection", "block"):
        if getattr(mine, name) != getattr(theirs, name):
            return f"{name} {getattr(theirs, name)} instead of {getattr(mine, name)}"
    return "other layers or heads"


def describe(
    spec: EncodingSpec,
    windows: int,
    batch_size: int | None,
    search: dict[str, Any],
    locations: tuple[Location, ...] = (),
) -> dict[str, Any]:
    """The part of memory.json that is about the memory; `search` is the store's own state."""
    about = {"recipe": spec.to_dict(), "windows": windows, "batch_size": batch_size, "search": search}
    return {**about, "locations": locations_to_json(locations)} if locations else about
