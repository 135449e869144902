"""How a decoder-only model generates from a document: one class for each `selection` of the settings.

Selected tokens reach the model's own `generate` as tokens of the prompt (`reread`), as a cache of stored keys and
values (`blocks`, `blocks-by-layer`), or at every step of every head (`top-k`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, LogitsProcessorList

from ...errors import InputError
from ...memory import Memory
from ...provenance import Attention, Provenance
from ...text.questions import is_descriptive
from ..answer_end import RepetitionLimit
from ..base import generation_setting, strip_padding
from ..contexts import ContextChoice, stream_answer
from .composed import INSTRUCTION, TOKENS_PER_PART, ComposedAnswer, split_tokens
from .kv_cache import KeysValues, pad_left, read_behind, read_prefix, slice_prompt
from .prompts import PromptSuffix
from .row_layout import RowLayout
from .selection import SelectedTokens, TopBlocks
from .top_k import TopKAttention, TopKDocument

if TYPE_CHECKING:
    from .engine import CausalEngine


@dataclass
class Query:
    """A document and a question about it; generation adds what it selected and attended to.

    Parameters
    ----------
    own_prompt : prefix and suffix are the user's own tokens, and nothing is added to them.
    layers : attention of the generated tokens, by layer; None where only the selection is known.
    sentence_provenance : where the sentences of an answer came from, if it was composed of several.
    """

    memory: Memory
    suffix: PromptSuffix
    own_prompt: bool = False
    selected: list[SelectedTokens] = field(default_factory=list)
    layers: dict[int, Attention] | None = None
    sentence_provenance: Provenance | None = None

    @property
    def selected_rows(self) -> Tensor | None:
        """Rows (m,) of the memory that were selected, in order; None if every head retrieved its own."""
        if not self.selected:
            return None
        return torch.cat([selection.tokens for selection in self.selected]).unique() + self.memory.prefix_tokens

    @property
    def provenance(self) -> Provenance:
        """Where the answer came from."""
        if self.sentence_provenance is not None:
            return self.sentence_provenance
        if self.layers is not None:
            return Provenance.from_layers(self.memory, self.layers)
        prefix_length = self.memory.prefix_tokens
        index = torch.cat([selection.tokens + prefix_length for selection in self.selected])[None, None]
        weights = torch.cat([selection.weights for selection in self.selected])[None, None]
        return replace(Provenance.from_layers(self.memory, {0: Attention(index, weights)}), layers=None)


@dataclass(frozen=True)
class BuiltPrompt:
    """A prompt (n,), and for each of its tokens its row in the memory (n,), -1 for tokens that are not in it.

    `prefix_tokens`: how many at its beginning other questions have too: what stands before the document, and a document
    of one window.
    """

    ids: Tensor
    rows: Tensor
    prefix_tokens: int


class DocumentGenerator(ABC):
    """Generates answers to queries with one engine."""

    supports_provenance: ClassVar[bool] = True

    def __init__(self, engine: CausalEngine) -> None:
        self._engine = engine

    def layout(self) -> RowLayout:
        """What a memory's row holds: by default everything of all layers."""
        return RowLayout.whole(self._engine.decoder, range(len(self._engine.decoder.attentions)))

    @abstractmethod
    def generate(self, queries: list[Query], generation: dict[str, Any], provenance: bool) -> Tensor:
        """New tokens (rows, T); `generation` holds the arguments of the model's `generate`."""


