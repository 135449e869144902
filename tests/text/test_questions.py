"""Questions about one fact, and broad ones."""

from __future__ import annotations

import pytest

from unlimiformer.text.questions import is_broad

FACTS = (
    "Who found the ring?",
    "What did the Snow Man say about the weather?",
    "Why did the farmer sell his cow?",
    "How did the girl feel when she saw the wolf?",
    "What is the access code?",
)
BROAD = (
    None,
    "Summarize the whole meeting",
    "Summarise the discussion about the budget.",
    "What is the plot of the story?",
    "Describe the setting of the story.",
    "How does Anna's view of the war change throughout the book?",
    "What is the relationship between the two brothers?",
    "Who is Retief and what happens to him?",
)


@pytest.mark.parametrize("question", FACTS)
def test_a_question_about_a_fact_is_not_broad(question):
    assert not is_broad(question)


@pytest.mark.parametrize("question", BROAD)
def test_a_question_about_much_of_a_document_is_broad(question):
    assert is_broad(question)
