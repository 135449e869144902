"""Summaries from sections: length, coverage, batches, resuming, evidence."""

from __future__ import annotations

import re

import pytest
from summary_helpers import PEOPLE, make_sentence, make_story

from unlimiformer.engines.answer_end import loop_start
from unlimiformer.errors import UnlimiformerError
from unlimiformer.qa import QuestionFormat


def _wanted(instruction: str) -> int:
    names = ("one", "two", "three", "four")
    return names.index(re.search(r"in (\w+) sentence", instruction).group(1)) + 1


def _tell(text: str, instruction: str) -> str:
    """As many sentences as asked for, about the first people that a text names."""
    people = list(dict.fromkeys(re.findall("|".join(PEOPLE), text)))
    return " ".join(make_sentence(people[i % len(people)], text, i) for i in range(_wanted(instruction)))


def test_a_short_document_gets_sentences_from_every_section(scribe):
    story = make_story(6, sentences=30)
    summary = scribe().wrapped.summarize(story, words=300, method="hierarchical")
    assert all(person in summary.text for person in PEOPLE[:6])


def test_a_long_document_is_reduced_to_the_words(scribe):
    story = make_story(12, sentences=150)
    model = scribe(_tell)
    for words in (60, 200):
        summary = model.wrapped.summarize(story, words=words, method="hierarchical")
        assert 0.4 * words < len(summary.text.split()) <= 1.3 * words


def test_all_of_the_document_is_read_once(scribe):
    story = make_story(5)
    model = scribe(_tell)
    model.wrapped.summarize(story, words=5000, method="hierarchical")
    read = "".join("".join(text.split()) for text, _ in model.asked)
    assert read == "".join(story.split())


def test_sections_are_read_in_batches(scribe):
    model = scribe(_tell)
    model.wrapped.summarize(make_story(12, sentences=150), words=200, method="hierarchical")
    assert max(model.batches) == 8
    assert sum(model.batches) / len(model.batches) > 7


def test_sentences_stand_on_passages_of_their_section(scribe):
    story = make_story(4)
    summary = scribe().wrapped.summarize(story, words=200, method="hierarchical")
    for sentence in summary.sentences:
        person = next(person for person in PEOPLE if person in sentence.text)
        assert sentence.passages
        assert all(person in summary.quote(passage) for passage in sentence.passages)


def test_no_sentence_is_said_twice(scribe):
    model = scribe(lambda text, instruction: "All of the people went home again at last.")
    summary = model.wrapped.summarize(make_story(6), words=400, method="hierarchical")
    assert summary.text == "All of the people went home again at last."


def test_by_chapter(scribe):
    story = make_story(3)
    parts = []
    summary = scribe(_tell).wrapped.summarize(
        story, words=40, by_chapter=True, method="hierarchical", on_part=parts.append
    )
    assert [chapter.title for chapter in summary.chapters] == ["CHAPTER 1", "CHAPTER 2", "CHAPTER 3"]
    assert tuple(parts) == summary.chapters
    for chapter, person in zip(summary.chapters, PEOPLE, strict=False):
        assert person in chapter.text
        assert 10 <= len(chapter.text.split()) <= 52
    assert summary.text.startswith("CHAPTER 1\n")


def test_progress_counts_sections(scribe):
    steps = []
    scribe().wrapped.summarize(
        make_story(12), method="hierarchical", progress=lambda done, of: steps.append((done, of))
    )
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert len(steps) > 1


