"""Replace a method of a live object and restore it: the only file that assigns a model's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InputError


def refuse_wrapped(module: Any, name: str) -> None:
    """Raise if `replace_method` has replaced this method already."""
    if getattr(module.__dict__.get(name), "_unlimiformer", False):
        raise InputError("the model is wrapped already; call remove() on the other wrapper first")


def replace_method(module: Any, name: str, wrap: Callable[[Callable], Callable]) -> Callable[[], None]:
    """Replace a method by `wrap(method)`; returns a function that restores the original."""
    instance_method = module.__dict__.get(name)  # accelerate and others may have put one there

    def restore() -> None:
        if instance_method is None:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = instance_method

    replacement = wrap(getattr(module, name))
    replacement._unlimiformer = True  # type: ignore[attr-defined]
    setattr(module, name, replacement)
    return restore
