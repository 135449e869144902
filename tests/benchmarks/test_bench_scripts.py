"""Helpers of the scripts in bench/: runs that continue after an interruption, and tables from stored results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


def _load_script(name):
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def partial_run(tmp_path):
    module = _load_script("partial_run")
    module.FOLDER, module.RESULTS = tmp_path / "build", tmp_path
    return module


def test_partial_run_continues_after_interruption(partial_run, tmp_path):
    partial_run.PartialRun("growth", lengths=(1, 2)).add({"tokens": 1})
    with (tmp_path / "build" / "growth.jsonl").open("a") as file:
        file.write('{"tokens": ')  # killed while it wrote the next row
    run = partial_run.PartialRun("growth", lengths=(1, 2))
    assert run.rows == [{"tokens": 1}]
    run.add({"tokens": 2})
    run.finish({"rows": run.rows})
    assert json.loads((tmp_path / "growth.json").read_text()) == {"rows": [{"tokens": 1}, {"tokens": 2}]}
    assert partial_run.PartialRun("growth", lengths=(1, 2)).rows == [], "a finished run starts again"


def test_partial_run_with_other_settings_starts_again(partial_run):
    partial_run.PartialRun("growth", lengths=(1, 2)).add({"tokens": 1})
    assert partial_run.PartialRun("growth", lengths=(1, 3)).rows == []


@pytest.mark.parametrize("method", ["ours, cells", "ours, ivf"])
def test_tables_name_the_ivf_store(method):
    row = {"method": method, "dtype": "int8", "tokens": 9, "ms_per_token": 2, "ratio_to_truncated": 1, "mass_recall": 1}
    table = _load_script("readme_table").decode_table({"rows": [{**row, "bytes_per_source_token": 8}]})
    assert table.splitlines()[-1] == "| **ours, ivf** | int8 | 8 | 2 ms (1.00 ×) |"
