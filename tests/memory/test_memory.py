"""Memories on disk: streamed, resumed, reused, checked, shared."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tiny_models import WINDOW, make
from unlimiformer.memory.encode import encode_windows

from conftest import make_book
from unlimiformer import Memory, Unlimiformer, UnlimiformerError
from unlimiformer.memory import storage as disk

SETTINGS = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}


@pytest.fixture(scope="module")
def model():
    return make("bart")


@pytest.fixture
def wrapped(model, tokenizer):
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, dtype="int8") as u:
        yield u


@pytest.fixture
def book():
    return make_book(3000)


def other_book():
    return " ".join(reversed(make_book(3000).split()))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_memory_written_as_it_is_encoded_is_that_made_in_ram(model, tokenizer, book, tmp_path, dtype):
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, dtype=dtype) as u:
        in_ram = u.index(book)
        in_ram.save(tmp_path / "saved")
        (tmp_path / "book.txt").write_text(book)
        on_disk = u.index(tmp_path / "book.txt", folder=tmp_path / "streamed")
        assert contents(tmp_path / "saved") == contents(tmp_path / "streamed")
        assert on_disk.text == book == in_ram.text
        assert torch.equal(on_disk.store.states, in_ram.store.states)
        expected = u.generate(in_ram, **SETTINGS).token_ids
        assert torch.equal(u.generate(on_disk, **SETTINGS).token_ids, expected)


def test_a_short_input_is_kept_as_the_model_has_it(wrapped, tmp_path):
    memory = wrapped.index("a short text", folder=tmp_path / "m")
    assert memory.windows == 1 and memory.store.states.dtype is torch.float32


def test_offsets_are_characters_of_the_kept_text(wrapped, tokenizer, book, tmp_path):
    memory = wrapped.index(book, prefix="a question", folder=tmp_path / "m")
    assert memory.prefix_tokens > 0 and (memory.offsets[: memory.prefix_tokens] == 0).all()
    for token, (start, end) in list(zip(memory.token_ids.tolist(), memory.offsets.tolist(), strict=True))[10:200:7]:
        if end:
            assert tokenizer.convert_tokens_to_ids(memory.text[start:end]) == token


class _Stop(BaseException):
    pass


def stop_after(windows: int):
    """Progress that stops a run when so many windows are done."""

    def stop(done: int, of: int) -> None:
        if done > windows:
            raise _Stop

    return stop


def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(wrapped, book, tmp_path, monkeypatch):
    wrapped.index(book, folder=tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    encoded = []

    def counted(*args, **kwargs):
        for piece in encode_windows(*args, **kwargs):
            encoded.append(piece.start)
            yield piece

    monkeypatch.setattr("unlimiformer.memory.indexer.encode_windows", counted)

    def stop(done: int, of: int) -> None:
        if done >= of // 2:
            raise _Stop

    with pytest.raises(_Stop):
        wrapped.index(book, folder=tmp_path / "m", progress=stop)
    with pytest.raises(UnlimiformerError, match="is not finished"):
        Memory.load(tmp_path / "m")
    first = len(encoded)
    wrapped.index(book, folder=tmp_path / "m")
    assert contents(tmp_path / "m") == expected
    assert len(encoded) == len(set(encoded)), "no window was encoded twice"
    assert 0 < first < len(encoded)


def crashing(step, left: list[int]):
    """A step that crashes when `left` has counted down."""

    def crash(*args):
        left[0] -= 1
        if left[0] == 0:
            raise _Stop
        return step(*args)

    return crash


def test_a_crash_at_any_step_loses_nothing(wrapped, book, tmp_path, monkeypatch):
    text = book[:3000]
    wrapped.index(text[:1500], folder=tmp_path / "old")
    wrapped.index(text, folder=tmp_path / "new")
    expected, older = contents(tmp_path / "new"), contents(tmp_path / "old")
    steps = ("replace", "fsync", "truncate")
    for crash_at in itertools.count(1):
        folder = tmp_path / f"m{crash_at}"
        wrapped.index(text[:1500], folder=folder)
        left = [crash_at]
        with monkeypatch.context() as patch:
            for name in steps:
                patch.setattr(disk.os, name, crashing(getattr(os, name), left))
            try:
                wrapped.index(text, folder=folder)
                crashed = False
            except _Stop:
                crashed = True
        after = Memory.load(folder)  # the older memory is good until the newer one is whole
        assert after.text in (text[:1500], text)
        if after.text == text[:1500]:
            assert older.items() <= {k: v for k, v in contents(folder).items() if k in older}.items()
        wrapped.index(text, folder=folder)
        assert contents(folder) == expected
        if not crashed:
            break
    assert crash_at > 20, "many steps were interrupted"


def test_sigkill_at_ten_random_moments_changes_no_byte(tmp_path):
    script = textwrap.dedent(
        """
        import os, random, signal, sys, time
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
            took = time.perf_counter() - started
            killed, chance = 0, random.Random(7)
            while killed < 10:
                child = os.fork()
                if child == 0:
                    u.index(text, folder=target / "killed")
                    os._exit(0)
                time.sleep(chance.uniform(0.02, 0.25) * took)
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                if os.WIFSIGNALED(status):
                    killed += 1
                else:
                    import shutil
                    shutil.rmtree(target / "killed")
            u.index(text, folder=target / "killed")
        print("killed", killed)
        """
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout.strip() == "killed 10", done.stderr[-2000:]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_one_flipped_bit_anywhere_is_an_error(wrapped, book, tmp_path):
    folder = tmp_path / "m"
    wrapped.index(book[:2000], folder=folder)
    chance = random.Random(3)
    for path in sorted(path for path in folder.iterdir() if path.stat().st_size):
        whole = path.read_bytes()
        every = path.name == "memory.json"
        for byte in range(len(whole)) if every else [0, len(whole) - 1, *chance.choices(range(len(whole)), k=10)]:
            bit = 1 << chance.randrange(8)
            path.write_bytes(whole[:byte] + bytes([whole[byte] ^ bit]) + whole[byte + 1 :])
            with pytest.raises(UnlimiformerError, match=r"damaged|format"):
                Memory.load(folder)
        path.write_bytes(whole)
    assert len(Memory.load(folder)) > 0


def test_a_short_or_missing_file_and_a_foreign_folder_are_refused(wrapped, book, tmp_path):
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


def test_a_description_cannot_point_outside_its_folder(wrapped, tmp_path):
    wrapped.index("a short text", folder=tmp_path / "m")
    path = tmp_path / "m" / "memory.json"
    told = json.loads(path.read_text())
    told.pop("sha256")
    told["arrays"]["../states"] = told["arrays"].pop("states")
    path.write_text(disk._signed(told))
    with pytest.raises(UnlimiformerError, match="damaged"):
        Memory.load(tmp_path / "m")


def test_appending_encodes_only_what_is_new_and_gives_the_memory_of_all(wrapped, book, tmp_path, monkeypatch):
    first, second = book[:6000] + "\n", book[6000:9000]
    wrapped.index(first + second, folder=tmp_path / "all")
    wrapped.index(first, folder=tmp_path / "m")
    encoded = []

    def counted(*args, **kwargs):
        for piece in encode_windows(*args, **kwargs):
            encoded.append(piece)
            yield piece

    monkeypatch.setattr("unlimiformer.memory.indexer.encode_windows", counted)
    memory = wrapped.index(second, folder=tmp_path / "m", append=True)
    assert contents(tmp_path / "m") == contents(tmp_path / "all")
    share = len(encoded) / memory.windows
    assert share < 0.5, "two thirds of the text had been there before"
    encoded.clear()
    wrapped.index(first + second, folder=tmp_path / "m")
    assert encoded == [], "nothing had changed"


def test_a_memory_of_something_else_is_not_replaced_unasked(wrapped, model, tokenizer, book, tmp_path):
    wrapped.index(book, folder=tmp_path / "m")
    before = contents(tmp_path / "m")
    with pytest.raises(UnlimiformerError, match="made with another text"):
        wrapped.index(other_book(), folder=tmp_path / "m")
    wrapped.remove()
    with Unlimiformer(model, tokenizer, window=WINDOW, dtype="float32") as other:
        with pytest.raises(UnlimiformerError, match="dtype int8 instead of float32"):
            other.index(book, folder=tmp_path / "m")
        assert contents(tmp_path / "m") == before
        assert other.index(book, folder=tmp_path / "m", overwrite=True).store.states.dtype is torch.float32
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        for write in (
            lambda: u.index(book, folder=tmp_path / "thesis"),
            lambda: u.index(book).save(tmp_path / "thesis"),
        ):
            with pytest.raises(UnlimiformerError, match="exists and is not a memory"):
                write()
    assert contents(tmp_path / "thesis") == {"chapter1.txt": b"years of work"}


def test_an_unfinished_memory_of_another_text_is_not_lost(wrapped, book, tmp_path):
    with pytest.raises(_Stop):
        wrapped.index(book, folder=tmp_path / "m", progress=stop_after(8))
    with pytest.raises(UnlimiformerError, match="unfinished memory of another text"):
        wrapped.index(other_book(), folder=tmp_path / "m")
    assert wrapped.index(book, folder=tmp_path / "m").text == book


def test_two_writers_at_once_are_refused(wrapped, book, tmp_path):
    def second(done: int, of: int) -> None:
        with pytest.raises(UnlimiformerError, match="another process is writing"):
            wrapped.index(book, folder=tmp_path / "m")

    assert len(wrapped.index(book, folder=tmp_path / "m", progress=second)) > 0


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "may not be written"), (errno.EIO, "goes on")]
)
def test_a_failing_disk_is_explained_and_what_was_done_stays(wrapped, book, tmp_path, monkeypatch, number, words):
    real, left = os.fsync, [30]

    def failing(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(disk.os, "fsync", failing)
        with pytest.raises(UnlimiformerError, match=words):
            wrapped.index(book, folder=tmp_path / "m")
    kept = []
    wrapped.index(book, folder=tmp_path / "m", progress=lambda done, of: kept.append(done))
    assert kept[0] > 0, "it went on where it stopped"


def test_a_folder_that_cannot_be_made_is_explained(wrapped, book, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnlimiformerError, match="cannot write"):
        wrapped.index(book, folder=tmp_path / "file" / "m")


def test_bad_input_leaves_no_trace(wrapped, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(UnlimiformerError, match="byte 3 is 0xe9"):
        wrapped.index(tmp_path / "bad.txt", folder=tmp_path / "m")
    with pytest.raises(UnlimiformerError, match="empty"):
        wrapped.index(" \n", folder=tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_many_memories_serve_one_model_and_one_memory_many_processes(wrapped, book, tmp_path):
    one = wrapped.index(book, folder=tmp_path / "one")
    two = wrapped.index(other_book(), folder=tmp_path / "two")
    together = wrapped.generate([one, two, one], **SETTINGS)
    alone = [wrapped.generate(memory, **SETTINGS).token_ids for memory in (one, two, one)]
    for output, expected in zip(together, alone, strict=True):
        assert torch.equal(output.token_ids[: len(expected)], expected)
    script = (
        "import sys; from unlimiformer import Memory; print(int(Memory.load(sys.argv[1]).store.states.long().sum()))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "one")]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {int(reader.communicate()[0]) for reader in readers} == {int(one.store.states.long().sum())}


def test_a_mapped_memory_cannot_be_changed_by_accident(wrapped, book, tmp_path):
    memory = wrapped.index(book, folder=tmp_path / "m")
    before = contents(tmp_path / "m")
    script = "import sys; from unlimiformer import Memory; Memory.load(sys.argv[1]).store.states[0, 0] = 1"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m")], capture_output=True)
    assert done.returncode != 0
    assert contents(tmp_path / "m") == before and len(memory) > 0


def test_a_memory_of_a_half_precision_model(tokenizer, book, tmp_path):
    with Unlimiformer(make("bart").half(), tokenizer, window=WINDOW) as u:
        memory = u.index(book[:900], folder=tmp_path / "m")
        assert memory.store.states.dtype is torch.float32 and memory.first_window.dtype is torch.float16


def test_empty_pieces_and_halves_of_characters(wrapped, book, tmp_path):
    memory = wrapped.index(iter([book[:500], "", book[500:900]]), folder=tmp_path / "m")
    assert memory.text == book[:900]
    with pytest.raises(UnlimiformerError, match="half of a character"):
        wrapped.index("w1 \ud800 w2", folder=tmp_path / "other")


def test_files_that_are_not_ours_are_left_alone(wrapped, book, tmp_path):
    (tmp_path / "film" / "partial").mkdir(parents=True)
    (tmp_path / "film" / "partial" / "mine.txt").write_text("mine")
    (tmp_path / "film" / "weights.bin").write_text("mine")
    with pytest.raises(UnlimiformerError, match="exists and is not a memory"):
        wrapped.index(book, folder=tmp_path / "film")
    wrapped.index(book[:900], folder=tmp_path / "m")
    (tmp_path / "m" / "weights.bin").write_text("mine")
    wrapped.index(book, folder=tmp_path / "m")
    assert (tmp_path / "m" / "weights.bin").read_text() == "mine"
    assert (tmp_path / "film" / "partial" / "mine.txt").read_text() == "mine"


def test_an_append_that_was_stopped_at_the_very_end_is_not_done_twice(wrapped, book, tmp_path, monkeypatch):
    wrapped.index(book[:900], folder=tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(disk.Path, "iterdir", crashing(Path.iterdir, [1]))
        with pytest.raises(_Stop):
            wrapped.index(book[900:1800], folder=tmp_path / "m", append=True)
    memory = wrapped.index(book[900:1800], folder=tmp_path / "m", append=True)
    assert memory.text.count(book[900:1800]) == 1
    assert not (tmp_path / "m" / "partial").exists()


def test_a_run_with_another_batch_size_goes_on_with_that_of_the_first(model, tokenizer, book, tmp_path):
    with Unlimiformer(model, tokenizer, window=WINDOW, batch_size=4) as u:
        u.index(book, folder=tmp_path / "whole")
        with pytest.raises(_Stop):
            u.index(book, folder=tmp_path / "m", progress=stop_after(20))
    with Unlimiformer(model, tokenizer, window=WINDOW, batch_size=3) as u:
        u.index(book, folder=tmp_path / "m")
    assert contents(tmp_path / "m") == contents(tmp_path / "whole")


def test_overwriting_puts_an_unfinished_memory_aside(wrapped, book, tmp_path):
    with pytest.raises(_Stop):
        wrapped.index(book, folder=tmp_path / "m", progress=stop_after(8))
    with pytest.raises(UnlimiformerError, match="holds an unfinished memory"):
        wrapped.index(book[:900]).save(tmp_path / "m")
    assert wrapped.index(other_book(), folder=tmp_path / "m", overwrite=True).text == other_book()


@pytest.mark.parametrize("store", ["cells", "faiss"])
def test_a_memory_with_a_search_structure_survives_the_disk(model, tokenizer, tmp_path, monkeypatch, store):
    monkeypatch.setattr("unlimiformer.datastore.ivf.LEAST_ROWS", 100)
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, dtype="int8", store=store, recall=0.5) as u:
        memory = u.index(make_book(4000), folder=tmp_path / "m")
        memory.save(tmp_path / "copy")
        copy = Memory.load(tmp_path / "copy")
        assert contents(tmp_path / "m") == contents(tmp_path / "copy")
        assert copy.store.describe() == memory.store.describe()
        assert torch.equal(u.generate(memory, **SETTINGS).token_ids, u.generate(copy, **SETTINGS).token_ids)
