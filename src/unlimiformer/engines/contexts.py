"""An answer from each of several contexts, of which one is taken.

Shapes: C contexts of all queries together, R rows of `generate` (C times the number of returned sequences), T tokens, V
of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

_SURE = -0.1


class ContextChoice:
    """Chooses among the answers from different contexts; `counts` has the number of contexts of each query.

    A model that found the answer in its context is surer of what it writes than one that did not. The first answer is
    taken whose tokens have a mean log-probability above `_SURE`; if there is none, the one with the greatest. The first
    context is the smallest, in which a fact has the fewest rivals.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts

    @property
    def is_needed(self) -> bool:
        """Whether a query has more than one context."""
        return max(self._counts) > 1

    def arguments(self, generation: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `generate` with which the answers can be compared; they are streamed when one is chosen."""
        if not self.is_needed:
            return generation
        return {**generation, "output_scores": True, "return_dict_in_generate": True, "streamer": None}

    def choose(self, output: Any, new_tokens: Tensor, lengths: Tensor) -> list[int]:
        """For each query, the number of the context whose answer is taken, counted over all queries.

        Parameters
        ----------
        output : of `generate`, with scores.
        new_tokens : (R, T) its new tokens.
        lengths : (R,) the number of tokens of each answer; padding follows.
        """
        firsts = [0, *accumulate(self._counts)][:-1]
        if not self.is_needed:
            return firsts
        scores = output.get("sequences_scores")  # of beams: log-probabilities, divided by the length
        if scores is None:
            scores = _mean_log_probability(output.scores, new_tokens, lengths)
        of_first_answer = scores[:: scores.shape[0] // sum(self._counts)]
        by_query = of_first_answer.clamp_max(_SURE).split(list(self._counts))
        return [first + int(of_query.argmax()) for first, of_query in zip(firsts, by_query, strict=True)]


def _mean_log_probability(scores: Sequence[Tensor], tokens: Tensor, lengths: Tensor) -> Tensor:
    """Mean (R,) over tokens (R, T) that were generated with scores (R, V) at each step, as many as `lengths` (R,)."""
    by_step = [step.float().log_softmax(-1).gather(1, tokens[:, i, None])[:, 0] for i, step in enumerate(scores)]
    padding = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None].to(tokens.device)
    return torch.stack(by_step, dim=1).masked_fill(padding, 0.0).sum(1) / lengths.to(tokens.device)


def stream_answer(streamer: BaseStreamer, prompt: Tensor, answer: Tensor) -> None:
    """Give a streamer what `generate` would: a prompt (1, n), then every token of an answer (T,)."""
    streamer.put(prompt.cpu())
    for token in answer.cpu():
        streamer.put(token[None])
    streamer.end()
