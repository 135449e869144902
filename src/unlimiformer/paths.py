"""Where the library keeps what it makes once for a user: one folder, moved by UNLIMIFORMER_CACHE."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for this library; not created here."""
    if given := os.environ.get("UNLIMIFORMER_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unlimiformer"
