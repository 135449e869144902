"""Unfinished memories: what an interrupted run left behind is compared with its checksums before it is continued."""

from __future__ import annotations

import os
import random
import resource
import shutil
from pathlib import Path

import pytest
from conftest import make_book
from memory_helpers import Interrupted, contents, interrupt_call, stop_after, windows_recorded

from unlimiformer import Memory
from unlimiformer.errors import MemoryMismatchError, StorageError

_DONE = 24  # windows of the unfinished memory, in three batches


@pytest.fixture
def book():
    return make_book(700)


@pytest.fixture
def whole(wrapped, book, tmp_path):
    """The files of the memory of an undisturbed run."""
    wrapped.index(book, folder=tmp_path / "whole")
    return contents(tmp_path / "whole")


@pytest.fixture
def unfinished(wrapped, book, tmp_path):
    """Make copies of an unfinished memory."""
    with pytest.raises(Interrupted):
        wrapped.index(book, folder=tmp_path / "unfinished", progress=stop_after(_DONE - 1))
    assert windows_recorded(tmp_path / "unfinished") == _DONE

    def copy() -> Path:
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        return shutil.copytree(tmp_path / "unfinished", tmp_path / "m")

    return copy


def _finish(wrapped, book, folder) -> int:
    """Continue an unfinished memory and return how many windows were kept."""
    progress = []
    wrapped.index(book, folder=folder, progress=lambda done, total: progress.append(done))
    return progress[0]


