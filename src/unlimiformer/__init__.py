"""Unlimited-length input for pretrained transformers: one stored vector per token, and retrieval in every head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import UnlimiformerConfig
    from .errors import InputError, MemoryMismatchError, StorageError, UnlimiformerError, UnsupportedModelError
    from .memory import Memory
    from .model import Output, Unlimiformer

__version__ = "0.1.0"
__all__ = [
    "InputError",
    "Memory",
    "MemoryMismatchError",
    "Output",
    "StorageError",
    "Unlimiformer",
    "UnlimiformerConfig",
    "UnlimiformerError",
    "UnsupportedModelError",
]

_LIGHT = {"UnlimiformerConfig": "config", **{name: "errors" for name in __all__ if name.endswith("Error")}}
_HEAVY = {"Memory": "memory", "Output": "model", "Unlimiformer": "model"}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that importing the package does not load torch."""
    from importlib import import_module

    if name in _LIGHT:
        return getattr(import_module(f".{_LIGHT[name]}", __name__), name)
    if name in _HEAVY:
        from .utils.quiet import without_notices

        with without_notices():
            return getattr(import_module(f".{_HEAVY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
