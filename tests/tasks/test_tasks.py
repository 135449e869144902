"""Examples from JSONL files, hub datasets and synthetic tasks; task definitions; condensed documents."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from unlimiformer.errors import InputError
from unlimiformer.tasks import Example, Task, examples, synthetic, task, tasks
from unlimiformer.tasks.condense import condense


def test_lines_with_one_question_and_with_several(tmp_path):
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
        ("[" * 100_000, "line 2: no JSON"),
        ("[1]", 'line 2: no text called "document"'),
        ('{"document": 5, "answer": "x"}', 'line 2: no text called "document"'),
        ('{"document": "x"}', 'line 2: an "answer" or "question" is missing'),
        ('{"document": "x", "questions": ["q"]}', 'line 2: an "answer" or "question" is missing'),
        ('{"document": "x", "answer": "y", "question": 3}', 'line 2: an "answer" or "question" is missing'),
    ],
)
def test_malformed_line_is_named_by_its_number(tmp_path, line, message):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "answer": "a"}) + "\n" + line + "\n")
    with pytest.raises(InputError, match=message):
        examples(str(path))


def test_unknown_source_and_empty_file(tmp_path):
    with pytest.raises(
        InputError,
        match="expected a JSONL file, TASK:FILE, condensed:FILE, passages:FILE, shared-passages:FILE, or one",
    ):
        examples("nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no examples"):
        examples(str(tmp_path / "empty.jsonl"))


def test_rows_of_hub_datasets(monkeypatch):
    rows = {
        "govreport": [{"input": "a report\n\nof two parts", "output": "short", "id": 7}],
        "qasper": [{"input": "Why?\n\nA paper\n\nof two parts", "output": "because"}],
        "booksum": [{"book": "a book", "summary": "short"}],
    }
    monkeypatch.setattr(Task, "_load_hub_rows", lambda self, split: rows[self.name])
    assert examples("govreport") == [Example("a report\n\nof two parts", "short", None, "7")]
    assert examples("qasper") == [Example("A paper\n\nof two parts", "because", "Why?")]
    assert examples("booksum") == [Example("a book", "short")]


def test_unreachable_hub_is_named():
    pytest.importorskip("datasets")
    with pytest.raises(InputError, match="qmsum could not be loaded from 'tau/scrolls'"):
        examples("qmsum")


def test_condensed_documents_keep_what_the_answers_are_about():
    lines = [f"someone speaks of topic{i // 40} and word{i} at some length, as people do" for i in range(800)]
    lines[300] = "the secret ingredient was saffron, said the cook"
    document = "\n".join(lines)
    long = [Example(document, "saffron, the cook said", "What was the secret ingredient?")]
    long += [Example(document, f"about topic{i}", f"What of topic{i}?") for i in range(7)]
    short = condense([*long, Example("one line", "a")])
    assert len(short) == 5 and short[-1] == Example("one line", "a")
    assert [(e.question, e.answer) for e in short[:4]] == [(e.question, e.answer) for e in long[:4]]
    assert len({example.document for example in short[:4]}) == 1
    words = short[0].document.split()
    assert lines[300] in short[0].document and "topic1" in words
    assert len(words) < 4 * 2 * 100 < len(document.split())
    positions = [lines.index(line) for line in short[0].document.split("\n")]
    assert positions == sorted(positions)


def test_passages_of_a_question_hold_its_evidence_in_order(tmp_path):
    sentences = [
        f"Sentence {i} tells of word{i} and of many other things that people say every day." for i in range(200)
    ]
    document = " ".join(sentences)
    start = document.index("Sentence 150")
    spans = [[start, start + 20]]
    row = {"document": document, "questions": [{"question": "Who saw word7?", "answer": "x", "spans": spans}] * 20}
    row["questions"].append({"question": "And who?", "answer": "word90"})
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(row) + "\n")
    shortened = examples(f"passages:{path}")
    assert len(shortened) == 21 and shortened == examples(f"passages:{path}"), "always the same"
    lengths = [len(example.document.split()) for example in shortened]
    assert max(lengths) <= 330 and min(lengths) < 180 and max(lengths) > 260, "different numbers of words"
    for example in shortened[:-1]:
        assert "Sentence 150 " in example.document
        assert "word7 " in example.document or len(example.document.split()) < 160, "then there is room for more"
        numbers = [int(number) for number in re.findall(r"Sentence (\d+)", example.document)]
        assert numbers == sorted(numbers)
        assert all(line.startswith("Sentence") and line.endswith("day.") for line in example.document.split("\n"))
    assert "word90 " in shortened[-1].document, "without evidence the answer's words count"


def test_the_shortest_of_several_answers_is_learned_and_searched(tmp_path):
    document = " ".join(f"Sentence {i} tells of word{i} and of many other things that people say." for i in range(200))
    row = {"document": document, "questions": [{"question": "And who?", "answer": ["word5 of all words", "word90"]}]}
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (example,) = examples(f"passages:{path}")
    assert example.answer == "word90" and "word90 " in example.document


def test_questions_with_near_evidence_share_passages(tmp_path):
    sentences = [f"Sentence {i} tells of word{i} and of many other things that people say." for i in range(200)]
    document = " ".join(sentences)
    evidence = [document.index(f"Sentence {i} ") for i in (20, 21, 22, 150)]
    questions = [
        {"question": f"Who saw word{i}?", "answer": ["a long answer", "short"], "spans": [[start, start + 9]]}
        for i, start in zip((20, 21, 22, 150), evidence, strict=True)
    ]
    broad = {"question": "Describe word150.", "answer": "x", "spans": [[evidence[3], evidence[3] + 9]]}
    unknown = {"question": "Who saw word7?", "answer": "x"}
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": document, "questions": [*questions, broad, unknown]}) + "\n")
    shared = examples(f"shared-passages:{path}")
    assert shared == examples(f"shared-passages:{path}"), "always the same"
    assert [example.question for example in shared] == [row["question"] for row in questions]
    assert {example.answer for example in shared} == {"short"}
    texts = [example.document for example in shared]
    assert texts[0] == texts[1] == texts[2]
    for number, text in zip((20, 21, 22, 150), texts, strict=True):
        assert f"Sentence {number} " in text
        assert 60 < len(text.split()) <= 450, "other passages stand beside the evidence"
        numbers = [int(found) for found in re.findall(r"Sentence (\d+)", text)]
        assert numbers == sorted(numbers) and len(numbers) == len(set(numbers))
        assert len(text.split("\n")) > 1, "passages that do not follow each other"


def test_several_sources_with_synthetic_tasks(tmp_path, monkeypatch):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "answer": "a"}) + "\n")
    texts = {}

    def get_text(name):
        texts[name] = tmp_path / "play.txt"
        texts[name].write_text("a line of a play\n" * 3000)
        return texts[name]

    monkeypatch.setattr(synthetic, "get_text", get_text)
    loaded = examples(f"{path},facts:3,long-facts:2")
    assert len(loaded) == 6 and loaded[0] == Example("one", "a")
    lengths = [len(example.document.split()) for example in loaded[1:]]
    assert max(lengths[:3]) < 400 and min(lengths[3:]) > 200
    variants = [examples("facts:3", "validation"), examples("facts:3:1"), examples("facts:3:1", "validation")]
    assert loaded[1:4] == examples("facts:3:0") and all(loaded[1:4] != variant for variant in variants)
    assert not {"shakespeare/hamlet", "shakespeare/lear"} & set(texts) and len(texts) > 20
    with pytest.raises(InputError, match="facts:2000"):
        examples("facts:many")


def test_several_correct_answers_are_one_question(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "questions": [{"question": "q", "answer": ["a", "b"]}]}) + "\n")
    loaded = examples(str(path))
    assert [example.answer for example in loaded] == ["a", "b"]
    assert len({example.id for example in loaded}) == 1 and loaded[0].id is not None


def test_malformed_lines_are_reported_and_skipped(tmp_path):
    path = tmp_path / "d.jsonl"
    valid = json.dumps({"document": "one", "answer": "a"}).encode()
    hub_row = json.dumps({"input": "Why?\n\nA meeting", "output": "so", "id": "x"}).encode()
    path.write_bytes(b"\n".join([valid, b"{", hub_row, b'{"input": "x"}', b'"\xff"', valid]))
    messages = []
    loaded = task("qmsum").load(path, report=messages.append)
    assert loaded == [Example("one", "a"), Example("A meeting", "so", "Why?", "x"), Example("one", "a")]
    assert [re.search(r"line (\d)", message)[1] for message in messages] == ["2", "4", "5"]
    path.write_bytes(b"\n".join([valid, b"{"]))
    with pytest.raises(InputError, match="line 2: no JSON"):
        task("qmsum").load(path)


def test_lines_may_have_the_fields_of_the_task_or_the_common_ones(tmp_path):
    path = tmp_path / "d.jsonl"
    custom = Task("custom", 1, "", ("f1",), {"document": "document", "answer": "highlights"})
    rows = [{"document": "d", "highlights": "h"}, {"document": "one", "answer": "a"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert custom.load(path) == [Example("d", "h"), Example("one", "a")]


def test_definitions_are_complete():
    from unlimiformer.evaluation.metrics import METRICS

    paper = {"govreport", "summscreen", "booksum", "qasper", "contractnli", "qmsum", "narrativeqa", "wikisum"}
    assert paper | {"jsonl"} < set(tasks())
    for definition in tasks().values():
        assert definition.version >= 1 and definition.about and (definition.new_tokens or 1) > 0
        assert set(definition.metrics) <= set(METRICS)


def test_wikisum_is_ranked_by_tfidf():
    paragraphs = ["nothing here", "the lamp of Riga", "Riga and Riga again", "the the the"]
    row = {"title": "Lamp of Riga", "paragraphs": paragraphs, "summary": "s"}
    example = task("wikisum").example(row)
    # by hand: log(4/1) for "lamp" and "of", log(4/2) for "riga": 2.77 + 0.69, 2 x 0.69, and nothing for the others
    assert example.document.split("\n") == ["the lamp of Riga", "Riga and Riga again", "nothing here", "the the the"]
    with pytest.raises(InputError, match="list of texts"):
        task("wikisum").example({**row, "paragraphs": "one"})


def test_wikisum_leaves_out_short_inputs_and_takes_the_same_sample(tmp_path, monkeypatch):
    rows = [
        {"title": "w", "paragraphs": [f"w{number}", "word " * length], "summary": f"s{number}"}
        for number, length in enumerate([1400, 1500, 1600, 1700, 1455, 1456])
    ]
    path = tmp_path / "wikisum.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [example.answer for example in examples(f"wikisum:{path}")] == ["s1", "s2", "s3", "s5"]
    sampled = replace(task("wikisum"), sample={"train": 2})
    first = sampled.load(path, "train")
    assert len(first) == 2 and first == sampled.load(path, "train")
    assert len(sampled.load(path, "validation")) == 4


def test_a_test_split_has_no_answers(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"id": "a", "input": "Who?\n\nIt was Ann.", "output": None}) + "\n")
    assert task("qasper").load(path) == [Example("It was Ann.", None, "Who?", "a")]


def test_task_from_a_yaml_file(tmp_path):
    path = tmp_path / "letters.yaml"
    path.write_text("version: 3\nabout: letters\nmetrics: [f1]\nnew_tokens: 9\nfields: {document: body, answer: gist}")
    custom = task(str(path))
    assert (custom.name, custom.version, custom.metrics) == ("letters", 3, ("f1",))
    assert custom.example({"body": "b", "gist": "g"}) == Example("b", "g")
    with pytest.raises(InputError, match="letters needs 'gist' as well"):
        custom.example({"body": "b"})
    path.write_text("version: 1\nabout: x\nmetrics: rouge\nnew_tokens: 3\n")
    with pytest.raises(InputError, match="metrics is 'rouge'; expected a list"):
        task(str(path))
    path.write_text("version: 1\nmetricks: []\n")
    with pytest.raises(InputError, match="has metricks; expected: about"):
        task(str(path))
    with pytest.raises(InputError, match="no task 'letters'"):
        task("letters")
    with pytest.raises(InputError, match="give a JSONL file: --data"):
        task("jsonl").load()
