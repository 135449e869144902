"""The result of an evaluation, and the JSON file that holds it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..utils.jsonl import JSON_ERRORS
from .bootstrap import Interval

FILE = "result.json"


@dataclass(frozen=True)
class Result:
    """Scores of an evaluation, with everything that determined them. The fields are the keys of its file.

    Parameters
    ----------
    metrics : mean and confidence interval of each metric.
    scores : one score per item, for each metric; NaN where an item has none.
    keys : identifier of each item.
    documents : number of each item's document.
    by_seed : means of each metric for every seed.
    left_out : messages about malformed lines that were skipped.
    seconds : time of all answers.
    peak_bytes : peak memory of the process that wrote the last answer.
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
        """Read a result from its file, or from the folder of its run."""
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        expected = "expected the file that `unlimiformer evaluate` wrote"
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror}; {expected}") from None
        except JSON_ERRORS as error:
            raise InputError(f"{file} is no result ({error}); {expected}") from None
        if not isinstance(values, dict):
            raise InputError(f"{file} is no result: it holds no JSON object; {expected}")
        if mismatch := values.keys() ^ {field.name for field in fields(cls)}:
            raise InputError(f"{file} is no result: the key {min(mismatch)} is unknown or missing; {expected}")
        try:
            values["metrics"] = {name: Interval(**interval) for name, interval in values["metrics"].items()}
            values["scores"] = {
                name: [math.nan if score is None else float(score) for score in scores]
                for name, scores in values["scores"].items()
            }
            lengths = {len(column) for column in (values["keys"], values["documents"], *values["scores"].values())}
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{file} is no result: metrics or scores are malformed ({error}); {expected}") from None
        if len(lengths) > 1:
            raise InputError(f"{file} is no result: keys, documents and scores differ in length; {expected}")
        return cls(**values)

    def to_json(self) -> str:
        """Serialize all fields; NaN becomes null."""
        values = asdict(self)
        values["scores"] = {
            name: [None if math.isnan(score) else score for score in scores] for name, scores in self.scores.items()
        }
        return json.dumps(values, indent=1) + "\n"
