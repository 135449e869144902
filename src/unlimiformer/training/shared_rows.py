"""Questions about one document as one row of a decoder-only model: the document once, then each question and answer.

Each of them attends to the document and to itself, at the positions that it would have alone behind the document. So
the losses and gradients are those of separate rows, and the document is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True)
class SharedRow:
    """One row for the model.

    Parameters
    ----------
    ids : (n,) the tokens of the document, then those of each question and its answer.
    positions : (n,) their positions.
    mask : (n, n) whether a token attends to another.
    predicting : (m,) indices into `ids` whose logits predict the answers.
    answers : (m,) token ids of the answers.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    predicting: Tensor
    answers: Tensor

    @classmethod
    def build(cls, document: Tensor, questions: Sequence[Tensor], answers: Sequence[Tensor]) -> SharedRow:
        """Join a document (S,), with what stands before it, and the tokens of questions and of their answers."""
        length = document.shape[0]
        ids, positions, predicting = [document], [torch.arange(length)], []
        owners = [torch.full_like(document, -1)]
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True)):
            branch = torch.cat((question, answer[:-1]))
            start = sum(len(part) for part in ids)
            ids.append(branch)
            positions.append(length + torch.arange(len(branch)))
            owners.append(torch.full_like(branch, number))
            predicting.append(start + torch.arange(len(question) - 1, len(branch)))
        owner, place = torch.cat(owners), torch.arange(sum(len(part) for part in ids))
        visible = (owner[:, None] == owner[None]) | (owner[None] == -1)
        mask = visible & (place[:, None] >= place[None])
        return cls(torch.cat(ids), torch.cat(positions), mask, torch.cat(predicting), torch.cat(list(answers)))

    @property
    def length(self) -> int:
        """Tokens of the document with the longest question and its answer."""
        return int(self.positions.max()) + 1

    def loss(self, model: Any, base: Any) -> Tensor:
        """The sum of the losses of all tokens of the answers; `model` may wrap `base` for several processes."""
        sliding_window = getattr(base.config, "sliding_window", None)
        if sliding_window is not None and self.length > sliding_window:
            raise InputError(
                f"a document with a question and its answer has {self.length} tokens, and layers of the model attend "
                f"to the last {sliding_window}; expected no more: give a smaller source_limit, or method 'retrieval'"
            )
        device, dtype = base.device, base.dtype
        bias = torch.zeros(self.mask.shape, dtype=dtype).masked_fill(~self.mask, torch.finfo(dtype).min)
        output = model(
            input_ids=self.ids[None].to(device),
            position_ids=self.positions[None].to(device),
            attention_mask=bias[None, None].to(device),
            logits_to_keep=self.predicting.to(device),  # the vocabulary's matrix is large
            use_cache=False,
        )
        return torch.nn.functional.cross_entropy(output.logits[0].float(), self.answers.to(device), reduction="sum")
