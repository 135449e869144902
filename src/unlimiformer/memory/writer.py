"""Writes a memory to disk while it is being encoded, and knows what of an earlier one can be kept.

A window's states depend on its own tokens alone. So whatever was encoded before, by an interrupted run or for a memory
whose text has grown since, is kept up to the first window that reads another token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..datastore import ExactStore, encode_rows
from ..errors import UnlimiformerError
from ..text.tokenization import Tokens
from .encode import EncodedChunk, TokenizedInput, plan
from .memory import EncodingSpec, Memory, describe
from .storage import PartialWrite, is_memory

_STATES = ("states", "scales", "first_window")
_WORDS = ("text", "token_ids", "offsets")
_COPIED = 1 << 14  # rows copied at a time


class MemoryWriter:
    """One memory being written to a draft: its tokens, then the states of its windows, in order."""

    def __init__(self, draft: PartialWrite, recipe: EncodingSpec, batch_size: int, overwrite: bool = False) -> None:
        self._draft, self._recipe, self._overwrite = draft, recipe, overwrite
        self.batch_size = batch_size  # that of an earlier run, if its windows are kept: a state depends on its company
        self._journal = draft.journal()
        self.done = 0
        self.windows = 0

    def keep_text(self, pieces: Iterable[str]) -> Iterator[str]:
        """Passes a text on and writes it down."""
        self._draft.drop("new_text")
        for piece in pieces:
            if piece:
                self._draft.append("new_text", torch.frombuffer(bytearray(_encoded(piece)), dtype=torch.uint8))
                yield piece

    def write_tokens(self, tokens: Iterable[Tokens]) -> TokenizedInput:
        """Writes the tokens down, keeps what was encoded of them before, and gives them back as they lie on disk."""
        draft, lead = self._draft, len(self._recipe.prefix)
        draft.drop("new_token_ids")
        draft.drop("new_offsets")
        nowhere = torch.zeros((lead, 2), dtype=torch.int64)
        draft.append("new_token_ids", torch.tensor(self._recipe.prefix, dtype=torch.int32))
        for part in tokens:
            draft.append("new_token_ids", part.ids.to(torch.int32))
            if part.offsets is not None:
                draft.append("new_offsets", torch.cat((nowhere, part.offsets)))
                nowhere = nowhere[:0]
        self.windows = len(plan(self._source("new_token_ids"), self._recipe.cut))
        self._reuse()
        for name in _WORDS:
            draft.rename(f"new_{name}", name)
        draft.record(**self._told())
        return self._source("token_ids")

    def put(self, piece: EncodedChunk, dtype: torch.dtype) -> None:
        """Writes down the states of the next window."""
        states, scales = encode_rows(piece.states, dtype)
        self._draft.append("states", states)
        if scales is not None:
            self._draft.append("scales", scales)
        if piece.first_window is not None:
            self._draft.append("first_window", piece.first_window)

    def record(self, windows: int) -> None:
        """Notes how many windows are done: an interrupted run will go on from there."""
        self.done = windows
        self._draft.record(**self._told())

    def drafted(self) -> Memory:
        """The memory as it lies in the draft."""
        states, ids = self._draft.mapped("states"), self._draft.mapped("token_ids")
        assert states is not None and ids is not None
        store = ExactStore(states, self._draft.mapped("scales"))
        first = self._draft.mapped("first_window")
        return Memory(store, ids, self._recipe, self.windows, len(self._recipe.prefix), first_window=first)

    def finish(self, store: ExactStore) -> None:
        """Puts the memory in the place of an older one; `store` is how it is searched."""
        search, beside = store.state_dict()
        for name, array in beside.items():
            self._draft.drop(name)
            self._draft.append(name, array)
        self._draft.finish(describe(self._recipe, self.windows, self.batch_size, search))

    def _told(self) -> dict[str, Any]:
        return {"recipe": asdict(self._recipe), "batch_size": self.batch_size, "done": self.done}

    def _source(self, name: str) -> TokenizedInput:
        ids, lead = self._draft.mapped(name), len(self._recipe.prefix)
        assert ids is not None
        return TokenizedInput(ids[lead:], torch.tensor(self._recipe.prefix, dtype=torch.long), {})

    def _reuse(self) -> None:
        """Keeps the windows that an unfinished draft, or else the finished memory, has in common with the new text."""
        draft, rows = self._draft, self._journal.get("rows", {})
        new = draft.mapped("new_token_ids")
        assert new is not None
        if self._journal.get("done", 0) > 0 and not self._overwrite:
            draft.keep("token_ids", rows["token_ids"])
            old = draft.mapped("token_ids")
            assert old is not None
            same = EncodingSpec.of(self._journal["recipe"]) == self._recipe
            if not same or not _same_text(old, new):
                raise UnlimiformerError(
                    f"{draft.folder} holds the unfinished memory of another text or setting "
                    f"({self._journal['done']} windows); finish that, remove {draft.folder / 'partial'}, "
                    "or give another path"
                )
            self.batch_size = self._journal["batch_size"]
            kept, count = self._kept(old, new, self._journal["done"])
            for name in _STATES:
                if name in rows:
                    draft.keep(name, rows[name])
            self.done = kept
            draft.record(**self._told())  # before anything changes: it is true before and after
            for name in _STATES:
                if not kept:
                    draft.drop(name)
                elif name in rows and name != "first_window":
                    draft.shorten(name, count)
            return
        for name in _STATES:
            draft.drop(name)
        draft.record(**self._told())
        if is_memory(draft.folder):
            self.done = self._copy_finished(new)

    def _copy_finished(self, new: Tensor) -> int:
        """Copies what the finished memory in the folder has in common with the new text; it stays as it is."""
        draft = self._draft
        try:
            memory = Memory.load(draft.folder)
        except UnlimiformerError:
            if self._overwrite:
                return 0
            raise
        assert memory.recipe is not None
        changes = self._recipe.differences(memory.recipe)
        if changes or not _same_text(memory.token_ids, new):
            if self._overwrite:
                return 0
            what = ", ".join(changes) if changes else "another text"
            raise UnlimiformerError(
                f"{draft.folder} is a memory made with {what}; give another path, or allow "
                "it to be overwritten (--overwrite)"
            )
        self.batch_size = memory.batch_size or self.batch_size
        kept, count = self._kept(memory.token_ids, new, memory.windows)
        if kept:
            parts = (memory.store.states, memory.store.scales, memory.first_window)
            for name, array in zip(_STATES, parts, strict=True):
                if array is not None:
                    for part in array[: None if name == "first_window" else count].split(_COPIED):
                        draft.append(name, part)
        return kept

    def _kept(self, old: Tensor, new: Tensor, done: int) -> tuple[int, int]:
        """How many windows, and how many rows, are the same for both: `done` windows of `old` were encoded."""
        recipe, lead = self._recipe, len(self._recipe.prefix)
        prefix = torch.tensor(recipe.prefix, dtype=torch.long)
        before, after = (plan(TokenizedInput(ids[lead:], prefix, {}), recipe.cut) for ids in (old, new))
        common = _common(old, new) - lead
        kept = 0
        for was, will_be in zip(before[:done], after, strict=False):
            if was != will_be or will_be.end > common:
                break
            kept += 1
        if kept < len(after):  # windows of one batch are encoded together, and always with the same neighbours
            kept -= kept % self.batch_size
        return kept, lead + after[kept - 1].keep_end if kept else 0


def _encoded(piece: str) -> bytes:
    try:
        return piece.encode()
    except UnicodeEncodeError as error:
        raise UnlimiformerError(
            f"the text has {piece[error.start]!r}, half of a character, which no file can keep; read it as UTF-8"
        ) from None


def _common(old: Tensor, new: Tensor) -> int:
    """How many tokens two texts begin with in common."""
    shorter = min(old.shape[0], new.shape[0])
    different = (old[:shorter] != new[:shorter]).nonzero()
    return int(different[0]) if different.shape[0] else shorter


def _same_text(old: Tensor, new: Tensor) -> bool:
    """Whether a text is another's continuation or correction, and not another text: half of it is the same."""
    return 2 * _common(old, new) >= old.shape[0]
