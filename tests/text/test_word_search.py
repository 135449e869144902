"""Word search."""

from __future__ import annotations

from unlimiformer.text.word_search import WordSearch

PASSAGES = ["The king went home.", "A queen and the king danced.", "", "Nothing else was known."]


def test_passages_that_share_rare_words_score_higher():
    scores = WordSearch(PASSAGES).scores("Where did the queen meet the king?")
    assert scores.argsort(descending=True).tolist()[:2] == [1, 0]
    assert scores[2:].tolist() == [0, 0]


def test_a_question_without_known_words_scores_nothing():
    search = WordSearch(PASSAGES)
    assert search.scores("the of and").tolist() == [0] * 4
    assert search.scores("Zanzibar?").tolist() == [0] * 4


def test_passages_without_words_score_nothing():
    assert WordSearch(["", "of the"]).scores("king").tolist() == [0, 0]
