"""Training of decoder-only models: answers are learned from the passages that the model itself chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from ..engines import CausalEngine
from ..errors import UnlimiformerError
from ..model import Unlimiformer
from ..qa import QuestionFormat
from ..tasks import Example
from .dataset import IGNORED, LengthLimits, padded
from .seq2seq_trainer import AveragedLoss


class CausalTrainer(AveragedLoss, Trainer):
    """At every step the wrapped model, as it is now, reads each document, chooses what the question wants of it, and
    learns the answer behind that: the computation of the test."""

    def __init__(
        self,
        wrapped: Unlimiformer,
        limits: LengthLimits,
        args: Any,
        taught: Sequence[Example],
        tested: Sequence[Example] | None = None,
        callbacks: Any = None,
    ) -> None:
        if not isinstance(wrapped.engine, CausalEngine) or wrapped.engine.selection != "reread":
            raise UnlimiformerError("expected a decoder-only model with selection 'reread' for this trainer")
        if wrapped.tokenizer.eos_token_id is None:
            raise UnlimiformerError("the tokenizer has no eos_token; expected one, so that answers have an end: set it")
        self.wrapped, self._engine, self._limits = wrapped, wrapped.engine, limits
        wrapped.model.eval()
        _ = wrapped.engine.heads  # found now: before the first step and after a kill they are those of the same model
        args.remove_unused_columns = False
        args._n_gpu = 1
        args.metric_for_best_model, args.greater_is_better = "loss", False
        super().__init__(
            wrapped.model,
            args,
            data_collator=lambda rows: {"examples": list(rows)},
            train_dataset=list(taught),  # type: ignore[arg-type]
            eval_dataset=None if tested is None else list(tested),  # type: ignore[arg-type]
            processing_class=wrapped.tokenizer,
            callbacks=callbacks,
        )

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss of the answers' tokens."""
        del num_items_in_batch
        trains = model.training
        model.eval()  # what is read and chosen is what a test would read and choose
        limits = self._limits if trains else LengthLimits(None, None)
        rows, labels = zip(*(self._row(example, limits) for example in inputs["examples"]), strict=True)
        model.train(trains)
        ids = padded(rows, 0).to(self.args.device)
        mask = padded([torch.ones_like(row) for row in rows], 0).to(self.args.device)
        output = model(input_ids=ids, attention_mask=mask, labels=padded(labels, IGNORED).to(self.args.device))
        return (output.loss, output) if return_outputs else output.loss

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, None, None]:
        """The loss."""
        del prediction_loss_only, ignore_keys
        with torch.no_grad():
            return self.compute_loss(model, inputs).detach(), None, None

    def _row(self, example: Example, limits: LengthLimits) -> tuple[Tensor, Tensor]:
        """Ids of what the model chose and of the answer, and labels of the answer alone."""
        tokenizer = self.wrapped.tokenizer
        document = tokenizer(example.document, add_special_tokens=False, verbose=False)["input_ids"][: limits.source]
        words = tokenizer(example.answer, add_special_tokens=False)["input_ids"][: limits.target]
        answer = torch.tensor([*words, tokenizer.eos_token_id])
        question = QuestionFormat().summary if example.question is None else example.question
        prompt = self._engine.prompt(self._engine.read(torch.tensor(document)), question)
        return torch.cat((prompt, answer)), torch.cat((torch.full_like(prompt, IGNORED), answer))
