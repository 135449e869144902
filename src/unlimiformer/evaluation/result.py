"""What an evaluation found, and its file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from .bootstrap import Interval

FILE = "result.json"


@dataclass(frozen=True)
class Result:
    """What a run found: means with their bounds, the scores (n,) of every item, and all that decided them.

    `documents` numbers the document of each item. `peak_bytes` is of the process that wrote the last answer.
    """

    task: str
    task_version: int
    metrics: dict[str, Interval]
    scores: dict[str, list[float]]
    keys: list[str]
    documents: list[int]
    settings: dict[str, Any]
    by_seed: dict[str, dict[str, float]]
    left_out: list[str]
    seconds: float
    peak_bytes: int
    versions: dict[str, str]

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """From its file, or from the folder of its run."""
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            told["metrics"] = {name: Interval(**each) for name, each in told["metrics"].items()}
            told["scores"] = {
                name: [math.nan if score is None else score for score in scores]
                for name, scores in told["scores"].items()
            }
            return cls(**told)
        except OSError as error:
            raise UnlimiformerError(
                f"cannot read {file}: {error.strerror}; expected what `unlimiformer evaluate` wrote"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UnlimiformerError(f"{file} is no result; expected what `unlimiformer evaluate` wrote") from None

    def to_json(self) -> str:
        """All of it."""
        told = asdict(self)
        told["scores"] = {
            name: [None if math.isnan(score) else score for score in scores] for name, scores in self.scores.items()
        }
        return json.dumps(told, indent=1) + "\n"
