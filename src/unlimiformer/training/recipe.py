"""Recipes: named settings of a training run and of the evaluation that follows it.

The package has the rows of the paper's tables (`recipes/paper.yaml`) and the recipes of its own adapters. A user's
file has the settings of one training, and optionally `rows` that change some of them and `test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError

_FOLDER = Path(__file__).with_name("recipes")
_PAPER = _FOLDER / "paper.yaml"

Settings = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """Settings by name: of `TrainingSettings` in `train`, and of `EvaluationSettings` in `test`.

    `tables` has the numbers of the paper's tables that this is a row of.
    """

    train: Settings
    test: Settings = field(default_factory=dict)
    tables: tuple[int, ...] = ()


def recipes() -> dict[str, Recipe]:
    """All recipes of the package, by name."""
    found = dict(_paper_rows())
    for path in sorted(_FOLDER.glob("*.yaml")):
        if path != _PAPER:
            found |= _read_file(path)
    return found


def read_recipe(name: str) -> Recipe:
    """Read a recipe: NAME of the package, FILE.yaml, or FILE.yaml/ROW for one row of a file."""
    stem, suffix, row = name.partition(".yaml")
    if not suffix:
        available, key = recipes(), name
    else:
        available = _read_file(Path(stem + suffix))
        key = Path(stem).name + row if row else next(iter(available)) if len(available) == 1 else name
    if key not in available:
        raise InputError(
            f"no recipe {name!r}; expected a YAML file, FILE.yaml/ROW, or a name from `unlimiformer recipes`, such as "
            f"{', '.join(list(available)[:3])}"
        )
    return available[key]


def _read_file(path: Path) -> dict[str, Recipe]:
    """Read the recipes of a file by name. Settings outside `rows` apply to every row."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no recipe {str(path)!r}; expected a YAML file, or a name from the package") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"recipe {path} cannot be read: {error}") from None
    if not _is_named(content):
        raise InputError(f"recipe {path} has no names and values; expected lines such as `method: sled`")
    rows = content.pop("rows", None)
    if rows is not None and not (_is_named(rows) and all(_is_named(changes) for changes in rows.values())):
        raise InputError(f"recipe {path}: rows are {str(rows)[:200]!r}; expected names and values for each row")
    named = {path.stem: {}} if rows is None else {f"{path.stem}/{row}": changes for row, changes in rows.items()}
    merged = {name: {**content, **changes} for name, changes in named.items()}
    for name, settings in merged.items():
        if not _is_named(settings.get("test", {})):
            raise InputError(f"recipe {name}: test is {settings['test']!r}; expected names and values")
    return {name: Recipe(test=settings.pop("test", {}), train=settings) for name, settings in merged.items()}


def _is_named(value: Any) -> bool:
    """Whether a value of a YAML file has names and values."""
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _paper_rows() -> Iterator[tuple[str, Recipe]]:
    """The rows of the paper's tables; one that stands in several tables comes once."""
    paper = yaml.safe_load(_PAPER.read_text(encoding="utf-8"))
    tables: dict[tuple[str, str, str], set[int]] = {}
    for group in paper["tables"]:
        for task in group["tasks"]:
            for method in group["methods"]:
                tables.setdefault((task, group["model"], method), set()).update(group["tables"])
    for (task, model, method), numbers in tables.items():
        parts = (paper["all"], paper["tasks"][task], paper["methods"][method])
        train, test = ({k: v for part in parts for k, v in part.get(kind, {}).items()} for kind in ("train", "test"))
        train = {"model": paper["models"][model], "data": task, "validation": task, **train}
        yield f"{task}-{model}/{method}", Recipe(train, {"task": task, **test}, tuple(sorted(numbers)))
