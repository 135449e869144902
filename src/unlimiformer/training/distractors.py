"""States of documents that were read before: they stand beside each document, so that a model learns to pass them by.

They are not trained, which makes them cheap: a long input's worth of rivals at the cost of attending to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

Read = tuple[Tensor, Tensor]
"""A document's token ids (S,) and their states (S, D)."""


class Distractors(TrainerCallback):
    """The newest documents, up to `limit` tokens. What a step reads joins them when the step is done."""

    def __init__(self, limit: int, process: int = 0) -> None:
        self._limit, self._file = limit, f"distractors-{process}.safetensors"
        self._read: list[Read] = []
        self._known: list[Read] = []

    def others(self, ids: Tensor) -> Tensor | None:
        """States (n, D) of documents other than this one."""
        found = [states for known, states in self._known if not torch.equal(known, ids.cpu())]
        return torch.cat(found)[: self._limit] if found else None

    def note(self, read: list[Read]) -> None:
        """What was read for a batch."""
        self._read += [(ids.cpu(), states.detach()) for ids, states in read]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Newest first, each document once; the oldest go when the others are enough."""
        self._known = [*reversed(self._read), *(old for old in self._known if not self._read_again(old[0]))]
        self._read, tokens = [], 0
        wanted = self._limit + max((len(ids) for ids, _ in self._known), default=0)  # whichever is left out
        for number, (ids, _states) in enumerate(self._known):
            tokens += len(ids)
            if tokens >= wanted:
                self._known = self._known[: number + 1]
                break

    def begin(self, checkpoint: str | Path | None, device: torch.device) -> None:
        """Those of a checkpoint, or none."""
        self._known, self._read = [], []
        path = None if checkpoint is None else Path(checkpoint) / self._file
        if path is not None and path.is_file():
            kept = load_file(path)
            self._known = [(kept[f"ids{n}"], kept[f"states{n}"].to(device)) for n in range(len(kept) // 2)]

    def save(self, folder: Path) -> None:
        """Into a checkpoint."""
        if self._known:
            folder.mkdir(parents=True, exist_ok=True)
            names = (f"{kind}{n}" for n in range(len(self._known)) for kind in ("ids", "states"))
            arrays = (array.cpu().contiguous() for read in self._known for array in read)
            save_file(dict(zip(names, arrays, strict=True)), folder / self._file)

    def _read_again(self, ids: Tensor) -> bool:
        return any(torch.equal(ids, other) for other, _ in self._read)
