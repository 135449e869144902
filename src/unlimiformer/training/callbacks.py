"""Callbacks of a training run: the metrics file, and the random state that makes an interrupted run resumable."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy
import torch
from transformers import TrainerCallback

from ..utils.files import atomic_write
from ..utils.jsonl import read_rows, to_line


class MetricsLog(TrainerCallback):
    """Appends everything the trainer logs to a file, one JSON object on each line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def truncate(self, step: int) -> None:
        """Drop the lines after `step`; a resumed run logs them again."""
        if self._path.is_file():
            rows = [row for row in read_rows(self._path) if row["step"] <= step]
            atomic_write(self._path, "".join(map(to_line, rows)))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Append one line, in the main process only."""
        if state.is_world_process_zero:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")


class RngSnapshot(TrainerCallback):
    """Random state after the last complete step, so that a run interrupted within a step can be resumed exactly."""

    def __init__(self) -> None:
        self._states: tuple[Any, Any, Any] | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the states of the generators of Python, NumPy and PyTorch."""
        self._states = (random.getstate(), numpy.random.get_state(), torch.get_rng_state())

    def save_checkpoint(self, trainer: Any) -> None:
        """Write a checkpoint of the last complete step, unless there is one; the unfinished step will be repeated."""
        folder = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
        if self._states is None or folder.exists():
            return
        python_state, numpy_state, torch_state = self._states
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        trainer._save_checkpoint(trainer.model, trial=None)
