"""Check values that users write against the types that fields declare; nothing is converted."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..errors import InputError

_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "names and values",
}


def check_types(declared: type, values: Mapping[str, Any], source: str = "") -> None:
    """Raise for the first value that is not of the type that the class `declared` gives the field of its name.

    `source`: begins the message; the file that the values are from.
    """
    hints = get_type_hints(declared)
    for name, value in values.items():
        if name in hints and not has_type(value, hints[name]):
            expected = " or ".join(dict.fromkeys(_describe(hints[name])))
            raise InputError(f"{source}{': ' if source else ''}{name} is {str(value)[:200]!r}; expected {expected}")


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; a list counts as a tuple, a whole number as a number, and a bool as neither."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(has_type(value, part) for part in parts)
    if kind in (list, tuple):
        if not isinstance(value, list | tuple):
            return False
        if kind is tuple and parts and parts[-1] is not Ellipsis:
            return len(value) == len(parts) and all(map(has_type, value, parts))
        return not parts or all(has_type(item, parts[0]) for item in value)
    if kind is dict:
        pairs = value.items() if isinstance(value, dict) and parts else ()
        return isinstance(value, dict) and all(has_type(k, parts[0]) and has_type(v, parts[1]) for k, v in pairs)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _describe(hint: Any) -> list[str]:
    """Words for the types of a hint, without None."""
    kind = get_origin(hint) or hint
    if kind in (Union, types.UnionType):
        return [word for part in get_args(hint) if part is not type(None) for word in _describe(part)]
    inside = get_args(hint)[:1]
    of = f" of {_plural(inside[0])}" if kind in (list, tuple) and inside and inside[0] in _NAMES else ""
    return [_NAMES.get(kind, getattr(kind, "__name__", str(kind))) + of]


def _plural(kind: Any) -> str:
    return f"{_NAMES[kind].removeprefix('a ')}s"
