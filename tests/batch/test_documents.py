"""Finding the documents of a run, and describing what is wrong with malformed ones."""

from __future__ import annotations

import json
import os

import pytest

from unlimiformer.batch import Job, find_documents
from unlimiformer.errors import InputError, UnlimiformerError


def _write_lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_lines_of_a_jsonl_file(tmp_path):
    (tmp_path / "a.txt").write_text("of a file")
    rows = [
        {"document": "first", "question": "who?"},
        "",
        {"id": 7, "document": "second ü", "questions": ["when?", {"question": "where?", "answer": "here"}]},
        {"id": "third", "path": "a.txt"},
    ]
    documents = find_documents(_write_lines(tmp_path / "in.jsonl", *rows))
    assert [document.id for document in documents] == ["line 1", "7", "third"]
    assert [document.questions for document in documents] == [("who?",), ("when?", "where?"), ()]
    assert [document.with_text().text.text for document in documents] == ["first", "second ü", "of a file"]


def test_files_of_a_folder_by_pattern(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "deep/a.PDF", "c.md", "d.py"):
        (tmp_path / name).write_text(name)
    assert [document.id for document in find_documents(tmp_path)] == ["b.txt", "c.md", "deep/a.PDF"]
    assert [document.id for document in find_documents(tmp_path / "c.md")] == ["c.md"]
    assert [document.id for document in find_documents(tmp_path, "*.md")] == ["c.md"]


def _write_memory(folder):
    folder.mkdir(parents=True)
    (folder / "memory.json").write_text('{"format": 2, "about": {}, "arrays": {}}')
    (folder / "text.txt").write_text("not a document")


def test_memories_are_found_only_without_texts_and_by_their_content(tmp_path):
    _write_memory(tmp_path / "index.memories" / "a")
    assert [document.id for document in find_documents(tmp_path)] == ["index.memories/a"]
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "memory.json").write_text("{}")
    assert [document.id for document in find_documents(tmp_path)] == ["a.txt"]


def test_file_names_that_are_not_utf8_and_broken_links(tmp_path):
    os.mkdir(tmp_path / "in")
    with open(os.fsencode(tmp_path / "in") + b"/\xff.txt", "w") as file:
        file.write("readable")
    (tmp_path / "in" / "gone.txt").symlink_to(tmp_path / "nowhere")
    documents = {document.id: document for document in find_documents(tmp_path / "in")}
    assert "cannot read" in documents["gone.txt"].error and documents["�.txt"].with_text().text.text == "readable"


def test_digest_depends_on_the_questions(tmp_path):
    (tmp_path / "a.txt").write_text("a text")
    _write_memory(tmp_path / "b")
    sources = ({"path": "a.txt"}, {"memory": "b"}, {"memory": "s3://bucket/b"})
    for source in sources:
        digests = {
            find_documents(_write_lines(tmp_path / "in.jsonl", {**source, "id": 1, "question": question}))[0].digest
            for question in ("who?", "who?", "when?")
        }
        assert len(digests) == 2


def test_digest_depends_on_the_content(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = find_documents(tmp_path)[0]
    path.write_text("two")
    assert find_documents(tmp_path)[0].digest != before.digest


def test_line_that_changes_during_the_run_is_noticed(tmp_path):
    path = _write_lines(tmp_path / "in.jsonl", {"document": "first"})
    (document,) = find_documents(path)
    _write_lines(path, {"document": "other"})
    with pytest.raises(InputError, match="has changed since the run began"):
        document.source()
    sent = document.with_text()  # to another machine; without a digest, the next run processes it again
    assert sent.digest == "" and "has changed" in sent.error


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not valid JSON"),
        (b"\xff".decode("latin1"), "not valid JSON"),
        ([1], "a list; expected"),
        ({"id": "x"}, "no document; expected"),
        ({"document": "a", "path": "b"}, "no single document"),
        ({"document": 3}, "no single document"),
        ({"document": "  "}, "document is empty"),
        ({"document": "a", "id": None}, '"id" is None'),
        ({"document": "a", "question": " "}, "a question is ' '"),
        ({"path": "nowhere.txt"}, "cannot read"),
        ({"memory": "nowhere"}, "is not a memory"),
        ({"id": "x", "error": "too bad"}, "the run that wrote this line reported an error: too bad"),
        ({"document": "a", "id": 1.5}, "expected a non-empty string or an integer"),
        ('{"id": "x", "document": "half \\ud83d"}', '"document" has an incomplete character'),
        ('{"id": "x", "document": "a", "questions": ["half \\ud83d"]}', '"questions" has an incomplete character'),
        ('{"id": "half \\ud83d", "document": "a"}', "an incomplete character"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_malformed_line_becomes_a_document_with_an_error(tmp_path, row, reason):
    documents = find_documents(_write_lines(tmp_path / "in.jsonl", {"document": "good"}, row))
    assert documents[0].error is None and reason in (documents[1].error or "")
    has_id = (isinstance(row, dict) and isinstance(row.get("id"), str)) or '"id": "x"' in str(row)
    assert documents[1].id == ("x" if has_id else "line 2")


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        (lambda folder: folder / "none.jsonl", "does not exist"),
        (lambda folder: folder, "has no documents; expected documents \\(text, PDF"),
        (lambda folder: _write_lines(folder / "empty.jsonl"), "is empty; expected lines"),
        (
            lambda folder: _write_lines(folder / "x.jsonl", {"id": 1, "document": "a"}, {"id": 1, "document": "b"}),
            "'1' twice",
        ),
    ],
)
def test_input_without_usable_documents_is_refused(tmp_path, create, reason):
    with pytest.raises(InputError, match=reason):
        find_documents(create(tmp_path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "sing"}, "the task is 'sing'"),
        ({"task": "summarize", "questions": ("who?",)}, "expected task 'ask'"),
        ({"task": "index"}, "without a place for memories"),
        ({"questions": (" ",)}, "a question is empty"),
        ({"batch_size": 0}, "at least 1"),
        ({"config": {"top_k": 0}}, "top_k is 0"),
    ],
)
def test_invalid_job_is_refused(changes, reason):
    with pytest.raises(UnlimiformerError, match=reason):
        Job(**{"task": "ask", "model": "m", **changes})
