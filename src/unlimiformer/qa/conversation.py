"""A conversation about one document: a question may refer to those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from ..memory.encode import Progress
from ..model import Unlimiformer
from ..text.references import refers_back, resolve_references
from .document import Answer, DocumentQA
from .messages import Turn

_LONGEST_ANSWER = 300  # characters of an earlier answer that are looked at
_MARGIN = 0.5  # questions whose log-probabilities differ by less are equally good
_EXAMPLES = (
    "Question: Who built the bridge?\nAnswer: the smith\nQuestion: How long did it take the smith?\nAnswer: a year\n\n"
    "Question: What did the girl find in the well?\nAnswer: a golden ring\n"
    "Question: Who gave the golden ring to the girl’s mother?\nAnswer: the king\n\n"
)


class Conversation:
    """Questions about one document.

    Parameters
    ----------
    document : answers questions that stand alone.
    turns : what was asked and answered before.
    """

    def __init__(self, document: DocumentQA, turns: Sequence[Turn] = ()) -> None:
        self._document, self.turns = document, list(turns)

    def ask(self, question: str | None, progress: Progress | None = None, **generation: Any) -> Answer:
        """Answer a question, which may refer to the one before it; without a question, summarise."""
        if question is None:
            return self._document.ask(None, progress, **generation)
        asked = standalone_question(question, self.turns, self._document.wrapped)
        answer = self._document.ask(asked, progress, **generation)
        self.turns.append(Turn(asked, answer.text))
        return answer


def standalone_question(question: str, turns: Sequence[Turn], wrapped: Unlimiformer) -> str:
    """A question that means the same without the conversation; itself if it refers to nothing.

    A decoder-only model chooses what "he" or "it" stands for: what makes the question likeliest behind the turn before.
    For an encoder–decoder, the earlier question and its answer are put in front.
    """
    if not turns or not refers_back(question):
        return question
    earlier = turns[-1]
    answer = " ".join(earlier.answer.split())[:_LONGEST_ANSWER]
    if wrapped.engine.kind != "decoder-only":
        return f"{earlier.question} {answer} {question}"
    conversation = f"{_EXAMPLES}Question: {earlier.question}\nAnswer: {answer}\nQuestion:"

    def choose(options: list[str]) -> int:
        scores = _log_probabilities(wrapped, conversation, [f" {option}" for option in options])
        return int((scores >= scores.max() - _MARGIN).nonzero()[0])

    return resolve_references(question, earlier.question, answer, choose)


@torch.no_grad()
def _log_probabilities(wrapped: Unlimiformer, beginning: str, continuations: Sequence[str]) -> torch.Tensor:
    """Log-probability (n,) of each continuation of a text, which is read once."""
    tokenizer, model, device = wrapped.tokenizer, wrapped.model, wrapped.engine.device
    prompt = tokenizer(beginning, return_tensors="pt")["input_ids"].to(device)
    rows = [torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in continuations]
    cache = DynamicCache(config=model.config)
    model(prompt[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(len(rows))
    ids = pad_sequence(rows, batch_first=True).to(device)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(device)
    inputs = torch.cat((prompt[:, -1:].expand(len(rows), 1), ids[:, :-1]), dim=1)
    scores = model(inputs, past_key_values=cache, use_cache=True).logits.float().log_softmax(-1)
    return (scores.gather(2, ids[..., None])[..., 0] * mask).sum(1)
