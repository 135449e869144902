"""Write a memory to disk while it is encoded, and reuse what an earlier run or an earlier text has in common with it.

A window's states depend on its own tokens alone. So windows that were encoded before, by an interrupted run or for a
text that has grown since, are kept up to the first window that contains another token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..datastore import ExactStore, encode_rows
from ..errors import InputError, MemoryMismatchError
from ..text.document_text import Location
from ..text.tokenization import Tokens
from .description import is_memory
from .encode import EncodedChunk, TokenizedInput, plan_input_windows
from .memory import EncodingSpec, Memory, describe
from .storage import PartialWrite

_STATE_ARRAYS = ("states", "scales", "first_window")
_TEXT_ARRAYS = ("text", "token_ids", "offsets")
_COPY_ROWS = 1 << 14  # rows copied at a time


class MemoryWriter:
    """An `IndexSink` on disk: first the tokens of one input, then the states of its windows, in order.

    `windows` is the number of windows, `done` how many of them are stored already. `batch_size` is that of the earlier
    run if its windows are reused, because a state depends slightly on the windows that were encoded with it.
    """

    def __init__(
        self, partial_write: PartialWrite, spec: EncodingSpec, batch_size: int, overwrite: bool = False
    ) -> None:
        self._partial, self._spec, self._overwrite = partial_write, spec, overwrite
        self._checkpoint = partial_write.load_checkpoint()
        self.batch_size = batch_size
        self.store_dtype = torch.float32
        self.done = 0
        self.windows = 0

    def write_text(self, pieces: Iterable[str]) -> Iterator[str]:
        """Store the text and pass its pieces on."""
        self._partial.drop("new_text")
        for piece in pieces:
            if piece:
                self._partial.append("new_text", torch.frombuffer(bytearray(_to_utf8(piece)), dtype=torch.uint8))
                yield piece

    def write_tokens(self, tokens: Iterable[Tokens]) -> TokenizedInput:
        """Store the tokens, reuse windows that were encoded before, and return the tokens mapped from disk."""
        partial, prefix_length = self._partial, len(self._spec.prefix)
        partial.drop("new_token_ids")
        partial.drop("new_offsets")
        prefix_offsets = torch.zeros((prefix_length, 2), dtype=torch.int64)
        partial.append("new_token_ids", torch.tensor(self._spec.prefix, dtype=torch.int32))
        for part in tokens:
            partial.append("new_token_ids", part.ids.to(torch.int32))
            if part.offsets is not None:
                partial.append("new_offsets", torch.cat((prefix_offsets, part.offsets)))
                prefix_offsets = prefix_offsets[:0]
        self.windows = len(plan_input_windows(self._read_tokens("new_token_ids"), self._spec.window_spec))
        self._reuse_windows()
        for name in _TEXT_ARRAYS:
            partial.rename(f"new_{name}", name)
        self._save_checkpoint()
        return self._read_tokens("token_ids")

    def put(self, chunk: EncodedChunk) -> None:
        """Store the states of the next window."""
        states, scales = encode_rows(chunk.states, self.store_dtype)
        self._partial.append("states", states)
        if scales is not None:
            self._partial.append("scales", scales)
        if chunk.first_window is not None:
            self._partial.append("first_window", chunk.first_window)

    def commit(self, windows_done: int) -> None:
        """Record how many windows are stored: an interrupted run continues from there."""
        self.done = windows_done
        self._save_checkpoint()

    def memory(self) -> Memory:
        """The memory as it is on disk so far."""
        states, ids = self._partial.array("states"), self._partial.array("token_ids")
        assert states is not None and ids is not None
        store = ExactStore(states, self._partial.array("scales"))
        first_window = self._partial.array("first_window")
        return Memory(store, ids, self._spec, self.windows, len(self._spec.prefix), first_window=first_window)

    def publish(self, store: ExactStore, locations: tuple[Location, ...] = ()) -> None:
        """Replace an older memory in the folder by this one; `store` is how it is searched."""
        search, search_arrays = store.state_dict()
        for name, array in search_arrays.items():
            self._partial.drop(name)
            self._partial.append(name, array)
        self._partial.publish(describe(self._spec, self.windows, self.batch_size, search, locations))

    def _save_checkpoint(self) -> None:
        fields: dict[str, Any] = {"recipe": self._spec.to_dict(), "batch_size": self.batch_size}
        self._partial.save_checkpoint(self.done, **fields)

    def _read_tokens(self, name: str) -> TokenizedInput:
        ids, prefix_length = self._partial.array(name), len(self._spec.prefix)
        assert ids is not None
        return TokenizedInput(ids[prefix_length:], torch.tensor(self._spec.prefix, dtype=torch.long), {})

    def _reuse_windows(self) -> None:
        """Keep the windows that an unfinished write, or else the finished memory, shares with the new text."""
        partial = self._partial
        new_ids = partial.array("new_token_ids")
        assert new_ids is not None
        if self._checkpoint.get("done", 0) > 0 and not self._overwrite:
            self._resume(new_ids)
            return
        for name in _STATE_ARRAYS:
            partial.drop(name)
        self._save_checkpoint()
        if is_memory(partial.folder):
            self.done = self._copy_finished(new_ids)

    def _resume(self, new_ids: Tensor) -> None:
        """Continue an interrupted run, which must be of the same settings and of nearly the same text."""
        partial, checkpoint = self._partial, self._checkpoint
        row_types = checkpoint.get("rows", {})
        partial.resume_array("token_ids", row_types["token_ids"])
        old_ids = partial.array("token_ids")
        assert old_ids is not None
        same_spec = EncodingSpec.from_dict(checkpoint["recipe"]) == self._spec
        if not same_spec or not _is_same_text(old_ids, new_ids):
            raise MemoryMismatchError(
                f"{partial.folder} holds the unfinished memory of another text or setting "
                f"({checkpoint['done']} windows); finish that, remove {partial.folder / 'partial'}, "
                "or give another path"
            )
        self.batch_size = checkpoint["batch_size"]
        self.done, rows = self._count_reusable(old_ids, new_ids, checkpoint["done"])
        for name in _STATE_ARRAYS:
            if name in row_types:
                partial.resume_array(name, row_types[name])
        self._save_checkpoint()  # before anything changes: it is true before and after
        for name in _STATE_ARRAYS:
            if not self.done:
                partial.drop(name)
            elif name in row_types and name != "first_window":
                partial.truncate(name, rows)

    def _copy_finished(self, new_ids: Tensor) -> int:
        """Copy the windows that the finished memory in the folder shares with the new text, and count them."""
        partial = self._partial
        try:
            memory = Memory.load(partial.folder)
        except MemoryMismatchError:
            if self._overwrite:
                return 0
            raise
        assert memory.spec is not None
        changes = self._spec.differences(memory.spec)
        if changes or not _is_same_text(memory.token_ids, new_ids):
            if self._overwrite:
                return 0
            reason = ", ".join(changes) if changes else "another text"
            raise MemoryMismatchError(
                f"{partial.folder} is a memory made with {reason}; give another path, or allow "
                "it to be overwritten (--overwrite)"
            )
        self.batch_size = memory.batch_size or self.batch_size
        windows, rows = self._count_reusable(memory.token_ids, new_ids, memory.windows)
        if windows:
            arrays = (memory.store.states, memory.store.scales, memory.first_window)
            for name, array in zip(_STATE_ARRAYS, arrays, strict=True):
                if array is not None:
                    for part in array[: None if name == "first_window" else rows].split(_COPY_ROWS):
                        partial.append(name, part)
        return windows

    def _count_reusable(self, old_ids: Tensor, new_ids: Tensor, done: int) -> tuple[int, int]:
        """How many of the `done` encoded windows of the old text the new text shares, and how many rows they have."""
        spec, prefix_length = self._spec, len(self._spec.prefix)
        prefix = torch.tensor(spec.prefix, dtype=torch.long)
        old_plan, new_plan = (
            plan_input_windows(TokenizedInput(ids[prefix_length:], prefix, {}), spec.window_spec)
            for ids in (old_ids, new_ids)
        )
        common_tokens = _common_length(old_ids, new_ids) - prefix_length
        windows = 0
        for old_window, new_window in zip(old_plan[:done], new_plan, strict=False):
            if old_window != new_window or new_window.end > common_tokens:
                break
            windows += 1
        if windows < len(new_plan):  # windows of one batch are encoded together, and always with the same neighbours
            windows -= windows % self.batch_size
        return windows, prefix_length + new_plan[windows - 1].keep_end if windows else 0


def _to_utf8(piece: str) -> bytes:
    try:
        return piece.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text has {piece[error.start]!r}, half of a character, which UTF-8 cannot store; expected valid text"
        ) from None


def _common_length(old_ids: Tensor, new_ids: Tensor) -> int:
    """Number of tokens at the beginning that two texts share."""
    shorter = min(old_ids.shape[0], new_ids.shape[0])
    different = (old_ids[:shorter] != new_ids[:shorter]).nonzero()
    return int(different[0]) if different.shape[0] else shorter


def _is_same_text(old_ids: Tensor, new_ids: Tensor) -> bool:
    """Whether the new text continues or corrects the old one: at least half of the old one is unchanged."""
    return 2 * _common_length(old_ids, new_ids) >= old_ids.shape[0]
