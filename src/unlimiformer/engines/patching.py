"""Replaces a method of a live object and restores it: the only file that assigns a model's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnlimiformerError


def refuse_wrapped(module: Any, name: str) -> None:
    """Raises if a method was replaced by `replace_method` before."""
    if getattr(module.__dict__.get(name), "_unlimiformer", False):
        raise UnlimiformerError("the model is wrapped already; call remove() on the other wrapper first")


def replace_method(module: Any, name: str, make: Callable[[Callable], Callable]) -> Callable[[], None]:
    """Puts what `make` makes of a method in its place; returns what puts the method back."""
    own = module.__dict__.get(name)  # accelerate and others may have put one there

    def undo() -> None:
        if own is None:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = own

    replaced = make(getattr(module, name))
    replaced._unlimiformer = True  # type: ignore[attr-defined]
    setattr(module, name, replaced)
    return undo
