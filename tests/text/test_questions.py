"""Questions about one fact, broad ones, and those that ask for a summary."""

from __future__ import annotations

import pytest

from unlimiformer.text.questions import (
    asked_part,
    asks_for_feeling,
    asks_for_summary,
    is_broad,
    is_descriptive,
    is_question,
)

FACTS = (
    "Who found the ring?",
    "What did the Snow Man say about the weather?",
    "Why did the farmer sell his cow?",
    "How did the girl feel when she saw the wolf?",
    "What is the access code?",
    "Who bought the plot of land?",
    "What important letter did Anna lose?",
    "What did she say on their way home?",
    "At the setting of the sun, who arrived?",
    "How did the girl feel at the thought of her brothers?",
    "Who was a member of the committee?",
    "Why did William decide to go home?",
    "What is the name of the project?",
    "How many members did the group have?",
    "How old was the leader of the group?",
    "What city did the team visit?",
    "How much did the project cost?",
    "What year did the government fall?",
    "Who gave feedback?",
    "How many concerns were raised?",
    "What dataset is used for evaluation?",
    "Who evaluated the essays?",
    "What were the contents of the box?",
    "What measures the temperature?",
    "Who decided on the colour?",
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
    "Who are the Qornt and how do they relate to the others?",
    "What was said about the buttons of the remote control?",
    "Why did Marketing disagree with the price?",
    "What did the group talk about when they chose the colours?",
    "What was the debate over long-term care?",
    "What is the boy's role in the story?",
    "How do the two planets differ?",
    "What are the features of the killer robots?",
    "What did the minister say on agriculture?",
    "What was said on theology?",
    "How did the group evaluate the prototype?",
    "What was decided on the shape of the case?",
    "Why did the team reject the microphone?",
    "What was the feedback regarding the prototype?",
    "To what extent did the two sectors differ?",
    "What did Marketing suggest about the price?",
    "What concerns did the members raise?",
    "What were the main barriers to the plan?",
)


@pytest.mark.parametrize("question", FACTS)
def test_a_question_about_a_fact_is_not_broad(question):
    assert not is_broad(question)


@pytest.mark.parametrize("question", BROAD)
def test_a_question_about_much_of_a_document_is_broad(question):
    assert is_broad(question)


@pytest.mark.parametrize("question", BROAD[2:])
def test_a_description(question):
    assert is_descriptive(question)


@pytest.mark.parametrize(
    "question", ["In the book, what is the name? Answer in two sentences.", "Who came?", "what is it"]
)
def test_a_question(question):
    assert is_question(question)


@pytest.mark.parametrize("question", [*FACTS, "Translate the text into French.", "Write all names as JSON."])
def test_no_description(question):
    assert not is_descriptive(question)


@pytest.mark.parametrize(
    "question",
    [
        None,
        "Summarize the whole meeting",
        "Please summarise this document.",
        "What is the plot of the story?",
        "Give me a short summary of the book",
        "What is this paper about?",
        "what's the plot?",
        "What’s the story about?",
        "Summarize.",
        "Can you please summarise the book?",
        "Summarize the text in three sentences.",
    ],
)
def test_a_summary(question):
    assert asks_for_summary(question)


@pytest.mark.parametrize(
    "question",
    [
        *FACTS,
        "Summarize the discussion about the budget.",
        "Summarise chapter 4.",
        "What is the plot against the king?",
        "What is the book about gardens called?",
        "Describe the setting of the story.",
    ],
)
def test_no_summary(question):
    assert not asks_for_summary(question)


@pytest.mark.parametrize(
    ("question", "part"),
    [
        ("How does the story end?", "end"),
        ("Who dies at the end of the novel?", "end"),
        ("What happens when the play ends?", "end"),
        ("How does it all begin?", "beginning"),
        ("Where are they at the beginning of the story?", "beginning"),
        ("Who spoke when the meeting started?", "beginning"),
        ("What did he find at the end of the road?", None),
        ("Who began the war?", None),
    ],
)
def test_the_part_of_the_document_that_a_question_names(question, part):
    assert asked_part(question) == part


@pytest.mark.parametrize(
    ("question", "feeling"),
    [
        ("How did the king feel when his daughter left?", True),
        ("How will the bears feel?", True),
        ("How was the girl feeling?", True),
        ("How did the feeling spread?", False),
        ("Who felt cold?", False),
        ("How does Anna feel about the war, and how has that changed?", False),
    ],
)
def test_a_question_for_a_feeling(question, feeling):
    assert asks_for_feeling(question) is feeling
