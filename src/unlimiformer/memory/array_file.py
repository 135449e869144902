"""Files of arrays: mapped read-only, or written row by row with a running checksum."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from .description import DTYPE_NAMES, byte_count

_BLOCK = 1 << 20  # bytes read at a time


class ArrayFile:
    """An array that rows are appended to.

    Its checksum is that of the rows as they were given, not as the disk returns them: what the disk spoils does not
    get a valid checksum.

    Parameters
    ----------
    row_type : dtype and shape of a row.
    """

    def __init__(self, path: Path, row_type: tuple[torch.dtype, tuple[int, ...]]) -> None:
        self.path, self.row_type = path, row_type
        self.rows = 0
        self._checksum = sha256()
        self._file: BinaryIO | None = None
        self._is_synced = True

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * byte_count(*self.row_type)

    def description(self) -> dict[str, Any]:
        """Dtype, shape and checksum, for JSON."""
        dtype, shape = self.row_type
        return {"dtype": DTYPE_NAMES[dtype], "shape": [self.rows, *shape], "sha256": self._checksum.hexdigest()}

    def append(self, rows: Tensor) -> None:
        """Append rows (n, ...)."""
        assert self.row_type == (rows.dtype, tuple(rows.shape[1:])), "all rows of an array have one type"
        if self._file is None:
            self._file = self.path.open("ab")
        self._is_synced = False
        raw = raw_bytes(rows)
        self._file.write(raw.data)
        self._checksum.update(raw.data)
        self.rows += rows.shape[0]

    def extended(self, rows: int) -> ArrayFile:
        """This array with the rows that the file holds behind it, up to `rows` in total; fewer if the file ends."""
        longer = ArrayFile(self.path, self.row_type)
        longer.rows, longer._checksum = rows, self._checksum.copy()
        left = longer.nbytes - self.nbytes
        with self.path.open("rb") as file:
            file.seek(self.nbytes)
            while left > 0 and (block := file.read(min(_BLOCK, left))):
                longer._checksum.update(block)
                left -= len(block)
        return longer

    def map(self) -> Tensor:
        """Map the rows read-only."""
        if self._file is not None:
            self._file.flush()
        dtype, shape = self.row_type
        return map_array(self.path, dtype, [self.rows, *shape])

    def sync(self) -> None:
        """Wait until all rows are on disk."""
        if self._file is not None and not self._is_synced:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._is_synced = True

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def map_array(path: Path, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Map a file as an array that is read, never written."""
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype)
    numpy_dtype = np.dtype(np.int16) if dtype is torch.bfloat16 else np.dtype(DTYPE_NAMES[dtype])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that the array is not writable
        return torch.from_numpy(np.memmap(path, numpy_dtype.newbyteorder("<"), "r", shape=tuple(shape))).view(dtype)


def raw_bytes(rows: Tensor) -> np.ndarray:
    """The bytes of an array, as they are stored."""
    rows = rows.detach().cpu().contiguous()
    return rows.reshape(-1).view(torch.uint8).numpy() if rows.numel() else np.empty(0, np.uint8)
