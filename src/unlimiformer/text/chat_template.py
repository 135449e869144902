"""Render a chat by a tokenizer's own template: a program that comes with a model, and is run within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..utils.bounded import BoundedError, call_bounded


def render_chat(tokenizer: Any, messages: Sequence[dict[str, str]], before: str = "") -> str:
    """The text of a chat, up to the beginning of the answer.

    `before`: put in front of the template; what it defines replaces what the template is given by transformers.
    """

    def render() -> str:
        template = before + tokenizer.get_chat_template() if before else None
        text = tokenizer.apply_chat_template(
            list(messages), chat_template=template, tokenize=False, add_generation_prompt=True
        )
        if not isinstance(text, str):
            raise TypeError(f"the chat is {type(text).__name__}, not a text")
        return text

    try:
        return call_bounded(render)
    except BoundedError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"the tokenizer's chat template cannot be used ({reason}); set another one: tokenizer.chat_template, or "
            "chat_template.jinja in the model's folder"
        ) from None
