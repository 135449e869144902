"""Examples from files, hubs and programs, and what becomes of them."""

from __future__ import annotations

import json
import random
import re

import pytest

from unlimiformer.benchmarks.needle import NEEDLE_WORDINGS
from unlimiformer.errors import UnlimiformerError
from unlimiformer.tasks import Example, Task, examples, task, tasks
from unlimiformer.tasks import synthetic as facts
from unlimiformer.tasks.condense import condensed
from unlimiformer.tasks.definition import Size
from unlimiformer.tasks.synthetic import WORDS, examples_in
from unlimiformer.tasks.synthetic import facts as some_facts


def test_both_shapes_of_lines(tmp_path):
    path = tmp_path / "d.jsonl"
    lines = [
        {"document": "one", "answer": "a"},
        {"document": "two", "questions": [{"question": "q", "answer": "b"}, {"question": "r", "answer": "c"}]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    expected = [Example("one", "a"), Example("two", "b", "q"), Example("two", "c", "r")]
    assert examples(str(path)) == expected
    assert examples(str(path), limit=2) == expected[:2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[1]", 'line 2: no text called "document"'),
        ('{"document": 5, "answer": "x"}', 'line 2: no text called "document"'),
        ('{"document": "x"}', 'line 2: an "answer" or "question" is missing'),
        ('{"document": "x", "questions": ["q"]}', 'line 2: an "answer" or "question" is missing'),
        ('{"document": "x", "answer": "y", "question": 3}', 'line 2: an "answer" or "question" is missing'),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, message):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "answer": "a"}) + "\n" + line + "\n")
    with pytest.raises(UnlimiformerError, match=message):
        examples(str(path))


def test_no_file_and_no_known_name(tmp_path):
    with pytest.raises(UnlimiformerError, match="expected a JSONL file, condensed:FILE, or one of: booksum"):
        examples("nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UnlimiformerError, match="has no examples"):
        examples(str(tmp_path / "empty.jsonl"))


def test_rows_of_a_hub(monkeypatch):
    rows = {
        "govreport": [{"input": "a report\n\nof two parts", "output": "short", "id": 7}],
        "qasper": [{"input": "Why?\n\nA paper\n\nof two parts", "output": "because"}],
        "booksum": [{"book": "a book", "summary": "short"}],
    }
    monkeypatch.setattr(Task, "_hub_rows", lambda self, split: rows[self.name])
    assert examples("govreport") == [Example("a report\n\nof two parts", "short", None, "7")]
    assert examples("qasper") == [Example("A paper\n\nof two parts", "because", "Why?")]
    assert examples("booksum") == [Example("a book", "short")]


def test_a_hub_that_cannot_be_reached_is_named():
    pytest.importorskip("datasets")
    with pytest.raises(UnlimiformerError, match="qmsum could not be loaded from 'tau/scrolls'"):
        examples("qmsum")


def test_facts_are_in_their_text_among_rivals():
    """Facts are lines of the passage; no other line answers their question; the same seed writes the same."""
    texts = ["\n".join(f"line {i} of a play with some words" for i in range(500))]
    size = Size((60, 200), 9, 4)
    made = examples_in(texts, 50, size, seed=3)
    assert made == examples_in(texts, 50, size, seed=3) != examples_in(texts, 50, size, seed=4)
    rng = random.Random(0)
    for _ in range(200):
        told = some_facts(rng, 9)
        asked = [question for fact in told for question in fact.questions]
        assert len(told) == 10 and len(set(asked)) == len(asked)
        assert all(fact.answer in fact.sentence and fact.question in fact.questions for fact in told)
        assert all("{" not in fact.sentence + fact.question for fact in told)
    for example in made:
        assert sum(line.startswith("line ") for line in example.document.split("\n")) >= 6
        assert example.answer in example.document
    shared = [example.document for example in made]
    assert all(shared.count(document) == 4 for document in shared[:48])


def test_condensed_documents_have_what_their_answers_are_about():
    lines = [f"someone speaks of topic{i // 40} and word{i} at some length, as people do" for i in range(800)]
    lines[300] = "the secret ingredient was saffron, said the cook"
    document = "\n".join(lines)
    asked = [Example(document, "saffron, the cook said", "What was the secret ingredient?")]
    asked += [Example(document, f"about topic{i}", f"What of topic{i}?") for i in range(7)]
    short = condensed([*asked, Example("one line", "a")])
    assert len(short) == 5 and short[-1] == Example("one line", "a")
    assert [(each.question, each.answer) for each in short[:4]] == [(each.question, each.answer) for each in asked[:4]]
    assert len({each.document for each in short[:4]}) == 1
    words = short[0].document.split()
    assert lines[300] in short[0].document and "topic1" in words
    assert len(words) < 4 * 2 * 100 < len(document.split())
    places = [lines.index(line) for line in short[0].document.split("\n")]
    assert places == sorted(places)


def test_several_sources_and_written_facts(tmp_path, monkeypatch):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "answer": "a"}) + "\n")
    texts = {}

    def text(name):
        texts[name] = tmp_path / "play.txt"
        texts[name].write_text("a line of a play\n" * 3000)
        return texts[name]

    monkeypatch.setattr(facts, "get_text", text)
    made = examples(f"{path},facts:3,long-facts:2")
    assert len(made) == 6 and made[0] == Example("one", "a")
    lengths = [len(example.document.split()) for example in made[1:]]
    assert max(lengths[:3]) < 400 and min(lengths[3:]) > 200
    others = [examples("facts:3", "validation"), examples("facts:3:1"), examples("facts:3:1", "validation")]
    assert made[1:4] == examples("facts:3:0") and all(made[1:4] != other for other in others)
    assert not {"shakespeare/hamlet", "shakespeare/lear"} & set(texts) and len(texts) > 20
    with pytest.raises(UnlimiformerError, match="facts:2000"):
        examples("facts:many")


