"""Unlimited-length input for pretrained transformers: encode in windows, keep one vector a token, retrieve per head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import UnlimiformerConfig
    from .errors import UnlimiformerError, UnsupportedModelError
    from .memory.memory import Memory
    from .model import Output, Unlimiformer

__version__ = "0.1.0"
__all__ = ["Memory", "Output", "Unlimiformer", "UnlimiformerConfig", "UnlimiformerError", "UnsupportedModelError"]

_HOMES = {
    "Memory": "memory",
    "Output": "model",
    "Unlimiformer": "model",
    "UnlimiformerConfig": "config",
    "UnlimiformerError": "errors",
    "UnsupportedModelError": "errors",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that importing the package does not load torch."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
