"""The engine of encoder–decoders: every cross-attention head retrieves its own tokens at every step (the paper)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...adapters import Adapter, CrossAttention, adapter_for
from ...config import UnlimiformerConfig
from ...datastore import ExactStore, build
from ...errors import InputError, UnsupportedModelError
from ...hub.saved_settings import load_gates
from ...memory import Memory
from ...memory.indexer import EncoderInfo, Indexer
from ...provenance import Attention, AttentionTrace, Provenance
from ...text.tokenization import special_ids
from ..base import Engine, Generated, generation_setting, require_cache, strip_padding
from ..contexts import ContextChoice, stream_answer
from ..head_ranking import Head
from .attention import EVERYTHING, RetrievalPolicy
from .context import AttentionContext
from .focus import MemorySlice
from .hooks import HookManager
from .reread import PassageReader
from .retrieval_heads import of_heads, retrieval_heads
from .sample_queries import decoder_start_id, pool_queries, sample_queries
from .verify_adapter import verify_guess

_SEARCHING_HEADS = 3  # of the retrieval heads; those of all heads together find fewer passages
_LONG_MEMORY = 65536  # tokens from which the store "auto" is "ivf": a scan of fewer takes a few milliseconds


class Seq2SeqEngine(Engine):
    """One wrapped encoder–decoder."""

    kind = "encoder-decoder"

    def __init__(self, model: Any, base: Any, tokenizer: Any, config: UnlimiformerConfig) -> None:
        super().__init__(model, base, tokenizer, config)
        for name in ("selection", "positions", "block"):
            if getattr(config, name) not in (None, "reread", "top-k"):
                raise InputError(
                    f"{name} is {getattr(config, name)!r}; it is for decoder-only models, and "
                    f"{type(base).__name__} is an encoder–decoder: leave it out"
                )
        adapter, is_known = adapter_for(base)
        self.window = _choose_window(adapter, base, tokenizer, config)
        self.top_k = config.top_k or self.window
        self.hooks = HookManager(base, adapter, self.window)
        vocabulary_size = base.get_input_embeddings().num_embeddings
        encoder = EncoderInfo(
            adapter.encoder(base),
            base.config,
            self.hooks.encode,
            self.window,
            vocabulary_size,
            width_of=lambda memory: self.hooks.attentions[0].states_width,
        )
        self._indexer = Indexer(config, tokenizer, encoder)
        self._reader = None
        if config.selection == "reread":
            if tokenizer is None:
                raise InputError("selection is 'reread' and there is no tokenizer; expected one: give it")
            self._reader = PassageReader(self._indexer, tokenizer, self.window, config.top_k)
        context = AttentionContext(self._default_policies(), focus=config.focus or 0)
        if not is_known:
            verify_guess(base, adapter, self.window)
        self.hooks.install(context, self._indexer, index_short_inputs=config.prefix is not None)

    @property
    def context_length(self) -> int:
        """The plain encoder sees one window."""
        return self.window

    @property
    def supports_provenance(self) -> bool:
        """Every retrieval can be traced."""
        return True

    @property
    def active(self) -> bool:
        """Whether the hooks are in the model."""
        return self.hooks.installed

    @property
    def indexer(self) -> Indexer:
        """Makes memories of inputs."""
        return self._indexer

    @property
    def cross_attentions(self) -> list[CrossAttention]:
        """The adapters of the decoder's cross-attentions, first layer first."""
        return self.hooks.attentions

    @property
    def encoder_parameters(self) -> list[torch.nn.Parameter]:
        """The weights of the encoder, with a token embedding that the decoder may share."""
        return list(self.hooks.encoder.parameters())

    def encode(self, ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
        """States (b, W, D) of windows (b, W)."""
        return self.hooks.encode(ids, aligned)

    def build_search(self, memory: Memory) -> ExactStore:
        """The memory's store with the search of the settings, built for this model's real queries."""
        name = self.config.store
        if name == "auto":
            name = "ivf" if len(memory) >= _LONG_MEMORY else "exact"
        if name == "exact" or memory.windows == 1 or self.top_k >= len(memory):
            return memory.store
        queries = self.sample_queries(memory)
        if not queries:
            return memory.store
        return build(name, memory.store, pool_queries(queries), self.top_k, self.config.recall)

    def context(self, **changes: Any) -> AbstractContextManager[None]:
        """Temporarily change fields of the `AttentionContext`."""
        return self.hooks.override(**changes)

    def full_attention(self) -> AbstractContextManager[None]:
        """Temporarily let every layer attend to all tokens, as SLED does."""
        return self.context(policies=[RetrievalPolicy(EVERYTHING)] * len(self.cross_attentions), focus=0)

    def encoder_outputs(self, memories: list[Memory]) -> dict[str, Any]:
        """Arguments with which the model attends to these memories instead of an encoded input."""
        outputs = self.hooks.encoder_output(memories)
        mask = torch.ones((len(memories), 1), dtype=torch.long, device=outputs[0].device)
        return {"encoder_outputs": outputs, "attention_mask": mask}

    def sample_queries(self, memory: Memory) -> list[Tensor]:
        """Real folded queries (N, D) over a memory, one tensor per call of a layer."""
        return sample_queries(self.model, self.hooks, memory)

    def generate(
        self, memories: list[Memory], prompts: list[str | None], provenance: bool, generation: dict[str, Any]
    ) -> list[Generated]:
        """Run the model's own `generate`; a prompt is the beginning of the decoder's text."""
        if self._reader is not None:
            return self._answer_from_passages(memories, prompts, provenance, generation)
        slices = [MemorySlice(memory, memory) for memory in memories]
        if any(prompt is not None for prompt in prompts):
            ids = self.decoder_prompts(prompts)
            generation = {**generation, "decoder_input_ids": ids}
            if self.hooks.context.focus:
                slices = self._focus(memories, ids)
        return self._generate(slices, provenance, generation)[0]

    def _generate(
        self, slices: list[MemorySlice], provenance: bool, generation: dict[str, Any]
    ) -> tuple[list[Generated], Any]:
        """What is generated from each slice, and what the model's `generate` returned."""
        prompt_ids = generation.get("decoder_input_ids")
        prompt_length = 1 if prompt_ids is None else prompt_ids.shape[1]  # the start token, then the prompt
        inputs = self._generate_inputs([part.memory for part in slices])
        if not provenance:
            output = self.model.generate(**inputs, **generation)
            sequences = output if isinstance(output, Tensor) else output.sequences
            per_input = sequences.split(sequences.shape[0] // len(slices))
            generated = [
                Generated(rows, prompt_length, selected=part.selected)
                for rows, part in zip(per_input, slices, strict=True)
            ]
            return generated, output
        require_cache(self.model, generation)
        trace = AttentionTrace()
        with self.context(trace=trace):
            output = self.model.generate(
                **inputs, **{**generation, "return_dict_in_generate": True, "output_scores": True}
            )
        return self._with_provenance(output, slices, trace, prompt_length, generation), output

    def _answer_from_passages(
        self, memories: list[Memory], prompts: list[str | None], provenance: bool, generation: dict[str, Any]
    ) -> list[Generated]:
        """Answers to prompts from the passages that they need, a question about a fact from several contexts."""
        contexts = [
            self._reread(memory, prompt) if prompt else [MemorySlice(memory, memory)]
            for memory, prompt in zip(memories, prompts, strict=True)
        ]
        if generation_setting(self.model, generation, "do_sample", False):  # the likeliest would be no fair sample
            contexts = [slices[-1:] for slices in contexts]
        choice = ContextChoice([len(slices) for slices in contexts])
        slices = [part for slices in contexts for part in slices]
        generated, output = self._generate(slices, provenance, choice.arguments(generation))
        if not choice.is_needed:
            return generated
        new_tokens = output.sequences[:, 1:]
        lengths = torch.tensor([len(strip_padding(self.model, generation, row)) for row in new_tokens])
        chosen = choice.choose(output, new_tokens, lengths)
        if generation.get("streamer") is not None:
            answer = generated[chosen[0]].sequences[0]
            stream_answer(generation["streamer"], answer[None, :1], strip_padding(self.model, generation, answer[1:]))
        return [
            replace(generated[number], selected=slices[-1].selected)  # it has the passages of the others
            for number, slices in zip(chosen, contexts, strict=True)
        ]

    def truncated_generate(
        self, texts: list[str], prompts: list[str | None], generation: dict[str, Any], answer_start: str = ""
    ) -> list[str]:
        """Answers of the plain model to the first window of each text.

        A model that rereads passages behind the question gets the question before the text.
        """
        del answer_start  # the beginning of the decoder's text is the prompt
        if self._reader is not None:
            texts, prompts = [(p or "") + text for p, text in zip(prompts, texts, strict=True)], [None] * len(texts)
        inputs = self.tokenizer(
            texts, truncation=True, max_length=self.window, padding=len(texts) > 1, return_tensors="pt"
        )
        arguments = {name: inputs[name].to(self.model.device) for name in ("input_ids", "attention_mask")}
        prompt_length = 0
        if any(prompt is not None for prompt in prompts):
            arguments["decoder_input_ids"] = self.decoder_prompts(prompts)
            prompt_length = arguments["decoder_input_ids"].shape[1]
        with torch.no_grad():
            sequences = self.model.generate(**arguments, **generation)  # inputs within the window are not retrieved
        return self.tokenizer.batch_decode(sequences[:, prompt_length:], skip_special_tokens=True)

    def truncated_room(self, generation: dict[str, Any]) -> int:
        """The window without the special tokens; the answer needs no room there."""
        del generation
        return self.window - sum(ids.shape[0] for ids in special_ids(self.tokenizer))

    def decode_inputs(self, states: Tensor, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of `generate` that attend to a memory of noisy copies of `states`."""
        copies = states.repeat(-(-tokens // states.shape[0]), 1)[:tokens]
        store = ExactStore.empty(tokens, states.shape[1], dtype, self.config.device or self.device)
        store.put(0, copies + 0.1 * torch.randn(copies.shape, generator=torch.Generator().manual_seed(0)))
        return self.encoder_outputs([Memory(store, torch.zeros(tokens, dtype=torch.long), None, 2)])

    def remove(self) -> None:
        """Restore every forward to the original object."""
        self.hooks.remove()

    def _with_provenance(
        self,
        output: Any,
        slices: list[MemorySlice],
        trace: AttentionTrace,
        prompt_length: int,
        generation: dict[str, Any],
    ) -> list[Generated]:
        """Each input's sequences, and where the best of them came from."""
        beam_indices = getattr(output, "beam_indices", None)
        per_input = output.sequences.shape[0] // len(slices)
        generated: list[Generated] = []
        for number, (sequences, part) in enumerate(zip(output.sequences.split(per_input), slices, strict=True)):
            first_row = number * per_input
            length = strip_padding(self.model, generation, sequences[0, prompt_length:]).shape[0]
            rows = [first_row] * length
            if beam_indices is not None:
                rows = [row for row in beam_indices[first_row, :length].tolist() if row >= 0]
            layers = trace.by_layer(part.memory, rows, prompt_length - 1)
            generated.append(Generated(sequences, prompt_length, part.provenance(layers), part.selected))
        return generated

    @torch.no_grad()
    def _reread(self, memory: Memory, prompt: str) -> list[MemorySlice]:
        """The passages of a memory that a prompt attends to, in a window behind it: one or more contexts."""
        assert self._reader is not None
        query = self._reader.query(memory, prompt)
        layers = of_heads(self.attention_of(memory, self.decoder_prompts([query.text])[0]), self._searching_heads())
        return self._reader.read(memory, query, Provenance.from_layers(memory, layers).weights)

    def _searching_heads(self) -> list[Head]:
        """The heads whose attention searches passages: the best retrieval heads of the current weights."""
        layers, heads = self.config.layers, self.config.heads
        return [
            (layer, head)
            for layer, head in retrieval_heads(self)
            if (layers is None or layer in layers) and (heads is None or head in heads)
        ][:_SEARCHING_HEADS]

    def attention_of(self, memory: Memory, ids: Tensor) -> dict[int, Attention]:
        """The attention of decoder tokens (n,) to a memory, by layer."""
        trace = AttentionTrace()
        with self.context(trace=trace):
            self.model(**self.encoder_outputs([memory]), decoder_input_ids=ids[None].to(self.device), use_cache=False)
        return trace.by_layer(memory, [0] * ids.shape[0], 0)

    @property
    def start_ids(self) -> Tensor:
        """Token ids (1,) with which a decoder's text begins."""
        return torch.tensor([decoder_start_id(self.model) or 0])

    @torch.no_grad()
    def _focus(self, memories: list[Memory], ids: Tensor) -> list[MemorySlice]:
        """The passages of long memories that the prompts (B, n) attend to."""
        trace, focus = AttentionTrace(), self.hooks.context.focus
        with self.context(trace=trace):
            self.model(**self.encoder_outputs(memories), decoder_input_ids=ids, use_cache=False)
        slices = []
        for row, memory in enumerate(memories):
            if memory.windows == 1 or focus >= len(memory):
                slices.append(MemorySlice(memory, memory))
            else:
                layers = trace.by_layer(memory, [row] * ids.shape[1], 0)
                slices.append(MemorySlice.from_provenance(Provenance.from_layers(memory, layers), focus))
        return slices

    def _generate_inputs(self, memories: list[Memory]) -> dict[str, Any]:
        """As `encoder_outputs`; `generate` of an offloaded model also needs `inputs` to know a device."""
        arguments = self.encoder_outputs(memories)
        if self.model.device.type != "meta":
            return arguments
        return {**arguments, "inputs": torch.full_like(arguments["encoder_outputs"][0][:, :, 0], -100).long()}

    def decoder_prompts(self, prompts: list[str | None]) -> Tensor:
        """Token ids (B, n) with which the decoder's texts begin: the start token, then the prompt."""
        start_id = decoder_start_id(self.model)
        if self.tokenizer is None or start_id is None:
            raise InputError("a prompt needs a tokenizer and the model's decoder_start_token_id; one is missing")
        ids = [self.tokenizer(prompt or "", add_special_tokens=False)["input_ids"] for prompt in prompts]
        if len({len(row) for row in ids}) > 1:
            raise InputError(
                "the prompts of one call have different numbers of tokens, and a decoder's text is not padded; "
                "expected one prompt for all, or one call for each"
            )
        return torch.tensor([[start_id, *row] for row in ids], device=self.device)

    def _default_policies(self) -> list[RetrievalPolicy]:
        config, attentions = self.config, self.cross_attentions
        for name, limit in (("layers", len(attentions)), ("heads", min(view.heads for view in attentions))):
            indices = getattr(config, name)
            if indices and max(indices) >= limit:
                raise InputError(f"{name} is {list(indices)}; the decoder has {limit}, counted from 0")
        layers = range(len(attentions)) if config.layers is None else config.layers
        folder = getattr(self.base.config, "_name_or_path", None)
        gates = load_gates(folder, [view.heads for view in attentions])
        return [
            RetrievalPolicy(self.top_k, layer in layers, config.heads, gate=gate) for layer, gate in enumerate(gates)
        ]


def _choose_window(adapter: Adapter, model: Any, tokenizer: Any, config: UnlimiformerConfig) -> int:
    try:
        limit = adapter.window(model, tokenizer)
    except UnsupportedModelError:
        if config.window is None:
            raise
        return config.window
    if adapter.default_window is None and config.window is not None and config.window > limit:
        raise InputError(f"window is {config.window}; the encoder reads at most {limit} tokens: give that or less")
    return config.window or limit
