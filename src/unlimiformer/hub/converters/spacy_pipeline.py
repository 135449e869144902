"""A spaCy pipeline needs no conversion: its files are copied."""

from __future__ import annotations

import shutil
from pathlib import Path


def convert(source: Path, out: Path) -> None:
    """Copies the pipeline's folder."""
    shutil.copytree(source, out, dirs_exist_ok=True)
