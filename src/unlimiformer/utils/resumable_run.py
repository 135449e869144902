"""Runs that continue where they stopped: rows in a JSON Lines file, the run's settings, and a lock.

Knows nothing about what the rows mean; `batch` and `evaluation` decide that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..errors import InputError, StorageError
from .files import atomic_write, friendly_os_errors
from .jsonl import JSON_ERRORS, append_row, read_rows, to_line

Row = dict[str, Any]

_ESCAPED = "backslashreplace"  # half of a surrogate pair cannot be encoded; JSON can hold it as an escape sequence


class ResumableRun:
    """The rows and the settings of one run, held by one process at a time.

    Nothing but the lock is written before the first `append`, `pin` or `note`. As long as there are no rows, the run
    can be started anew with other settings.
    """

    def __init__(self, rows: Path, settings: Path, identity: dict[str, Any]) -> None:
        self.path = rows
        self._settings_path = settings
        self._settings = _as_json(identity)
        self._settings_saved = False
        self._file: TextIO | None = None

    @classmethod
    @contextmanager
    def open(cls, rows: Path, settings: Path, identity: dict[str, Any]) -> Iterator[ResumableRun]:
        """Lock a run and check that it was started with the same settings.

        Parameters
        ----------
        rows : JSON Lines file of the results; the lock is next to it, as `<rows>.lock`.
        settings : JSON file of the settings.
        identity : settings that determine the rows. A run that was started with other values is refused.
        """
        lock = _acquire_lock(rows)
        try:
            run = cls(rows, settings, identity)
            run._resume()
            try:
                yield run
            finally:
                run._close_rows()
        finally:
            lock.release()

    @property
    def settings(self) -> dict[str, Any]:
        """The identity, and what was added by `pin` and `note`, also by earlier processes."""
        return dict(self._settings)

    def rows(self) -> Iterator[Row]:
        """Read all rows from the file; an incomplete last row is removed."""
        return read_rows(self.path)

    def append(self, row: Row) -> None:
        """Append one row and flush."""
        if not self._settings_saved:  # rows without settings could not be continued
            self._save_settings()
        with friendly_os_errors(self.path, resumable=True):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8", errors=_ESCAPED)
            append_row(self._file, row)

    def rewrite(self, keep: Callable[[Row], bool]) -> None:
        """Replace the file by one that has only the rows for which `keep` is true."""
        part = self.path.with_name(self.path.name + ".part")
        with friendly_os_errors(self.path, resumable=True):
            with part.open("w", encoding="utf-8", errors=_ESCAPED) as file:
                file.writelines(to_line(row) for row in self.rows() if keep(row))
            self._close_rows()
            part.replace(self.path)

    def pin(self, name: str, value: Any, hint: str = "") -> None:
        """Add to the identity what becomes known only after the start; a later, different value is refused.

        `hint` is added to the message and says what a different value means.
        """
        stored, value = self._settings.get(name), _as_json(value)
        if stored not in (None, value):
            raise InputError(
                f"{self.path} was started with {name} {stored!r}, and now it is {value!r}{hint and f': {hint}'}; "
                "continue with the first, or choose another output"
            )
        if stored is None:
            self.note(name, value)

    def pin_model(self, digest: str) -> None:
        """Pin the digest of the model's weights, which is known once the model is loaded."""
        hint = "the weights differ, or their precision does, as on a machine without bfloat16"
        self.pin("model_digest", digest, hint)

    def note(self, name: str, value: Any) -> None:
        """Store a value with the settings; it may change and is not compared."""
        self._settings[name] = _as_json(value)
        self._save_settings()

    def _resume(self) -> None:
        """Take over the stored settings if there are rows."""
        if not (self.path.exists() and self.path.stat().st_size > 0):
            return
        stored = self._load_settings()
        if differences := _describe_differences(stored, self._settings):
            raise InputError(
                f"{self.path} was started with {differences}; give these settings, or choose another output"
            )
        self._settings, self._settings_saved = stored, True

    def _load_settings(self) -> dict[str, Any]:
        if not self._settings_path.exists():
            raise InputError(
                f"{self.path} exists without {self._settings_path.name}: it was not written by a run; choose another "
                "output"
            )
        try:
            settings = json.loads(self._settings_path.read_text(encoding="utf-8"))
        except (OSError, *JSON_ERRORS):
            settings = None
        if not isinstance(settings, dict):
            raise InputError(f"{self._settings_path} cannot be read as the settings of a run; choose another output")
        return settings

    def _save_settings(self) -> None:
        with friendly_os_errors(self._settings_path, resumable=True):
            atomic_write(self._settings_path, json.dumps(self._settings, indent=1) + "\n")
        self._settings_saved = True

    def _close_rows(self) -> None:
        if self._file is not None:
            with friendly_os_errors(self.path, resumable=True):  # after a full disk, closing fails as writing did
                self._file.close()
            self._file = None


def _acquire_lock(path: Path) -> Any:
    from filelock import FileLock, Timeout

    with friendly_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:  # itself an OSError, so it is handled before `friendly_os_errors` sees it
            raise StorageError(
                f"another run is writing {path}; wait until it has finished, or choose another output"
            ) from None
    return lock


def _describe_differences(stored: dict[str, Any], expected: dict[str, Any]) -> str:
    """List the stored values that differ from the expected ones, as "name value"; empty if all agree."""
    names = [name for name, value in expected.items() if stored.get(name) != value]
    return ", ".join(f"{name} {stored.get(name)!r}" for name in names)


def _as_json(value: Any) -> Any:
    """Convert a value to what reading it back from JSON gives: tuples become lists, keys strings."""
    return json.loads(json.dumps(value))
