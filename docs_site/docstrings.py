"""The lists of parameters in our docstrings as lists of Markdown, for the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=\n\n|\Z)", re.S | re.M)
PARAMETER = re.compile(r"^([\w*][\w*, ]*) : ", re.M)


def as_markdown(docstring: str) -> str:
    """Return a docstring whose section "Parameters" is a list of Markdown."""
    return SECTION.sub(lambda section: PARAMETER.sub(r"- **\1**: ", section[1]), docstring)


class ParameterLists(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
