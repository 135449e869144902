"""What of a model's answer is a sentence of a summary."""

from __future__ import annotations

import pytest

from unlimiformer.text.answer_sentences import clean_sentences, is_repetition


def test_whole_sentences_are_kept():
    answer = "Anna goes to the market. She meets Boris there. Then they both want to g"
    assert clean_sentences(answer) == ["Anna goes to the market.", "She meets Boris there."]


def test_a_sentence_that_breaks_off_is_marked():
    assert clean_sentences("Anna goes to the market and") == ["Anna goes to the market and …"]


def test_lists_and_markup_are_dropped():
    answer = "Anna **buys** the red horse. The people and places are:\n\n1. Anna\n2. Boris\n3. the market"
    assert clean_sentences(answer) == ["Anna buys the red horse."]


def test_a_list_of_names_is_no_sentence():
    assert clean_sentences("Karsh, Mr. Karsh, Bogan, Boge, Corps. So Anna, Boris and Clara left.") == [
        "So Anna, Boris and Clara left."
    ]


def test_words_about_the_text_are_dropped():
    assert clean_sentences("The text states that Anna sold her horse.") == ["Anna sold her horse."]
    assert clean_sentences("The text also mentions that the old horse died.") == ["The old horse died."]


@pytest.mark.parametrize("sentence", ["The old horse of Anna died in winter.", "anna's old horse died in winter"])
def test_what_was_said_is_recognised(sentence):
    assert is_repetition(sentence, ["It rained.", "The old horse of Anna died in the winter."])


def test_what_is_new_is_not_a_repetition():
    assert not is_repetition("Boris bought a new horse.", ["The old horse of Anna died in the winter."])


def test_the_same_about_another_person_is_new():
    assert not is_repetition("Boris went to the old market alone.", ["Anna went to the old market alone."])
    assert not is_repetition("In the winter old Boris lost his horse.", ["In the winter old Anna lost his horse."])


def test_a_script_without_spaces():
    assert clean_sentences("他走了，她留下了。然后他们回家了。") == ["他走了，她留下了。", "然后他们回家了。"]