def test_an_interrupted_summary_continues(scribe, tmp_path):
    story = make_story(12, sentences=150)
    whole = scribe(_tell)
    expected = whole.wrapped.summarize(story, method="hierarchical")

    def fail_in_the_middle(text: str, instruction: str) -> str:
        if len(interrupted.asked) > 24:
            raise KeyboardInterrupt
        return _tell(text, instruction)

    interrupted = scribe(fail_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        interrupted.wrapped.summarize(story, method="hierarchical", folder=tmp_path)
    continued = scribe(_tell)
    assert continued.wrapped.summarize(story, method="hierarchical", folder=tmp_path) == expected
    assert 0 < len(continued.asked) < len(whole.asked) - 16
    again = scribe(_tell)
    assert again.wrapped.summarize(story, method="hierarchical", folder=tmp_path) == expected
    assert again.asked == []


def test_another_length_reads_nothing_again(scribe, tmp_path):
    story = make_story(12, sentences=150)
    scribe(_tell).wrapped.summarize(story, words=200, method="hierarchical", folder=tmp_path)
    again = scribe(_tell)
    again.wrapped.summarize(story, words=100, method="hierarchical", folder=tmp_path)
    assert again.asked == []


def test_another_wording_writes_anew(scribe, tmp_path):
    story = make_story(3)
    scribe().wrapped.summarize(story, method="hierarchical", folder=tmp_path)
    other = scribe()
    question_format = QuestionFormat(form="{question} now")
    other.wrapped.summarize(story, method="hierarchical", folder=tmp_path, question_format=question_format)
    assert other.asked


def test_no_words_are_written_three_times(scribe):
    model = scribe(lambda text, _: f"The old friend of all the people was there on day {len(text)}.")
    summary = model.wrapped.summarize(make_story(9), words=400, method="hierarchical")
    assert loop_start(summary.text) is None
    assert len(summary.sentences) == 2


def test_other_settings_write_anew(scribe, tmp_path):
    story = make_story(3)
    scribe().wrapped.summarize(story, method="hierarchical", folder=tmp_path)
    other = scribe()
    other.wrapped.summarize(story, method="hierarchical", folder=tmp_path, repetition_penalty=1.2)
    assert other.asked


def test_a_model_that_writes_nothing_gives_nothing(scribe):
    summary = scribe(lambda text, instruction: "").wrapped.summarize(make_story(3), method="hierarchical")
    assert summary.sentences == []


def test_an_empty_document_is_refused(scribe):
    for method in ("hierarchical", "leading"):
        with pytest.raises(UnlimiformerError, match="no sentences"):
            scribe().wrapped.summarize("  \n ", method=method)


def test_grounded_rewrites_what_the_document_does_not_say(scribe):
    def invent(text: str, instruction: str) -> str:
        if len(text.split()) < 280:  # passages, from which a sentence is rewritten
            return make_sentence(re.search("|".join(PEOPLE), text).group(), text)
        return make_sentence("Napoleon", text)

    story = make_story(4, sentences=80)
    draft = scribe(invent).wrapped.summarize(story, words=200, method="hierarchical")
    assert draft.text.count("Napoleon") == len(draft.sentences) > 2
    grounded = scribe(invent).wrapped.summarize(story, words=200, method="grounded")
    assert "Napoleon" not in grounded.text
    assert all(person in grounded.text for person in PEOPLE[:4])


@pytest.mark.parametrize(
    "sentence", ["Napoleon and the army of France came along.", "Then Napoleon met Anna or Boris."]
)
def test_grounded_drops_what_cannot_be_rewritten(scribe, sentence):
    """The first sentence has no evidence; the second has some, and is not better when it is rewritten."""
    story = make_story(2)
    draft = scribe(lambda text, instruction: sentence).wrapped.summarize(story, method="hierarchical")
    assert draft.text == sentence
    assert scribe(lambda text, instruction: sentence).wrapped.summarize(story, method="grounded").sentences == []


def test_grounded_keeps_what_the_document_says(scribe):
    story = make_story(4)
    texts = [scribe().wrapped.summarize(story, method=method).text for method in ("hierarchical", "grounded")]
    assert texts[0] == texts[1]


def test_leading_sentences_are_those_of_the_document(scribe):
    story = make_story(6)
    model = scribe()
    summary = model.wrapped.summarize(story, words=200, method="leading")
    assert model.asked == []
    assert 100 < len(summary.text.split()) < 230
    for sentence in summary.sentences:
        (passage,) = sentence.passages
        assert " ".join(summary.quote(passage).split()) == sentence.text


def test_as_json(scribe):
    story = make_story(2)
    summary = scribe().wrapped.summarize(story, method="grounded")
    content = summary.to_dict()
    assert content["summary"] == summary.text
    (chapter,) = content["chapters"]
    assert [sentence["text"] for sentence in chapter["sentences"]] == [s.text for s in summary.sentences]
    passage = chapter["sentences"][0]["passages"][0]
    assert passage["text"] == story[passage["start"] : passage["end"]].strip()


def test_unknown_methods_and_token_ids_are_refused(scribe):
    with pytest.raises(UnlimiformerError, match="expected one of: direct, hierarchical, grounded, extractive, leading"):
        scribe().wrapped.summarize("A text of words.", method="magic")
    with pytest.raises(UnlimiformerError, match="expected a text"):
        scribe().wrapped.summarize([1, 2, 3])
    with pytest.raises(UnlimiformerError, match="decoder-only"):
        scribe().wrapped.summarize("A text of words.", method="direct")
