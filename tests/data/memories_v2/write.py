"""Write the memories of this folder with the version of the library before its modules were renamed; see the README."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from conftest import make_tokenizer
from stored_memories import FOLDER, GENERATION, PROMPT, SETTINGS, TEXT, build_model

from unlimiformer import Unlimiformer
from unlimiformer.datastore import cells


def _build_cells(store: Any, queries: torch.Tensor, k: int, recall: float) -> Any:
    """Build cells even if they are not faster: the text is short."""
    return cells.fastest_cells(store, queries, k, recall) or sys.exit("the cells do not reach the recall")


def _stop_at_half(done: int, total: int) -> None:
    if done >= total // 2:
        raise KeyboardInterrupt


def write(name: str, folder: Path) -> dict[str, Any]:
    """Write one memory; returns what was generated from it, and by how much the closest token won."""
    steps: list[torch.Tensor] = []

    def record(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        steps.append(scores[0].clone())
        return scores

    with Unlimiformer(build_model(name), make_tokenizer(), **SETTINGS[name]) as u:
        memory = u.index(TEXT, folder=folder)
        output = u.generate(memory, prompt=PROMPT, logits_processor=[record], **GENERATION)
        if name.endswith("partial"):
            shutil.rmtree(folder)
            with suppress(KeyboardInterrupt):
                u.index(TEXT, folder=folder, progress=_stop_at_half)
    (folder / ".lock").unlink(missing_ok=True)
    margin = min(float(scores.topk(2).values.diff().abs()) for scores in steps)
    print(f"{name}: {memory.store.describe()}; smallest margin {margin:.3f}")
    return output.token_ids.tolist()


if __name__ == "__main__":
    cells.build_cells = _build_cells
    for name in SETTINGS:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    generated = {name: write(name, FOLDER / name) for name in SETTINGS}
    lines = [f" {json.dumps(name)}: {json.dumps(tokens)}" for name, tokens in generated.items()]
    (FOLDER / "generated.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
