"""Foreign code runs within bounds of time, memory and output, and changes nothing here."""

from __future__ import annotations

import os
import sys

import pytest

from unlimiformer.utils import bounded
from unlimiformer.utils.bounded import BoundedError, call_bounded

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the function runs in this process")


def test_the_result_is_returned_whole():
    text = "é\n\x00\ud800" + "x" * 1_000_000
    assert call_bounded(lambda: text) == text


def test_an_error_is_passed_on():
    with pytest.raises(BoundedError, match="ZeroDivisionError: division by zero"):
        call_bounded(lambda: str(1 / 0))


def test_without_a_copy_the_function_runs_here(monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: (_ for _ in ()).throw(OSError("no memory")))
    assert call_bounded(lambda: "x") == "x"
    with pytest.raises(BoundedError, match="ZeroDivisionError"):
        call_bounded(lambda: str(1 / 0))


def _for_ever() -> str:
    while True:
        pass


@on_linux
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_for_ever, "needs more than 2 seconds or 512 MB"),
        (lambda: str(len(bytearray(1 << 32))), "MemoryError"),
        (lambda: "x" * (20 << 20), "gives more than 16 MB"),
        (lambda: os._exit(3), "needs more than"),
    ],
)
def test_bounds(function, reason):
    with pytest.raises(BoundedError, match=reason):
        call_bounded(function)


@on_linux
def test_a_function_that_waits_is_ended(monkeypatch):
    monkeypatch.setattr(bounded, "_SECONDS", 0.2)
    with pytest.raises(BoundedError, match="needs more than"):
        call_bounded(lambda: os.read(os.pipe()[0], 1).decode())


@on_linux
def test_nothing_is_left_behind_and_nothing_changed():
    seen, before = [], set(os.listdir("/proc/self/fd"))
    process = call_bounded(lambda: f"{os.getpid()}{seen.append(1) or ''}")
    assert not seen and set(os.listdir("/proc/self/fd")) == before
    assert int(process) != os.getpid() and not os.path.exists(f"/proc/{process}")
