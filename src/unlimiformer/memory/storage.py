"""A folder of named arrays with a signed description: written piece by piece, resumed, checked, mapped into memory.

`memory.json` names every array's type, shape and checksum and carries its own. Files are named after their contents and
appear before the description that names them, so that an older memory is good until the moment a newer one is whole.
What is not finished lies in `partial/` with a journal of how far it came. Only numbers and JSON are ever read: nothing
in a folder can be executed. Knows nothing of models, tokens or windows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import UnlimiformerError
from ..utils.files import atomic_write, friendly_os_errors, sha256

FORMAT_VERSION = 2
DESCRIPTION = "memory.json"
_FLOATS = (torch.float16, torch.float32, torch.float64)
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16, *_FLOATS)
}
_NAME, _DIGEST = re.compile("[a-z_]+"), re.compile("[0-9a-f]{64}")
_OURS = re.compile(r"[a-z_]+-[0-9a-f]{12}\.bin(\.part)?|memory\.json\.part")
_LEFT_BY_US = re.compile(rf"\.lock|partial|{_OURS.pattern}")
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def is_memory(folder: str | os.PathLike[str]) -> bool:
    """Whether a finished memory is there."""
    return (Path(folder) / DESCRIPTION).is_file()


def describes_memory(path: Path) -> bool:
    """Whether a file is a memory's description, and not one that only has its name."""
    try:
        told = json.loads(path.read_bytes())
        return isinstance(told, dict) and {"format", "about", "arrays"} <= told.keys()
    except (OSError, ValueError):
        return False


