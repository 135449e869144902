"""Where encoded chunks go: into memories in RAM, or, in `writer.py`, to disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..config import UnlimiformerConfig
from ..datastore import ExactStore
from .encode import EncodedChunk, TokenizedInput
from .memory import EncodingSpec, Memory


class IndexSink(Protocol):
    """Receives the chunks of an input in order."""

    def put(self, chunk: EncodedChunk) -> None:
        """Store the states of one window."""

    def commit(self, windows_done: int) -> None:
        """Record that this many windows are stored: an interrupted run continues from here."""


class RamSink:
    """Memories in RAM, one per input.

    In training, states that require gradients stay in the graph and are joined at the end (`memories`).

    Parameters
    ----------
    inputs : what is encoded.
    windows : number of windows of each input.
    dtypes : dtype of each input's store.
    specs : how each input is encoded; None for memories that are neither saved nor checked.
    """

    def __init__(
        self,
        inputs: Sequence[TokenizedInput],
        windows: Sequence[int],
        dtypes: Sequence[torch.dtype],
        specs: Sequence[EncodingSpec] | None,
        config: UnlimiformerConfig,
    ) -> None:
        self._inputs, self._windows, self._dtypes, self._specs = inputs, windows, dtypes, specs
        self._config = config
        self._memories: list[Memory] = []
        self._graph_states: list[list[Tensor]] = [[] for _ in inputs]

    def put(self, chunk: EncodedChunk) -> None:
        """Store the states of one window; the first chunk of an input creates its memory."""
        index = chunk.input_index
        if index == len(self._memories):
            self._memories.append(self._create_memory(chunk))
        if chunk.states.requires_grad:
            self._graph_states[index].append(chunk.states)
        else:
            self._memories[index].store.put(chunk.start, chunk.states)

    def commit(self, windows_done: int) -> None:
        """Nothing to do: memories in RAM do not survive an interruption."""

    def memories(self) -> list[Memory]:
        """The finished memories, in the order of the inputs."""
        for memory, states in zip(self._memories, self._graph_states, strict=True):
            if states:
                memory.store = ExactStore(torch.cat(states))
        return self._memories

    def _create_memory(self, chunk: EncodedChunk) -> Memory:
        index, source = chunk.input_index, self._inputs[chunk.input_index]
        rows, width = 0 if chunk.states.requires_grad else source.length, chunk.states.shape[1]
        device = self._config.device or chunk.states.device
        return Memory(
            ExactStore.empty(rows, width, self._dtypes[index], device),
            torch.cat((source.prefix, source.ids)).cpu(),
            None if self._specs is None else self._specs[index],
            self._windows[index],
            source.prefix.shape[0],
            first_window=None if chunk.first_window is None else chunk.first_window.clone(),
            batch_size=self._config.batch_size,
        )
