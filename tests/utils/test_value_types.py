"""Values are checked against declared types, and messages say what was expected in plain words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from unlimiformer.errors import InputError
from unlimiformer.utils.value_types import check_types


@dataclass
class _Settings:
    count: int = 1
    share: float | None = None
    name: str = ""
    is_on: bool = False
    layers: tuple[int, ...] = ()
    words: tuple[int, int] = (1, 2)
    columns: dict[str, str] = field(default_factory=dict)
    other: Any = None


@pytest.mark.parametrize(
    "values",
    [
        {"count": 3, "share": 1, "name": "x", "is_on": True, "layers": [1, 2], "words": [1, 2], "columns": {"a": "b"}},
        {"share": None, "layers": (), "columns": {}, "other": object(), "unknown": 5},
    ],
)
def test_values_of_the_declared_types(values):
    check_types(_Settings, values)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", True, "count is 'True'; expected a whole number"),
        ("count", 1.5, "expected a whole number"),
        ("count", None, "expected a whole number"),
        ("share", "0.5", "expected a number"),
        ("name", ["x"], "expected a text"),
        ("is_on", 1, "expected true or false"),
        ("layers", 1, "expected a list of whole numbers"),
        ("layers", [1, "2"], "expected a list of whole numbers"),
        ("words", [1, 2, 3], "expected a list of whole numbers"),
        ("columns", {"a": 1}, "expected names and values"),
        ("columns", [], "expected names and values"),
    ],
)
def test_other_values_are_refused(name, value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check_types(_Settings, {name: value}, "file.yaml")
