"""Distractor states: encoder states of earlier training documents, shown next to each document.

The model learns to ignore them, as it must ignore most of a long input. They carry no gradient, so their only cost is
the attention to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

EncodedDocument = tuple[Tensor, Tensor]
"""A document's token ids (S,) and its encoder states (S, D)."""


class Distractors(TrainerCallback):
    """The most recently encoded documents. Documents of a step are available from the next step on.

    Parameters
    ----------
    limit : number of distractor tokens shown next to one document.
    process : index of this process; each process has its own distractors and its own file in a checkpoint.
    """

    def __init__(self, limit: int, process: int = 0) -> None:
        self._limit, self._file = limit, f"distractors-{process}.safetensors"
        self._pending: list[EncodedDocument] = []  # encoded in the current step
        self._documents: list[EncodedDocument] = []  # of earlier steps, newest first

    def other_states(self, token_ids: Tensor) -> Tensor | None:
        """Return up to `limit` states (n, D) of documents other than the one with these token ids."""
        states = [states for other_ids, states in self._documents if not torch.equal(other_ids, token_ids.cpu())]
        return torch.cat(states)[: self._limit] if states else None

    def record(self, token_ids: Tensor, states: Tensor) -> None:
        """Add a document (S,) and its states (S, D); it becomes a distractor at the end of the step."""
        if not self._is_pending(token_ids.cpu()):  # accumulated batches may repeat a document
            self._pending.append((token_ids.cpu(), states.detach()))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the step's documents in front, and drop the oldest ones that no selection can reach."""
        older = [document for document in self._documents if not self._is_pending(document[0])]
        self._documents = [*reversed(self._pending), *older]
        self._pending, tokens = [], 0
        # `other_states` leaves out one document, at most the longest
        needed = self._limit + max((len(ids) for ids, _ in self._documents), default=0)
        for position, (ids, _states) in enumerate(self._documents):
            tokens += len(ids)
            if tokens >= needed:
                self._documents = self._documents[: position + 1]
                break

    def restore(self, checkpoint: str | Path | None, device: torch.device) -> None:
        """Load the distractors of a checkpoint, or start with none."""
        self._documents, self._pending = [], []
        path = None if checkpoint is None else Path(checkpoint) / self._file
        if path is not None and path.is_file():
            arrays = load_file(path)
            self._documents = [(arrays[f"ids{n}"], arrays[f"states{n}"].to(device)) for n in range(len(arrays) // 2)]

    def save(self, folder: Path) -> None:
        """Save the distractors into a checkpoint folder, if there are any."""
        if self._documents:
            folder.mkdir(parents=True, exist_ok=True)
            names = (f"{kind}{n}" for n in range(len(self._documents)) for kind in ("ids", "states"))
            arrays = (array.cpu().contiguous() for document in self._documents for array in document)
            save_file(dict(zip(names, arrays, strict=True)), folder / self._file)

    def _is_pending(self, ids: Tensor) -> bool:
        return any(torch.equal(ids, pending_ids) for pending_ids, _ in self._pending)
