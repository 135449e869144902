"""Which documents a run has, and what is wrong with some."""

from __future__ import annotations

import json
import os

import pytest

from unlimiformer.batch import find_documents
from unlimiformer.batch.job import Job
from unlimiformer.errors import UnlimiformerError


def _lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_lines_are_read_where_they_stand(tmp_path):
    (tmp_path / "a.txt").write_text("of a file")
    rows = [
        {"document": "first", "question": "who?"},
        "",
        {"id": 7, "document": "second ü", "questions": ["when?", {"question": "where?", "answer": "here"}]},
        {"id": "third", "path": "a.txt"},
    ]
    found = find_documents(_lines(tmp_path / "in.jsonl", *rows))
    assert [document.id for document in found] == ["line 1", "7", "third"]
    assert [document.questions for document in found] == [("who?",), ("when?", "where?"), ()]
    assert [document.with_text().carried for document in found] == ["first", "second ü", "of a file"]


def test_files_of_a_folder_by_their_pattern(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "deep/a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    assert [document.id for document in find_documents(tmp_path)] == ["b.txt", "deep/a.txt"]
    assert [document.id for document in find_documents(tmp_path, "*.md")] == ["c.md"]


def _memory(folder):
    folder.mkdir(parents=True)
    (folder / "memory.json").write_text('{"format": 2, "about": {}, "arrays": {}}')
    (folder / "text.txt").write_text("not a document")


def test_texts_go_before_memories_and_a_name_alone_is_no_memory(tmp_path):
    _memory(tmp_path / "index.memories" / "a")
    assert [document.id for document in find_documents(tmp_path)] == ["index.memories/a"]
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "memory.json").write_text("{}")
    assert [document.id for document in find_documents(tmp_path)] == ["a.txt"]


def test_names_that_are_no_text_and_links_to_nothing(tmp_path):
    os.mkdir(tmp_path / "in")
    with open(os.fsencode(tmp_path / "in") + b"/\xff.txt", "w") as file:
        file.write("readable")
    (tmp_path / "in" / "gone.txt").symlink_to(tmp_path / "nowhere")
    found = {document.id: document for document in find_documents(tmp_path / "in")}
    assert "cannot read" in found["gone.txt"].error and found["�.txt"].with_text().carried == "readable"


def test_other_questions_are_another_document(tmp_path):
    (tmp_path / "a.txt").write_text("a text")
    _memory(tmp_path / "b")
    places = ({"path": "a.txt"}, {"memory": "b"}, {"memory": "s3://bucket/b"})
    for place in places:
        digests = {
            find_documents(_lines(tmp_path / "in.jsonl", {**place, "id": 1, "question": asked}))[0].digest
            for asked in ("who?", "who?", "when?")
        }
        assert len(digests) == 2


def test_what_changed_has_another_digest(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = find_documents(tmp_path)[0]
    path.write_text("two")
    assert find_documents(tmp_path)[0].digest != before.digest


def test_a_line_that_changed_meanwhile_is_not_mistaken(tmp_path):
    path = _lines(tmp_path / "in.jsonl", {"document": "first"})
    (document,) = find_documents(path)
    _lines(path, {"document": "other"})
    with pytest.raises(UnlimiformerError, match="has changed since the run began"):
        document.source()
    sent = document.with_text()  # to another machine: the next run does it again
    assert sent.digest == "" and "has changed" in sent.error


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "no JSON"),
        (b"\xff".decode("latin1"), "no JSON"),
        ([1], "a list; expected"),
        ({"id": "x"}, "no document; expected"),
        ({"document": "a", "path": "b"}, "no single document"),
        ({"document": 3}, "no single document"),
        ({"document": "  "}, "document is empty"),
        ({"document": "a", "id": None}, '"id" is None'),
        ({"document": "a", "question": " "}, "a question is ' '"),
        ({"path": "nowhere.txt"}, "cannot read"),
        ({"memory": "nowhere"}, "is not a memory"),
        ({"id": "x", "error": "too bad"}, "its own run says: too bad"),
        ({"document": "a", "id": 1.5}, "expected some text or a whole number"),
        ('{"id": "x", "document": "half \\ud83d"}', '"document" has half a character'),
        ('{"id": "x", "document": "a", "questions": ["half \\ud83d"]}', '"questions" has half a character'),
        ('{"id": "half \\ud83d", "document": "a"}', "half a character"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_bad_line_is_a_document_that_fails(tmp_path, row, reason):
    found = find_documents(_lines(tmp_path / "in.jsonl", {"document": "good"}, row))
    assert found[0].error is None and reason in (found[1].error or "")
    named = (isinstance(row, dict) and isinstance(row.get("id"), str)) or '"id": "x"' in str(row)
    assert found[1].id == ("x" if named else "line 2")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: folder / "none.jsonl", "does not exist"),
        (lambda folder: folder, "has no documents; expected files that match"),
        (lambda folder: _lines(folder / "empty.jsonl"), "is empty; expected lines"),
        (
            lambda folder: _lines(folder / "x.jsonl", {"id": 1, "document": "a"}, {"id": 1, "document": "b"}),
            "'1' twice",
        ),
    ],
)
def test_no_documents_are_an_error(tmp_path, make, reason):
    with pytest.raises(UnlimiformerError, match=reason):
        find_documents(make(tmp_path))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"task": "sing"}, "the task is 'sing'"),
        ({"task": "summarize", "questions": ("who?",)}, "expected task 'ask'"),
        ({"task": "index"}, "without a place for memories"),
        ({"questions": (" ",)}, "a question is empty"),
        ({"batch_size": 0}, "at least 1"),
        ({"config": {"top_k": 0}}, "top_k is 0"),
    ],
)
def test_bad_work_is_named(changed, reason):
    with pytest.raises(UnlimiformerError, match=reason):
        Job(**{"task": "ask", "model": "m", **changed})
