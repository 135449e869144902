"""Prompts with known parts for tiny decoder-only models, and a recorder of the scores of every step."""

from __future__ import annotations

from typing import Any

import torch
from tiny_causal_models import VOCABULARY
from torch import Tensor

from unlimiformer import Unlimiformer
from unlimiformer.engines import contexts
from unlimiformer.engines.causal.generation import Query
from unlimiformer.engines.causal.prompts import PromptSuffix
from unlimiformer.memory.encode import TokenizedInput

TOLERANCE = 2e-5  # of the largest logit: float32 sums in another order
CACHED_SELECTIONS = ("blocks", "blocks-by-layer", "top-k")
SELECTIONS = ("reread", *CACHED_SELECTIONS)


def random_prompt(seed: int = 0, length: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Draw token ids of a prefix, of a document of `length` tokens, and of a suffix."""
    torch.manual_seed(seed)
    prefix, suffix = torch.randint(3, VOCABULARY, (5,)), torch.randint(3, VOCABULARY, (7,))
    return prefix, torch.randint(3, VOCABULARY, (length,)), suffix


def generate(u: Unlimiformer, prefix: Any, document: Any, suffix: Any, **generation: Any) -> Tensor:
    """Generate behind one prompt, or behind several whose parts are given as lists; returns the new tokens (R, T)."""
    prefixes, documents, suffixes = (part if isinstance(part, list) else [part] for part in (prefix, document, suffix))
    sources = [TokenizedInput(ids, before, {}) for ids, before in zip(documents, prefixes, strict=True)]
    memories = u.engine.indexer.index_inputs(sources)
    queries = [Query(memory, PromptSuffix(ids, ids, "w1?")) for memory, ids in zip(memories, suffixes, strict=True)]
    with torch.no_grad():
        return u.engine.answer(queries, generation)


@torch.no_grad()
def chosen_context(model: Any, prompts: list[Tensor], **generation: Any) -> tuple[int, Tensor]:
    """Let the plain model answer each prompt (n,) by itself: the number of the answer that is taken, and its tokens.

    It is the first one that the model is sure of, or else the likeliest.
    """
    answers, scores = [], []
    for prompt in prompts:
        output = model.generate(prompt[None], return_dict_in_generate=True, output_scores=True, **generation)
        if "sequences_scores" in output:
            scores.append(float(output.sequences_scores[0]))
        else:
            steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
            scores.append(float(steps[0].mean()))
        answers.append(output.sequences[0, prompt.shape[0] :])
    likeliest = max(range(len(prompts)), key=scores.__getitem__)
    number = next((i for i, score in enumerate(scores) if score >= contexts._SURE), likeliest)
    return number, answers[number]


class ScoreRecorder:
    """A logits processor that changes nothing and stores the scores (B, V) of every step."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.steps.append(scores.clone())
        return scores


class RecordingStreamer:
    """A streamer that keeps what it receives; None marks the end."""

    def __init__(self) -> None:
        self.received: list = []

    def put(self, tokens) -> None:
        self.received.append(tokens)

    def end(self) -> None:
        self.received.append(None)
