"""The prompt of a decoder-only model: head (system, instruction), document, tail (question, and where answers begin).

A chat template, if the tokenizer has one, is rendered around marks and cut at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import UnlimiformerError
from ...text.tokenization import opening_ids

_DOCUMENT, _QUESTION = "⟦the document⟧", "⟦the question⟧"
_CHAT = f"Text:\n{_DOCUMENT}\n\nQuestion: {_QUESTION}"
_PLAIN = f"{_CHAT}\nAnswer:"
_SAME_DAY = "{%- macro strftime_now(form) -%}1 January 2024{%- endmacro -%}"  # heads of memories must not change


@dataclass(frozen=True)
class PromptSuffix:
    """What follows the document: its ids (n,), those of the question alone, and those before it."""

    ids: Tensor
    question: Tensor
    before: Tensor


class Prompts:
    """How one tokenizer's model is asked."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ends: dict[int, bool] = {}

    def head(self, instruction: str | None) -> Tensor:
        """Token ids before the document."""
        if self._tokenizer is None:
            return torch.empty(0, dtype=torch.long)
        before, _ = self._rendered(instruction)
        return self._ids(before) if self._chats else opening_ids(before, self._tokenizer)

    def tail(self, question: str) -> PromptSuffix:
        """Token ids behind the document."""
        if self._tokenizer is None:
            raise UnlimiformerError("a prompt needs a tokenizer; give one: Unlimiformer(model, tokenizer)")
        if not question.strip():
            raise UnlimiformerError("the prompt is empty; expected what the model is to do with the document")
        _, after = self._rendered(None)
        before = after.partition(_QUESTION)[0].rstrip(" ")  # a word's space belongs to its token
        whole = self._ids(after.replace(_QUESTION, question))
        return PromptSuffix(whole, self._ids(f" {question}"), self._ids(before))

    def ends_sentence(self, token: int) -> bool:
        """Whether a token closes a sentence or a line; nobody knows without a tokenizer."""
        if self._tokenizer is None:
            return False
        if token not in self._ends:
            text = self._tokenizer.decode([token])
            self._ends[token] = "\n" in text or text.rstrip().endswith((".", "!", "?", "。", "！", "？"))
        return self._ends[token]

    @property
    def _chats(self) -> bool:
        return bool(getattr(self._tokenizer, "chat_template", None))

    def _rendered(self, instruction: str | None) -> tuple[str, str]:
        form = _CHAT if self._chats else _PLAIN
        form = form if instruction is None else f"{instruction}\n\n{form}"
        if self._chats:
            messages = [{"role": "user", "content": form}]
            template = _SAME_DAY + self._tokenizer.get_chat_template()
            form = self._tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        before, found, after = form.partition(_DOCUMENT)
        if not found or _QUESTION not in after:
            raise UnlimiformerError(
                "the tokenizer's chat template does not keep the user's message as it is; expected a template that "
                "does: set tokenizer.chat_template, or give token ids to the model's own generate"
            )
        return before, after

    def _ids(self, text: str) -> Tensor:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long)
