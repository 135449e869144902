"""The lowest versions that pyproject.toml declares are those with which `make lowest` was run, and all tests passed."""

import importlib.util
import json
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[1]


def _script():
    spec = importlib.util.spec_from_file_location("lowest_versions", ROOT / "bench" / "lowest_versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_run_had_the_declared_versions():
    script, pyproject = _script(), (ROOT / "pyproject.toml").read_text()
    result = json.loads(script.RESULT.read_text())
    ran = {name: Version(version) for name, version in result["versions"].items()}
    declared = script.lowest_packages(pyproject)
    assert {"torch", "transformers"} <= set(declared)
    for name, version in declared.items():
        assert ran[name] == Version(version), f"{name}: run python bench/lowest_versions.py"
    assert str(ran["python"]).startswith(script.lowest_python(pyproject) + ".")
    assert result["failed"] == [] and result["skipped"] == 0 and result["passed"] > 500
    assert all((ROOT / path).exists() for path in result["tests"])
