"""Runs the tests of families, memories and functions on the lowest versions that pyproject.toml declares.

Run `python bench/lowest_versions.py`, if need be with `--python PATH` to the lowest declared Python. The result is
`bench/results/lowest_versions.json`. The environment with these versions is made in `--environment` (default:
`build/lowest`), and used again if it is there; the plain torch of the package index brings gigabytes of CUDA libraries.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from unlimiformer.utils.files import atomic_write

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "lowest_versions.json"
TESTS = (
    "tests/engines/seq2seq/test_families.py",
    "tests/engines/causal/test_families.py",
    "tests/memory",
    "tests/test_functional.py",
)


def main() -> None:
    """Make the environment, run the tests in it, and write what passed."""
    text = (ROOT / "pyproject.toml").read_text()
    parser = argparse.ArgumentParser(description="Run tests on the lowest declared versions.")
    parser.add_argument("--python", default=f"python{lowest_python(text)}", help="the lowest declared Python")
    parser.add_argument("--environment", type=Path, default=ROOT / "build" / "lowest")
    arguments = parser.parse_args()
    python = make_environment(arguments.python, arguments.environment, lowest_packages(text))
    started = time.perf_counter()
    result = {"versions": versions(python), **run_tests(python, arguments.environment / "tests.xml")}
    result["seconds"] = round(time.perf_counter() - started)
    atomic_write(RESULT, json.dumps(result, indent=1) + "\n")
    sys.exit(1 if result["failed"] else 0)


def lowest_python(pyproject: str) -> str:
    """The lowest declared version of Python."""
    return re.search(r'^requires-python = ">=([\d.]+)"', pyproject, re.M)[1]


def lowest_packages(pyproject: str) -> dict[str, str]:
    """The lowest declared versions of the dependencies that declare one."""
    dependencies = re.search(r"^dependencies = \[\n(.*?)^\]", pyproject, re.S | re.M)[1]
    return dict(re.findall(r'"([\w-]+)>=([\d.]+)"', dependencies))


def make_environment(base: str, folder: Path, packages: dict[str, str]) -> Path:
    """Install the library with exactly these versions in a virtual environment; returns its Python."""
    if shutil.which(base) is None:
        sys.exit(f"{base} was not found; give the lowest declared Python: --python PATH")
    python, constraints = folder / "bin" / "python", folder / "constraints.txt"
    wanted = "".join(f"{name}=={version}\n" for name, version in packages.items())
    if constraints.exists() and constraints.read_text() == wanted:
        return python
    subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
    new = folder / "wanted.txt"  # becomes constraints.txt when everything is installed
    new.write_text(wanted)
    subprocess.run([python, "-m", "pip", "install", "-c", new, "-e", f"{ROOT}[faiss]", "pytest"], check=True)
    new.rename(constraints)
    return python


def versions(python: Path) -> dict[str, str]:
    """The versions of Python and of the packages in an environment, without those that torch brings for GPUs."""
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True).stdout
    number = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    packages = {package["name"]: package["version"] for package in json.loads(listed)}
    return {"python": number, **{name: value for name, value in packages.items() if not name.startswith("nvidia-")}}


def run_tests(python: Path, report: Path) -> dict:
    """How many tests passed and were skipped, and the names of those that failed."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    report.unlink(missing_ok=True)  # of an earlier run: a run that crashes must not be taken for it
    subprocess.run(command, cwd=ROOT, env=environment)
    cases = list(ElementTree.parse(report).iter("testcase"))
    outcome = {case: {child.tag for child in case} for case in cases}
    failed = [f"{case.get('classname')}::{case.get('name')}" for case in cases if outcome[case] & {"failure", "error"}]
    skipped = sum("skipped" in tags for tags in outcome.values())
    return {
        "tests": list(TESTS),
        "passed": len(cases) - len(failed) - skipped,
        "skipped": skipped,
        "failed": failed,
    }


if __name__ == "__main__":
    main()
