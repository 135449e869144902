"""Where the library keeps what it makes for a user (one folder, moved by UNLIMIFORMER_CACHE); files' hashes, and files
that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for this library; not created here."""
    if given := os.environ.get("UNLIMIFORMER_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unlimiformer"


def sha256(path: Path) -> str:
    """A file's hash, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def folder_size(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def atomic_write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
