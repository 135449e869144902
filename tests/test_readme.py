"""README and docs agree with the software: commands and Python run; tables, trees, options and links are right.

Commands of the README run as new processes with the real default model. Commands of docs/ run in forked processes with
tiny random models (`warm_cli`); those of `bench`, which have tests of their own, and those in `sh` blocks, which need a
cluster or data, are only parsed.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from conftest import make_tokenizer, save
from tiny_causal_models import tiny_decoder
from tiny_models import make
from warm_cli import unlimiformer

from unlimiformer.cli.main import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
SHORT_TEXT = "shakespeare/phoenix_and_the_turtle"


def code_blocks(text: str, language: str) -> list[str]:
    """The contents of all code blocks whose fence has this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def commands(text: str, language: str = "bash") -> list[str]:
    """The lines of all code blocks of this language, without comments."""
    lines = (line.partition("  #")[0].strip() for block in code_blocks(text, language) for line in block.splitlines())
    return [line for line in lines if line]


# --- The README -------------------------------------------------------------------------------------------------

NOT_RUN = ("pip install", "git clone", "unlimiformer serve", "make demo")  # the last two have tests of their own


def _bash(command: str, folder: Path, timeout: int = 300) -> subprocess.CompletedProcess:
    """Run a command as a user does, with the programs of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done


def _similarity(output: str, printed: str) -> float:
    """How similar two texts are, from 0 to 1. Another processor may move a passage by some words."""
    return difflib.SequenceMatcher(None, output.split(), printed.split(), autojunk=False).ratio()


def test_readme_commands(tmp_path):
    """All commands, in order, in one folder. The first prints what the README shows; the others get a shorter text."""
    lines = [line for line in commands(README) if not line.startswith(NOT_RUN)]
    assert len(lines) >= 4 and lines[0].startswith("unlimiformer ask")
    printed = code_blocks(README, "text")[1]
    done = _bash(lines[0], tmp_path)
    assert _similarity(done.stdout + done.stderr, printed) > 0.8, done.stdout
    for line in lines[1:]:
        done = _bash(line.replace("shakespeare/lovers_complaint", SHORT_TEXT), tmp_path)
        assert done.stdout.strip() or done.stderr.strip(), line
    assert "<html" in (tmp_path / "sources.html").read_text()


def test_demo():
    """`make demo`, with a short poem instead of a whole novel."""
    assert {"make demo"} < set(commands(README)) and any(line.startswith("git clone") for line in commands(README))
    output = _bash(f'make demo DEMO="--text {SHORT_TEXT}"', ROOT, timeout=900).stdout
    assert output.count("first 1,024 tokens") == output.count("word search (BM25)") == 1
    assert "of its attention" in output and "48213" in output.partition("unlimited")[2].splitlines()[0]


def test_serve(tmp_path):
    """The README's command, with the default model, until it prints the address of the page."""
    assert "unlimiformer serve" in commands(README)
    command = [sys.executable, "-m", "unlimiformer", "serve", "--port", "0", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert any("http://127.0.0.1:" in line for line in process.stderr)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_python(capsys, tmp_path, monkeypatch):
    """The README's Python as one program: it prints what the README shows."""
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec("\n".join(code_blocks(README, "python")), scope)
    output = capsys.readouterr().out
    assert _similarity(output, code_blocks(README, "text")[0]) > 0.8, output
    assert (tmp_path / "poem.memory" / "memory.json").is_file() and len(scope["memory"]) == 3637
    assert not any("forward" in module.__dict__ for module in scope["wrapped"].model.modules())


def test_python_of_hub_models(capsys, tmp_path, monkeypatch, book):
    """The block that loads a model from a hub (its fence says `python hub`), with a tiny BART in its place."""
    (block,) = code_blocks(README, "python hub")
    assert block.count('"facebook/bart-base"') == 2
    folder = save(tmp_path / "bart", make("bart"), make_tokenizer())
    (tmp_path / "book.txt").write_text(book)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(block.replace("facebook/bart-base", folder).replace("max_new_tokens=256", "max_new_tokens=8"), scope)
    assert capsys.readouterr().out.strip() and scope["output"].shape[1] == 9
    assert not any("forward" in module.__dict__ for module in scope["model"].modules())


def test_extras():
    """Every extra that the pages name exists, and the README names all that users need."""
    section = re.search(r"\[project.optional-dependencies\]\n(.*?)\n\n", (ROOT / "pyproject.toml").read_text(), re.S)[1]
    extras = set(re.findall(r"^(\w+) = ", section, re.M))
    named = {extra for page in PAGES for extra in re.findall(r"unlimiformer-hf\[(\w+)\]", page.read_text())}
    table = re.search(r"\| extra \|.*?\n\n", README, re.S)[0]
    assert named <= extras
    assert set(re.findall(r"`(\w+)`", table)) == extras - {"all", "dev", "docs"}


def test_families():
    """The README lists the supported families."""
    from unlimiformer.adapters import families

    section = re.search(r"## Supported models\n(.*?)\n## ", README, re.S)[1].replace("gemma3 (text)", "gemma3_text")
    listed = set(re.findall(r"[\w-]+", section))
    assert {row["family"] for row in families()} <= listed


# --- docs/ ------------------------------------------------------------------------------------------------------

SMALLER = (  # pattern and replacement
    (r"shakespeare/\w+", SHORT_TEXT),
    (r"^(unlimiformer run \S+)", r"\1 --workers 1"),
    (r"(figures .*)--(lengths|limits) \S+", r"\1--\2 60"),
    (r"figures hits", "figures hits --max-new-tokens 4"),
    (r"figures time", "figures time --repeats 1 --max-new-tokens 4"),
    (r"--examples \d+", "--examples 1"),
    (r"--task play-facts", "--task facts"),
    (r"--tasks far_facts", '--tasks far_facts --metadata \'{"questions": 1, "kind": "facts"}\''),
    (r"long_from=1024", "long_from=128"),
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> dict[str, str]:
    """Folders of tiny models, by the names of those that they replace."""
    folder = tmp_path_factory.mktemp("tiny")
    encoder_decoder = save(folder / "t5", make("t5"), make_tokenizer())
    chat_tokenizer = make_tokenizer()
    chat_tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    decoder = save(folder / "llama", tiny_decoder("llama"), chat_tokenizer)
    return {
        "flan-t5-small-answers": encoder_decoder,
        "flan-t5-small": encoder_decoder,
        "smollm2-135m-instruct": decoder,
    }


def _parse(arguments: list[str]) -> tuple[list[str], dict]:
    """The names of a command and of its groups, and the values of its options; raises if an option is unknown."""
    command, names = typer.main.get_command(app), []
    while names != arguments and arguments[len(names)] in getattr(command, "commands", {}):
        names.append(arguments[len(names)])
        command = command.commands[names[-1]]
    return names, command.make_context(" ".join(names), arguments[len(names) :]).params


def _make_small(command: str, tiny: dict[str, str]) -> str:
    """The same command on short inputs, with a tiny model."""
    for pattern, replacement in SMALLER:
        command = re.sub(pattern, replacement, command)
    for name, folder in tiny.items():
        command = re.sub(rf"(--model |pretrained=){name}(?=[ ,]|$)", rf"\g<1>{folder}", command)
    if command.startswith("unlimiformer ") and "--model" not in command:
        _, options = _parse(shlex.split(command)[1:])
        command += f" --model {tiny['flan-t5-small-answers']}" if "model" in options else ""
    return command


@pytest.mark.parametrize("page", [page for page in DOCS if commands(page.read_text())], ids=lambda page: page.stem)
def test_docs_commands(page, tmp_path, monkeypatch, tiny):
    """The commands of a page, in order, in one folder."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for line in commands(page.read_text()):
        arguments = shlex.split(line)[1:]
        if line.startswith(("unlimiformer bench", "unlimiformer serve")):
            _parse(arguments)
        elif line.startswith("unlimiformer"):
            done = unlimiformer(*shlex.split(_make_small(line, tiny))[1:], stdin=b"Who is dead?\n")  # for `chat`
            assert done.returncode == 0, f"{line}\n{done.stderr.decode()}"
            assert done.stdout.strip() or done.stderr.strip(), line
        else:
            _bash(_make_small(line, tiny), tmp_path)


@pytest.mark.parametrize("file", [*PAGES, ROOT / "Makefile"], ids=lambda file: file.stem)
def test_commands_that_are_not_run_are_valid(file):
    """Commands in `sh` blocks, and those of the Makefile: all of their options exist."""
    text = file.read_text()
    lines = [line.strip() for line in text.splitlines()] if file.name == "Makefile" else commands(text, "sh")
    found = [match[1] for line in lines if (match := re.search(r"(?:/|-m |^)unlimiformer (.*)", line))]
    for line in found:
        _parse(shlex.split(line.replace("$(DEMO)", "")))
    assert found or file.name != "Makefile"


def test_docs_python(capsys, tmp_path, monkeypatch):
    """The Python of each page runs as one program."""
    monkeypatch.chdir(tmp_path)
    for page in DOCS:
        blocks = code_blocks(page.read_text(), "python")
        if blocks:
            exec("\n".join(blocks), {})
            assert capsys.readouterr().out.strip(), page


def test_options_in_prose_exist():
    """Every option that a page names in its prose is one of the command line, or of a tool that the page is about."""
    declared = set(re.findall(r"--[a-z][\w-]*", (ROOT / "docs" / "command_line.md").read_text()))
    other_tools = {"--cpu", "--nproc_per_node", "--help"}  # accelerate, torchrun, every command
    for page in PAGES:
        if page.name == "LOG.md":
            continue
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        if page.name == "migration.md":  # the first column has the flags of the original code
            prose = re.sub(r"^\|[^|]*\|", "|", prose, flags=re.M)
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", prose)) <= declared | other_tools, page.name


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples(example, tmp_path, book, tiny):
    """Examples run, and their docstring has their name."""
    (tmp_path / "texts").mkdir()
    text = tmp_path / "texts" / "text.txt"
    text.write_text(book)
    arguments = {"ask_many_documents": [text.parent, tmp_path / "answers.jsonl", "w1 w2"]}.get(example.stem, [text])
    command = [sys.executable, example, tiny["flan-t5-small"], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert f"usage: {example.name} " in example.read_text()


# --- Generated and structured parts -----------------------------------------------------------------------------


def _load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_results():
    """Every generated table is on some page, and every page has the tables of the stored results."""
    script = _load_script("readme_table")
    pattern = re.compile(r"<!-- table: (\S+) -->\n((?:\|.*\n)*)")
    tables = script.tables()
    printed = [match for name in script.DOCUMENTS for match in pattern.findall((ROOT / name).read_text())]
    assert {source for source, _ in printed} == set(tables)
    for source, table in printed:
        assert table == tables[source], f"{source}: run python bench/readme_table.py"
    others = [page for page in PAGES if str(page.relative_to(ROOT)) not in script.DOCUMENTS]
    assert not any(pattern.search(page.read_text()) for page in others), "add the page to DOCUMENTS in readme_table.py"


def test_command_line_reference():
    """docs/command_line.md has the commands and options that the command line has."""
    script = _load_script("cli_reference")
    assert script.PAGE.read_text() == script.render(), "run python bench/cli_reference.py"


def _listed_files(tree: str) -> list[str]:
    """Paths of a tree in which folders end with / and indent their contents by two; a line may have several files."""
    folders: list[str] = []
    paths = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        names = re.split(r" {2,}", line.strip())[0].split(" ")
        del folders[depth:]
        paths += ["".join(folders) + name for name in names]
        if names[0].endswith("/"):
            folders.append(names[0])
    return paths


def test_tree_of_the_architecture_page():
    """The tree has every module and every package, once, and nothing that does not exist."""
    package = ROOT / "src" / "unlimiformer"
    modules = {path.relative_to(package) for path in package.rglob("*.py")}
    packages = {path.parent for path in modules if path.name == "__init__.py"} - {Path()}
    expected = {str(path) for path in modules if path.name != "__init__.py" or path.parent == Path()}
    expected |= {f"{path}/" for path in packages}
    block = code_blocks((ROOT / "docs" / "architecture.md").read_text(), "text")[0]
    first, _, tree = block.partition("\n")
    assert first == "src/unlimiformer/"
    listed = _listed_files(tree)
    assert len(listed) == len(set(listed))
    assert expected - set(listed) == set(), "missing in docs/architecture.md"
    assert {path for path in set(listed) - expected if not (package / path).exists()} == set()


def test_tree_parser():
    tree = "  a.py     one\n  b/       two\n    c.py d.py   three\n    e/     four\n      f.py\n  g.py  five\n"
    assert _listed_files(tree) == ["a.py", "b/", "b/c.py", "b/d.py", "b/e/", "b/e/f.py", "g.py"]


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links(page):
    """Links to files, headings and pictures of the repository, and files named in the prose, exist."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in _anchors(file), target
    if page.name in ("LOG.md", "command_line.md"):
        return
    for name in re.findall(r"`((?:\w+/)+[\w.]+\.(?:py|md|c|h|yaml))`", text):
        assert "NAME" in name or any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "unlimiformer")), name


def test_every_page_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(docs/(\w+\.md)\)", README))
    assert {page.name for page in DOCS} <= linked
    assert len(README.splitlines()) <= 200, "move details to docs/"
