"""Files are replaced as a whole, also across a power cut."""

from __future__ import annotations

import errno
import os

import pytest

from unlimiformer.errors import StorageError
from unlimiformer.utils.files import atomic_write, friendly_os_errors, is_disk_full, may_pass


def test_a_replaced_file_and_its_folder_are_synced(tmp_path, monkeypatch, synced):
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: synced.append("rename") or replace(*paths))
    atomic_write(tmp_path / "file", "new")
    assert synced == (["file", "rename"] if os.name == "nt" else ["file", "rename", "folder"])
    assert (tmp_path / "file").read_text() == "new"


def test_a_refused_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")

    def refuse(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(
    ("number", "passes", "full"),
    [
        (errno.ENOSPC, True, True),
        (errno.EMFILE, True, False),
        (errno.EAGAIN, True, False),
        (errno.ENOENT, False, False),
        (errno.EISDIR, False, False),
    ],
)
def test_which_failures_may_pass(tmp_path, number, passes, full):
    error = OSError(number, os.strerror(number))
    with pytest.raises(StorageError) as caught, friendly_os_errors(tmp_path):
        raise error
    for raised in (error, caught.value):
        assert may_pass(raised) is passes and is_disk_full(raised) is full
    assert may_pass(StorageError("another process is writing")) and not may_pass(ValueError("wrong"))
