"""Optional packages: imported where they are used, with an error that names the extra which installs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import MissingPackageError


def require(module: str, extra: str, purpose: str) -> Any:
    """Import `module`, or say that `purpose` needs it and which extra of this package installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = (error.name or module).partition(".")[0]
        raise MissingPackageError(
            f"{purpose} needs the package {missing!r}, which is not installed; "
            f"run: pip install 'unlimiformer-hf[{extra}]'"
        ) from None
