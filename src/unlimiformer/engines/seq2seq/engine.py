"""Encoder–decoders: every cross-attention head retrieves its own tokens at every step, as the paper has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...adapters import Adapter, adapter_for
from ...config import UnlimiformerConfig
from ...datastore import ExactStore, build
from ...errors import UnlimiformerError, UnsupportedModelError
from ...hub.saved_settings import load_gate
from ...memory.indexer import Indexer
from ...memory.memory import Memory
from ...provenance.provenance import Provenance
from ...provenance.trace import AttentionTrace
from ..base import Generated, ended, refuse_without_cache
from .attention import EVERYTHING, RetrievalPolicy
from .focus import MemorySlice
from .hooks import HookManager
from .sample_queries import pool_queries, sample_queries
from .verify import verify_guess


class Seq2SeqEngine:
    """One wrapped encoder–decoder; `base` is the model inside a peft model."""

    def __init__(self, model: Any, base: Any, tokenizer: Any, config: UnlimiformerConfig) -> None:
        for name in ("selection", "positions", "block"):
            if getattr(config, name) is not None:
                raise UnlimiformerError(
                    f"{name} is {getattr(config, name)!r}; it is for decoder-only models, and "
                    f"{type(base).__name__} is an encoder–decoder: leave it out"
                )
        self.model, self.config, self._tokenizer = model, config, tokenizer
        adapter, known = adapter_for(base)
        self.window = _window(adapter, base, tokenizer, config)
        self.top_k, self.focus = config.top_k or self.window, config.focus or 0
        vocabulary = base.get_input_embeddings().num_embeddings
        self.reader = Indexer(config, tokenizer, base.config, adapter.encoder(base), self.window, vocabulary)
        reader = self.reader
        self.hooks = HookManager(base, adapter, reader.read_rows, self.window, lambda: reader.prefixes_rows)
        policies = _policies(self.hooks, config, self.top_k, getattr(base.config, "_name_or_path", None))
        if not known:
            verify_guess(base, adapter, self.window)
        self.hooks.apply(policies)
        self.encode = self.hooks.encode
        self.remove = self.hooks.undo

    @property
    def context_length(self) -> int:
        """The plain encoder reads one window."""
        return self.window

    @property
    def supports_provenance(self) -> bool:
        """Every retrieval is heard."""
        return True

    @property
    def applied(self) -> bool:
        """Whether the hooks are in the model."""
        return self.hooks.applied

    def searched(self, memory: Memory) -> ExactStore:
        """The memory's store, searched as was asked for and built for this model's real queries."""
        if self.config.store == "exact" or memory.windows == 1 or self.top_k >= len(memory):
            return memory.store
        heard = sample_queries(self.model, self.hooks, memory)
        if not heard:
            return memory.store
        return build(self.config.store, memory.store, pool_queries(heard), self.top_k, self.config.recall)

    def generate(
        self, memories: list[Memory], prompts: list[str | None], provenance: bool, generation: dict[str, Any]
    ) -> list[Generated]:
        """The model's own `generate`; a prompt starts the decoder's text."""
        seen: list[Memory | MemorySlice] = list(memories)
        if any(prompt is not None for prompt in prompts):
            ids = self.decoder_prompts(prompts)
            generation = {**generation, "decoder_input_ids": ids}
            if self.focus:
                seen = self._focused(memories, ids)
        given = self._inputs(self._given([_memory(each) for each in seen]))
        if not provenance:
            made = self.model.generate(**given, **generation)
            sequences = made if isinstance(made, Tensor) else made.sequences
            return [(part, None) for part in sequences.split(sequences.shape[0] // len(memories))]
        refuse_without_cache(self.model, generation)
        listener, settings = AttentionTrace(), {**generation, "return_dict_in_generate": True, "output_scores": True}
        with self._heard_by(listener):
            made = self.model.generate(**given, **settings)
        return self._looked(made, seen, listener, generation)

    def _looked(
        self, made: Any, seen: list[Memory | MemorySlice], listener: AttentionTrace, generation: dict[str, Any]
    ) -> list[Generated]:
        """Each input's sequences, and where the best of them looked."""
        sequences, prompt = made.sequences, generation.get("decoder_input_ids")
        told = 1 if prompt is None else prompt.shape[1]
        beams = getattr(made, "beam_indices", None)
        each = sequences.shape[0] // len(seen)
        found: list[Generated] = []
        for number, (part, whole) in enumerate(zip(sequences.split(each), seen, strict=True)):
            first = number * each
            new = ended(self.model, generation, part[0, told:]).shape[0]
            rows = [first] * new if beams is None else [row for row in beams[first, :new].tolist() if row >= 0]
            layers = listener.followed(_memory(whole), rows, told - 1)
            if isinstance(whole, MemorySlice):
                found.append((part, Provenance.of(whole.whole, whole.in_whole(layers))))
            else:
                found.append((part, Provenance.of(whole, layers)))
        return found

    @contextmanager
    def seeing_everything(self) -> Iterator[None]:
        """Every layer sees all tokens, as SLED has it, for a while."""
        before, self.focus = self.focus, 0
        try:
            with self.hooks.override_policies([RetrievalPolicy(EVERYTHING)] * len(self.hooks.attentions)):
                yield
        finally:
            self.focus = before

    @torch.no_grad()
    def _focused(self, memories: list[Memory], ids: Tensor) -> list[Memory | MemorySlice]:
        """Of long memories, what the prompts (B, n) look at."""
        listener = AttentionTrace()
        with self._heard_by(listener):
            self.model(**self._given(memories), decoder_input_ids=ids, use_cache=False)
        found: list[Memory | MemorySlice] = []
        for row, memory in enumerate(memories):
            if memory.windows == 1 or self.focus >= len(memory):
                found.append(memory)
            else:
                looked = Provenance.of(memory, listener.followed(memory, [row] * ids.shape[1], 0))
                found.append(MemorySlice.looked_at(looked, self.focus))
        return found

    def _given(self, memories: list[Memory]) -> dict[str, Any]:
        """What the model takes instead of inputs that are these memories."""
        outputs = self.hooks.output(memories)
        mask = torch.ones((len(memories), 1), dtype=torch.long, device=outputs[0].device)
        return {"encoder_outputs": outputs, "attention_mask": mask}

    def _inputs(self, given: dict[str, Any]) -> dict[str, Any]:
        """For `generate`: of an offloaded model it does not know where to put inputs that are not there."""
        if self.model.device.type != "meta":
            return given
        return {**given, "inputs": torch.full_like(given["encoder_outputs"][0][:, :, 0], -100, dtype=torch.long)}

    @contextmanager
    def _heard_by(self, listener: AttentionTrace | None) -> Iterator[None]:
        self.hooks.listener = listener
        try:
            yield
        finally:
            self.hooks.listener = None

    def prompt_length(self, prompt: str | None) -> int:
        """The start token, and the prompt's."""
        return 1 + (0 if prompt is None else len(self._tokenizer(prompt, add_special_tokens=False)["input_ids"]))

    def decoder_prompts(self, prompts: list[str | None]) -> Tensor:
        """What the decoder's texts start with, as token ids (B, n)."""
        configs = (self.model.generation_config, self.model.config)
        starts = (getattr(config, "decoder_start_token_id", None) for config in configs)
        start = next((token for token in starts if token is not None), None)
        if self._tokenizer is None or start is None:
            raise UnlimiformerError("a prompt needs a tokenizer and the model's decoder_start_token_id; one is missing")
        ids = [self._tokenizer(prompt or "", add_special_tokens=False)["input_ids"] for prompt in prompts]
        if len({len(row) for row in ids}) > 1:
            raise UnlimiformerError(
                "the prompts of one call have different numbers of tokens, and a decoder's text is not padded; "
                "expected one prompt for all, or one call for each"
            )
        return torch.tensor([[start, *row] for row in ids], device=self.reader.device)


def _memory(seen: Memory | MemorySlice) -> Memory:
    return seen.memory if isinstance(seen, MemorySlice) else seen


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


def _policies(hooks: HookManager, config: UnlimiformerConfig, top_k: int, folder: str | None) -> list[RetrievalPolicy]:
    attentions = hooks.attentions
    for name, limit in (("layers", len(attentions)), ("heads", min(view.heads for view in attentions))):
        chosen = getattr(config, name)
        if chosen and max(chosen) >= limit:
            raise UnlimiformerError(f"{name} is {list(chosen)}; the decoder has {limit}, counted from 0")
    layers = range(len(attentions)) if config.layers is None else config.layers
    gates = (load_gate(folder, layer, view.heads) for layer, view in enumerate(attentions))
    return [RetrievalPolicy(top_k, layer in layers, config.heads, gate=gate) for layer, gate in enumerate(gates)]
