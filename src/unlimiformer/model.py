"""The public wrapper: gives a pretrained transformer an input of unlimited length, and takes it back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .config import UnlimiformerConfig
from .engines import CausalEngine, Seq2SeqEngine
from .engines.seq2seq.hooks import HookManager
from .engines.validation import check_tokenizer, check_weights
from .errors import UnlimiformerError, UnsupportedModelError
from .hub.saved_settings import completed
from .memory.encode import Progress
from .memory.memory import Memory
from .provenance.provenance import Provenance
from .text.sources import TextSource, is_ids
from .text.tokenization import pieces


@dataclass(frozen=True)
class Output:
    """What was generated for one input: texts and token ids (R, T), best first, and the memory they came from.

    `provenance` is there when it was asked for.
    """

    texts: tuple[str, ...]
    sequences: Tensor
    memory: Memory
    provenance: Provenance | None = None

    @property
    def text(self) -> str:
        """The first text."""
        return self.texts[0]

    @property
    def token_ids(self) -> Tensor:
        """The first sequence, (T,)."""
        return self.sequences[0]


class Unlimiformer:
    """Wraps a model from construction until `remove()` or the end of its `with` block.

    While wrapped, the model's own `generate` takes inputs of any length, and so does an encoder–decoder's `forward`.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, config: UnlimiformerConfig | None = None, **settings: Any
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        base = _base_model(model)
        self.config = completed(_configure(config, settings), getattr(base.config, "_name_or_path", None))
        check_weights(base)
        if tokenizer is not None:
            check_tokenizer(tokenizer, base.config, base.get_input_embeddings().num_embeddings)
        crossing = getattr(base.config, "is_encoder_decoder", False)
        kind = Seq2SeqEngine if crossing else CausalEngine
        self.engine: Seq2SeqEngine | CausalEngine = kind(model, base, tokenizer, self.config)
        self.window, self.top_k = self.engine.window, self.engine.top_k

    @property
    def hooks(self) -> HookManager:
        """The hooks in an encoder–decoder."""
        if not isinstance(self.engine, Seq2SeqEngine):
            raise UnlimiformerError(f"{type(self.model).__name__} is decoder-only; expected an encoder–decoder here")
        return self.engine.hooks

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        config: UnlimiformerConfig | None = None,
        *,
        torch_dtype: Any = None,
        device_map: Any = None,
        **settings: Any,
    ) -> Unlimiformer:
        """Loads model and tokenizer from a catalogue name, a folder or a hub id, and wraps the model.

        With a `device_map`, such as "auto", accelerate spreads a model that is too large for one device.
        """
        from .hub.loading import load

        model, tokenizer = load(name, torch_dtype, device_map=device_map)
        return cls(model, tokenizer, config, **settings)

    def index(
        self,
        source: TextSource,
        prefix: str | None = None,
        progress: Progress | None = None,
        folder: str | os.PathLike[str] | None = None,
        append: bool = False,
        overwrite: bool = False,
    ) -> Memory:
        """Encodes an input once; the memory can then be asked any number of times.

        `prefix` stands in front of every window. `progress` is told how many windows are done, of how many. With a
        `folder` the memory is written there as it is made, whatever its size; a run that was interrupted goes on where
        it stopped, and a memory of an earlier state of the text keeps what is still true. `append` puts the source
        behind the text of the memory in the folder; `overwrite` lets another memory be replaced.
        """
        self._check_wrapped()
        if folder is not None:
            engine, target = self.engine, Path(folder)
            return engine.reader.read_to_disk(
                source, prefix, target, engine.encode, engine.searched, progress, append, overwrite
            )
        if append or overwrite:
            raise UnlimiformerError("append and overwrite are for a memory on disk; give its folder")
        prefixes = None if prefix is None else [prefix]
        memory = self.engine.reader.read_texts([source], prefixes, self.engine.encode, progress)[0]
        memory.store = self.engine.searched(memory)
        return memory

    def generate(
        self,
        source: TextSource | Memory | list,
        prompt: str | Sequence[str] | None = None,
        prefix: str | Sequence[str] | None = None,
        provenance: bool = False,
        **generation: Any,
    ) -> Any:
        """Generates from an input of any length, or from a memory; a list of them gives a list of outputs.

        `prompt` starts an encoder–decoder's text, and is what a decoder-only model is asked about the input. `prefix`
        stands in front of every window. A list of either gives each input its own.
        `provenance` also tells where in the source the model looked for each token of the (first) text. All other
        arguments go to the model's own `generate`.
        """
        self._check_wrapped()
        many = isinstance(source, list) and not is_ids(source)
        sources: list[Any] = source if many else [source]  # type: ignore[assignment, list-item]
        memories = self._memories(sources, prefix)
        prompts = _one_each("prompts", prompt, len(memories))
        made = self.engine.generate(memories, prompts, provenance, generation)
        results = []
        for (sequences, looked), memory, asked in zip(made, memories, prompts, strict=True):
            if looked is not None and self.tokenizer is not None:
                given = generation.get("decoder_input_ids")
                told = self.engine.prompt_length(asked) if given is None else given.shape[1]
                looked = looked.said(pieces(self.tokenizer, sequences[0, told:].tolist()))
            results.append(Output(self._decode(sequences), sequences, memory, looked))
        return results if many else results[0]

    def remove(self) -> None:
        """Takes retrieval out: every forward is the original object again."""
        self.engine.remove()

    def __enter__(self) -> Unlimiformer:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _check_wrapped(self) -> None:
        if not self.engine.applied:
            raise UnlimiformerError("the wrapper was removed from its model; wrap the model again: Unlimiformer(model)")

    def _memories(self, sources: list[Any], prefix: str | Sequence[str] | None) -> list[Memory]:
        """Each source's memory: itself, or read now."""
        if not sources:
            raise UnlimiformerError("no input was given; expected a text, a path, token ids or a memory")
        each = _one_each("prefixes", prefix, len(sources))
        fresh = [i for i, source in enumerate(sources) if not isinstance(source, Memory)]
        memories, read = list(sources), []
        if fresh:
            prefixes = None if prefix is None else [str(each[i]) for i in fresh]
            read = self.engine.reader.read_texts([sources[i] for i in fresh], prefixes, self.engine.encode)
            for i, memory in zip(fresh, read, strict=True):
                memory.store = self.engine.searched(memory)
                memories[i] = memory
        for memory in memories:
            if memory not in read:
                self.engine.reader.check(memory)
        return memories

    def _decode(self, sequences: Tensor) -> tuple[str, ...]:
        if self.tokenizer is None:
            return ("",) * sequences.shape[0]
        return tuple(self.tokenizer.batch_decode(sequences, skip_special_tokens=True))


def _base_model(model: Any) -> Any:
    """The model inside a peft model."""
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UnsupportedModelError("the model has learned prompts (prefix or prompt tuning), which are not supported")
    return model.get_base_model()


def _configure(config: UnlimiformerConfig | None, settings: dict[str, Any]) -> UnlimiformerConfig:
    unknown = sorted(set(settings) - set(UnlimiformerConfig.names()))
    if unknown:
        known = ", ".join(UnlimiformerConfig.names())
        raise UnlimiformerError(f"unknown setting {', '.join(unknown)}; expected one of: {known}")
    return replace(config, **settings) if config is not None else UnlimiformerConfig(**settings)


def _one_each(name: str, given: str | Sequence[str] | None, inputs: int) -> list[str | None]:
    each: list[str | None] = [given] * inputs if given is None or isinstance(given, str) else list(given)
    if len(each) != inputs:
        raise UnlimiformerError(f"{len(each)} {name} were given for {inputs} inputs; expected one for each, or one")
    return each
