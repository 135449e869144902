"""A loss that draws the attention of questions to where their answers are.

A question is the beginning of the decoder's text, as when a model searches passages to reread. The loss is the negative
logarithm of the share of its attention, over all layers, heads and tokens, that falls on the evidence.
Shapes: B questions, T tokens of a question, H heads, S tokens of a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..adapters import CrossAttention
from ..engines.seq2seq.attention import project_and_score
from ..errors import InputError
from ..functional import softmax_weights
from ..memory import Memory
from ..model import Unlimiformer
from ..qa import QuestionFormat
from ..tasks import Example
from ..text.tokenization import special_ids
from .dataset import pad_rows


@dataclass(frozen=True)
class _Question:
    """Token ids (T,) of a question, and which tokens (S,) of its document are evidence."""

    ids: Tensor
    evidence: Tensor


class EvidenceLoss:
    """The loss of some questions about one document, another document in every call.

    Parameters
    ----------
    examples : those without known evidence are left out.
    batch_size : questions of a call.
    source_limit : longest document in tokens; questions whose evidence lies behind it are left out.
    """

    def __init__(
        self,
        wrapped: Unlimiformer,
        examples: Sequence[Example],
        question_format: QuestionFormat,
        *,
        batch_size: int,
        source_limit: int | None,
        seed: int,
    ) -> None:
        self._wrapped, self._engine, self._limit, self._seed = wrapped, wrapped.engine, source_limit, seed
        by_document: dict[str, list[Example]] = {}
        for example in examples:
            if example.evidence:
                by_document.setdefault(example.document, []).append(example)
        self._batches = [
            (document, about_it[start : start + batch_size])
            for document, about_it in by_document.items()
            for start in range(0, len(about_it), batch_size)
        ]
        if not self._batches:
            raise InputError(
                'no example has evidence; expected "spans", a list of [start, end], in some questions of the data'
            )
        self._format = question_format

    def __call__(self, step: int) -> Tensor:
        """The loss of the batch that belongs to a step; every batch comes once before any comes again."""
        epoch, place = divmod(step, len(self._batches))
        order = torch.randperm(len(self._batches), generator=torch.Generator().manual_seed(self._seed + epoch))
        return self.loss(*self._batches[int(order[place])])

    def loss(self, document: str, examples: Sequence[Example]) -> Tensor:
        """The loss of some questions about a document."""
        memory, questions = self._read(document, examples)
        if not questions:  # all evidence lies behind the limit
            return torch.zeros((), device=self._engine.device)
        device = self._engine.device
        ids = pad_rows([question.ids for question in questions], 0).to(device)
        lengths = torch.tensor([question.ids.shape[0] for question in questions], device=device)
        evidence = torch.stack([question.evidence for question in questions]).to(device)
        by_layer: list[Tensor] = []

        def observe(layer: int, view: CrossAttention, queries: Tensor, memories: list[Memory]) -> None:
            del layer, memories
            by_layer.append(_attention_mass(view, queries, memory, evidence))

        with self._engine.context(observe=observe, prefixes=None, distractors=None):
            self._wrapped.model(
                **self._engine.encoder_outputs([memory] * len(questions)), decoder_input_ids=ids, use_cache=False
            )
        mass = torch.stack(by_layer).mean(0)  # (B, T)
        asked = torch.arange(ids.shape[1], device=device) < lengths[:, None]
        share = (mass * asked).sum(1) / lengths
        return -share.clamp_min(1e-9).log().mean()

    def _read(self, document: str, examples: Sequence[Example]) -> tuple[Memory, list[_Question]]:
        """The memory of a document, and the questions whose evidence is in it."""
        tokenizer = self._wrapped.tokenizer
        encoded = tokenizer(document, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        opening, closing = special_ids(tokenizer)
        document_ids = torch.tensor(encoded["input_ids"][: self._limit], dtype=torch.long)
        offsets = torch.tensor(encoded["offset_mapping"][: self._limit])
        ids = torch.cat((opening, document_ids, closing))
        memory = self._engine.index_ids(ids, ids[:0])
        start_id = self._wrapped.model.config.decoder_start_token_id
        questions = []
        for example in examples:
            evidence = torch.zeros(len(memory), dtype=torch.bool)
            for start, end in example.evidence:
                inside = (offsets[:, 0] < end) & (offsets[:, 1] > start)
                evidence[opening.shape[0] : opening.shape[0] + len(offsets)] |= inside
            asked = tokenizer(self._format.text(example.question), add_special_tokens=False)["input_ids"]
            if evidence.any():
                questions.append(_Question(torch.tensor([start_id, *asked]), evidence))
        return memory, questions


def _attention_mass(view: CrossAttention, queries: Tensor, memory: Memory, evidence: Tensor) -> Tensor:
    """Share (B, T) of the attention of queries (B, T, H, d) on evidence (B, S), mean of all heads."""
    batch, length = queries.shape[:2]
    scores = project_and_score(view, queries.flatten(0, 1), memory.store.all_states())  # (B T, H, S)
    weights, _ = softmax_weights(scores, None, view.softcap)
    weights = weights.unflatten(0, (batch, length)).mean(2)
    return (weights * evidence[:, None].to(weights)).sum(-1)
