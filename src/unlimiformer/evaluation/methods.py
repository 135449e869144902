"""How each method answers: the plain model with truncated input, ours, and the paper's baselines.

All of them are settings of one wrapped model: SLED sees every token, Memorizing Transformers retrieve in one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..config import UnlimiformerConfig
from ..engines import CausalEngine, Seq2SeqEngine
from ..engines.seq2seq.attention import memorizing_layer
from ..errors import UnlimiformerError
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat, ask_together

METHODS = ("unlimiformer", "truncate", "sled", "memorizing")


@dataclass(frozen=True)
class Item:
    """One question (None: to summarise) about a document, and all right answers; `key` is the same in every run."""

    key: str
    document: str
    question: str | None
    references: tuple[str, ...]


class Answering:
    """A model, wrapped as a method has it, that answers items; `generation` goes to its `generate`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: UnlimiformerConfig,
        asking: QuestionFormat,
        generation: dict[str, Any],
        method: str = "unlimiformer",
        layer: int | None = None,
    ) -> None:
        self.method, self._asking, self._generation = method, asking, generation
        self.wrapped = Unlimiformer(model, tokenizer, _configured(method, model, tokenizer, config, layer))
        if self.wrapped.config.focus and config.focus and asking.place == "window":
            self.wrapped.remove()
            raise UnlimiformerError(
                f"focus is {config.focus} and questions stand before every window; it is for questions in the decoder"
            )
        self._causal = isinstance(self.wrapped.engine, CausalEngine)
        self._talk: DocumentQA | None = None

    @property
    def together(self) -> bool:
        """Whether several items can be answered in one call: prompts that start a decoder's text have one length."""
        return not self._causal and self._asking.place == "window"

    def answers(self, items: Sequence[Item]) -> list[str]:
        """One for each item, in order."""
        engine = self.wrapped.engine
        sled = self.method == "sled" and isinstance(engine, Seq2SeqEngine)
        with engine.seeing_everything() if sled else nullcontext():  # type: ignore[union-attr]
            return self._answers(items)

    def _answers(self, items: Sequence[Item]) -> list[str]:
        if not self.together:
            return [self._answer(item) for item in items]
        if self.method == "truncate":
            return self._truncated([self._asking.text(item.question) + item.document for item in items])
        documents, questions = [item.document for item in items], [item.question for item in items]
        replies = ask_together(self.wrapped, documents, questions, self._asking, **self._generation)
        return [reply.text for reply in replies]

    def _answer(self, item: Item) -> str:
        if self._talk is None or self._talk.source != item.document:
            self._talk = None  # what it holds is not needed while the next text is read
            self._talk = DocumentQA(self.wrapped, item.document, self._asking)
        if self.method == "truncate":
            return self._talk.truncated(item.question, **self._generation)
        return self._talk.ask(item.question, **self._generation).text

    @torch.no_grad()
    def _truncated(self, texts: list[str]) -> list[str]:
        model, tokenizer = self.wrapped.model, self.wrapped.tokenizer
        given = tokenizer(texts, truncation=True, max_length=self.wrapped.window, padding=True, return_tensors="pt")
        inputs = {name: given[name].to(model.device) for name in ("input_ids", "attention_mask")}
        return tokenizer.batch_decode(model.generate(**inputs, **self._generation), skip_special_tokens=True)


def _configured(
    method: str, model: Any, tokenizer: Any, config: UnlimiformerConfig, layer: int | None
) -> UnlimiformerConfig:
    """The settings that make the wrapper this method."""
    if layer is not None and method != "memorizing":
        raise UnlimiformerError(f"a layer was given; it is for method 'memorizing', and the method is {method!r}")
    if method in ("unlimiformer", "truncate"):
        return config
    if not getattr(model.config, "is_encoder_decoder", False):
        raise UnlimiformerError(
            f"the method is {method!r} and {type(model).__name__} is decoder-only; expected unlimiformer or truncate"
        )
    if method == "sled":
        return config
    with Unlimiformer(model, tokenizer, config) as wrapped:
        layers = len(wrapped.hooks.attentions)
    chosen = memorizing_layer(layers) if layer is None else layer
    return replace(config, layers=(chosen,), focus=0)