def test_what_is_reported_was_not_learned():
    """No wording of `bench needle` can be written by the program."""
    learned = {word for name in ("roles", "codes", "titles", "vehicles") for word in WORDS[name]}
    for kinds in NEEDLE_WORDINGS.values():
        for forms in kinds.values():
            for sentence, _ in forms:
                assert not any(f" {word} " in f" {sentence.lower()} " for word in map(str.lower, learned)), sentence


def test_several_right_answers_are_one_question(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "questions": [{"question": "q", "answer": ["a", "b"]}]}) + "\n")
    made = examples(str(path))
    assert [example.answer for example in made] == ["a", "b"]
    assert len({example.id for example in made}) == 1 and made[0].id is not None


def test_malformed_lines_are_reported_and_left_out(tmp_path):
    path = tmp_path / "d.jsonl"
    good = json.dumps({"document": "one", "answer": "a"})
    hub = json.dumps({"input": "Why?\n\nA meeting", "output": "so", "id": "x"})
    path.write_bytes(b"\n".join([good.encode(), b"{", hub.encode(), b'{"input": "x"}', b'"\xff"', good.encode()]))
    heard = []
    made = task("qmsum").load(path, report=heard.append)
    assert made == [Example("one", "a"), Example("A meeting", "so", "Why?", "x"), Example("one", "a")]
    mine = Task("mine", 1, "", ("f1",), 5, {"document": "document", "answer": "highlights"})
    path.write_text(json.dumps({"document": "d", "highlights": "h"}) + "\n" + good)
    assert mine.load(path) == [Example("d", "h"), Example("one", "a")], "the task's fields, or our own"
    path.write_bytes(b"\n".join([good.encode(), b"{"]))
    assert [re.search(r"line (\d)", line)[1] for line in heard] == ["2", "4", "5"]
    with pytest.raises(UnlimiformerError, match="line 2: no JSON"):
        task("qmsum").load(path)


def test_every_task_says_what_it_needs():
    from unlimiformer.evaluation.metrics import METRICS

    paper = {"govreport", "summscreen", "booksum", "qasper", "contractnli", "qmsum", "narrativeqa", "wikisum"}
    assert paper | {"jsonl"} < set(tasks())
    for each in tasks().values():
        assert each.version >= 1 and each.about and each.new_tokens > 0
        assert set(each.metrics) <= set(METRICS)


def test_wikisum_is_ordered_by_tf_idf():
    paragraphs = ["nothing here", "the lamp of Riga", "Riga and Riga again", "the the the"]
    row = {"title": "Lamp of Riga", "paragraphs": paragraphs, "summary": "s"}
    made = task("wikisum").example(row)
    # by hand: log(4/1) for "lamp" and "of", log(4/2) for "riga": 2.77 + 0.69, 2 x 0.69, and nothing for the others
    assert made.document.split("\n") == ["the lamp of Riga", "Riga and Riga again", "nothing here", "the the the"]
    with pytest.raises(UnlimiformerError, match="list of texts"):
        task("wikisum").example({**row, "paragraphs": "one"})


def test_a_task_of_ones_own(tmp_path):
    path = tmp_path / "letters.yaml"
    path.write_text("version: 3\nabout: letters\nmetrics: [f1]\nnew_tokens: 9\nfields: {document: body, answer: gist}")
    mine = task(str(path))
    assert (mine.name, mine.version, mine.metrics) == ("letters", 3, ("f1",))
    assert mine.example({"body": "b", "gist": "g"}) == Example("b", "g")
    with pytest.raises(UnlimiformerError, match="letters needs 'gist' as well"):
        mine.example({"body": "b"})
    path.write_text("version: 1\nabout: x\nmetrics: rouge\nnew_tokens: 3\n")
    with pytest.raises(UnlimiformerError, match="metrics is 'rouge'; expected a list"):
        task(str(path))
    path.write_text("version: 1\nmetricks: []\n")
    with pytest.raises(UnlimiformerError, match="has metricks; expected: about"):
        task(str(path))
    with pytest.raises(UnlimiformerError, match="no task 'letters'"):
        task("letters")
    with pytest.raises(UnlimiformerError, match="give a JSONL file: --data"):
        task("jsonl").load()
