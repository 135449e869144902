"""The prompt of a decoder-only model: prefix (system, instruction), document, suffix (question, start of the answer).

If the tokenizer has a chat template, it is rendered around two marks and split there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...text.chat_template import render_chat
from ...text.questions import asks_for_feeling, is_broad, is_question
from ...text.tokenization import prefix_token_ids

_EXAMPLE_TEXT = (
    "The ferryman's daughter rowed out alone that night, for she feared that the storm would take her father's nets. "
    "The old man stood on the bank and wept, because he thought that he had lost her. She came home at dawn with wet "
    "hair and all nine nets, and he laughed and baked her a cake."
)
_EXAMPLES = (  # questions about it, and answers as short as they should be
    ("Who went out on the water?", "the ferryman's daughter"),
    ("Why did the girl go out in the boat?", "She feared that the storm would take her father's nets."),
    ("How did the old man feel while she was away?", "sad"),
    ("What did the old man do when she came home?", "He laughed and baked her a cake."),
    ("How many nets did she bring home?", "nine"),
)
_DOCUMENT, _QUESTION = "⟦the document⟧", "⟦the question⟧"
_LABEL = "Question: "  # before a question; an instruction has none
_CHAT = f"Text:\n{_DOCUMENT}\n\n{_LABEL}{_QUESTION}"
_PLAIN = f"{_CHAT}\nAnswer:"
_FEELING = " Answer with one adjective."  # behind a question how somebody feels: a small model retells a scene instead
_FIXED_DATE = "{%- macro strftime_now(form) -%}1 January 2024{%- endmacro -%}"  # a memory's prefix must not change


@dataclass(frozen=True)
class PromptSuffix:
    """What follows the document.

    Parameters
    ----------
    ids : (n,) all token ids.
    question : those of the question alone.
    text : the question.
    """

    ids: Tensor
    question: Tensor
    text: str


class PromptTemplate:
    """Builds the parts of a prompt with one tokenizer.

    `examples`: put examples of short answers before a question about a fact.
    """

    def __init__(self, tokenizer: Any, examples: bool = True) -> None:
        self._tokenizer, self._examples = tokenizer, examples
        self._rendered: tuple[Any, str] | None = None  # the last chat and its text: most chats are the same

    def prefix(self, instruction: str | None) -> Tensor:
        """Token ids before the document."""
        if self._tokenizer is None:
            return torch.empty(0, dtype=torch.long)
        before, _ = self._render(instruction)
        return self._tokenize(before) if self._has_chat_template else prefix_token_ids(before, self._tokenizer)

    def with_examples(self, prefix: Tensor, question: str) -> Tensor:
        """A document's prefix (n,) with examples of short answers, unless the question is broad.

        They stand before the turn of the user, or before the text if there is no chat template.
        """
        if self._tokenizer is None or not self._examples or is_broad(question):
            return prefix
        plain, extended = self.prefix(None), self._prefix_with_examples
        same = _common_length(plain, prefix)
        examples = extended[same : extended.shape[0] - (plain.shape[0] - same)]
        return torch.cat((prefix[:same], examples, prefix[same:]))

    @cached_property
    def line_break(self) -> Tensor:
        """Token ids of a line break; none without a tokenizer."""
        return torch.empty(0, dtype=torch.long) if self._tokenizer is None else self._tokenize("\n")

    @property
    def longest_prefix(self) -> int:
        """Number of tokens of a prefix with examples and without an instruction."""
        if self._tokenizer is None:
            return 0
        return (self._prefix_with_examples if self._examples else self.prefix(None)).shape[0]

    @cached_property
    def _prefix_with_examples(self) -> Tensor:
        """The prefix behind some questions and answers; the prefix alone if the chat template has no such turns."""
        (first, answer), *others = _EXAMPLES
        turns = [(_fill(_CHAT, _EXAMPLE_TEXT, first), answer), *((f"Question: {q}", a) for q, a in others)]
        if not self._has_chat_template:
            text = "".join(f"{question}\nAnswer: {answer}\n\n" for question, answer in turns)
            return prefix_token_ids(text + _PLAIN.partition(_DOCUMENT)[0], self._tokenizer)
        try:
            return self._tokenize(self._render_chat(_CHAT, turns).partition(_DOCUMENT)[0])
        except InputError:
            return self.prefix(None)

    def suffix(self, question: str, answer_start: str = "") -> PromptSuffix:
        """Token ids behind the document, up to the beginning of the answer."""
        if self._tokenizer is None:
            raise InputError("a prompt needs a tokenizer; give one: Unlimiformer(model, tokenizer)")
        if not question.strip():
            raise InputError("the prompt is empty; expected what the model is to do with the document")
        _, after = self._render(None)
        placeholder = _QUESTION if is_question(question) else _LABEL + _QUESTION
        asked = question + _FEELING if asks_for_feeling(question) else question
        ids = self._tokenize(after.replace(placeholder, asked) + answer_start)
        return PromptSuffix(ids, self.question_ids(question), question)

    def question_ids(self, question: str) -> Tensor:
        """Token ids (n,) of a question alone, as it stands in a prompt."""
        return self._tokenize(f" {question}")

    @property
    def _has_chat_template(self) -> bool:
        return bool(getattr(self._tokenizer, "chat_template", None))

    def _render(self, instruction: str | None) -> tuple[str, str]:
        """Text before and after the document."""
        text = _CHAT if self._has_chat_template else _PLAIN
        text = text if instruction is None else f"{instruction}\n\n{text}"
        if self._has_chat_template:
            text = self._render_chat(text, [])
        before, mark, after = text.partition(_DOCUMENT)
        if not mark or _QUESTION not in after:
            raise InputError(
                "the tokenizer's chat template does not keep the user's message as it is; expected a template that "
                "does: set tokenizer.chat_template, or give token ids to the model's own generate"
            )
        return before, after

    def _render_chat(self, text: str, turns: Sequence[tuple[str, str]]) -> str:
        """The chat of some questions and answers, then a user's message."""
        messages = [
            {"role": role, "content": content}
            for turn in turns
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]
        messages.append({"role": "user", "content": text})
        key = (self._tokenizer.chat_template, messages)
        if self._rendered is None or self._rendered[0] != key:
            self._rendered = (key, render_chat(self._tokenizer, messages, _FIXED_DATE))
        return self._rendered[1]

    def _tokenize(self, text: str) -> Tensor:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long)


def _fill(form: str, document: str, question: str) -> str:
    return form.replace(_DOCUMENT, document).replace(_QUESTION, question)


def _common_length(one: Tensor, other: Tensor) -> int:
    """Number of tokens with which both begin."""
    length = min(one.shape[0], other.shape[0])
    different = (one[:length] != other[:length]).nonzero()
    return int(different[0]) if different.numel() else length
