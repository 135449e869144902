"""Options of `unlimiformer train` that are read from texts."""

from __future__ import annotations

import pytest

from unlimiformer.cli.train import _parse_fields
from unlimiformer.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("1e-6", 1e-6),
        ("3", 3),
        ("[a, b]", ["a", "b"]),
        ("cosine", "cosine"),
    ],
)
def test_fields_of_the_trainer_are_read_as_they_are_written(text, value):
    assert _parse_fields([f"key={text}"]) == {"key": value}


def test_a_field_without_a_value_is_refused():
    with pytest.raises(InputError, match="--trainer is 'bf16'; expected KEY=VALUE"):
        _parse_fields(["bf16"])
