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
        ("infinity", "infinity"),
        ("-2.5E3", -2500.0),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_fields_of_the_trainer_are_read_as_they_are_written(text, value):
    assert _parse_fields([f"key={text}"]) == {"key": value}


@pytest.mark.parametrize("value", ["[1", "a: b: c", "{"])
def test_a_value_that_is_no_yaml_is_one_error(value):
    with pytest.raises(InputError, match="its value cannot be read: put it in quotation marks"):
        _parse_fields([f"run_name={value}"])


def test_a_field_without_a_value_is_refused():
    with pytest.raises(InputError, match="--trainer is 'bf16'; expected KEY=VALUE"):
        _parse_fields(["bf16"])
