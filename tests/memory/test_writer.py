"""Writing a memory while it is encoded: interrupted runs continue, and windows of an earlier text are reused."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from memory_helpers import Interrupted, contents, interrupt_call, reversed_book, stop_after
from tiny_models import WINDOW

from unlimiformer import Memory, Unlimiformer, UnlimiformerError
from unlimiformer.memory.encode import encode_windows

TESTS = Path(__file__).parent.parent


@pytest.fixture
def encoded_chunks(monkeypatch):
    """All chunks that are encoded during the test."""
    recorded = []

    def record(*args, **kwargs):
        for chunks in encode_windows(*args, **kwargs):
            recorded.extend(chunks)
            yield chunks

    monkeypatch.setattr("unlimiformer.memory.indexer.encode_windows", record)
    return recorded


def test_an_interrupted_run_continues_and_ends_with_the_same_bytes(wrapped, book, tmp_path, encoded_chunks):
    wrapped.index(book, folder=tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    encoded_chunks.clear()

    def stop_at_half(done: int, total: int) -> None:
        if done >= total // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        wrapped.index(book, folder=tmp_path / "m", progress=stop_at_half)
    with pytest.raises(UnlimiformerError, match="is not finished"):
        Memory.load(tmp_path / "m")
    before_interruption = len(encoded_chunks)
    wrapped.index(book, folder=tmp_path / "m")
    assert contents(tmp_path / "m") == expected
    starts = [chunk.start for chunk in encoded_chunks]
    assert len(starts) == len(set(starts)), "no window was encoded twice"
    assert 0 < before_interruption < len(starts)


def test_a_crash_at_any_step_loses_nothing(wrapped, book, tmp_path, monkeypatch):
    text = book[:3000]
    wrapped.index(text[:1500], folder=tmp_path / "old")
    wrapped.index(text, folder=tmp_path / "new")
    expected, old_files = contents(tmp_path / "new"), contents(tmp_path / "old")
    for crash_at in itertools.count(1):
        folder = tmp_path / f"m{crash_at}"
        wrapped.index(text[:1500], folder=folder)
        counter = [0]
        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "truncate"):
                patch.setattr(os, name, interrupt_call(getattr(os, name), crash_at, counter))
            try:
                wrapped.index(text, folder=folder)
                crashed = False
            except Interrupted:
                crashed = True
        after = Memory.load(folder)  # the older memory is valid until the newer one is complete
        assert after.text in (text[:1500], text)
        if after.text == text[:1500]:
            assert old_files.items() <= {k: v for k, v in contents(folder).items() if k in old_files}.items()
        wrapped.index(text, folder=folder)
        assert contents(folder) == expected
        if not crashed:
            break
    assert crash_at > 20, "many steps were interrupted"


def test_ten_kills_at_random_moments_change_no_byte(tmp_path):
    script = textwrap.dedent(
        """
        import os, random, shutil, signal, sys, time
        from pathlib import Path
        import torch
        torch.set_num_threads(1)
        from conftest import make_book, make_tokenizer
        from tiny_models import WINDOW, make
        from unlimiformer import Unlimiformer

        target, text = Path(sys.argv[1]), make_book(12000)
        with Unlimiformer(make("bart"), make_tokenizer(), window=WINDOW, dtype="int8") as u:
            started = time.perf_counter()
            u.index(text, folder=target / "whole")
            seconds = time.perf_counter() - started
            kills, generator = 0, random.Random(7)
            while kills < 10:
                child = os.fork()
                if child == 0:
                    u.index(text, folder=target / "killed")
                    os._exit(0)
                time.sleep(generator.uniform(0.02, 0.25) * seconds)
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                if os.WIFSIGNALED(status):
                    kills += 1
                else:
                    shutil.rmtree(target / "killed")
            u.index(text, folder=target / "killed")
        print("killed", kills)
        """
    )
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout.strip() == "killed 10", done.stderr[-2000:]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_append_encodes_only_new_windows(wrapped, book, tmp_path, encoded_chunks):
    first, second = book[:6000] + "\n", book[6000:9000]
    wrapped.index(first + second, folder=tmp_path / "all")
    wrapped.index(first, folder=tmp_path / "m")
    encoded_chunks.clear()
    memory = wrapped.index(second, folder=tmp_path / "m", append=True)
    assert contents(tmp_path / "m") == contents(tmp_path / "all")
    assert 0 < len(encoded_chunks) / memory.windows < 0.5, "two thirds of the text were encoded before"
    encoded_chunks.clear()
    wrapped.index(first + second, folder=tmp_path / "m")
    assert encoded_chunks == [], "nothing has changed"


def test_an_append_that_was_interrupted_at_the_very_end_is_not_repeated(wrapped, book, tmp_path, monkeypatch):
    wrapped.index(book[:900], folder=tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", interrupt_call(Path.iterdir, 1))
        with pytest.raises(Interrupted):
            wrapped.index(book[900:1800], folder=tmp_path / "m", append=True)
    memory = wrapped.index(book[900:1800], folder=tmp_path / "m", append=True)
    assert memory.text.count(book[900:1800]) == 1
    assert not (tmp_path / "m" / "partial").exists()


def test_another_memory_is_replaced_only_with_overwrite(wrapped, model, tokenizer, book, tmp_path):
    wrapped.index(book, folder=tmp_path / "m")
    before = contents(tmp_path / "m")
    with pytest.raises(UnlimiformerError, match="made with another text"):
        wrapped.index(reversed_book(), folder=tmp_path / "m")
    wrapped.remove()
    with Unlimiformer(model, tokenizer, window=WINDOW, dtype="float32") as u:
        with pytest.raises(UnlimiformerError, match="dtype int8 instead of float32"):
            u.index(book, folder=tmp_path / "m")
        assert contents(tmp_path / "m") == before
        assert u.index(book, folder=tmp_path / "m", overwrite=True).store.states.dtype is torch.float32


def test_an_unfinished_memory_of_another_text_is_not_replaced(wrapped, book, tmp_path):
    with pytest.raises(Interrupted):
        wrapped.index(book, folder=tmp_path / "m", progress=stop_after(8))
    with pytest.raises(UnlimiformerError, match="unfinished memory of another text"):
        wrapped.index(reversed_book(), folder=tmp_path / "m")
    assert wrapped.index(book, folder=tmp_path / "m").text == book


def test_overwrite_replaces_an_unfinished_memory(wrapped, book, tmp_path):
    with pytest.raises(Interrupted):
        wrapped.index(book, folder=tmp_path / "m", progress=stop_after(8))
    with pytest.raises(UnlimiformerError, match="holds an unfinished memory"):
        wrapped.index(book[:900]).save(tmp_path / "m")
    assert wrapped.index(reversed_book(), folder=tmp_path / "m", overwrite=True).text == reversed_book()


def test_a_resumed_run_uses_the_batch_size_of_the_first(model, tokenizer, book, tmp_path):
    with Unlimiformer(model, tokenizer, window=WINDOW, batch_size=4) as u:
        u.index(book, folder=tmp_path / "whole")
        with pytest.raises(Interrupted):
            u.index(book, folder=tmp_path / "m", progress=stop_after(20))
    with Unlimiformer(model, tokenizer, window=WINDOW, batch_size=3) as u:
        u.index(book, folder=tmp_path / "m")
    assert contents(tmp_path / "m") == contents(tmp_path / "whole")


def test_bad_input_leaves_no_files(wrapped, tmp_path):
    (tmp_path / "bad.txt").write_bytes(bytes(range(256)))
    with pytest.raises(UnlimiformerError, match="is not a text"):
        wrapped.index(tmp_path / "bad.txt", folder=tmp_path / "m")
    with pytest.raises(UnlimiformerError, match="empty"):
        wrapped.index(" \n", folder=tmp_path / "m")
    assert not (tmp_path / "m").exists()
