"""The prompt of a decoder-only model: prefix (system, instruction), document, suffix (question, start of the answer).

If the tokenizer has a chat template, it is rendered around two marks and split there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...text.tokenization import prefix_token_ids

_DOCUMENT, _QUESTION = "⟦the document⟧", "⟦the question⟧"
_CHAT = f"Text:\n{_DOCUMENT}\n\nQuestion: {_QUESTION}"
_PLAIN = f"{_CHAT}\nAnswer:"
_FIXED_DATE = "{%- macro strftime_now(form) -%}1 January 2024{%- endmacro -%}"  # a memory's prefix must not change


@dataclass(frozen=True)
class PromptSuffix:
    """What follows the document: all token ids (n,), those of the question alone, and those before the question."""

    ids: Tensor
    question: Tensor
    before: Tensor


class PromptTemplate:
    """Builds the parts of a prompt with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._sentence_ends: dict[int, bool] = {}

    def prefix(self, instruction: str | None) -> Tensor:
        """Token ids before the document."""
        if self._tokenizer is None:
            return torch.empty(0, dtype=torch.long)
        before, _ = self._render(instruction)
        return self._tokenize(before) if self._has_chat_template else prefix_token_ids(before, self._tokenizer)

    def suffix(self, question: str) -> PromptSuffix:
        """Token ids behind the document."""
        if self._tokenizer is None:
            raise InputError("a prompt needs a tokenizer; give one: Unlimiformer(model, tokenizer)")
        if not question.strip():
            raise InputError("the prompt is empty; expected what the model is to do with the document")
        _, after = self._render(None)
        before = after.partition(_QUESTION)[0].rstrip(" ")  # a word's space belongs to its token
        ids = self._tokenize(after.replace(_QUESTION, question))
        return PromptSuffix(ids, self._tokenize(f" {question}"), self._tokenize(before))

    def ends_sentence(self, token: int) -> bool:
        """Whether a token ends a sentence or a line; always False without a tokenizer."""
        if self._tokenizer is None:
            return False
        if token not in self._sentence_ends:
            text = self._tokenizer.decode([token])
            self._sentence_ends[token] = "\n" in text or text.rstrip().endswith((".", "!", "?", "。", "！", "？"))
        return self._sentence_ends[token]

    @property
    def _has_chat_template(self) -> bool:
        return bool(getattr(self._tokenizer, "chat_template", None))

    def _render(self, instruction: str | None) -> tuple[str, str]:
        """Text before and after the document."""
        text = _CHAT if self._has_chat_template else _PLAIN
        text = text if instruction is None else f"{instruction}\n\n{text}"
        if self._has_chat_template:
            text = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                chat_template=_FIXED_DATE + self._tokenizer.get_chat_template(),
                tokenize=False,
                add_generation_prompt=True,
            )
        before, mark, after = text.partition(_DOCUMENT)
        if not mark or _QUESTION not in after:
            raise InputError(
                "the tokenizer's chat template does not keep the user's message as it is; expected a template that "
                "does: set tokenizer.chat_template, or give token ids to the model's own generate"
            )
        return before, after

    def _tokenize(self, text: str) -> Tensor:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long)
