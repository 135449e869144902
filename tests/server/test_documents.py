"""Documents on disk: what is damaged hides nothing, what is refused leaves nothing, and the limit holds."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from conftest import make_book

from unlimiformer.errors import InputError
from unlimiformer.server.documents import DocumentStore, TooManyDocumentsError
from unlimiformer.text.document_text import DocumentText, Location


@pytest.fixture
def two(tmp_path):
    """A folder with two documents; the first one's metadata."""
    documents = DocumentStore(tmp_path)
    bad, good = (documents.add(name, DocumentText(f"text of {name}")) for name in ("bad", "good"))
    return tmp_path, bad, good


WRONG = {
    "empty": "",
    "not JSON": "{",
    "not UTF-8": b"\xff\xfe\xff",
    "nested": "[" * 100_000,
    "a list": "[1]",
    "another key": {"more": 1},
    "id is a path": {"id": "../../x"},
    "id of another": {"id": "0" * 16},
    "name is a number": {"name": 5},
    "name is half a character": {"name": "\ud800"},
    "created is text": {"created": "yesterday"},
    "created is no number": {"created": float("nan")},
    "characters is text": {"characters": "many"},
    "tokens is a list": {"tokens": []},
    "state is unknown": {"state": "lost"},
    "state is a list": {"state": ["ready"]},
    "error is a number": {"error": 3},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_metadata_hide_nothing_and_are_reported(two, wrong):
    folder, bad, good = two
    path = folder / bad.id / "document.json"
    if isinstance(wrong, dict):
        wrong = json.dumps({**json.loads(path.read_text()), **wrong})
    path.write_bytes(wrong if isinstance(wrong, bytes) else wrong.encode())
    documents = DocumentStore(folder)
    assert {document.id for document in documents.all()} == {bad.id, good.id}
    assert documents.read_text(documents.get(good.id)) == "text of good"
    reported = documents.get(bad.id)
    assert reported.state == "failed" and "its file document.json cannot be used" in reported.error
    json.dumps([vars(document) for document in documents.all()], allow_nan=False, ensure_ascii=False).encode()
    assert documents.find_by_text("text of good") == [documents.get(good.id)]
    assert documents.remove(bad.id) and {path.name for path in folder.iterdir()} == {good.id}


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "a folder"])
def test_metadata_that_are_missing_or_a_folder(two, missing):
    folder, bad, good = two
    (folder / bad.id / "document.json").unlink()
    if not missing:
        (folder / bad.id / "document.json").mkdir()
    documents = DocumentStore(folder)
    assert documents.get(good.id).state == "waiting"
    assert documents.get(bad.id).state == "failed" and documents.get(bad.id).error


def test_a_damaged_text_hides_no_other(two):
    folder, bad, _ = two
    (folder / bad.id / "text.txt").write_bytes(b"\xff" * bad.characters)
    documents = DocumentStore(folder)
    assert documents.find_by_text("text of bad") == []
    with pytest.raises(InputError, match="the stored text of bad is damaged; delete it and add it again"):
        documents.read_text(documents.get(bad.id))


def test_pages_are_not_lost_by_a_passing_fault(tmp_path, monkeypatch):
    documents = DocumentStore(tmp_path)
    content = DocumentText("one two", (Location(0, "p. 1"), Location(4, "p. 2")))
    document = documents.add("pages", content)
    read_text = type(tmp_path).read_text

    def refuse(self, *arguments, **options):
        if self.name == "locations.json":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read_text(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "read_text", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            documents.content(document)
    assert documents.content(document) == content


@pytest.mark.parametrize("calls", range(3 if os.name == "nt" else 7))
def test_a_refused_upload_leaves_no_files(tmp_path, monkeypatch, calls):
    """Whichever of the writes the disk refuses."""
    documents, fsync, left = DocumentStore(tmp_path), os.fsync, [None] * calls

    def refuse(file):
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()
        fsync(file)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        documents.add("a book", DocumentText(make_book()), 1)
    assert not list(tmp_path.iterdir()) and not documents.all()
    monkeypatch.undo()
    documents.add("a book", DocumentText(make_book()), 1)  # the place is free again


def test_a_new_document_is_synced_before_it_counts(tmp_path, monkeypatch, synced):
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda *paths: synced.append("rename") or rename(*paths))
    DocumentStore(tmp_path).add("a book", DocumentText("w1"))
    assert synced == ["file", "folder"] * 3 + ["rename", "folder"], "text, pages, metadata, and the name of the whole"


def test_uploads_at_the_same_moment_keep_the_limit(tmp_path, monkeypatch):
    documents, results = DocumentStore(tmp_path), []
    together, write = threading.Barrier(3, timeout=30), DocumentStore._write

    def write_later(self, *arguments):
        together.wait()  # all that were admitted are here
        write(self, *arguments)

    monkeypatch.setattr(DocumentStore, "_write", write_later)

    def add(number):
        try:
            results.append(documents.add(f"book {number}", DocumentText(f"w{number}"), 3))
        except TooManyDocumentsError as error:
            results.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(documents.all()) == 3 and sum(isinstance(result, TooManyDocumentsError) for result in results) == 5


@pytest.mark.parametrize("text", ["", "\ufeff", "\ufeff\r\n ", "\ufeff\ufeff", "a\ud800b"])
def test_a_text_that_cannot_be_indexed_is_refused(tmp_path, text):
    documents = DocumentStore(tmp_path)
    with pytest.raises(InputError, match=r"is empty; expected a text|half of a character"):
        documents.add("x", DocumentText(text))
    assert not list(tmp_path.iterdir())
