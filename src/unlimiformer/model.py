"""The public wrapper: gives a pretrained encoder–decoder an input of unlimited length, and takes it back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .adapters import Adapter, adapter_for
from .checks import check_tokenizer, check_weights
from .config import UnlimiformerConfig
from .datastore import ExactStore, build
from .encoding import Progress
from .errors import UnlimiformerError, UnsupportedModelError
from .install import Installation
from .memory import Memory
from .probing import pooled, real_queries
from .provenance import Listener, Provenance
from .reading import Reader
from .retrieval import Policy
from .sources import Text, is_ids
from .verification import verify_guess


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

    While wrapped, the model's own `generate` and `forward` take inputs of any length.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, config: UnlimiformerConfig | None = None, **settings: Any
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config = _configure(config, settings)
        base = _base_model(model)
        adapter, known = adapter_for(base)
        self.window = _window(adapter, base, tokenizer, self.config)
        self.top_k = self.config.top_k or self.window
        vocabulary = base.get_input_embeddings().num_embeddings
        check_weights(base)
        if tokenizer is not None:
            check_tokenizer(tokenizer, base.config, vocabulary)
        self._reader = Reader(self.config, tokenizer, base.config, adapter.encoder(base), self.window, vocabulary)
        always_read = self.config.prefix is not None
        self._installation = Installation(base, adapter, self._reader.read_rows, self.window, always_read)
        policies = _policies(self._installation, self.config, self.top_k)
        if not known:
            verify_guess(base, adapter, self.window)
        self._installation.apply(policies)

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        config: UnlimiformerConfig | None = None,
        *,
        torch_dtype: Any = None,
        **settings: Any,
    ) -> Unlimiformer:
        """Loads model and tokenizer from a catalogue name, a folder or a hub id, and wraps the model."""
        from .loading import load

        model, tokenizer = load(name, torch_dtype)
        return cls(model, tokenizer, config, **settings)

    def index(
        self,
        source: Text,
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
            encode, target = self._installation.encode, Path(folder)
            return self._reader.read_to_disk(
                source, prefix, target, encode, self._searched, progress, append, overwrite
            )
        if append or overwrite:
            raise UnlimiformerError("append and overwrite are for a memory on disk; give its folder")
        prefixes = None if prefix is None else [prefix]
        memory = self._reader.read_texts([source], prefixes, self._installation.encode, progress)[0]
        memory.store = self._searched(memory)
        return memory

    def generate(
        self,
        source: Text | Memory | list,
        prompt: str | None = None,
        prefix: str | Sequence[str] | None = None,
        provenance: bool = False,
        **generation: Any,
    ) -> Any:
        """Generates from an input of any length, or from a memory; a list of them gives a list of outputs.

        `prompt` starts the decoder's text. `prefix` stands in front of every window; a list gives each input its own.
        `provenance` also tells where in the source the model looked, for one sequence an input. All other arguments go
        to the model's own `generate`.
        """
        self._check_wrapped()
        many = isinstance(source, list) and not is_ids(source)
        memories = self._memories(source if many else [source], prefix)  # type: ignore[arg-type]
        if prompt is not None:
            generation["decoder_input_ids"] = self._decoder_prompt(prompt, len(memories))
        outputs = self._installation.output(memories)
        mask = torch.ones((len(memories), 1), dtype=torch.long, device=outputs[0].device)
        listener = self._listener(generation) if provenance else None
        self._installation.listener = listener
        try:
            made = self.model.generate(encoder_outputs=outputs, attention_mask=mask, **generation)
        finally:
            self._installation.listener = None
        sequences = made if isinstance(made, Tensor) else made.sequences
        parts = sequences.split(sequences.shape[0] // len(memories))
        results = [
            Output(self._decode(part), part, memory, listener.told(memory) if listener else None)
            for part, memory in zip(parts, memories, strict=True)
        ]
        return results if many else results[0]

    def remove(self) -> None:
        """Takes retrieval out: every forward is the original object again."""
        self._installation.undo()

    def __enter__(self) -> Unlimiformer:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _searched(self, memory: Memory) -> ExactStore:
        """The memory's store with the way of searching that was asked for, built for this model's real queries."""
        if self.config.store == "exact" or memory.windows == 1 or self.top_k >= len(memory):
            return memory.store
        heard = real_queries(self.model, self._installation, memory)
        if not heard:
            return memory.store
        return build(self.config.store, memory.store, pooled(heard), self.top_k, self.config.recall)

    def _check_wrapped(self) -> None:
        if not self._installation.applied:
            raise UnlimiformerError("the wrapper was removed from its model; wrap the model again: Unlimiformer(model)")

    def _memories(self, sources: list[Any], prefix: str | Sequence[str] | None) -> list[Memory]:
        """Each source's memory: itself, or read now."""
        if not sources:
            raise UnlimiformerError("no input was given; expected a text, a path, token ids or a memory")
        each = [prefix] * len(sources) if prefix is None or isinstance(prefix, str) else list(prefix)
        if len(each) != len(sources):
            raise UnlimiformerError(f"{len(each)} prefixes were given for {len(sources)} inputs; expected one for each")
        fresh = [i for i, source in enumerate(sources) if not isinstance(source, Memory)]
        memories, read = list(sources), []
        if fresh:
            prefixes = None if prefix is None else [str(each[i]) for i in fresh]
            read = self._reader.read_texts([sources[i] for i in fresh], prefixes, self._installation.encode)
            for i, memory in zip(fresh, read, strict=True):
                memories[i] = memory
        for memory in memories:
            if memory not in read:
                self._reader.check(memory)
        return memories

    def _listener(self, generation: dict[str, Any]) -> Listener:
        config = generation.get("generation_config") or self.model.generation_config
        for name in ("num_beams", "num_return_sequences"):
            value = generation.get(name) or getattr(config, name, None) or 1
            if value > 1:
                raise UnlimiformerError(f"provenance was asked for with {name}={value}; it is known for 1 only")
        return Listener()

    def _decoder_prompt(self, prompt: str, rows: int) -> Tensor:
        configs = (self.model.generation_config, self.model.config)
        starts = (getattr(config, "decoder_start_token_id", None) for config in configs)
        start = next((token for token in starts if token is not None), None)
        if self.tokenizer is None or start is None:
            raise UnlimiformerError("a prompt needs a tokenizer and the model's decoder_start_token_id; one is missing")
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return torch.tensor([[start, *ids]] * rows, device=self._reader.device)

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


def _window(adapter: Adapter, model: Any, tokenizer: Any, config: UnlimiformerConfig) -> int:
    try:
        limit = adapter.window(model, tokenizer)
    except UnsupportedModelError:
        if config.window is None:
            raise
        return config.window
    if adapter.default_window is None and config.window is not None and config.window > limit:
        raise UnlimiformerError(
            f"window is {config.window}; the encoder reads at most {limit} tokens: give that or less"
        )
    return config.window or limit


def _policies(installation: Installation, config: UnlimiformerConfig, top_k: int) -> list[Policy]:
    attentions = installation.attentions
    for name, limit in (("layers", len(attentions)), ("heads", min(view.heads for view in attentions))):
        chosen = getattr(config, name)
        if chosen and max(chosen) >= limit:
            raise UnlimiformerError(f"{name} is {list(chosen)}; the decoder has {limit}, counted from 0")
    layers = range(len(attentions)) if config.layers is None else config.layers
    return [Policy(top_k, layer in layers, config.heads) for layer in range(len(attentions))]
