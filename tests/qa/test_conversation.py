"""Follow-up questions: what may be meant, and what a model chooses."""

from __future__ import annotations

import pytest
import torch
from conftest import make_tokenizer
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import Conversation, DocumentQA, Turn
from unlimiformer.qa.conversation import _log_probabilities, standalone_question
from unlimiformer.text.references import noun_phrases, refers_back, resolve_references


def choose(*wanted):
    """Choose the option that contains the next of some words."""
    remaining = list(wanted)

    def of(options):
        word = remaining.pop(0)
        return next(number for number, option in enumerate(options) if word in option)

    return of


@pytest.mark.parametrize(
    ("follow_up", "first", "answer", "wanted", "expected"),
    [
        ("And whom did he kill?", "Who was the king’s son?", "the hunter", ["the hunter"], "Whom did the hunter kill?"),
        ("What was her name?", "Who came to the door?", "An old woman.", ["woman’s"], "What was the old woman’s name?"),
        (
            "Who gave it to her?",
            "What did the girl find?",
            "a ring",
            ["the girl", "the ring"],
            "Who gave the ring to the girl?",
        ),
        ("Who saw her go?", "Where was Anna Bell?", "at home", ["Anna Bell"], "Who saw Anna Bell go?"),
        (
            "What about the youngest?",
            "What did the oldest son take?",
            "a pot",
            ["youngest"],
            "What did the youngest son take?",
        ),
        ("And Peter?", "Where did Paul live?", "in Rome", ["Peter"], "Where did Peter live?"),
        ("Who was there then?", "Where was the feast?", "in the castle", ["the castle"], "Who was at the castle then?"),
        (
            "What did they do?",
            "Who saw the man and his wife?",
            "the dog",
            ["wife"],
            "What did the man and his wife do?",
        ),
        ("Why did she cry?", "Whom did the king marry?", "the widow", ["the widow"], "Why did the widow cry?"),
        ("Why was there no bread?", "Who was the baker?", "Tom", [], "Why was there no bread?"),
    ],
)
def test_references_are_resolved(follow_up, first, answer, wanted, expected):
    assert resolve_references(follow_up, first, answer, choose(*wanted)) == expected


def test_questions_that_stand_alone():
    assert not refers_back("Who killed the dragon?") and not refers_back("Why was there no bread in the house?")
    assert refers_back("Who killed him?") and refers_back("And the queen?") and refers_back("What about Anna?")


def test_phrases_of_a_question():
    phrases = noun_phrases("What did the Queen of the Jasper Sea give to Hou I?")
    assert {"the Queen of the Jasper Sea", "the Jasper Sea", "Hou I"} <= set(phrases)
    assert "Hou" not in phrases and "What" not in phrases


@pytest.fixture
def wrapped():
    return Unlimiformer(tiny_decoder("llama"), make_tokenizer(), window=64, top_k=12, block=4)


def test_log_probabilities_equal_those_of_whole_texts(wrapped):
    beginning, continuations = "w1 w2 w3 w4", [" w5 w6", " w7", " w8 w9 w10 w11"]
    scores = _log_probabilities(wrapped, beginning, continuations)
    for continuation, score in zip(continuations, scores, strict=True):
        prompt = wrapped.tokenizer(beginning, return_tensors="pt")["input_ids"]
        tail = wrapped.tokenizer(continuation, return_tensors="pt", add_special_tokens=False)["input_ids"]
        ids = torch.cat((prompt, tail), dim=1)
        logits = wrapped.model(ids).logits[0, prompt.shape[1] - 1 : -1].log_softmax(-1)
        assert logits.gather(1, tail[0][:, None]).sum().item() == pytest.approx(score.item(), abs=1e-4)


def test_the_model_chooses_the_likeliest_question(wrapped, monkeypatch):
    monkeypatch.setattr(
        "unlimiformer.qa.conversation._log_probabilities",
        lambda _, __, texts: torch.tensor([-1.0 if "the miller" in text else -9.0 for text in texts]),
    )
    turns = [Turn("Who fed the wolf?", "the miller")]
    assert standalone_question("And where did he live?", turns, wrapped) == "Where did the miller live?"
    assert standalone_question("Where did the smith live?", turns, wrapped) == "Where did the smith live?"
    assert standalone_question("And where did he live?", [], wrapped) == "And where did he live?"


def test_an_encoder_decoder_gets_the_question_before(tokenizer):
    wrapped = Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=9)
    asked = standalone_question("Where did he live?", [Turn("Who fed the wolf?", "the miller")], wrapped)
    assert asked == "Who fed the wolf? the miller Where did he live?"


def test_a_conversation_remembers_what_was_asked(wrapped, book):
    conversation = Conversation(DocumentQA(wrapped, wrapped.index(book)))
    conversation.ask("Who is w5?", max_new_tokens=4)
    conversation.ask("What did he do?", max_new_tokens=4)
    assert len(conversation.turns) == 2 and conversation.turns[0].question == "Who is w5?"
    summary = conversation.ask(None, max_new_tokens=8)
    assert summary.text is not None and len(conversation.turns) == 2


def test_pronouns_agree_with_what_they_stand_for():
    options = []

    def record(versions):
        options.extend(versions)
        return 0

    resolve_references("Why did she cry?", "Whom did the king marry?", "the widow", record)
    assert options == ["Why did the widow cry?"]
    options.clear()
    resolve_references("What did they do then?", "Where did the boy see the knights?", "in the wood", record)
    assert options == ["What did the knights do then?"]
    options.clear()
    assert resolve_references("Why did she cry?", "Where was the king?", "with the lord", record) == "Why did she cry?"
