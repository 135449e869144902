"""A short run of bench/chaos.py; `make chaos` makes a long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "chaos.py"
STEPS = "kills,workers: run index,full disk: index,flips: unfinished"


def test_nothing_is_lost_and_a_run_continues(tmp_path):
    output = tmp_path / "chaos.json"
    command = [sys.executable, str(SCRIPT), "--kills", "7", "--size", "0.3", "--seed", "3", "--only", STEPS]
    command += ["--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:] + (output.read_text() if output.exists() else "")
    results = json.loads(output.read_text())
    kinds = [name.partition(": ")[0] for name in results["steps"]]
    assert {kind: kinds.count(kind) for kind in kinds} == {"kills": 7, "workers": 1, "full disk": 1, "flips": 1}
    assert results["failures"] == []
    for name, counts in results["steps"].items():
        assert not any(counts.get(key) for key in ("lost", "wrong", "tracebacks")), name
        if name.startswith("kills"):
            assert counts["kills"] >= 1
    assert results["steps"]["flips: unfinished"]["found"] == results["steps"]["flips: unfinished"]["flips"] > 0
    again = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(again.stdout) == results, "all that was asked for is done already"
