"""Every parser of files that users write or that a disk may damage: a result or a clear error, whatever they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzzing import EXAMPLES, bounded, damaged_files
from hypothesis import given

from unlimiformer import UnlimiformerConfig, UnlimiformerError
from unlimiformer.batch.documents import find_documents
from unlimiformer.benchmarks.answers import read_documents
from unlimiformer.engines.question_format import QuestionFormat
from unlimiformer.evaluation import EvaluationSettings
from unlimiformer.evaluation.result import Result
from unlimiformer.hub.saved_settings import load_saved_settings, with_defaults
from unlimiformer.tasks import task
from unlimiformer.tasks.example import read_examples
from unlimiformer.text.document_text import locations_from_json
from unlimiformer.training import TrainingSettings, read_recipe
from unlimiformer.utils.jsonl import read_rows

_QUESTIONS = [{"question": "Who?", "answer": ["w1", "w2"], "spans": [[0, 3]]}, {"question": "Why?", "answer": "w3"}]
_LINES = [
    [{"document": "one two", "answer": "w1", "question": "Who?", "id": "a"}, {"document": "three", "answer": "b"}],
    [{"document": "one two three", "questions": _QUESTIONS}],
]
_RUN_LINES = [
    [{"id": "a", "document": "one", "question": "Who?"}, {"id": 7, "path": "book.txt", "questions": ["Why?"]}],
    [{"id": "m", "memory": "memories/m"}, {"document": "two", "error": None}],
]
_COLUMNS = [
    [{"input": "Who?\n\none two", "output": "w1", "id": 3, "pid": "x"}],
    [{"context": "one two", "question": "Who?", "answer": "w1", "id": "a", "title": "t"}],
]
_SETTINGS = {"top_k": 8, "window": 64, "overlap": 0.5, "layers": [1, 2], "heads": None, "store": "exact"}
_SETTINGS |= {"dtype": "int8", "prefix": "w1", "selection": None, "focus": 0, "recall": 0.9}
_ASKING = {"place": "decoder", "form": "Question: {question}\n", "summary_prompt": "Sum up."}
_RECIPE = {
    "model": "flan-t5-small",
    "data": "facts:20",
    "method": "retrieval",
    "learning_rate": "2e-5",
    "top_k": 8,
    "warmup": 0.1,
    "layers": [1],
    "trainer": {"adam_beta2": 0.98},
}
_ROWS = {"rows": {"a": {"seed": 1, "test": {"seeds": [1]}}, "b": {"test": {"method": "truncate"}}}, **_RECIPE}
_TASK = {
    "version": 1,
    "about": "Letters.",
    "fields": {"document": "body", "answer": "gist"},
    "metrics": ["rouge"],
    "new_tokens": 64,
    "sample": {"validation": 3},
    "hub": {"dataset": "tau/scrolls", "archive": "qasper"},
    "leading_question": True,
    "least_words": 3,
}
_WRITTEN = {"version": 2, "about": "Facts.", "metrics": ["f1"], "written": {"words": [20, 30], "rivals": 2}}
_RESULT = {
    "task": "jsonl",
    "task_version": 1,
    "metrics": {"f1": {"value": 0.5, "low": 0.4, "high": 0.6}},
    "scores": {"f1": [0.5, None]},
    "keys": ["a", "b"],
    "documents": [0, 1],
    "settings": {"top_k": 3},
    "by_seed": {"0": {"f1": 0.5}},
    "left_out": [],
    "seconds": 1.5,
    "peak_bytes": 100,
    "versions": {"unlimiformer": "0.1.0"},
}


def _lines(rows: list[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _read_run(path: Path) -> None:
    for document in find_documents(path):
        if document.error is None and document.memory is None:
            document.with_text()


def _read_saved_settings(path: Path) -> None:
    load_saved_settings(path.parent)
    QuestionFormat.from_folder(path.parent)
    with_defaults(UnlimiformerConfig(), str(path.parent))


def _read_recipe(path: Path) -> None:
    is_whole = b"rows:" not in path.read_bytes()
    recipe = read_recipe(str(path) if is_whole else f"{path}/a")
    TrainingSettings.of(recipe.train, "the recipe")
    EvaluationSettings.of({"model": "m", **recipe.test}, "the recipe")


def _read_task(path: Path) -> None:
    found = task(str(path))
    rows = path.with_name("rows.jsonl")
    rows.write_text(_lines([{"body": "Why?\n\none two three four", "gist": "w1", "title": "one"}]))
    if found.written is None:
        found.load(rows)


def _read_columns(name: str) -> Callable[[Path], Any]:
    return lambda path: task(name).load(path)


Parser = tuple[str, list[Any], Callable[[Any], str], Callable[[Path], Any]]
PARSERS: dict[str, Parser] = {
    "rows of a run": ("rows.jsonl", _LINES, _lines, lambda path: list(read_rows(path))),
    "documents of a run": ("run.jsonl", _RUN_LINES, _lines, _read_run),
    "examples": ("data.jsonl", _LINES, _lines, lambda path: list(read_examples(path))),
    "examples, reported": (
        "data.jsonl",
        _LINES,
        _lines,
        lambda path: list(read_examples(path, report=lambda message: None)),
    ),
    "examples of a task with a leading question": ("data.jsonl", _COLUMNS, _lines, _read_columns("qasper")),
    "examples of an ordered task": ("data.jsonl", _COLUMNS, _lines, _read_columns("squad-ordered")),
    "documents of a benchmark": ("data.jsonl", _LINES[1:], _lines, read_documents),
    "unlimiformer.json": (
        "unlimiformer.json",
        [{"settings": _SETTINGS, "asking": _ASKING}],
        json.dumps,
        _read_saved_settings,
    ),
    "recipe": ("recipe.yaml", [_RECIPE, _ROWS], yaml.safe_dump, _read_recipe),
    "task": ("letters.yaml", [_TASK, _WRITTEN], yaml.safe_dump, _read_task),
    "result": ("result.json", [_RESULT], json.dumps, Result.read),
    "locations": (
        "locations.json",
        [[[0, "p. 1"], [30, "p. 2"]]],
        json.dumps,
        lambda path: locations_from_json(json.loads(path.read_bytes())),
    ),
}
_ALSO = {"locations": (TypeError, ValueError, RecursionError)}  # what a parser for other code says that it raises


@pytest.mark.parametrize("name", PARSERS)
def test_a_damaged_file_is_a_clear_error(name, tmp_path):
    file, samples, dump, parse = PARSERS[name]
    path, outcomes = tmp_path / file, []
    (tmp_path / "book.txt").write_text("one two")

    @given(damaged_files(samples, dump))
    @bounded
    def probe(content):
        path.write_bytes(content)
        try:
            outcomes.append(parse(path))
        except (UnlimiformerError, *_ALSO.get(name, ())) as error:
            outcomes.append(error)

    probe()
    assert all(str(outcome).strip() for outcome in outcomes if isinstance(outcome, Exception))
    assert len(outcomes) > EXAMPLES // 2
    assert any(isinstance(outcome, Exception) for outcome in outcomes) or name == "examples, reported"


@pytest.mark.parametrize("name", sorted(set(PARSERS) - {"examples of an ordered task"}))
def test_the_samples_are_sound(name, tmp_path):
    """So that the damage, and nothing else, is what the other test finds."""
    file, samples, dump, parse = PARSERS[name]
    (tmp_path / "book.txt").write_text("one two")
    (tmp_path / file).write_text(dump(samples[0]))
    parse(tmp_path / file)
