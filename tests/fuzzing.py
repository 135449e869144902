"""Damaged inputs for property tests: sound values in which something was changed, and sound files with other bytes.

`UNLIMIFORMER_FUZZ=20000` makes so many examples of each test, at random; otherwise there are few, always the same.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

REQUESTED = os.environ.get("UNLIMIFORMER_FUZZ")
EXAMPLES = int(REQUESTED or 150)
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=REQUESTED is None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""Settings of the tests."""

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([-1, 1 << 31, -(1 << 31), 1 << 62, 1 << 70, 1e308, -0.5, float("nan"), float("inf")]),
    st.sampled_from(["", " ", "exact", "float32", "int64", "../states", "0" * 64, "\ud83d", "\x00", "{question.x}"]),
    st.sampled_from([[], [0], [[]], [None], {}, {"a": 1}, [-1, 16], [1 << 40, 1 << 40], [1, 1, 1], [["a", "b"]]]),
)
"""Values where others are expected."""
_ACTIONS = st.sampled_from(["replace", "replace", "remove", "double", "negate", "rename"])
_DEEP = [b"[" * 3_000, b"[" * 3_000 + b"\n", b'{"a":' * 3_000]


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of every value inside another one."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, part in inside for place in places(part, (*path, key))]


@st.composite
def changed(draw: Any, value: Any) -> tuple[Any, tuple]:
    """A copy in which the value at one place is changed, and that place."""
    result, place = copy.deepcopy(value), draw(st.sampled_from(places(value)))
    action, odd, parent = draw(_ACTIONS), draw(ODD), result
    for key in place[:-1]:
        parent = parent[key]
    old = parent[place[-1]]
    if action == "remove":
        del parent[place[-1]]
    elif action == "rename" and isinstance(parent, dict):
        parent[f"{place[-1]}x"] = parent.pop(place[-1])
    elif action == "double" and isinstance(old, int | float | list):
        parent[place[-1]] = old * 2
    elif action == "negate" and isinstance(old, int | float):
        parent[place[-1]] = -old
    else:
        parent[place[-1]] = odd
    return result, place


@st.composite
def damaged_bytes(draw: Any, data: bytes) -> bytes:
    """A copy of a file with some bytes changed, cut off, repeated, or put in."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 6))):
        position = draw(st.integers(0, max(0, len(result) - 1)))
        action = draw(st.sampled_from(["change", "change", "insert", "remove", "repeat", "cut"]))
        if action == "change" and result:
            result[position] = draw(st.integers(0, 255))
        elif action == "insert":
            result[position:position] = draw(
                st.one_of(st.binary(max_size=8), st.sampled_from([b'"', b"[", b"{", b"\x00", b"\n", b"<", b"\xff"]))
            )
        elif action == "remove":
            del result[position : position + draw(st.integers(1, 40))]
        elif action == "repeat":
            result[position:position] = result[position : position + draw(st.integers(1, 200))]
        elif action == "cut":
            del result[position:]
    return bytes(result)


def damaged_files(samples: Sequence[Any], dump: Callable[[Any], str] = json.dumps) -> st.SearchStrategy[bytes]:
    """Files of samples in which a value is odd, or bytes are damaged, or which are something else altogether."""

    def write(value: Any) -> bytes:
        return dump(value).encode("utf-8", "surrogatepass")

    sample = st.sampled_from(list(samples))
    odd = sample.flatmap(lambda value: changed(value)).map(lambda pair: write(pair[0]))
    return st.one_of(
        odd,
        odd.flatmap(lambda content: changed_or_same(content)),
        sample.flatmap(lambda value: damaged_bytes(write(value))),
        st.binary(max_size=50),
        st.sampled_from([b"", b"null", b"1", b'""', b"[]", b"{}", b"{}\n[]", b"\xff\xfe", *_DEEP]),
    )


def changed_or_same(content: bytes) -> st.SearchStrategy[bytes]:
    """A file with or without damaged bytes."""
    return st.one_of(st.just(content), damaged_bytes(content))
