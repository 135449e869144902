"""Names and numbers of a sentence."""

from __future__ import annotations

from unlimiformer.text.names import missing_names

TEXT = "Anna’s horse was sold to Jean-Paul for 1,200 roubles in Smolensk."


def test_names_and_numbers_that_a_text_has():
    assert missing_names("In Smolensk old Anna sold Anna's horse to Jean-Paul for 1,200 roubles.", TEXT) == []
    assert missing_names("There ANNA met Paul.", TEXT) == []


def test_names_and_numbers_that_it_does_not_have():
    assert missing_names("Then Boris sold it for 1,300 roubles in Moscow.", TEXT) == ["Boris", "Moscow", "1,300"]


def test_titles_other_alphabets_and_separators():
    assert missing_names("Then Mr. Napoleon met Élodie of NASA.", TEXT) == ["Napoleon", "Élodie", "NASA"]
    assert missing_names("He paid 1200 roubles to Dr. Anna.", TEXT) == []


def test_a_first_word_that_is_not_common_there():
    assert missing_names("Napoleon bought it.", TEXT) == ["Napoleon"]


def test_the_first_word_of_a_sentence_is_often_no_name():
    assert missing_names("Afterwards the horse died. Nobody wept. “Never!” he said.", TEXT) == []
