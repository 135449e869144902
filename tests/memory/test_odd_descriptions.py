"""A memory whose description, or arrays, were changed and signed again: an error or the same answer, never a crash."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_tokenizer
from fuzzing import EXAMPLES, bounded, changed
from hypothesis import given
from stored_memories import FOLDER, GENERATION, PROMPT, SETTINGS, build_model

from unlimiformer import InputError, Memory, MemoryMismatchError, Unlimiformer
from unlimiformer.datastore.cells import Cells
from unlimiformer.datastore.kernels import native
from unlimiformer.memory import storage
from unlimiformer.memory.description import sign

NAMES = ["encoder-decoder-exact", "encoder-decoder-ivf", "decoder-only"]
_FREE = {"reach", "candidates", "measured", "prefix"}
"""A search of another depth may find other rows, and a shorter prefix of the same tokens is a valid one."""


class _Asker:
    """Asks one question of memories of one kind."""

    def __init__(self, name: str) -> None:
        self.wrapped = Unlimiformer(build_model(name), make_tokenizer(), **SETTINGS[name])
        self.description = json.loads((FOLDER / name / "memory.json").read_text())
        self.description.pop("sha256")
        self.expected = self.ask(FOLDER / name)

    def ask(self, folder: Path) -> Any:
        """The new tokens and what is shown of their passages; None if the memory is refused."""
        try:
            memory = Memory.load(folder)
            output = self.wrapped.generate(memory, prompt=PROMPT, provenance=True, **GENERATION)
            quotes = memory.citations.quote(output.provenance.passages(2))
            return output.token_ids.tolist(), [quote["text"] for quote in quotes]
        except (MemoryMismatchError, InputError):
            return None


@pytest.fixture(scope="module", params=NAMES)
def asker(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "memory"
    shutil.copytree(FOLDER / request.param, folder)
    os.environ["UNLIMIFORMER_CACHE"] = str(folder.parent / "cache")
    asker = _Asker(request.param)
    yield asker, folder
    asker.wrapped.remove()
    del os.environ["UNLIMIFORMER_CACHE"]


def test_an_odd_description_is_refused_or_gives_the_same_answer(asker):
    asker, folder = asker
    outcomes = []

    @given(changed(asker.description))
    @bounded
    def probe(change):
        description, place = change
        (folder / "memory.json").write_text(sign(description))
        answer = asker.ask(folder)
        outcomes.append(answer)
        assert answer is None or answer == asker.expected or _FREE & set(place), change

    probe()
    assert None in outcomes and len(outcomes) > EXAMPLES // 2


def _sign_arrays(folder: Path, arrays: dict[str, torch.Tensor]) -> None:
    """Write arrays and a description that fits them; nothing tells that they are not what was indexed."""
    about, _ = storage.read(folder, verify=False)
    shutil.rmtree(folder)
    storage.write(folder, about, arrays)


def _damaged_arrays() -> list[Any]:
    def at(name: str, index: Any, value: Any) -> Any:
        def change(arrays: dict[str, torch.Tensor]) -> None:
            arrays[name][index] = value

        return pytest.param(change, id=f"{name} {index} = {value}")

    def made(name: str, make: Any, title: str) -> Any:
        def change(arrays: dict[str, torch.Tensor]) -> None:
            arrays[name] = make(arrays[name])

        return pytest.param(change, id=f"{name} {title}")

    return [
        at("cell_row", 0, 182),
        at("cell_row", 0, -1),
        at("cell_row", 855, 2**31 - 1),
        at("cell_start", 0, -1),
        at("cell_start", 5, 1 << 40),
        at("cell_start", 107, 108),
        at("cell_start", 0, 1),
        at("cell_size", 3, 10**6),
        at("cell_size", 3, -1),
        at("cell_size", 3, 0),
        at("cell_spread", 0, float("nan")),
        at("cell_step", 0, 0.0),
        at("cell_projection", 0, float("inf")),
        at("token_ids", 9, -1),
        at("token_ids", 9, 97),
        at("offsets", 9, -1),
        at("offsets", 9, 10**6),
        at("text", 3, 255),
        made("cell_centres", lambda a: a[:1], "cut"),
        made("cell_codes", lambda a: a[:, :, :4].contiguous(), "of half blocks"),
        made("cell_codes", lambda a: torch.cat((a, a), dim=1), "wide"),
        made("cell_projection", lambda a: a[:8], "of fewer directions"),
        made("cell_projection", lambda a: a[:, :8].contiguous(), "of narrow states"),
        made("cell_spread", lambda a: a[:5], "cut"),
        made("cell_size", lambda a: a[:0], "empty"),
        made("cell_row", lambda a: a.long(), "of long numbers"),
        made("first_window", lambda a: a[:, :8].contiguous(), "narrow"),
        made("states", lambda a: a[:, :8].contiguous(), "narrow"),
        made("states", lambda a: a[:50], "cut"),
        made("states", lambda a: a.to(torch.float64), "of doubles"),
        made("states", lambda a: a.flatten(), "flat"),
        made("token_ids", lambda a: a[:50], "cut"),
        made("offsets", lambda a: a[:50], "cut"),
    ]


@pytest.mark.parametrize("change", _damaged_arrays())
def test_arrays_that_point_outside_are_refused(tmp_path, monkeypatch, change):
    """They are refused when they are loaded or asked, and no kernel is given them."""
    name = "encoder-decoder-ivf"
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "memory"
    shutil.copytree(FOLDER / name, folder)
    arrays = {key: array.clone() for key, array in storage.read(folder)[1].items()}
    change(arrays)
    _sign_arrays(folder, arrays)
    monkeypatch.setattr(native, "search_ivf", lambda *_: pytest.fail("a kernel was called"))
    monkeypatch.setattr(native, "scan", lambda *_: pytest.fail("a kernel was called"))
    wrapped = Unlimiformer(build_model(name), make_tokenizer(), **SETTINGS[name])
    with wrapped, pytest.raises((MemoryMismatchError, InputError)):
        _read_and_generate(wrapped, folder)


def _read_and_generate(wrapped: Unlimiformer, folder: Path) -> None:
    memory = Memory.load(folder)
    assert memory.text is not None
    wrapped.generate(memory, prompt=PROMPT, **GENERATION)


def test_sound_cells_are_accepted():
    arrays = storage.read(FOLDER / "encoder-decoder-ivf")[1]
    assert Cells.from_arrays(arrays, 182, 16).count == 107
