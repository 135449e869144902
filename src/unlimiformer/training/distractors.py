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

_NAME = "distractors"


class Distractors(TrainerCallback):
    """The newest states (n, D), at most `limit` of them. What a step reads joins them when the step is done."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._read: list[Tensor] = []
        self.states: Tensor | None = None

    def note(self, read: list[Tensor]) -> None:
        """What was read for a batch."""
        self._read += read

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Newest first; the oldest go."""
        known = [] if self.states is None else [self.states]
        if self._read:
            self.states = torch.cat((*reversed(self._read), *known))[: self._limit].clone()
        self._read = []

    def save(self, folder: Path) -> None:
        """Into a checkpoint."""
        if self.states is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save_file({_NAME: self.states.cpu()}, folder / f"{_NAME}.safetensors")

    def load(self, folder: Path, device: torch.device) -> None:
        """Those of a checkpoint."""
        path = folder / f"{_NAME}.safetensors"
        self.states = load_file(path)[_NAME].to(device) if path.is_file() else None