class RereadGenerator(DocumentGenerator):
    """`reread`: the selected passages are put into the prompt and read again by the plain model.

    A question about a fact is answered from several contexts, the best few passages and more of them: in a small one
    less distracts the model, a large one has the answer more often. `ContextChoice` takes one of the answers.
    """

    def layout(self) -> RowLayout:
        """Only the keys of the retrieval heads."""
        return RowLayout.for_heads(self._engine.decoder, self._engine.rank_heads())

    def generate(self, queries: list[Query], generation: dict[str, Any], provenance: bool) -> Tensor:
        """New tokens behind prefix, selected passages and suffix."""
        groups: dict[tuple[bool, bool], list[int]] = {}
        for number, query in enumerate(queries):
            uses_adapter = not query.own_prompt and self._engine.uses_adapter(query.suffix.text)
            groups.setdefault((self._is_composed(query, generation), uses_adapter), []).append(number)
        rows: dict[int, list[Tensor]] = {}
        for (is_composed, uses_adapter), numbers in groups.items():
            members = [queries[number] for number in numbers]
            if is_composed:
                answers = [self._compose(query, generation, provenance) for query in members]
            else:
                tokens = self._generate(members, generation, provenance, uses_adapter)
                answers = list(tokens.split(tokens.shape[0] // len(members)))
            rows |= {number: list(answer) for number, answer in zip(numbers, answers, strict=True)}
        in_order = [row for number in range(len(queries)) for row in rows[number]]
        return pad_sequence(in_order, batch_first=True, padding_value=self._engine.padding_id)

    def _is_composed(self, query: Query, generation: dict[str, Any]) -> bool:
        """Whether an answer is joined from several: a description of a document that does not fit one window."""
        return (
            not query.own_prompt
            and query.memory.windows > 1
            and is_descriptive(query.suffix.text)
            and generation_setting(self._engine.model, generation, "num_return_sequences", 1) == 1
        )

    def _compose(self, query: Query, generation: dict[str, Any], provenance: bool) -> Tensor:
        """New tokens (1, T): a few sentences from each part of the selected passages."""
        engine, memory = self._engine, query.memory
        selected = engine.passage_selector.select(memory, query.suffix, engine.context_sizes(query.suffix.text))[-1]
        query.selected = [selected]
        parts = split_tokens(selected.tokens, engine.ends_sentence, memory.text_ids)
        question = engine.passage_selector.question(memory, query.suffix)
        suffix = engine.template.suffix(f"{question} {INSTRUCTION}").ids
        prompts = [self._build_prompt(memory.prefix_ids, memory, tokens, suffix) for tokens in parts]
        ids, mask, cache = self._batch(prompts, generation)
        longest = generation_setting(engine.model, generation, "max_new_tokens", None) or engine.default_new_tokens
        processors = [RepetitionLimit(engine.tokenizer, times=1), *(generation.get("logits_processor") or ())]
        arguments = {
            **generation,
            "max_new_tokens": min(longest, TOKENS_PER_PART),
            "logits_processor": LogitsProcessorList(processors),
            "streamer": None,
            "return_dict_in_generate": False,
        }
        sequences = engine.call_generate(ids, mask, arguments, cache)[:, ids.shape[1] :]
        texts = [engine.tokenizer.decode(memory.text_ids[tokens]) for tokens in parts]
        written = engine.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        answer = ComposedAnswer.compose(
            query.suffix.text, texts, written, lambda text: len(engine.tokenize(text)) <= longest
        )
        if provenance and memory.offsets is not None:
            query.sentence_provenance = answer.provenance(memory, parts)
        tokens = engine.tokenize(answer.text)[:longest]
        if generation.get("streamer") is not None:
            stream_answer(generation["streamer"], ids[:1], tokens)
        return tokens[None].to(sequences.device)

    def _generate(
        self, queries: list[Query], generation: dict[str, Any], provenance: bool, uses_adapter: bool
    ) -> Tensor:
        """New tokens (rows, T): for each question one prompt, or several of which one answer is taken."""
        by_query = [self.build_prompts(query) for query in queries]  # by the model that has indexed the document
        if generation_setting(self._engine.model, generation, "do_sample", False):  # the likeliest is no fair sample
            by_query = [contexts[-1:] for contexts in by_query]
        with self._engine.use_adapter(uses_adapter):
            return self._answer(queries, by_query, generation, provenance)

    def _answer(
        self, queries: list[Query], by_query: list[list[BuiltPrompt]], generation: dict[str, Any], provenance: bool
    ) -> Tensor:
        """New tokens (rows, T) behind the prompts of each query."""
        engine = self._engine
        choice = ContextChoice([len(contexts) for contexts in by_query])
        prompts = [prompt for contexts in by_query for prompt in contexts]
        ids, mask, cache = self._batch(prompts, generation)
        arguments = {**choice.arguments(generation), "return_dict_in_generate": True}
        output = engine.call_generate(ids, mask, arguments, cache)
        new_tokens = output.sequences[:, ids.shape[1] :]
        answers = [strip_padding(engine.model, generation, row) for row in new_tokens]
        chosen = choice.choose(output, new_tokens, torch.tensor([len(answer) for answer in answers]))
        answers_per_prompt = len(answers) // len(prompts)
        if choice.is_needed and generation.get("streamer") is not None:
            stream_answer(generation["streamer"], ids[:1], answers[chosen[0] * answers_per_prompt])
        if provenance:
            beams = output.past_key_values.layers[0].keys.shape[0] // len(prompts)
            for query, number in zip(queries, chosen, strict=True):
                columns = mask[number].nonzero()[:-1, 0]
                prompt_cache = slice_prompt(output.past_key_values, number * beams, columns)
                if prompt_cache is not None:
                    answer = answers[number * answers_per_prompt]
                    query.layers = self._trace_attention(prompts[number], answer, prompt_cache)
        return new_tokens.unflatten(0, (-1, answers_per_prompt))[chosen].flatten(0, 1)

    def _batch(
        self, prompts: list[BuiltPrompt], generation: dict[str, Any]
    ) -> tuple[Tensor, Tensor, DynamicCache | None]:
        """Token ids and mask of prompts, and a cache of what of them was read; many questions have the same prefix."""
        engine = self._engine
        use_cache = generation_setting(engine.model, generation, "use_cache", True)
        if not use_cache or min(prompt.prefix_tokens for prompt in prompts) == 0:
            return *pad_left([prompt.ids for prompt in prompts], engine.padding_id), None
        prefixes = [prompt.ids[: prompt.prefix_tokens] for prompt in prompts]
        others = [prompt.ids[prompt.prefix_tokens :] for prompt in prompts]
        keys = [tuple(prefix.tolist()) for prefix in prefixes]
        read = {
            key: engine.prefix_reader.read(prefix) for key, prefix in dict(zip(keys, prefixes, strict=True)).items()
        }
        by_prompt = [read[key] for key in keys]
        if len({len(other) for other in others}) > 1:  # read one by one: in a batch, the shorter ones would be padded
            by_prompt = [
                read_behind(engine.decoder, rows, other[:-1]) for rows, other in zip(by_prompt, others, strict=True)
            ]
            prefixes = [prompt.ids[:-1] for prompt in prompts]
            others = [prompt.ids[-1:] for prompt in prompts]
        by_layer = [list(rows) for rows in zip(*by_prompt, strict=True)]
        return engine.cached_prompts(prefixes, others, by_layer, generation)

    def build_prompts(self, query: Query) -> list[BuiltPrompt]:
        """Prefix, selected passages, suffix: one prompt for each context, the longest last."""
        engine, memory, suffix = self._engine, query.memory, query.suffix
        contexts = engine.passage_selector.select(memory, suffix, engine.context_sizes(suffix.text))
        query.selected = contexts[-1:]  # it has all passages of the others
        prefix = memory.prefix_ids
        if not query.own_prompt:
            prefix = engine.template.with_examples(prefix, suffix.text)
            question = engine.passage_selector.question(memory, suffix)
            suffix = suffix if question == suffix.text else engine.template.suffix(question)
        return [self._build_prompt(prefix, memory, selected.tokens, suffix.ids) for selected in contexts]

    def _build_prompt(self, prefix: Tensor, memory: Memory, tokens: Tensor, suffix: Tensor) -> BuiltPrompt:
        """Passages that do not follow each other stand on lines of their own."""
        line_break = self._engine.template.line_break
        ids, rows = [prefix], [torch.full_like(prefix, -1)]
        for number, run in enumerate(_runs(tokens)):
            if number:
                ids.append(line_break)
                rows.append(torch.full_like(line_break, -1))
            ids.append(memory.text_ids[run])
            rows.append(run + memory.prefix_tokens)
        fixed = sum(map(len, ids)) if memory.windows == 1 else len(prefix)
        return BuiltPrompt(torch.cat((*ids, suffix)), torch.cat((*rows, torch.full_like(suffix, -1))), fixed)

    def _trace_attention(self, prompt: BuiltPrompt, answer: Tensor, cache: DynamicCache) -> dict[int, Attention]:
        """Attention of the answer's tokens (T,) to tokens of the document, by layer.

        The answer is read once more behind the prompt's cache, in one pass that returns its attention.
        """
        length, base = prompt.ids.shape[0], self._engine.base
        ids = torch.cat((prompt.ids[-1:].to(answer.device), answer[:-1]))[None]
        positions = torch.arange(length - 1, length - 1 + ids.shape[1], device=ids.device)[None]
        implementation = base.config._attn_implementation
        base.set_attn_implementation("eager")
        try:
            output = self._engine.decoder.backbone(
                ids, past_key_values=cache, position_ids=positions, use_cache=True, output_attentions=True
            )
        finally:
            base.set_attn_implementation(implementation)
        in_document = (prompt.rows >= 0).nonzero()[:, 0]
        layers = {}
        for layer, weights in enumerate(output.attentions):
            document_weights = weights[0, :, :, in_document.to(weights.device)].float().cpu().transpose(0, 1)
            layers[layer] = Attention(prompt.rows[in_document].expand_as(document_weights), document_weights)
        return layers


class BlocksGenerator(DocumentGenerator):
    """`blocks`: stored keys, rotated to their new positions, and values of the selected blocks fill the cache."""

    by_layer: ClassVar[bool] = False

    def generate(self, queries: list[Query], generation: dict[str, Any], provenance: bool) -> Tensor:
        """New tokens behind a cache of prefix and selected blocks."""
        del provenance  # the selection is always known
        engine = self._engine
        engine.require_cache(generation)
        selector = TopBlocks(engine.block_scorer, engine.layout, engine.block, engine.top_k, self.by_layer)
        layers = range(len(engine.decoder.attentions))
        selections = [selector.select(query.memory, query.suffix, layers) for query in queries]
        cached_ids = []
        for query, selection in zip(queries, selections, strict=True):
            query.selected += [selection[layer] for layer in (layers if self.by_layer else [0])]
            cached_ids.append(torch.cat((query.memory.prefix_ids, query.memory.text_ids[selection[0].tokens])))
        by_layer = [
            [
                self._keys_and_values(query.memory, selection[layer], layer)
                for query, selection in zip(queries, selections, strict=True)
            ]
            for layer in layers
        ]
        return engine.continue_cache(queries, cached_ids, by_layer, generation)

    def _keys_and_values(self, memory: Memory, selected: SelectedTokens, layer: int) -> KeysValues:
        """Keys and values (G, n, d) of the prefix and of the selected tokens, at their new positions."""
        engine, prefix_length = self._engine, memory.prefix_tokens
        positions = engine.positions(memory)
        gap = positions.end(selected.tokens.shape[0]) - selected.tokens.shape[0]
        prefix = torch.arange(prefix_length)
        rows = memory.store.rows_at(torch.cat((prefix, selected.tokens + prefix_length)))
        keys, values = engine.layout.keys_and_values(rows.to(engine.decoder.device), layer)
        new_positions = torch.cat((prefix, positions.place(selected.tokens) + prefix_length)) - gap
        return engine.decoder.attentions[layer].rotate(keys, new_positions.to(keys.device)), values


class BlocksByLayerGenerator(BlocksGenerator):
    """`blocks-by-layer`: as `blocks`, with a selection of its own for every layer."""

    by_layer = True


class TopKGenerator(DocumentGenerator):
    """`top-k`: every head retrieves at every step; prefix and suffix of the prompt are the model's local tokens."""

    supports_provenance = False

    def layout(self) -> RowLayout:
        """Everything of the layers that retrieve."""
        return RowLayout.whole(self._engine.decoder, self._layers)

    @property
    def _layers(self) -> Any:
        return self._engine.config.layers or range(len(self._engine.decoder.attentions))

    def generate(self, queries: list[Query], generation: dict[str, Any], provenance: bool) -> Tensor:
        """New tokens behind prefix and suffix, with the documents in every attention."""
        del provenance  # unsupported
        engine = self._engine
        engine.require_cache(generation)
        if any(query.memory.prefix_tokens == 0 for query in queries):
            raise InputError("selection 'top-k' needs a prefix of the prompt; give a tokenizer or a prefix")
        documents = [TopKDocument(query.memory, engine.positions(query.memory), engine.top_k) for query in queries]
        prefixes = [query.memory.prefix_ids for query in queries]
        caches = [
            read_prefix(engine.decoder, prefix, -document.gap)
            for prefix, document in zip(prefixes, documents, strict=True)
        ]
        by_layer = [list(rows) for rows in zip(*caches, strict=True)]
        attention = TopKAttention(engine.decoder, engine.layout, documents, self._layers, engine.config.heads)
        with attention.active():
            return engine.continue_cache(queries, prefixes, by_layer, generation)


GENERATORS: dict[str, type[DocumentGenerator]] = {
    "reread": RereadGenerator,
    "blocks": BlocksGenerator,
    "blocks-by-layer": BlocksByLayerGenerator,
    "top-k": TopKGenerator,
}


def _runs(tokens: Tensor) -> list[Tensor]:
    """Token numbers (m,) in order, cut where some are missing."""
    cuts = ((tokens[1:] - tokens[:-1]) > 1).nonzero()[:, 0] + 1
    return list(tokens.tensor_split(cuts))


def repeats_per_row(model: Any, generation: dict[str, Any]) -> int:
    """How many sequences `generate` follows for each row: beams or returned sequences."""
    names = ("num_beams", "num_return_sequences")
    return max(generation_setting(model, generation, name, 1) for name in names)
