"""Training of the decoder alone: every input is encoded once, and later epochs read its memory from disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..memory import Memory
from ..memory.description import DESCRIPTION
from ..model import Unlimiformer


class FrozenEncoder:
    """Freezes the encoder of a wrapped model, and keeps memories of its inputs in a folder.

    The token embedding is frozen too where the decoder shares it. Memories are found by their tokens and by everything
    that decides their states, so that several trainings can share a folder.
    """

    def __init__(self, wrapped: Unlimiformer, folder: Path) -> None:
        self._engine, self._folder = wrapped.engine, folder
        self._loaded: dict[str, Memory] = {}
        for parameter in self._engine.encoder_parameters:
            parameter.requires_grad_(False)

    def encoder_outputs(self, documents: Sequence[Tensor], prefixes: Sequence[Tensor] | None) -> dict[str, Any]:
        """Arguments with which the model attends to documents (n,), each with a prefix (m,) before every window."""
        prefixes = [document[:0] for document in documents] if prefixes is None else prefixes
        return self._engine.encoder_outputs([self.memory(*row) for row in zip(documents, prefixes, strict=True)])

    def memory(self, ids: Tensor, prefix: Tensor) -> Memory:
        """The memory of an input: from the folder, or encoded now."""
        name = self._engine.memory_name(ids, prefix)
        if name not in self._loaded:
            place = self._folder / name
            if not (place / DESCRIPTION).is_file():
                self._engine.index_ids(ids, prefix, saveable=True).save(place)
            self._loaded[name] = Memory.load(place, verify=False)
        return self._loaded[name]
