"""The notebooks of examples/: their code runs with the real models, and prints what the notebooks show."""

import difflib
import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def _cells(notebook: Path) -> list[dict]:
    """The cells with code."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _printed(cell: dict) -> str:
    """What a cell printed when the notebook was stored."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(notebook, capsys, tmp_path, monkeypatch):
    """Nearly: another processor may change some words."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("template")  # figures are made, and drawn nowhere
    scope: dict = {}
    shown, cells = "", _cells(notebook)
    for cell in cells:
        exec("".join(cell["source"]), scope)
        shown += _printed(cell)
    printed = capsys.readouterr().out
    assert difflib.SequenceMatcher(None, printed.split(), shown.split(), autojunk=False).ratio() > 0.8, printed
    assert not any("forward" in module.__dict__ for module in scope["wrapped"].model.modules())


def test_stored_outputs_are_whole():
    """Every notebook was run from its first cell to its last, without an error, and one of them has a figure."""
    assert len(NOTEBOOKS) == 2
    cells = [cell for notebook in NOTEBOOKS for cell in _cells(notebook)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for notebook in NOTEBOOKS:
        cells = _cells(notebook)
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
