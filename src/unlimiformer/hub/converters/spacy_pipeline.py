"""Converter of spaCy pipelines: they need no conversion, their files are copied."""

from __future__ import annotations

import shutil
from pathlib import Path


def convert(source: Path, out: Path) -> None:
    """Copy the folder of the pipeline."""
    shutil.copytree(source, out, dirs_exist_ok=True)
