"""Prefix and suffix of a prompt, with and without a chat template."""

from __future__ import annotations

import pytest
from conftest import make_tokenizer

from unlimiformer import UnlimiformerError
from unlimiformer.engines.causal.prompts import PromptTemplate

TEMPLATE = (
    "w1 w2 {% for message in messages %}w3 {{ message['content'] }} w4 {% endfor %}"
    "{% if add_generation_prompt %}w5 w6{% endif %}"
)


@pytest.fixture
def chat():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_a_chat_template_is_split_at_the_document_and_the_question(chat):
    template = PromptTemplate(chat)
    assert chat.decode(template.prefix(None)).startswith("w1 w2 w3")
    suffix = template.suffix("w40 w41")
    assert chat.decode(suffix.ids).endswith("w40 w41 w4 w5 w6")
    assert chat.decode(suffix.question) == "w40 w41"
    assert chat.decode(suffix.ids).startswith(chat.decode(suffix.before))


def test_an_instruction_is_part_of_the_prefix(chat):
    with_instruction, without = (PromptTemplate(chat).prefix(text) for text in ("w70 w71", None))
    assert "w70 w71" in chat.decode(with_instruction)
    assert with_instruction.shape[0] == without.shape[0] + 2


def test_a_date_in_the_template_is_fixed(chat):
    chat.chat_template = "{{ 'w8' if '2024' in strftime_now('%Y') else 'w9' }} " + TEMPLATE
    assert chat.decode(PromptTemplate(chat).prefix(None)).startswith("w8 w1 w2")


def test_without_a_template_the_prompt_is_plain_text(tokenizer):
    template = PromptTemplate(tokenizer)
    assert int(template.prefix(None)[0]) == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in template.suffix("w9").ids.tolist()


def test_a_template_without_the_message_is_refused(chat):
    chat.chat_template = "w1"
    with pytest.raises(UnlimiformerError, match="chat template"):
        PromptTemplate(chat).prefix(None)


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(tokenizer, question):
    with pytest.raises(UnlimiformerError, match="empty"):
        PromptTemplate(tokenizer).suffix(question)


def test_sentences_end_at_full_stops_and_lines():
    class WordTokenizer:
        chat_template = None
        texts = ("a", " b.", "\n", " c?", ",\n\n", " 3.5")

        def decode(self, ids):
            return self.texts[ids[0]]

    template = PromptTemplate(WordTokenizer())
    assert [template.ends_sentence(token) for token in range(6)] == [False, True, True, True, True, False]
    assert not PromptTemplate(None).ends_sentence(2)
