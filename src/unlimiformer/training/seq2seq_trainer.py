"""Hugging Face's `Seq2SeqTrainer` with a strategy: what each layer sees in each training step, and in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from ..engines import Seq2SeqEngine
from ..errors import UnlimiformerError
from ..model import Unlimiformer
from .dataset import IGNORED, Collator, GroupedSampler, Seq2SeqDataset, padded, unpadded
from .distractors import Distractors
from .strategies import Strategy


class AveragedLoss:
    """For a trainer: the loss of a whole training is that of all processes, not of the one that writes it down."""

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Averages it."""
        if "train_loss" in logs and self.args.world_size > 1:  # type: ignore[attr-defined]
            loss = torch.tensor(logs["train_loss"], device=self.args.device)  # type: ignore[attr-defined]
            logs["train_loss"] = float(self.accelerator.reduce(loss, "mean"))  # type: ignore[attr-defined]
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class UnlimiformerTrainer(AveragedLoss, Seq2SeqTrainer):
    """Trains a wrapped encoder–decoder. Data sets are `Features`; validation generates, with the settings `generation`.

    `distractors`: states of so many tokens of earlier documents stand beside each. All other arguments are those of
    `Seq2SeqTrainer`.
    """

    def __init__(
        self,
        wrapped: Unlimiformer,
        strategy: Strategy,
        args: Any,
        generation: dict[str, Any] | None = None,
        distractors: int = 0,
        **others: Any,
    ) -> None:
        if not isinstance(wrapped.engine, Seq2SeqEngine):
            raise UnlimiformerError(
                f"{type(wrapped.model).__name__} is decoder-only; expected an encoder–decoder for this trainer: "
                "use CausalTrainer"
            )
        self.wrapped, self.strategy, self.generation = wrapped, strategy, generation or {}
        self._engine = wrapped.engine
        self._installation = wrapped.engine.hooks
        strategy.prepare(wrapped.model, self._installation.attentions)
        self._layers = range(len(self._installation.attentions))
        self._batch = (0, 0)  # optimizer steps, and batches since the last of them
        config = wrapped.model.config
        self._start = config.decoder_start_token_id
        if self._start is None:
            raise UnlimiformerError("the model's config has no decoder_start_token_id; expected one: set it")
        padding = config.pad_token_id if config.pad_token_id is not None else 0
        args.remove_unused_columns = False
        collator = Collator(padding, self._start, wrapped.window)
        args._n_gpu = 1  # replicas of nn.DataParallel would share one wrapper; several processes are fine
        super().__init__(wrapped.model, args, data_collator=collator, processing_class=wrapped.tokenizer, **others)
        self._distractors = Distractors(distractors, args.process_index) if distractors else None
        if self._distractors is not None:
            self.add_callback(self._distractors)
        self.model_accepts_loss_kwargs = False  # the models take the argument and ignore it; then we must divide

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains; afterwards the wrapper sees what it saw before."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(self.args.output_dir))
        if self._distractors is not None:
            self._distractors.begin(resume_from_checkpoint or None, self.args.device)
        with self._installation.override_policies(self._installation.policies):
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self._distractors is not None:
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            self._distractors.save(folder)
        super()._save_checkpoint(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Tests as the strategy has it; afterwards the wrapper sees what it saw before."""
        with self._installation.override_policies([self.strategy.eval_policy(layer) for layer in self._layers]):
            return super().evaluation_loop(*args, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        features = train_dataset if train_dataset is not None else self.train_dataset
        size = self._train_batch_size
        if size == 1 or not isinstance(features, Seq2SeqDataset) or len(features.sharing) == len(features):
            return super()._get_train_sampler(train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        order = GroupedSampler(features, size, seed)
        self.add_callback(_Epochs(order))
        return order

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One batch; strategies that take turns count it."""
        steps, since = self._batch
        since = since if steps == self.state.global_step else 0
        self._batch = (self.state.global_step, since + 1)
        number = self.state.global_step * self.args.gradient_accumulation_steps + since
        number = number * self.args.world_size + self.args.process_index  # as if one process had them all
        self._installation.policies = [self.strategy.train_policy(layer, number) for layer in self._layers]
        return super().training_step(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The model's own loss on the answer."""
        given = {name: value for name, value in inputs.items() if name not in ("prefix_ids", "prompt_ids")}
        reader, prefixes = self._engine.reader, _rows(inputs, "prefix_ids")
        if self._distractors is None:
            with reader.row_prefixes(prefixes):
                return super().compute_loss(model, given, *args, **kwargs)
        nothing = inputs["input_ids"].new_empty(0)  # short inputs are read into memories as well
        prefixes = prefixes or [nothing] * len(inputs["input_ids"])
        with reader.row_prefixes(prefixes), reader.beside(self._distractors.others) as read:
            loss = super().compute_loss(model, given, *args, **kwargs)
            self._distractors.note(read)
            return loss

    def prediction_step(  # type: ignore[override]
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None, **generation: Any
    ) -> tuple[float | None, Tensor | None, Tensor | None]:
        """Answers (B, T), generated row by row where the decoder is given the questions, and what they should be."""
        del ignore_keys, prediction_loss_only
        inputs = self._prepare_inputs(inputs)
        settings = {**self.generation, **getattr(self, "_gen_kwargs", {}), **generation}
        prompts = unpadded(inputs["prompt_ids"])
        asked = any(prompt.numel() for prompt in prompts)
        batches = [slice(row, row + 1) for row in range(len(prompts))] if asked else [slice(None)]
        answers: list[Tensor] = []
        for rows in batches:
            given = {name: inputs[name][rows] for name in ("input_ids", "attention_mask")}
            prefixes = _rows(inputs, "prefix_ids")
            if asked:
                start = torch.tensor([self._start], device=self.args.device)
                given["decoder_input_ids"] = torch.cat((start, prompts[rows.start]))[None]
            with torch.no_grad(), self._engine.reader.row_prefixes(None if prefixes is None else prefixes[rows]):
                made = self.wrapped.model.generate(**given, **settings)
            told = given["decoder_input_ids"].shape[1] if asked else 1
            answers += list(made[:, told:])
        padding = self.wrapped.model.config.pad_token_id or 0
        predicted = padded(answers, padding)
        return None, predicted, inputs["labels"]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The model as Hugging Face keeps it, and what the strategy learned beside it."""
        super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or str(self.args.output_dir))
        if self.args.should_save:
            self.strategy.save(folder)


class _Epochs(TrainerCallback):
    """Tells an order its epoch: with several processes, a training that goes on would not."""

    def __init__(self, order: GroupedSampler) -> None:
        self._order = order

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The one that is begun, or gone on with."""
        self._order.set_epoch(int(state.epoch or 0))


def _rows(inputs: dict[str, Any], name: str) -> list[Tensor] | None:
    return unpadded(inputs[name]) if name in inputs else None


def decoded(predictions: Any, tokenizer: Any) -> Sequence[str]:
    """Texts of predicted ids, or of labels."""
    ids = torch.as_tensor(predictions)
    return tokenizer.batch_decode(
        ids.masked_fill(ids == IGNORED, tokenizer.pad_token_id or 0), skip_special_tokens=True
    )