def _flip(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def test_no_flipped_bit_of_an_unfinished_memory_gets_into_the_finished_one(wrapped, book, unfinished, whole):
    generator = random.Random(11)
    for name in sorted(path.name for path in (unfinished() / "partial").iterdir()):
        for _ in range(8):
            path = unfinished() / "partial" / name
            position, bit = generator.randrange(path.stat().st_size), generator.randrange(8)
            _flip(path, position, bit)
            _finish(wrapped, book, path.parents[1])
            assert contents(path.parents[1]) == whole, (name, position, bit)


@pytest.mark.parametrize("name", ["states", "scales"])
def test_only_what_is_behind_the_damage_is_encoded_again(wrapped, book, unfinished, whole, name, caplog):
    for batch in range(3):
        path = unfinished() / "partial" / f"{name}.bin"
        _flip(path, path.stat().st_size * (2 * batch + 1) // 6, 4)
        assert _finish(wrapped, book, path.parents[1]) == 8 * batch
        assert f"{_DONE - 8 * batch} of {_DONE} windows of its unfinished memory are damaged" in caplog.text
        assert contents(path.parents[1]) == whole


def test_an_undamaged_unfinished_memory_is_kept_whole_and_without_a_word(wrapped, book, unfinished, whole, caplog):
    assert _finish(wrapped, book, unfinished()) == _DONE
    assert caplog.text == ""


def test_a_damaged_checkpoint_makes_no_other_one_useless(wrapped, book, unfinished, whole, caplog):
    folder = unfinished()
    _flip(folder / "partial" / "checkpoints.jsonl", 200, 0)
    assert _finish(wrapped, book, folder) == _DONE
    assert "1 lines of its checkpoints are damaged" in caplog.text
    assert contents(folder) == whole


def test_a_short_or_missing_file_is_noticed(wrapped, book, unfinished, whole):
    for name in sorted(path.name for path in (unfinished() / "partial").iterdir()):
        for share in (0, 0.5, 0.9):
            path = unfinished() / "partial" / name
            os.truncate(path, int(path.stat().st_size * share))
            if share == 0:
                path.unlink()
            assert _finish(wrapped, book, path.parents[1]) <= _DONE
            assert contents(path.parents[1]) == whole, (name, share)


def test_what_the_disk_spoils_during_a_run_does_not_get_a_valid_checksum(wrapped, book, tmp_path):
    def spoil(done: int, total: int) -> None:
        if done == total:
            states = tmp_path / "m" / "partial" / "states.bin"
            with states.open("r+b") as file:  # the same file, as the run has it open
                first = file.read(1)
                file.seek(0)
                file.write(bytes([first[0] ^ 1]))

    wrapped.index(book, folder=tmp_path / "m", progress=spoil)
    with pytest.raises(MemoryMismatchError, match="does not match its checksum"):
        Memory.load(tmp_path / "m")


def test_a_text_that_was_changed_behind_the_windows_that_are_done_continues(wrapped, book, unfinished):
    folder = unfinished()
    changed = book[: len(book) // 2] + make_book(400)
    assert 0 < _finish(wrapped, changed, folder) <= _DONE
    assert Memory.load(folder).text == changed


def test_the_same_command_with_overwrite_continues(wrapped, book, unfinished, whole):
    progress = []
    folder = unfinished()
    wrapped.index(book, folder=folder, overwrite=True, progress=lambda done, total: progress.append(done))
    assert progress[0] == _DONE and contents(folder) == whole


def test_damaged_windows_that_the_finished_memory_has_are_copied_from_it_again(wrapped, book, tmp_path):
    wrapped.index(book[:3000], folder=tmp_path / "m")
    wrapped.index(book, folder=tmp_path / "whole")
    with pytest.raises(Interrupted):
        wrapped.index(book, folder=tmp_path / "m", progress=stop_after(0))
    copied = windows_recorded(tmp_path / "m")
    _flip(tmp_path / "m" / "partial" / "states.bin", 100, 3)
    assert _finish(wrapped, book, tmp_path / "m") == copied > 0
    assert contents(tmp_path / "m") == contents(tmp_path / "whole")


def test_with_too_many_open_files_the_windows_that_are_done_are_kept(wrapped, book, unfinished, whole):
    folder = unfinished()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = 0
    for allowed in range(40):
        highest = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
        os.close(highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + allowed, limits[1]))
        try:
            wrapped.index(book, folder=folder)
            break
        except StorageError as error:
            refused += 1
            message = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert "too many files are open" in message and "the same command" in message
        assert windows_recorded(folder) >= _DONE
    assert refused >= 3, "several steps were refused"
    assert contents(folder) == whole


def test_a_full_disk_while_continuing_keeps_what_is_done(wrapped, book, unfinished, whole, monkeypatch):
    folder = unfinished()
    for name in ("fsync", "replace", "truncate"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, interrupt_call(getattr(os, name), 1, error=OSError(28, "No space left on device")))
            with pytest.raises(StorageError, match="the disk is full: free some space, then run the same command"):
                wrapped.index(book, folder=folder)
        assert windows_recorded(folder) == _DONE
    assert _finish(wrapped, book, folder) == _DONE
    assert contents(folder) == whole


def test_the_lock_is_released_when_closing_the_files_fails(wrapped, book, unfinished, whole, monkeypatch):
    folder = unfinished()
    with monkeypatch.context() as patch:
        refusal = OSError(5, "Input/output error")
        patch.setattr("unlimiformer.memory.partial_write.ArrayFile.close", lambda array: _raise(refusal))
        with pytest.raises(StorageError, match="Input/output error"):
            wrapped.index(book, folder=folder)
    assert _finish(wrapped, book, folder) >= _DONE
    assert contents(folder) == whole


def test_without_hard_links_copies_are_on_disk_before_they_are_described(wrapped, book, tmp_path, synced, monkeypatch):
    """After a power cut a description must not name a file whose content was never written."""
    monkeypatch.setattr(os, "link", lambda *_: synced.append("copy") or _raise(OSError(95, "Operation not supported")))
    wrapped.index(book, folder=tmp_path / "memory")
    copies = [number for number, step in enumerate(synced) if step == "copy"]
    assert len(copies) > 1 and all(synced[number + 1] == "file" for number in copies)


def _raise(error: Exception) -> None:
    raise error
