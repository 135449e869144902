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
    assert suffix.text == "w40 w41"


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


def test_a_question_about_a_fact_gets_examples_before_the_user_turn(chat):
    template = PromptTemplate(chat)
    plain, instructed = template.prefix(None), template.prefix("w70 w71")
    for prefix in (plain, instructed):
        longer = template.with_examples(prefix, "Who is w9?")
        turns = chat.decode(longer).count("w3")
        assert turns == 11, "a user's and an assistant's for each example, and the user's own"
        assert chat.decode(longer).startswith("w1 w2 w3")
        assert chat.decode(longer).endswith(chat.decode(prefix).removeprefix("w1 w2 "))
    assert template.longest_prefix == template.with_examples(plain, "Who?").shape[0]


def test_examples_stand_before_the_text_without_a_chat_template(tokenizer):
    template = PromptTemplate(tokenizer)
    prefix = template.prefix("w70 w71")
    longer = template.with_examples(prefix, "Who?")
    assert longer.shape[0] > prefix.shape[0]
    assert int(longer[0]) == tokenizer.bos_token_id and tokenizer.bos_token_id not in longer[1:].tolist()
    assert tokenizer.decode(longer).endswith(tokenizer.decode(prefix[1:]))


def test_broad_questions_and_short_contexts_get_no_examples(chat):
    prefix = PromptTemplate(chat).prefix(None)
    assert PromptTemplate(chat).with_examples(prefix, "Summarize the text.").tolist() == prefix.tolist()
    assert PromptTemplate(chat, examples=False).with_examples(prefix, "Who?").tolist() == prefix.tolist()
    assert PromptTemplate(chat, examples=False).longest_prefix == prefix.shape[0]
    empty = prefix[:0]
    assert PromptTemplate(None).with_examples(empty, "Who?").tolist() == []


def test_a_chat_template_that_allows_one_message_gets_no_examples(chat):
    chat.chat_template = "{% if messages|length > 1 %}{{ raise_exception('one') }}{% endif %}" + TEMPLATE
    template = PromptTemplate(chat)
    prefix = template.prefix(None)
    assert template.with_examples(prefix, "Who?").tolist() == prefix.tolist()


class _Characters:
    """A tokenizer whose tokens are characters."""

    chat_template = None

    def __call__(self, text, **_):
        return {"input_ids": [ord(character) for character in text]}


def _suffix(prompt: str, **options: str) -> str:
    ids = PromptTemplate(_Characters()).suffix(prompt, **options).ids
    return "".join(chr(token) for token in ids.tolist())


def test_a_question_is_called_one_and_an_instruction_is_not():
    assert _suffix("Who came?") == "\n\nQuestion: Who came?\nAnswer:"
    assert _suffix("Translate the text.") == "\n\nTranslate the text.\nAnswer:"


def test_a_question_for_a_feeling_asks_for_an_adjective():
    assert (
        _suffix("How did the king feel?") == "\n\nQuestion: How did the king feel? Answer with one adjective.\nAnswer:"
    )


def test_the_beginning_of_the_answer():
    assert _suffix("Who came?", answer_start=" It was") == "\n\nQuestion: Who came?\nAnswer: It was"
