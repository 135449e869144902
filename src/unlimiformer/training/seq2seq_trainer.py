"""Hugging Face's `Seq2SeqTrainer` with a strategy that decides what each decoder layer attends to in each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from ..errors import InputError
from ..model import Unlimiformer
from .dataset import IGNORE_INDEX, Collator, GroupedSampler, Seq2SeqDataset, pad_rows, strip_padding
from .distractors import Distractors
from .evidence import EvidenceLoss
from .frozen_encoder import FrozenEncoder
from .strategies import Strategy


class AverageTrainLossMixin:
    """Makes a trainer log the mean training loss of all processes instead of the main process's own."""

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Average `train_loss` over the processes, then log as usual."""
        if "train_loss" in logs and self.args.world_size > 1:  # type: ignore[attr-defined]
            loss = torch.tensor(logs["train_loss"], device=self.args.device)  # type: ignore[attr-defined]
            logs["train_loss"] = float(self.accelerator.reduce(loss, "mean"))  # type: ignore[attr-defined]
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class UnlimiformerTrainer(AverageTrainLossMixin, Seq2SeqTrainer):
    """Trains a wrapped encoder–decoder on a `Seq2SeqDataset`; validation generates answers.

    Parameters
    ----------
    wrapped : the wrapped model.
    strategy : the training method.
    args : `Seq2SeqTrainingArguments`; some fields are changed.
    generation : arguments of `generate` in validation.
    distractors : number of state tokens of earlier documents shown next to each document; 0 for none.
    frozen_encoder : gives the memories of inputs, if the decoder alone is trained.
    evidence_loss : a loss of the attention to evidence, which is added with `evidence_weight`; None for none.
    kwargs : further arguments of `Seq2SeqTrainer`, such as datasets and callbacks.
    """

    def __init__(
        self,
        wrapped: Unlimiformer,
        strategy: Strategy,
        args: Any,
        generation: dict[str, Any] | None = None,
        distractors: int = 0,
        frozen_encoder: FrozenEncoder | None = None,
        evidence_loss: EvidenceLoss | None = None,
        evidence_weight: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if wrapped.engine.kind != "encoder-decoder":
            raise InputError(
                f"{type(wrapped.model).__name__} is decoder-only; expected an encoder–decoder for this trainer: "
                "use CausalTrainer"
            )
        self.wrapped, self.strategy, self.generation = wrapped, strategy, generation or {}
        self._engine, self._frozen_encoder = wrapped.engine, frozen_encoder
        self._evidence_loss, self._evidence_weight = evidence_loss, evidence_weight
        strategy.prepare(wrapped.model, wrapped.engine.cross_attentions)
        self._layers = range(len(wrapped.engine.cross_attentions))
        self._batch_count = (0, 0)  # optimizer steps, and batches since the last one
        self._batch_index = 0  # of the batch that is trained on, counted over all processes
        config = wrapped.model.config
        self._start_token = config.decoder_start_token_id
        if self._start_token is None:
            raise InputError("the model's config has no decoder_start_token_id; expected one: set it")
        pad_token = config.pad_token_id if config.pad_token_id is not None else 0
        args.remove_unused_columns = False
        collator = Collator(pad_token, self._start_token, wrapped.window)
        args._n_gpu = 1  # replicas of nn.DataParallel would share one wrapper; several processes are fine
        super().__init__(wrapped.model, args, data_collator=collator, processing_class=wrapped.tokenizer, **kwargs)
        self._distractors = Distractors(distractors, args.process_index) if distractors else None
        if self._distractors is not None:
            self.add_callback(self._distractors)
        self.model_accepts_loss_kwargs = False  # the models ignore num_items_in_batch, so the trainer must divide

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from a checkpoint if one is given."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(self.args.output_dir))
        if self._distractors is not None:
            self._distractors.restore(resume_from_checkpoint or None, self.args.device)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self._distractors is not None:
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            self._distractors.save(folder)
        super()._save_checkpoint(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate with the strategy's evaluation policies; afterwards the wrapper has its former ones."""
        # of several processes, some evaluate examples twice to have equal numbers: these must not be counted twice
        self.gather_function = self.accelerator.gather_for_metrics
        with self._engine.context(policies=[self.strategy.eval_policy(layer) for layer in self._layers]):
            return super().evaluation_loop(*args, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset = train_dataset if train_dataset is not None else self.train_dataset
        size = self._train_batch_size
        if size == 1 or not isinstance(dataset, Seq2SeqDataset):
            return super()._get_train_sampler(train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        sampler = GroupedSampler(dataset, size, seed)
        self.add_callback(_SetEpoch(sampler))
        return sampler

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run one batch with the strategy's policies for that batch."""
        steps, batches = self._batch_count
        batches = batches if steps == self.state.global_step else 0
        self._batch_count = (self.state.global_step, batches + 1)
        index = self.state.global_step * self.args.gradient_accumulation_steps + batches
        index = index * self.args.world_size + self.args.process_index  # as if one process ran all batches
        self._batch_index = index
        with self._engine.context(policies=[self.strategy.train_policy(layer, index) for layer in self._layers]):
            return super().training_step(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the model's loss on the answers, with prefixes and distractors in its memories."""
        model_inputs = {name: value for name, value in inputs.items() if name not in ("prefix_ids", "prompt_ids")}
        prefixes = _unpadded_rows(inputs, "prefix_ids")
        if self._frozen_encoder is not None:
            documents = [model_inputs.pop(name) for name in ("input_ids", "attention_mask")]
            model_inputs |= self._frozen_encoder.encoder_outputs(_visible_rows(*documents), prefixes)
        with self._engine.context(prefixes=prefixes, distractors=self._distractors):
            loss: Any = super().compute_loss(model, model_inputs, *args, **kwargs)
        if self._evidence_loss is not None and model.training:
            loss = loss + self._evidence_weight * self._evidence_loss(self._batch_index)
        return loss

    def prediction_step(  # type: ignore[override]
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None, **generation: Any
    ) -> tuple[float | None, Tensor | None, Tensor | None]:
        """Return no loss, the generated answers (B, T) and the labels (B, T).

        Rows with a prompt for the decoder are generated one by one: prompts differ in length.
        """
        del ignore_keys, prediction_loss_only
        inputs = self._prepare_inputs(inputs)
        settings = {**self.generation, **getattr(self, "_gen_kwargs", {}), **generation}
        prompts, prefixes = strip_padding(inputs["prompt_ids"]), _unpadded_rows(inputs, "prefix_ids")
        has_prompts = any(prompt.numel() for prompt in prompts)
        batches = [slice(row, row + 1) for row in range(len(prompts))] if has_prompts else [slice(None)]
        answers: list[Tensor] = []
        for rows in batches:
            model_inputs = {name: inputs[name][rows] for name in ("input_ids", "attention_mask")}
            row_prefixes = None if prefixes is None else prefixes[rows]
            if self._frozen_encoder is not None:
                model_inputs = self._frozen_encoder.encoder_outputs(_visible_rows(**model_inputs), row_prefixes)
            if has_prompts:
                start = torch.tensor([self._start_token], device=self.args.device)
                model_inputs["decoder_input_ids"] = torch.cat((start, prompts[rows.start]))[None]
            with torch.no_grad(), self._engine.context(prefixes=row_prefixes):
                sequences = self.wrapped.model.generate(**model_inputs, **settings)
            prompt_length = model_inputs["decoder_input_ids"].shape[1] if has_prompts else 1
            answers += list(sequences[:, prompt_length:])
        return None, pad_rows(answers, self.wrapped.model.config.pad_token_id or 0), inputs["labels"]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and the parameters that the strategy added to it."""
        super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or str(self.args.output_dir))
        if self.args.should_save:
            self.strategy.save(folder)


class _SetEpoch(TrainerCallback):
    """Sets the sampler's epoch; the trainer does not when several processes resume a run."""

    def __init__(self, sampler: GroupedSampler) -> None:
        self._sampler = sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the epoch that starts, or the one in which the run was stopped."""
        self._sampler.set_epoch(int(state.epoch or 0))


def _visible_rows(input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
    """The token ids of each row of a batch (B, n), without padding."""
    return [row[mask.bool()] for row, mask in zip(input_ids, attention_mask, strict=True)]


def _unpadded_rows(inputs: dict[str, Any], name: str) -> list[Tensor] | None:
    return strip_padding(inputs[name]) if name in inputs else None


def decode_ids(ids: Any, tokenizer: Any) -> Sequence[str]:
    """Decode predicted ids or labels (B, T) to texts, without special tokens and ignored positions."""
    ids = torch.as_tensor(ids)
    return tokenizer.batch_decode(
        ids.masked_fill(ids == IGNORE_INDEX, tokenizer.pad_token_id or 0), skip_special_tokens=True
    )
