"""Write a memory to disk while it is encoded, and reuse what an earlier run or an earlier text has in common with it.

A window's states depend on its own tokens alone. So windows that were encoded before, by an interrupted run or for a
text that has grown since, are kept up to the first window that contains another token.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from hashlib import sha256

import torch
from torch import Tensor

from ..datastore import ExactStore, encode_rows
from ..errors import InputError, MemoryMismatchError
from ..text.document_text import Location
from ..text.tokenization import Tokens
from ..text.windows import Window
from .array_file import raw_bytes
from .checkpoints import Checkpoint
from .description import is_memory
from .encode import EncodedChunk, TokenizedInput, plan_input_windows
from .memory import EncodingSpec, Memory, describe
from .partial_write import PartialWrite

_STATE_ARRAYS = ("states", "scales", "first_window")
_COPY_BATCHES = 64  # batches of windows copied at a time
_LOG = logging.getLogger(__name__)


class MemoryWriter:
    """An `IndexSink` on disk: first the tokens of one input, then the states of its windows, in order.

    `spec` says how they are encoded, `windows` is the number of windows, `done` how many of them are stored already.
    `batch_size` is that of the earlier run if its windows are reused, because a state depends slightly on the windows
    that were encoded with it.
    """

    def __init__(
        self, partial_write: PartialWrite, spec: EncodingSpec, batch_size: int, overwrite: bool = False
    ) -> None:
        self._partial, self.spec, self._overwrite = partial_write, spec, overwrite
        self.batch_size = batch_size
        self.store_dtype = torch.float32
        self.done = 0
        self.windows = 0

    def write_text(self, pieces: Iterable[str]) -> Iterator[str]:
        """Store the text and pass its pieces on."""
        self._partial.drop("text")
        for piece in pieces:
            if piece:
                self._partial.append("text", torch.frombuffer(bytearray(_to_utf8(piece)), dtype=torch.uint8))
                yield piece

    def write_tokens(self, tokens: Iterable[Tokens]) -> TokenizedInput:
        """Store the tokens, reuse windows that were encoded before, and return the tokens mapped from disk."""
        partial, prefix_length = self._partial, len(self.spec.prefix)
        partial.drop("token_ids")
        partial.drop("offsets")
        prefix_offsets = torch.zeros((prefix_length, 2), dtype=torch.int64)
        partial.append("token_ids", torch.tensor(self.spec.prefix, dtype=torch.int32))
        for part in tokens:
            partial.append("token_ids", part.ids.to(torch.int32))
            if part.offsets is not None:
                partial.append("offsets", torch.cat((prefix_offsets, part.offsets)))
                prefix_offsets = prefix_offsets[:0]
        ids = partial.array("token_ids")
        assert ids is not None
        source = TokenizedInput(ids[prefix_length:], torch.tensor(self.spec.prefix, dtype=torch.long), {})
        plan = plan_input_windows(source, self.spec.window_spec)
        self.windows = len(plan)
        self._checksum = InputChecksum(self.spec, ids, plan)
        self._resume(InputChecksum(self.spec, ids, plan))
        if is_memory(partial.folder):
            self._copy_finished(ids, plan)
        return source

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
        inputs = self._checksum.of_windows(windows_done)
        self._partial.checkpoint(windows_done, _STATE_ARRAYS, batch_size=self.batch_size, inputs=inputs)

    def memory(self) -> Memory:
        """The memory as it is on disk so far."""
        states, ids = self._partial.array("states"), self._partial.array("token_ids")
        assert states is not None and ids is not None
        store = ExactStore(states, self._partial.array("scales"))
        first_window = self._partial.array("first_window")
        return Memory(store, ids, self.spec, self.windows, len(self.spec.prefix), first_window=first_window)

    def publish(self, store: ExactStore, locations: tuple[Location, ...] = ()) -> None:
        """Replace an older memory in the folder by this one; `store` is how it is searched."""
        search, search_arrays = store.state_dict()
        for name, array in search_arrays.items():
            self._partial.drop(name)
            self._partial.append(name, array)
        self._partial.publish(describe(self.spec, self.windows, self.batch_size, search, locations))

    def _resume(self, checksum: InputChecksum) -> None:
        """Continue an interrupted run, which must be of the same settings and of nearly the same text."""
        partial = self._partial
        recorded = partial.checkpoints()
        shared = self._shared_with(recorded, checksum)
        shared_windows = shared[-1].done if shared else 0
        if recorded and not self._overwrite:
            all_but_one_batch = recorded[-1].done - recorded[-1].about["batch_size"]  # the last one ends with the text
            if 2 * shared_windows < all_but_one_batch:
                raise MemoryMismatchError(
                    f"{partial.folder} holds the unfinished memory of another text or setting "
                    f"({recorded[-1].done} windows); finish that, remove {partial.folder / 'partial'}, "
                    "or give another path"
                )
        kept = partial.resume(_STATE_ARRAYS, shared)
        if kept is not None:
            self.done, self.batch_size = kept.done, kept.about["batch_size"]
        if self.done < shared_windows:
            _LOG.warning(
                "%s: %d of %d windows of its unfinished memory are damaged and are encoded again",
                *(partial.folder, shared_windows - self.done, shared_windows),
            )

    def _shared_with(self, recorded: list[Checkpoint], checksum: InputChecksum) -> list[Checkpoint]:
        """The checkpoints whose windows the text has as well."""
        shared = []
        for checkpoint in recorded:
            if checkpoint.done > self.windows or checksum.of_windows(checkpoint.done) != checkpoint.about["inputs"]:
                break
            # windows of one batch are encoded together, and always with the same neighbours
            if checkpoint.done == self.windows or checkpoint.done % checkpoint.about["batch_size"] == 0:
                shared.append(checkpoint)
        return shared

    def _copy_finished(self, ids: Tensor, plan: list[Window]) -> None:
        """Copy the windows behind those that are done which the finished memory in the folder shares with the text."""
        memory = self._load_finished(ids)
        if memory is None or (self.done and memory.batch_size != self.batch_size):
            return
        self.batch_size = memory.batch_size or self.batch_size
        shared = self._count_shared(memory, ids, plan)
        arrays = {"states": memory.store.states, "scales": memory.store.scales}
        if shared > self.done == 0 and memory.first_window is not None:
            self._partial.append("first_window", memory.first_window)
        prefix_length, step = len(self.spec.prefix), _COPY_BATCHES * self.batch_size
        first_row = prefix_length + plan[self.done - 1].keep_end if self.done else 0
        while self.done < shared:
            done = min(self.done + step, shared)
            end_row = prefix_length + plan[done - 1].keep_end
            for name, array in arrays.items():
                if array is not None:
                    self._partial.append(name, array[first_row:end_row])
            self.commit(done)
            first_row = end_row

    def _load_finished(self, new_ids: Tensor) -> Memory | None:
        """The finished memory in the folder; None if it is of another kind and may be replaced."""
        folder = self._partial.folder
        may_be_replaced = self._overwrite or self.done > 0  # the run that began this write was allowed to
        try:
            memory = Memory.load(folder)
        except MemoryMismatchError:
            if may_be_replaced:
                return None
            raise
        assert memory.spec is not None
        changes = self.spec.differences(memory.spec)
        if not changes and _is_same_text(memory.token_ids, new_ids):
            return memory
        if may_be_replaced:
            return None
        reason = ", ".join(changes) if changes else "another text"
        raise MemoryMismatchError(
            f"{folder} is a memory made with {reason}; give another path, or allow it to be overwritten (--overwrite)"
        )

    def _count_shared(self, memory: Memory, ids: Tensor, plan: list[Window]) -> int:
        """How many windows of a finished memory the text has as well."""
        prefix = memory.prefix_ids
        old_plan = plan_input_windows(TokenizedInput(memory.text_ids, prefix, {}), self.spec.window_spec)
        common_tokens = _common_length(memory.token_ids, ids) - prefix.shape[0]
        windows = 0
        for old_window, new_window in zip(old_plan, plan, strict=False):
            if old_window != new_window or new_window.end > common_tokens:
                break
            windows += 1
        if windows < len(plan):  # windows of one batch are encoded together, and always with the same neighbours
            windows -= windows % self.batch_size
        return windows


class InputChecksum:
    """A running checksum of what decides the states of the first windows: the settings, and the windows' tokens."""

    def __init__(self, spec: EncodingSpec, token_ids: Tensor, plan: list[Window]) -> None:
        self._token_ids, self._plan, self._prefix_length = token_ids, plan, len(spec.prefix)
        settings = {**spec.to_dict(), "compute_dtype": None}  # it changes states by rounding only
        self._checksum = sha256(json.dumps(settings, sort_keys=True).encode())
        self._windows = self._tokens = 0

    def of_windows(self, windows: int) -> str:
        """The checksum of the first windows, at least as many as in the call before."""
        for window in self._plan[self._windows : windows]:
            end = self._prefix_length + window.end
            self._checksum.update(f"{window.start} {window.keep_end} {end};".encode())
            self._checksum.update(raw_bytes(self._token_ids[self._tokens : end]).data)
            self._tokens = end
        self._windows = windows
        return self._checksum.hexdigest()


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