def read(folder: Path, verify: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a finished folder says about itself, and its arrays, mapped read-only."""
    description = _read_description(folder)
    arrays = {}
    for name, told in description["arrays"].items():
        path = folder / _file_name(name, told["sha256"])
        dtype, shape = _DTYPES[told["dtype"]], told["shape"]
        size = _bytes(dtype, shape)
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise UnlimiformerError(
                f"{folder} lacks {path.name}: the memory is damaged; index the text again"
            ) from None
        if found != size:
            raise UnlimiformerError(
                f"{path} has {found} bytes; expected {size}: the memory is damaged; index the text again"
            )
        if verify and sha256(path) != told["sha256"]:
            raise UnlimiformerError(f"{path} does not match its checksum: the memory is damaged; index the text again")
        arrays[name] = _mapped(path, dtype, shape)
    return description["about"], arrays


def array_path(folder: Path, name: str) -> Path | None:
    """Where a finished folder keeps an array; None if it has none of that name."""
    told = _read_description(folder)["arrays"].get(name)
    return None if told is None else folder / _file_name(name, told["sha256"])


def write(folder: Path, about: dict[str, Any], arrays: dict[str, Tensor]) -> None:
    """Writes arrays at once; whatever finished memory was there stays good until these are whole."""
    with PartialWrite.open(folder) as draft:
        if draft.journal().get("done"):
            raise UnlimiformerError(f"{folder} holds an unfinished memory; finish it, or remove {folder / 'partial'}")
        draft.restart()
        for name, array in arrays.items():
            draft.append(name, array)
        draft.finish(about)


class PartialWrite:
    """Arrays on their way to disk, row by row. One process at a time may hold a folder's draft."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._partial = folder, folder / "partial"
        self._files: dict[str, BinaryIO] = {}
        self._shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self.completed = False
        """Whether the last run got as far as putting its memory in place, and only left its draft behind."""

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[PartialWrite]:
        """Takes the folder's draft, or explains why it cannot be had; what was recorded stays, whatever happens."""
        from filelock import FileLock, Timeout

        if folder.exists() and not (is_memory(folder) or _is_draft(folder)):
            raise UnlimiformerError(f"{folder} exists and is not a memory; give another path")
        with friendly_os_errors(folder, resumable=True):
            (folder / "partial").mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise UnlimiformerError(
                    f"another process is writing {folder}; wait for it to end, or give another path"
                ) from None
            draft = cls(folder)
            draft.completed = draft._was_completed()
            if draft.completed:
                draft.discard()
            (folder / "partial").mkdir(exist_ok=True)
            try:
                yield draft
            finally:
                draft._close()
                if not draft.journal().get("done"):
                    draft.discard()
                lock.release()
                if not is_memory(folder) and _is_draft(folder) and not (folder / "partial").exists():
                    shutil.rmtree(folder, ignore_errors=True)

    def journal(self) -> dict[str, Any]:
        """What was recorded last; empty if nothing was."""
        try:
            found = json.loads((self._partial / "journal.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def restart(self) -> None:
        """Forgets all that was drafted."""
        self.discard()
        self._partial.mkdir()

    def discard(self) -> None:
        """Leaves no draft behind."""
        self._close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def keep(self, name: str, like: tuple[str, list[int]]) -> None:
        """Goes on with an array of an earlier run; `like` is what the journal says of a row."""
        self._shapes[name] = (_DTYPES[like[0]], tuple(like[1]))

    def shorten(self, name: str, rows: int) -> None:
        """Leaves the first rows of an array."""
        dtype, shape = self._shapes[name]
        path, size = self._path(name), rows * _bytes(dtype, shape)
        if path.stat().st_size < size:
            raise UnlimiformerError(f"{path} is shorter than its journal says; remove {self._partial} and start again")
        if path.stat().st_nlink > 1:  # a run that stopped in its last step has given it to the folder already
            shutil.copyfile(path, path.with_suffix(".own"))
            os.replace(path.with_suffix(".own"), path)
        os.truncate(path, size)

    def append(self, name: str, rows: Tensor) -> None:
        """Adds rows (n, ...) to an array; the first decide its type."""
        dtype, shape = self._shapes.setdefault(name, (rows.dtype, tuple(rows.shape[1:])))
        assert dtype == rows.dtype and shape == tuple(rows.shape[1:]), "an array's rows are all alike"
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = self._path(name).open("ab")
        file.write(_bytes_of(rows).data)

    def drop(self, name: str) -> None:
        """Removes an array."""
        file = self._files.pop(name, None)
        if file is not None:
            file.close()
        self._path(name).unlink(missing_ok=True)
        self._shapes.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        """Puts an array in the place of another, in one step; where there is none, the other goes."""
        if name not in self._shapes:
            self.drop(to)
            return
        for file in (self._files.pop(name, None), self._files.pop(to, None)):
            if file is not None:
                _flush(file)
                file.close()
        os.replace(self._path(name), self._path(to))
        self._shapes[to] = self._shapes.pop(name)

    def mapped(self, name: str) -> Tensor | None:
        """An array as far as it is written; None if there is none."""
        if name not in self._shapes:
            return None
        if name in self._files:
            self._files[name].flush()
        dtype, shape = self._shapes[name]
        rows = self._path(name).stat().st_size // _bytes(dtype, shape)
        return _mapped(self._path(name), dtype, [rows, *shape])

    def record(self, done: int, **journal: Any) -> None:
        """Writes down how far the draft came, once all of it is safe on disk; one with nothing done is not kept."""
        for file in self._files.values():
            _flush(file)
        journal["done"] = done
        journal["rows"] = {name: [_NAMES[dtype], list(shape)] for name, (dtype, shape) in self._shapes.items()}
        atomic_write(self._partial / "journal.json", json.dumps(journal))

    def finish(self, about: dict[str, Any]) -> None:
        """Puts the draft in the place of what was in the folder before."""
        for file in self._files.values():
            _flush(file)
        arrays: dict[str, Any] = {}
        for name in sorted(self._shapes):
            array = self.mapped(name)
            assert array is not None
            dtype = _NAMES[array.dtype]
            arrays[name] = {"dtype": dtype, "shape": list(array.shape), "sha256": sha256(self._path(name))}
        self._close()
        for name, told in arrays.items():
            _link(self._path(name), self.folder / _file_name(name, told["sha256"]))
        description = {"format": FORMAT_VERSION, "about": about, "arrays": arrays}
        written = _signed(description)
        atomic_write(self._partial / "finished", new_sha256(written.encode()).hexdigest())
        atomic_write(self.folder / DESCRIPTION, written)
        wanted = {_file_name(name, told["sha256"]) for name, told in arrays.items()}
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in wanted:
                path.unlink()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _was_completed(self) -> bool:
        try:
            return (self._partial / "finished").read_text() == sha256(self.folder / DESCRIPTION)
        except FileNotFoundError:
            return False

    def _path(self, name: str) -> Path:
        return self._partial / f"{name}.bin"

    def _close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if (folder / "partial").exists():
            raise UnlimiformerError(
                f"{folder} is not finished; run the command that began it again, it goes on where it stopped"
            ) from None
        raise UnlimiformerError(
            f"{folder} is not a memory: it has no {DESCRIPTION}; make one with `unlimiformer index`"
        ) from None
    damaged = UnlimiformerError(f"{path} is damaged or was changed by hand; index the text again")
    try:
        description = json.loads(raw.decode("utf-8"))
    except ValueError:
        raise damaged from None
    if not isinstance(description, dict):
        raise damaged
    description.pop("sha256", None)
    signed = raw == _signed(description).encode()
    if not signed and description.get("format") != 1:  # the first format carried no checksum of its own
        raise damaged
    if description.get("format") != FORMAT_VERSION:
        raise UnlimiformerError(
            f"{folder} has memory format {description.get('format')!r}; this version reads {FORMAT_VERSION}: "
            "index the text again"
        )
    if not all(_NAME.fullmatch(name) and _told_well(told) for name, told in description["arrays"].items()):
        raise damaged
    return description


def _told_well(told: dict[str, Any]) -> bool:
    shape = told["shape"]
    return told["dtype"] in _DTYPES and bool(_DIGEST.fullmatch(told["sha256"])) and all(size >= 0 for size in shape)


def _signed(description: dict[str, Any]) -> str:
    body = json.dumps(description, sort_keys=True)
    signature = new_sha256(body.encode()).hexdigest()
    return json.dumps({**description, "sha256": signature}, indent=1, sort_keys=True) + "\n"


def _file_name(name: str, digest: str) -> str:
    return f"{name}-{digest[:12]}.bin"


def _mapped(path: Path, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    plain = np.dtype(np.int16) if dtype is torch.bfloat16 else np.dtype(_NAMES[dtype])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that it cannot keep others from writing
        return torch.from_numpy(np.memmap(path, plain.newbyteorder("<"), "r", shape=tuple(shape))).view(dtype)


def _bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def _bytes_of(rows: Tensor) -> np.ndarray:
    rows = rows.detach().cpu().contiguous()
    return rows.reshape(-1).view(torch.uint8).numpy() if rows.numel() else np.empty(0, np.uint8)


def _link(path: Path, target: Path) -> None:
    """Gives a file a second name, or a second body where the file system knows no second names."""
    between = target.with_name(target.name + ".part")
    between.unlink(missing_ok=True)
    try:
        os.link(path, between)
    except OSError:
        shutil.copyfile(path, between)
    os.replace(between, target)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _is_draft(folder: Path) -> bool:
    """Whether a folder holds nothing but a draft, or nothing."""
    return folder.is_dir() and all(_LEFT_BY_US.fullmatch(path.name) for path in folder.iterdir())
