"""Head, document and tail of a prompt, with and without a chat template."""

from __future__ import annotations

import pytest
import torch
from conftest import make_tokenizer

from unlimiformer import UnlimiformerError
from unlimiformer.engines.causal.prompts import Prompts

TEMPLATE = (
    "w1 w2 {% for message in messages %}w3 {{ message['content'] }} w4 {% endfor %}"
    "{% if add_generation_prompt %}w5 w6{% endif %}"
)


@pytest.fixture
def chat():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _words(tokenizer, ids: torch.Tensor) -> str:
    return tokenizer.decode(ids)


def test_a_chat_template_is_cut_at_the_document_and_the_question(chat):
    prompts = Prompts(chat)
    assert _words(chat, prompts.head(None)).startswith("w1 w2 w3")
    tail = prompts.tail("w40 w41")
    assert _words(chat, tail.ids).endswith("w40 w41 w4 w5 w6")
    assert _words(chat, tail.question) == "w40 w41"
    assert _words(chat, tail.ids).startswith(_words(chat, tail.before))


def test_an_instruction_stands_in_the_head(chat):
    with_it, without = Prompts(chat).head("w70 w71"), Prompts(chat).head(None)
    assert "w70 w71" in _words(chat, with_it) and with_it.shape[0] == without.shape[0] + 2


def test_a_date_in_the_template_does_not_change_with_the_day(chat):
    chat.chat_template = "{{ 'w8' if '2024' in strftime_now('%Y') else 'w9' }} " + TEMPLATE
    assert _words(chat, Prompts(chat).head(None)).startswith("w8 w1 w2")


def test_without_a_template_the_prompt_is_plain_text(tokenizer):
    prompts = Prompts(tokenizer)
    assert int(prompts.head(None)[0]) == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in prompts.tail("w9").ids.tolist()


def test_a_template_that_loses_the_message_is_refused(chat):
    chat.chat_template = "w1"
    with pytest.raises(UnlimiformerError, match="chat template"):
        Prompts(chat).head(None)


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(tokenizer, question):
    with pytest.raises(UnlimiformerError, match="empty"):
        Prompts(tokenizer).tail(question)


def test_sentences_end_at_full_stops_and_lines():
    class Words:
        chat_template = None
        texts = ("a", " b.", "\n", " c?", ",\n\n", " 3.5")

        def decode(self, ids):
            return self.texts[ids[0]]

    prompts = Prompts(Words())
    assert [prompts.ends_sentence(token) for token in range(6)] == [False, True, True, True, True, False]
    assert not Prompts(None).ends_sentence(2)
