"""Runs that continue where they stopped: settings, rows and the lock."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from unlimiformer.errors import InputError, StorageError
from unlimiformer.utils.resumable_run import ResumableRun

IDENTITY = {"model": "m", "seeds": (0, 1)}


def _open(folder, identity=IDENTITY):
    return ResumableRun.open(rows=folder / "rows.jsonl", settings=folder / "settings.json", identity=identity)


def _settings(folder):
    return json.loads((folder / "settings.json").read_text())


def test_rows_and_settings_survive(tmp_path):
    with _open(tmp_path) as run:
        run.append({"id": "a", "text": "ü"})
    with _open(tmp_path) as run:
        run.append({"id": "b", "text": "half \ud83d"})  # no file can hold it, JSON can
        assert [row["id"] for row in run.rows()] == ["a", "b"]
    with _open(tmp_path) as run:
        assert [row["text"] for row in run.rows()] == ["ü", "half \ud83d"]
        assert run.settings == {"model": "m", "seeds": [0, 1]} == _settings(tmp_path)


def test_nothing_but_the_lock_is_written_before_the_first_row(tmp_path):
    with _open(tmp_path / "new"):
        pass
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rows.jsonl.lock"]


def test_incomplete_last_row_is_removed(tmp_path):
    with _open(tmp_path) as run:
        run.append({"id": "a"})
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"id": "' + "x" * 200_000)
    with _open(tmp_path) as run:
        assert list(run.rows()) == [{"id": "a"}]
        run.append({"id": "b"})
    assert (tmp_path / "rows.jsonl").read_text() == '{"id": "a"}\n{"id": "b"}\n'


def test_other_settings_are_refused_and_named(tmp_path):
    with _open(tmp_path) as run:
        run.append({"id": "a"})
    other = {**IDENTITY, "model": "n", "seeds": (0,)}
    with pytest.raises(InputError, match=r"started with model 'm', seeds \[0, 1\]; give these"), _open(tmp_path, other):
        pass
    (tmp_path / "rows.jsonl").write_text("")
    with _open(tmp_path, other) as run:  # without rows a run is started anew
        run.append({"id": "a"})
    assert _settings(tmp_path) == {"model": "n", "seeds": [0]}


def test_pinned_value_cannot_change_and_noted_value_can(tmp_path):
    with _open(tmp_path) as run:
        run.pin("digest", "x")
        run.note("peak", 1)
        run.append({"id": "a"})
    with _open(tmp_path) as run:
        run.pin("digest", "x")
        run.note("peak", 2)
        with pytest.raises(InputError, match="started with digest 'x', and now it is 'y': a hint; continue with"):
            run.pin("digest", "y", "a hint")
    assert _settings(tmp_path) == {"model": "m", "seeds": [0, 1], "digest": "x", "peak": 2}


def test_rewrite_keeps_chosen_rows_and_appends_after_them(tmp_path):
    with _open(tmp_path) as run:
        for name in "abc":
            run.append({"id": name})
        run.rewrite(keep=lambda row: row["id"] != "b")
        run.append({"id": "d"})
        assert [row["id"] for row in run.rows()] == ["a", "c", "d"]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_settings_are_reported(tmp_path, content):
    with _open(tmp_path) as run:
        run.append({"id": "a"})
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(InputError, match=r"settings\.json cannot be read as the settings of a run"), _open(tmp_path):
        pass


def test_rows_without_settings_are_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"exists without settings\.json: it was not written by a run"):
        _open(tmp_path).__enter__()


def test_second_process_is_refused(tmp_path):
    code = (
        "import sys; from pathlib import Path; from unlimiformer.utils.resumable_run import ResumableRun; "
        "folder = Path(sys.argv[1]); "
        "run = ResumableRun.open(rows=folder / 'rows.jsonl', settings=folder / 'settings.json', identity={}); "
        "run.__enter__()"
    )
    with _open(tmp_path):
        process = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "StorageError: another run is writing" in process.stderr and "rows.jsonl" in process.stderr
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 0


def test_lock_is_released_when_opening_fails(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(InputError), _open(tmp_path):
        pass
    (tmp_path / "rows.jsonl").unlink()
    with _open(tmp_path):
        pass


def test_full_disk_is_reported_and_says_how_to_continue(tmp_path):
    (tmp_path / "rows.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"the disk is full: .* continues where it stopped"), _open(tmp_path) as run:
        run.append({"id": "a"})
