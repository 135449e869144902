"""memory.json: the signed description of a memory. It names every array's type, shape and checksum.

Only JSON is read, and every field is checked before it is used.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Any

import torch

from ..errors import MemoryMismatchError, StorageError
from ..utils.jsonl import JSON_ERRORS

FORMAT_VERSION = 2
DESCRIPTION = "memory.json"
_FLOATS = (torch.float16, torch.float32, torch.float64)
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16, *_FLOATS)
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LARGEST_SIZE = 1 << 48
_ARRAY_NAME, _DIGEST = re.compile("[a-z_]+"), re.compile("[0-9a-f]{64}")


def is_memory(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a finished memory."""
    return (Path(folder) / DESCRIPTION).is_file()


def describes_memory(path: Path) -> bool:
    """Whether a file is a memory's description, not just a file of the same name."""
    try:
        description = json.loads(path.read_bytes())
        return isinstance(description, dict) and {"format", "about", "arrays"} <= description.keys()
    except (OSError, *JSON_ERRORS):
        return False


def read_description(folder: Path) -> dict[str, Any]:
    """Read and check the description of a finished memory."""
    path = folder / DESCRIPTION
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if (folder / "partial").exists():
            raise MemoryMismatchError(
                f"{folder} is not finished; run the command that began it again, it continues where it stopped"
            ) from None
        raise MemoryMismatchError(
            f"{folder} is not a memory: it has no {DESCRIPTION}; make one with `unlimiformer index`"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; check the file and its permissions") from None
    damaged = MemoryMismatchError(f"{path} is damaged or was changed by hand; index the text again")
    try:
        description = json.loads(raw.decode("utf-8"))
    except JSON_ERRORS:
        raise damaged from None
    if not isinstance(description, dict):
        raise damaged
    description.pop("sha256", None)
    is_signed = raw == sign(description).encode()
    if not is_signed and description.get("format") != 1:  # the first format carried no checksum of its own
        raise damaged
    if description.get("format") != FORMAT_VERSION:
        raise MemoryMismatchError(
            f"{folder} has memory format {description.get('format')!r}; this version reads {FORMAT_VERSION}: "
            "index the text again"
        )
    if not _is_valid(description):
        raise damaged
    return description


def _is_valid(description: dict[str, Any]) -> bool:
    """Whether the description has the expected types throughout."""
    arrays = description.get("arrays")
    if not isinstance(description.get("about"), dict) or not isinstance(arrays, dict):
        return False
    return all(_ARRAY_NAME.fullmatch(name) and is_valid_entry(entry) for name, entry in arrays.items())


def is_valid_entry(entry: Any) -> bool:
    """Whether the dtype, shape and checksum of an array have the expected types."""
    if not isinstance(entry, dict):
        return False
    dtype, digest, shape = entry.get("dtype"), entry.get("sha256"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES or not isinstance(digest, str) or not isinstance(shape, list):
        return False
    sizes_valid = all(type(size) is int and 0 <= size < _LARGEST_SIZE for size in shape)
    return bool(_DIGEST.fullmatch(digest)) and sizes_valid


def sign(description: dict[str, Any]) -> str:
    """The content of memory.json: the description with its own checksum."""
    body = json.dumps(description, sort_keys=True)
    signature = new_sha256(body.encode()).hexdigest()
    return json.dumps({**description, "sha256": signature}, indent=1, sort_keys=True) + "\n"


def array_file_name(name: str, digest: str) -> str:
    """Name of the file of an array: its name and the beginning of its checksum."""
    return f"{name}-{digest[:12]}.bin"


def byte_count(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """Size of an array in bytes."""
    return dtype.itemsize * math.prod(shape)
