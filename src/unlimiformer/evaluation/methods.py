"""The methods that an evaluation compares: ours, the plain model in several ways, and the paper's baselines.

All use one wrapped model. The plain model is given the first window of a document, as much as its context holds, the
passages that word search finds, or one part after the other. SLED attends to every token, and Memorizing Transformers
retrieve in one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from .. import summaries
from ..config import UnlimiformerConfig
from ..engines.answer_end import AnswerEnd, answer_tokens
from ..engines.seq2seq.attention import memorizing_layer
from ..errors import InputError
from ..hub.saved_settings import with_defaults
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat, answer_batch
from ..text.questions import asks_for_summary
from .bm25 import BM25Search
from .map_reduce import MapReduce

METHODS = ("unlimiformer", "truncate", "full", "bm25", "map-reduce", "sled", "memorizing", *summaries.METHODS)
_PART_TOKENS = 2048  # largest part of "map-reduce" for a decoder-only model


@dataclass(frozen=True)
class Item:
    """One question about a document (None asks for a summary) with all right answers; `key` is the same in all runs.

    Parameters
    ----------
    references : empty in a test split, whose answers are not known.
    evidence : characters of the document, start and end, that the answer is in; empty if unknown.
    id : the dataset's own name of the item; None if it has none.
    """

    key: str
    document: str
    question: str | None
    references: tuple[str, ...]
    evidence: tuple[tuple[int, int], ...] = ()
    id: str | None = None


@dataclass(frozen=True)
class Reply:
    """An answer.

    Parameters
    ----------
    seen : characters of the document that the model saw; None if that is not known.
    sentences : of a summary, each with the texts of its passages; None for other answers.
    """

    text: str
    seen: list[tuple[int, int]] | None = None
    sentences: list[dict[str, Any]] | None = None


class Answerer:
    """Answers items with one method.

    Parameters
    ----------
    wrapped : the model; `wrap` makes one for a method.
    generation : arguments of the model's `generate`.
    method : one of `METHODS`.
    """

    def __init__(
        self, wrapped: Unlimiformer, question_format: QuestionFormat, generation: dict[str, Any], method: str
    ) -> None:
        self.wrapped, self.method, self._format, self._generation = wrapped, method, question_format, generation
        self._last: DocumentQA | None = None
        self._search: BM25Search | None = None

    @classmethod
    def wrap(
        cls,
        model: Any,
        tokenizer: Any,
        config: UnlimiformerConfig,
        question_format: QuestionFormat,
        generation: dict[str, Any],
        method: str = "unlimiformer",
        layer: int | None = None,
    ) -> Answerer:
        """Wrap a model as a method needs it; `layer` is the one that retrieves, for "memorizing"."""
        if method in ("sled", "memorizing") and _rereads(model, config):
            config, question_format = replace(config, selection="top-k"), replace(question_format, place="window")
        wrapped = Unlimiformer(model, tokenizer, _method_config(method, model, tokenizer, config, layer))
        if wrapped.config.focus and config.focus and question_format.place != "decoder":
            wrapped.remove()
            raise InputError(
                f"focus is {config.focus} and questions stand before the document; it is for questions in the decoder"
            )
        return cls(wrapped, question_format, generation, method)

    @property
    def batched(self) -> bool:
        """Whether several items can be answered in one call: prompts in the decoder must have equal lengths."""
        return self.wrapped.engine.kind == "encoder-decoder" and self._format.place != "decoder"

    def answers(self, items: Sequence[Item]) -> list[Reply]:
        """One answer per item, in order."""
        with self.wrapped.engine.full_attention() if self.method == "sled" else nullcontext():
            if self.method in summaries.METHODS:
                return [self._summarize(item, self.method) for item in items]
            if self.method == "bm25":
                return [self._answer_from_passages(item) for item in items]
            if self.method == "map-reduce":
                return [Reply(self._answer_from_parts(item)) for item in items]
            return self._answer_batch(items) if self.batched else [self._answer(item) for item in items]

    def _answer_batch(self, items: Sequence[Item]) -> list[Reply]:
        documents, questions = [item.document for item in items], [item.question for item in items]
        if self.method == "truncate":
            end = AnswerEnd(questions, self._generation, self.wrapped.tokenizer)
            texts = [self._format.text(item.question) + item.document for item in items]
            truncated = self.wrapped.engine.truncated_generate(texts, [None] * len(texts), end.generation)
            return [Reply(end.text(answer)) for answer in truncated]
        answers = answer_batch(self.wrapped, documents, questions, self._format, **self._generation)
        return [Reply(answer.text) for answer in answers]

    def _answer_from_passages(self, item: Item) -> Reply:
        """Answer of the plain model that sees as many tokens of the document as ours retrieves, chosen by BM25."""
        engine = self.wrapped.engine
        if self._search is None or self._search.document != item.document:
            self._search = BM25Search(item.document, self.wrapped.tokenizer)
        if engine.kind == "decoder-only":
            budget = engine.selected_tokens(item.question)
        else:
            budget = self._plain_room(item.question)
        seen = self._search.select(item.question, budget)
        text = "\n".join(item.document[start:end].strip() for start, end in seen)
        return Reply(self._ask_plain(text, item.question), seen)

    def _answer_from_parts(self, item: Item) -> str:
        """Answer of the plain model over its own answers about every part of the document."""
        room = self._plain_room(item.question)
        if self.wrapped.engine.kind == "decoder-only":
            room = min(room, _PART_TOKENS)
        parts = MapReduce(lambda part: self._ask_plain(part, item.question), self.wrapped.tokenizer, room)
        return parts.answer(item.document)

    def _plain_room(self, question: str | None) -> int:
        """Tokens of a text that the plain model reads, next to a question in its window."""
        engine = self.wrapped.engine
        room = engine.truncated_room(self._generation)
        in_window = self._format.place != "decoder" or engine.config.selection == "reread"
        if engine.kind == "decoder-only" or not in_window:
            return room
        ids = self.wrapped.tokenizer(self._format.text(question), add_special_tokens=False, verbose=False)["input_ids"]
        return room - len(ids)

    def _ask_plain(self, text: str, question: str | None) -> str:
        return DocumentQA(self.wrapped, text, self._format).ask_truncated(question, **self._generation)

    def _summarize(self, item: Item, method: str | None = None) -> Reply:
        """A summary; None is the way that is best for the kind of model."""
        if not asks_for_summary(item.question):
            raise InputError(
                f"the method is {method!r} and a question is {item.question!r}; expected documents without questions, "
                "or questions for a summary"
            )
        generation = {"max_new_tokens": answer_tokens([None]), **self._generation}
        summary = self.wrapped.summarize(
            item.document,
            words=summaries.summary_words(generation.pop("max_new_tokens")),
            method=method,
            question_format=self._format,
            **generation,
        )
        sentences = [
            {"text": sentence.text, "passages": [summary.quote(passage) for passage in sentence.passages]}
            for sentence in summary.sentences
        ]
        return Reply(summary.text, sentences=sentences)

    def _answer(self, item: Item) -> Reply:
        is_ours = self.method == "unlimiformer" and self.wrapped.engine.kind == "decoder-only"
        if is_ours and asks_for_summary(item.question):  # the document is not indexed for it
            return self._summarize(item)
        qa = self._document_qa(item.document)
        if self.method in ("truncate", "full"):
            tokens = qa.first_window if self.method == "truncate" else None
            return Reply(qa.ask_truncated(item.question, tokens, **self._generation))
        answer = qa.ask(item.question, **self._generation)
        selected, memory = answer.output.selected, answer.output.memory
        seen = None if selected is None or memory.offsets is None else memory.character_spans(selected)
        return Reply(answer.text, seen)

    def _document_qa(self, document: str) -> DocumentQA:
        """The document of the last call is kept, so that several questions read it once."""
        if self._last is None or self._last.source != document:
            self._last = None  # frees its memory first
            self._last = DocumentQA(self.wrapped, document, self._format)
        return self._last


def _rereads(model: Any, config: UnlimiformerConfig) -> bool:
    """Whether a model reads passages behind the question, so that it expects a question before what it reads."""
    return with_defaults(config, getattr(model.config, "_name_or_path", None)).selection == "reread"


def _method_config(
    method: str, model: Any, tokenizer: Any, config: UnlimiformerConfig, layer: int | None
) -> UnlimiformerConfig:
    """The settings that make the wrapper this method."""
    if layer is not None and method != "memorizing":
        raise InputError(f"a layer was given; it is for method 'memorizing', and the method is {method!r}")
    encoder_decoder, name = getattr(model.config, "is_encoder_decoder", False), type(model).__name__
    if method == "full" and encoder_decoder:
        raise InputError(
            f"the method is 'full' and {name} is an encoder–decoder, which reads one window; expected a decoder-only "
            "model: choose another model, or method 'truncate'"
        )
    if method in ("sled", "memorizing") and not encoder_decoder:
        raise InputError(
            f"the method is {method!r} and {name} is decoder-only; expected unlimiformer, truncate, full, bm25 or "
            "map-reduce"
        )
    if method != "memorizing":
        return config
    with Unlimiformer(model, tokenizer, config) as wrapped:
        layers = len(wrapped.engine.cross_attentions)
    retrieving_layer = memorizing_layer(layers) if layer is None else layer
    return replace(config, layers=(retrieving_layer,), focus=0)
