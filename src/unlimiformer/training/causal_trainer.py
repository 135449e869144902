"""Training of decoder-only models: they learn answers after what they select of a document, or after all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from ..errors import InputError
from ..model import Unlimiformer
from ..qa import SUMMARY_PROMPT
from ..tasks import Example
from .dataset import IGNORE_INDEX, LengthLimits, pad_rows
from .seq2seq_trainer import AverageTrainLossMixin
from .shared_rows import SharedRow

_ROW_QUESTIONS = 8  # questions about one document in a row at most


class CausalTrainer(AverageTrainLossMixin, Trainer):
    """Trains a wrapped decoder-only model with the computation of evaluation.

    At every step the model, with its current weights, indexes each document, selects the passages for the question and
    learns the answer after the prompt made of them.

    Parameters
    ----------
    wrapped : the wrapped model, with selection "reread" and a tokenizer.
    limits : longest document and answer in training; validation has no limit.
    args : `TrainingArguments`; some fields are changed.
    """

    def __init__(
        self,
        wrapped: Unlimiformer,
        limits: LengthLimits,
        args: Any,
        train_examples: Sequence[Example],
        eval_examples: Sequence[Example] | None = None,
        callbacks: Any = None,
    ) -> None:
        engine = wrapped.engine
        if engine.kind != "decoder-only" or engine.selection != "reread":
            raise InputError("expected a decoder-only model with selection 'reread' for this trainer")
        if wrapped.tokenizer.eos_token_id is None:
            raise InputError("the tokenizer has no eos_token; expected one, so that answers have an end: set it")
        self.wrapped, self._engine, self._limits = wrapped, engine, limits
        wrapped.model.eval()
        engine.rank_heads()  # selected before the first step, so that a resumed run selects the same ones
        args.remove_unused_columns = False
        args._n_gpu = 1
        args.metric_for_best_model, args.greater_is_better = "loss", False
        super().__init__(
            wrapped.model,
            args,
            data_collator=lambda rows: {"examples": list(rows)},
            train_dataset=self._group_examples(train_examples),  # type: ignore[arg-type]
            eval_dataset=None if eval_examples is None else self._group_examples(eval_examples),  # type: ignore[arg-type]
            processing_class=wrapped.tokenizer,
            callbacks=callbacks,
        )

    def _group_examples(self, examples: Sequence[Example]) -> list[Any]:
        """Items of the dataset: here single examples."""
        return list(examples)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss of the answers' tokens."""
        del num_items_in_batch
        training = model.training
        model.eval()  # passages are selected as in evaluation, without dropout
        limits = self._limits if training else LengthLimits(None, None)
        rows, labels = zip(*(self._build_row(example, limits) for example in inputs["examples"]), strict=True)
        model.train(training)
        ids = pad_rows(rows, 0).to(self.args.device)
        mask = pad_rows([torch.ones_like(row) for row in rows], 0).to(self.args.device)
        output = model(input_ids=ids, attention_mask=mask, labels=pad_rows(labels, IGNORE_INDEX).to(self.args.device))
        return (output.loss, output) if return_outputs else output.loss

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, None, None]:
        """Return the loss; validation generates nothing."""
        del prediction_loss_only, ignore_keys
        with torch.no_grad():
            return self.compute_loss(model, inputs).detach(), None, None

    def _build_row(self, example: Example, limits: LengthLimits) -> tuple[Tensor, Tensor]:
        """Return the ids of the prompt and the answer (n,), and labels (n,) for the answer alone."""
        answer = self._answer_ids(example, limits)
        prompt = self._engine.prompt_ids(self._document_ids(example, limits), _question(example))
        return torch.cat((prompt, answer)), torch.cat((torch.full_like(prompt, IGNORE_INDEX), answer))

    def _document_ids(self, example: Example, limits: LengthLimits) -> Tensor:
        return self._tokenize(example.document)[: limits.source]

    def _answer_ids(self, example: Example, limits: LengthLimits) -> Tensor:
        words = self._tokenize(example.answer or "")[: limits.target]
        return torch.cat((words, torch.tensor([self.wrapped.tokenizer.eos_token_id])))

    def _tokenize(self, text: str) -> Tensor:
        ids = self.wrapped.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long)


class SharedDocumentTrainer(CausalTrainer):
    """Trains a wrapped decoder-only model to answer from short documents, which it reads whole.

    All questions about a document are one row (`SharedRow`), so that it is read once for all of them.
    """

    def _group_examples(self, examples: Sequence[Example]) -> list[Any]:
        """The examples of each document, a few in a row: each of them adds to the length of its row."""
        by_document: dict[str, list[Example]] = {}
        for example in examples:
            by_document.setdefault(example.document, []).append(example)
        return [
            about_it[start : start + _ROW_QUESTIONS]
            for about_it in by_document.values()
            for start in range(0, len(about_it), _ROW_QUESTIONS)
        ]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss of the answers' tokens."""
        del num_items_in_batch
        limits = self._limits if model.training else LengthLimits(self._limits.source, None)
        rows = [self._build_shared_row(examples, limits) for examples in inputs["examples"]]
        losses = torch.stack([row.loss(model, self._engine.base) for row in rows])
        loss = losses.sum() / sum(row.answers.shape[0] for row in rows)
        return (loss, {"loss": loss}) if return_outputs else loss

    def _build_shared_row(self, examples: Sequence[Example], limits: LengthLimits) -> SharedRow:
        prompts = [self._engine.prompt_parts(_question(example)) for example in examples]
        document = torch.cat((prompts[0][0], self._document_ids(examples[0], limits)))
        answers = [self._answer_ids(example, limits) for example in examples]
        row = SharedRow.build(document, [suffix for _, suffix in prompts], answers)
        if row.length > self._engine.context_length:
            raise InputError(
                f"a document with a question and its answer has {row.length:,} tokens, and the model reads at most "
                f"{self._engine.context_length:,}; expected no more: give a smaller source_limit"
            )
        return row


def _question(example: Example) -> str:
    return SUMMARY_PROMPT if example.question is None else example.question
