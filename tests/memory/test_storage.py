"""A memory's folder: damage is noticed, other files are left alone, and errors of the file system are explained."""

from __future__ import annotations

import errno
import json
import os
import random
from hashlib import sha256

import pytest
from memory_helpers import contents

from unlimiformer import Memory, Unlimiformer, UnlimiformerError
from unlimiformer.errors import StorageError


def test_one_flipped_bit_is_an_error(wrapped, book, tmp_path):
    folder = tmp_path / "m"
    wrapped.index(book[:2000], folder=folder)
    generator = random.Random(3)
    for path in sorted(path for path in folder.iterdir() if path.stat().st_size):
        whole = path.read_bytes()
        positions = range(len(whole))
        if path.name != "memory.json":  # every byte of the description, some of the arrays
            positions = [0, len(whole) - 1, *generator.choices(positions, k=10)]
        for position in positions:
            bit = 1 << generator.randrange(8)
            path.write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
            with pytest.raises(UnlimiformerError, match=r"damaged|format"):
                Memory.load(folder)
        path.write_bytes(whole)
    assert len(Memory.load(folder)) > 0


def test_a_short_or_missing_file_or_another_format_is_refused(wrapped, book, tmp_path):
    wrapped.index(book, folder=tmp_path / "m")
    states = next((tmp_path / "m").glob("states-*.bin"))
    whole = states.read_bytes()
    states.write_bytes(whole[:-1])
    for verify in (True, False):
        with pytest.raises(UnlimiformerError, match="is damaged"):
            Memory.load(tmp_path / "m", verify)
    states.unlink()
    with pytest.raises(UnlimiformerError, match="lacks states-"):
        Memory.load(tmp_path / "m")
    (tmp_path / "m" / "memory.json").write_text('{"format": 1, "fingerprint": ""}')
    with pytest.raises(UnlimiformerError, match="memory format 1"):
        Memory.load(tmp_path / "m")
    with pytest.raises(UnlimiformerError, match="is not a memory"):
        Memory.load(tmp_path / "nowhere")


def _sign(description: dict) -> str:
    """The text of memory.json, with its checksum."""
    digest = sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    return json.dumps({**description, "sha256": digest}, indent=1, sort_keys=True) + "\n"


def test_a_description_cannot_point_outside_its_folder(wrapped, tmp_path):
    wrapped.index("a short text", folder=tmp_path / "m")
    path = tmp_path / "m" / "memory.json"
    description = json.loads(path.read_text())
    description.pop("sha256")
    assert _sign(description) == path.read_text(), "the checksum below is valid"
    description["arrays"]["../states"] = description["arrays"].pop("states")
    path.write_text(_sign(description))
    with pytest.raises(UnlimiformerError, match="damaged"):
        Memory.load(tmp_path / "m")


def test_a_folder_of_other_files_is_refused(model, tokenizer, book, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with Unlimiformer(model, tokenizer) as u:
        for write in (
            lambda: u.index(book, folder=tmp_path / "thesis"),
            lambda: u.index(book).save(tmp_path / "thesis"),
        ):
            with pytest.raises(UnlimiformerError, match="exists and is not a memory"):
                write()
    assert contents(tmp_path / "thesis") == {"chapter1.txt": b"years of work"}


def test_files_of_others_are_left_alone(wrapped, book, tmp_path):
    (tmp_path / "film" / "partial").mkdir(parents=True)
    (tmp_path / "film" / "partial" / "notes.txt").write_text("notes")
    (tmp_path / "film" / "weights.bin").write_text("weights")
    with pytest.raises(UnlimiformerError, match="exists and is not a memory"):
        wrapped.index(book, folder=tmp_path / "film")
    wrapped.index(book[:900], folder=tmp_path / "m")
    (tmp_path / "m" / "weights.bin").write_text("weights")
    wrapped.index(book, folder=tmp_path / "m")
    assert (tmp_path / "m" / "weights.bin").read_text() == "weights"
    assert (tmp_path / "film" / "partial" / "notes.txt").read_text() == "notes"


def test_a_second_writer_is_refused(wrapped, book, tmp_path):
    refusals = []

    def write_again(done: int, total: int) -> None:
        with pytest.raises(StorageError, match="another process is writing"):
            wrapped.index(book, folder=tmp_path / "m")
        refusals.append(done)

    assert len(wrapped.index(book, folder=tmp_path / "m", progress=write_again)) > 0
    assert refusals


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EROFS, "no permission to write"),
        (errno.EIO, "continues where it stopped"),
    ],
)
def test_a_failing_disk_is_explained_and_the_run_can_continue(wrapped, book, tmp_path, monkeypatch, code, message):
    fsync, calls = os.fsync, []

    def fail_after_30_calls(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 30:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_after_30_calls)
        with pytest.raises(StorageError, match=message):
            wrapped.index(book, folder=tmp_path / "m")
    progress = []
    wrapped.index(book, folder=tmp_path / "m", progress=lambda done, total: progress.append(done))
    assert progress[0] > 0, "it continued where it stopped"


def test_a_folder_that_cannot_be_created_is_explained(wrapped, book, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnlimiformerError, match="cannot write"):
        wrapped.index(book, folder=tmp_path / "file" / "m")
