"""The methods that an evaluation compares: ours, the truncated plain model, word search, and the paper's baselines.

All use one wrapped model: SLED attends to every token, Memorizing Transformers retrieve in one layer, and word search
gives the plain model the passages that BM25 finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from ..config import UnlimiformerConfig
from ..engines.seq2seq.attention import memorizing_layer
from ..errors import InputError
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat, answer_batch
from .bm25 import BM25Search

METHODS = ("unlimiformer", "truncate", "bm25", "sled", "memorizing")


@dataclass(frozen=True)
class Item:
    """One question about a document (None asks for a summary) with all right answers; `key` is the same in all runs."""

    key: str
    document: str
    question: str | None
    references: tuple[str, ...]


class Answerer:
    """Answers items with one method.

    Parameters
    ----------
    generation : arguments of the model's `generate`.
    method : one of `METHODS`.
    layer : the layer that retrieves, for "memorizing".
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: UnlimiformerConfig,
        question_format: QuestionFormat,
        generation: dict[str, Any],
        method: str = "unlimiformer",
        layer: int | None = None,
    ) -> None:
        self.method, self._format, self._generation = method, question_format, generation
        self.wrapped = Unlimiformer(model, tokenizer, _method_config(method, model, tokenizer, config, layer))
        if self.wrapped.config.focus and config.focus and question_format.place == "window":
            self.wrapped.remove()
            raise InputError(
                f"focus is {config.focus} and questions stand before every window; it is for questions in the decoder"
            )
        self._qa: DocumentQA | None = None
        self._search: BM25Search | None = None

    @property
    def batched(self) -> bool:
        """Whether several items can be answered in one call: prompts in the decoder must have equal lengths."""
        return self.wrapped.engine.kind == "encoder-decoder" and self._format.place == "window"

    def answers(self, items: Sequence[Item]) -> list[str]:
        """One answer per item, in order."""
        with self.wrapped.engine.full_attention() if self.method == "sled" else nullcontext():
            if self.method == "bm25":
                return [self._answer_from_passages(item) for item in items]
            return self._answer_batch(items) if self.batched else [self._answer(item) for item in items]

    def _answer_batch(self, items: Sequence[Item]) -> list[str]:
        if self.method == "truncate":
            texts = [self._format.text(item.question) + item.document for item in items]
            return self.wrapped.engine.truncated_generate(texts, [None] * len(texts), self._generation)
        documents, questions = [item.document for item in items], [item.question for item in items]
        answers = answer_batch(self.wrapped, documents, questions, self._format, **self._generation)
        return [answer.text for answer in answers]

    def _answer_from_passages(self, item: Item) -> str:
        """Answer of the plain model that sees as many tokens of the document as ours retrieves, chosen by BM25."""
        engine = self.wrapped.engine
        if self._search is None or self._search.document != item.document:
            self._search = BM25Search(item.document, self.wrapped.tokenizer)
        budget = engine.top_k if engine.kind == "decoder-only" else engine.context_length
        passages = self._search.select(item.question, budget)
        return DocumentQA(self.wrapped, passages, self._format).ask_truncated(item.question, **self._generation)

    def _answer(self, item: Item) -> str:
        if self._qa is None or self._qa.source != item.document:
            self._qa = None  # frees the memory of the previous document first
            self._qa = DocumentQA(self.wrapped, item.document, self._format)
        if self.method == "truncate":
            return self._qa.ask_truncated(item.question, **self._generation)
        return self._qa.ask(item.question, **self._generation).text


def _method_config(
    method: str, model: Any, tokenizer: Any, config: UnlimiformerConfig, layer: int | None
) -> UnlimiformerConfig:
    """The settings that make the wrapper this method."""
    if layer is not None and method != "memorizing":
        raise InputError(f"a layer was given; it is for method 'memorizing', and the method is {method!r}")
    if method in ("unlimiformer", "truncate", "bm25"):
        return config
    if not getattr(model.config, "is_encoder_decoder", False):
        raise InputError(
            f"the method is {method!r} and {type(model).__name__} is decoder-only; expected unlimiformer, truncate "
            "or bm25"
        )
    if method == "sled":
        return config
    with Unlimiformer(model, tokenizer, config) as wrapped:
        layers = len(wrapped.engine.cross_attentions)
    retrieving_layer = memorizing_layer(layers) if layer is None else layer
    return replace(config, layers=(retrieving_layer,), focus=0)
