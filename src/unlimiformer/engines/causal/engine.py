"""Decoder-only models: a question chooses what it wants of a document that was read in windows.

What is chosen goes to the model's own `generate` as tokens to read again, as a cache of keys and values that were kept,
or, in the paper's way, to every head at every step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ...adapters.causal import causal_adapter_for
from ...config import UnlimiformerConfig
from ...datastore import ExactStore
from ...errors import UnlimiformerError, UnsupportedModelError
from ...memory.encode import TokenizedInput
from ...memory.indexer import Indexer
from ...memory.memory import Memory, RowSpec
from ...provenance.provenance import Provenance
from ...provenance.trace import Attention
from ..base import Generated, ended, generation_setting, refuse_without_cache
from ..patching import refuse_wrapped, replace_method
from .block_scorer import BlockScorer
from .layout import Head, Layout
from .positions import POSITIONS, Positions
from .prompts import Prompts, PromptSuffix
from .retrieval_heads import retrieving_heads
from .selection import Blocks, Reread, SelectedTokens
from .top_k import TopK, TopKDocument
from .truncated import Truncated

_WINDOW, _TOP_K, _BLOCK, _NEW_TOKENS = 1024, 256, 32, 256
_HEADS = 8  # that choose
_PROMPT = ("input_ids", "inputs", "attention_mask")
_HEAD, _TAIL, _QUESTION = 64, 256, 64  # of a long prompt whose parts nobody told apart


@dataclass
class Query:
    """One document, what it is asked, and what was chosen for that; `layers`: what the answer's tokens attended to."""

    memory: Memory
    tail: PromptSuffix
    chosen: list[SelectedTokens] = field(default_factory=list)
    layers: dict[int, Attention] | None = None

    @property
    def looked(self) -> Provenance:
        """Where the answer came from."""
        if self.layers is not None:
            return Provenance.of(self.memory, self.layers)
        lead = self.memory.prefix_tokens
        index = torch.cat([each.tokens + lead for each in self.chosen])[None, None]
        weights = torch.cat([each.weights for each in self.chosen])[None, None]
        return replace(Provenance.of(self.memory, {0: Attention(index, weights)}), layers=None)


@dataclass(frozen=True)
class BuiltPrompt:
    """A prompt (n,), and for each of its tokens which token of the memory it is; -1 where it is none."""

    ids: Tensor
    places: Tensor


class CausalEngine:
    """One wrapped decoder-only model; `base` is the model inside a peft model."""

    def __init__(self, model: Any, base: Any, tokenizer: Any, config: UnlimiformerConfig) -> None:
        self.model, self.config, self._tokenizer = model, config, tokenizer
        self.decoder = causal_adapter_for(base)
        self.selection = config.selection or "reread"
        self.block = config.block or _BLOCK
        self.window = config.window or min(_WINDOW, self.decoder.limit)
        self.top_k = config.top_k or _TOP_K
        self._check(base)
        self.prompts = Prompts(tokenizer)
        self._base = base
        self._generate = model.generate
        refuse_wrapped(model, "generate")
        self._undo: Callable[[], None] | None = replace_method(model, "generate", self._long_generate)

    @property
    def context_length(self) -> int:
        """The plain model reads up to its limit."""
        return self.decoder.limit

    @property
    def supports_provenance(self) -> bool:
        """Blocks are known; each head's own tokens are not."""
        return self.selection != "top-k"

    @property
    def applied(self) -> bool:
        """Whether the model's `generate` takes long prompts."""
        return self._undo is not None

    def remove(self) -> None:
        """The model's `generate` is its own again."""
        if self._undo is not None:
            self._undo()
        self._undo = None

    @cached_property
    def heads(self) -> list[Head]:
        """The heads that choose: those that retrieve best, of the layers and heads that were asked for."""
        layers, heads = self.config.layers, self.config.heads
        allowed = [
            (layer, head)
            for layer, head in retrieving_heads(self.decoder, self.block)
            if (layers is None or layer in layers) and (heads is None or head in heads)
        ]
        return allowed if self.selection == "blocks-by-layer" else allowed[:_HEADS]

    @cached_property
    def layout(self) -> Layout:
        """What is kept of a document."""
        everything = range(len(self.decoder.attentions))
        if self.selection == "reread":
            return Layout.for_heads(self.decoder, self.heads)
        if self.selection == "top-k":
            return Layout.whole(self.decoder, self.config.layers or everything)
        return Layout.whole(self.decoder, everything)

    @cached_property
    def reader(self) -> Indexer:
        """How documents are read."""
        base, config = self._base, self.config
        vocabulary = base.get_input_embeddings().num_embeddings
        kept = RowSpec(self.selection, self.block, str(self.layout))
        settings = (base.config, self.decoder.backbone, self.window, vocabulary, kept, self.prompts.head)
        return Indexer(config, self._tokenizer, *settings)

    def encode(self, ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
        """What is kept (b, W, width) of windows (b, W)."""
        del aligned
        return self.layout.rows(self.decoder.inputs(ids, sorted(self.layout.parts)))

    def searched(self, memory: Memory) -> ExactStore:
        """Blocks are surveyed by a scan."""
        return memory.store

    @torch.no_grad()
    def generate(
        self, memories: list[Memory], prompts: list[str | None], provenance: bool, generation: dict[str, Any]
    ) -> list[Generated]:
        """The model's own `generate` on head, what the prompt wants of each document, and tail."""
        asked = []
        for memory, prompt in zip(memories, prompts, strict=True):
            if prompt is None:
                raise UnlimiformerError(
                    "no prompt was given; expected what the model is to do with the document, such as a question: "
                    "generate(memory, prompt=…)"
                )
            asked.append(Query(memory, self.prompts.tail(prompt)))
        if provenance:
            refuse_without_cache(self.model, generation)
        if provenance and not self.supports_provenance:
            raise UnlimiformerError("provenance was asked for with selection 'top-k'; it is known for blocks only")
        new = self._answer(asked, generation, provenance)
        parts = new.split(new.shape[0] // len(asked))
        return [(part, one.looked if provenance else None) for part, one in zip(parts, asked, strict=True)]

    def truncated(self, text: str, answer: int) -> Truncated:
        """The plain model over as much of a text as its window holds, with room for an answer of so many tokens."""
        return Truncated(self.decoder, self.prompts, self._tokenizer, text, answer)

    def prompt_length(self, prompt: str | None) -> int:
        """A sequence is the answer alone."""
        del prompt
        return 0

    def _answer(self, asked: list[Query], generation: dict[str, Any], provenance: bool = False) -> Tensor:
        """New tokens (rows, T)."""
        if self.selection == "reread":
            return self._reread(asked, generation, provenance)
        self._refuse_without_cache(generation)
        if self.selection == "top-k":
            return self._retrieve(asked, generation)
        return self._recall(asked, generation)

    @torch.no_grad()
    def read(self, ids: Tensor) -> Memory:
        """A memory of token ids (S,) for this model as it is now; it can be neither kept nor checked."""
        source = TokenizedInput(ids.to(self.decoder.device), self.prompts.head(None).to(self.decoder.device), {})
        return self.reader.read_sources([source], self.encode)[0]

    @torch.no_grad()
    def prompt(self, memory: Memory, question: str) -> Tensor:
        """Token ids of all that the model reads again for a question."""
        return self._laid_out(Query(memory, self.prompts.tail(question))).ids

    def _reread(self, asked: list[Query], generation: dict[str, Any], provenance: bool) -> Tensor:
        prompts = [self._laid_out(one) for one in asked]
        ids, mask = _padded([prompt.ids for prompt in prompts], self._padding)
        if not provenance:
            return self._new_tokens(ids, mask, generation)
        made = self._made(ids, mask, {**generation, "return_dict_in_generate": True})
        new = made.sequences[:, ids.shape[1] :]
        each = new.shape[0] // len(asked)
        rows = made.past_key_values.layers[0].keys.shape[0] // len(asked)  # beams
        for number, (one, prompt) in enumerate(zip(asked, prompts, strict=True)):
            cached = _prompt_cache(made.past_key_values, number * rows, ids.shape[1], prompt.ids.shape[0])
            if cached is not None:
                one.layers = self._attended(prompt, ended(self.model, generation, new[number * each]), cached)
        return new

    def _attended(self, prompt: BuiltPrompt, answer: Tensor, cache: DynamicCache) -> dict[int, Attention]:
        """What the answer's tokens (T,) attended to among the tokens of the document, layer by layer.

        They are read once more behind the prompt's cache, in one pass that tells its attention.
        """
        length = prompt.ids.shape[0]
        ids = torch.cat((prompt.ids[-1:].to(answer.device), answer[:-1]))[None]
        positions = torch.arange(length - 1, length - 1 + ids.shape[1], device=ids.device)[None]
        implementation = self._base.config._attn_implementation
        self._base.set_attn_implementation("eager")
        try:
            made = self.decoder.backbone(
                ids, past_key_values=cache, position_ids=positions, use_cache=True, output_attentions=True
            )
        finally:
            self._base.set_attn_implementation(implementation)
        known = (prompt.places >= 0).nonzero()[:, 0]
        found = {}
        for layer, weights in enumerate(made.attentions):
            seen = weights[0, :, :, known.to(weights.device)].float().cpu().transpose(0, 1)  # (T, H, n)
            found[layer] = Attention(prompt.places[known].expand_as(seen), seen)
        return found

    def _laid_out(self, one: Query) -> BuiltPrompt:
        """Head, what was chosen, tail. What was chosen stands twice if the window has room: a causal model's word knows
        only what stands before it, and in the second copy every word knows all of the first."""
        policy = Reread(self._block_scorer, self.layout, self.block, self.top_k, self.prompts)
        chosen = policy.choose(one.memory, one.tail)
        one.chosen.append(chosen)
        head, passage, tail = one.memory.prefix_ids, one.memory.text_ids[chosen.tokens], one.tail.ids
        room = self.window - head.shape[0] - tail.shape[0]
        whole = chosen.tokens.shape[0] == one.memory.text_tokens
        copies = 1 if whole or 2 * passage.shape[0] > room else 2
        nowhere = [torch.full_like(part, -1) for part in (head, tail)]
        places = torch.cat((nowhere[0], *[chosen.tokens + one.memory.prefix_tokens] * copies, nowhere[1]))
        return BuiltPrompt(torch.cat((head, *[passage] * copies, tail)), places)

    def _recall(self, asked: list[Query], generation: dict[str, Any]) -> Tensor:
        """Blocks as they were read: their keys, rotated to where they stand now, and values fill the model's cache."""
        by_layer = self.selection == "blocks-by-layer"
        policy = Blocks(self._block_scorer, self.layout, self.block, self.top_k, by_layer)
        layers = range(len(self.decoder.attentions))
        chosen = [policy.choose(one.memory, one.tail, layers) for one in asked]
        rows = []
        for one, choice in zip(asked, chosen, strict=True):
            for layer in layers if by_layer else [0]:
                one.chosen.append(choice[layer])
            rows.append(torch.cat((one.memory.prefix_ids, one.memory.text_ids[choice[0].tokens])))
        filled = [
            [self._placed(one.memory, choice[layer], layer) for one, choice in zip(asked, chosen, strict=True)]
            for layer in layers
        ]
        return self._continued(asked, rows, filled, generation)

    def _retrieve(self, asked: list[Query], generation: dict[str, Any]) -> Tensor:
        """Every head retrieves at every step; head and tail of the prompt are the model's own, local tokens."""
        if any(one.memory.prefix_tokens == 0 for one in asked):
            raise UnlimiformerError("selection 'top-k' needs a head of the prompt; give a tokenizer or a prefix")
        documents = [TopKDocument(one.memory, self._positions(one.memory), self.top_k) for one in asked]
        filled = [self._head_cache(one.memory.prefix_ids, doc.gap) for one, doc in zip(asked, documents, strict=True)]
        by_layer = [list(rows) for rows in zip(*filled, strict=True)]
        layers = self.config.layers or range(len(self.decoder.attentions))
        with TopK(self.decoder, self.layout, documents, layers, self.config.heads).active():
            return self._continued(asked, [one.memory.prefix_ids for one in asked], by_layer, generation)

    def _continued(
        self,
        asked: list[Query],
        cached: list[Tensor],
        filled: list[list[tuple[Tensor, Tensor]]],
        generation: dict[str, Any],
    ) -> Tensor:
        """New tokens behind what a cache is filled with: ids of each row, keys and values of each layer and row."""
        rows = max(
            generation_setting(self.model, generation, name, 1) for name in ("num_beams", "num_return_sequences")
        )
        cache = _cache(self._base.config, filled, rows)
        ids, mask = _joined(cached, [one.tail for one in asked], self._padding)
        return self._new_tokens(ids, mask, generation, cache)

    def _refuse_without_cache(self, generation: dict[str, Any]) -> None:
        if not generation_setting(self.model, generation, "use_cache", True):
            raise UnlimiformerError(
                f"use_cache is off with selection {self.selection!r}, in which the document is in the cache; "
                "expected it on, or selection 'reread'"
            )

    def _head_cache(self, head: Tensor, gap: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values (G, n, d) of each layer for the head of a prompt, moved back by `gap`."""
        cache = DynamicCache()
        ids = head[None].to(self.decoder.device)
        places = torch.arange(head.shape[0], device=self.decoder.device)[None] - gap
        self.decoder.backbone(ids, position_ids=places, past_key_values=cache, use_cache=True)
        return [(layer.keys[0], layer.values[0]) for layer in cache.layers]  # type: ignore[union-attr, index]

    def _placed(self, memory: Memory, chosen: SelectedTokens, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values (G, n, d) of the head and of the chosen tokens, where these stand."""
        lead, positions = memory.prefix_tokens, self._positions(memory)
        gap = positions.end(chosen.tokens.shape[0]) - chosen.tokens.shape[0]
        rows = memory.store.rows_at(torch.cat((torch.arange(lead), chosen.tokens + lead)))
        keys, values = self.layout.keys_and_values(rows.to(self.decoder.device), layer)
        places = torch.cat((torch.arange(lead), positions.place(chosen.tokens) + lead)) - gap
        return self.decoder.attentions[layer].rotate(keys, places.to(keys.device)), values

    def _positions(self, memory: Memory) -> Positions:
        room = self.reader.cut.behind(memory.prefix_tokens)
        return POSITIONS[self.config.positions or "consecutive"](memory.text_tokens, room)

    @cached_property
    def _block_scorer(self) -> BlockScorer:
        return BlockScorer(self.decoder, self.heads, self.block)

    @property
    def _padding(self) -> int:
        configs = (self.model.generation_config, self._base.config, self._tokenizer)
        for name in ("pad_token_id", "eos_token_id"):
            for config in configs:
                found = getattr(config, name, None)
                found = found[0] if isinstance(found, list) else found
                if found is not None:
                    return found
        return 0

    def _new_tokens(self, ids: Tensor, mask: Tensor, generation: dict[str, Any], cache: Any = None) -> Tensor:
        made = self._made(ids, mask, generation, cache)
        sequences = made if isinstance(made, Tensor) else made.sequences
        return sequences[:, ids.shape[1] :]

    def _made(self, ids: Tensor, mask: Tensor, generation: dict[str, Any], cache: Any = None) -> Any:
        """What the model's own `generate` gives."""
        given = dict(generation)
        if not {"max_new_tokens", "max_length", "generation_config"} & set(given):
            given["max_new_tokens"] = _NEW_TOKENS
        if generation_setting(self.model, generation, "pad_token_id", None) is None:
            given["pad_token_id"] = self._padding
        if cache is not None:
            given["past_key_values"] = cache
        device = self.decoder.device
        return self._generate(input_ids=ids.to(device), attention_mask=mask.to(device), **given)

    def _long_generate(self, original: Callable) -> Callable:
        """Takes prompts longer than the model's limit: their middle is the document."""
        signature = inspect.signature(original)

        @wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            given |= given.pop("kwargs", {})
            ids = given.get("input_ids", given.get("inputs"))
            if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[1] <= self.decoder.limit:
                return original(*args, **kwargs)
            others = {name: value for name, value in given.items() if name not in _PROMPT}
            return self._generate_from(ids, given.get("attention_mask"), others)

        return generate

    @torch.no_grad()
    def _generate_from(self, ids: Tensor, mask: Tensor | None, generation: dict[str, Any]) -> Tensor:
        """Prompts (B, S) and what follows them."""
        if generation.get("return_dict_in_generate"):
            raise UnlimiformerError(
                "return_dict_in_generate was asked for with a prompt longer than the model's limit of "
                f"{self.decoder.limit} tokens, whose scores are those of another prompt: leave it out"
            )
        for name in ("max_length", "min_length"):  # they count the prompt, of which the model will see a part
            if (wanted := generation.pop(name, None)) is not None:
                generation[name.replace("length", "new_tokens")] = max(1, wanted - ids.shape[1])
        visible = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        new = self._answer(self._parted([row[keep] for row, keep in zip(ids, visible, strict=True)]), generation)
        return torch.cat((ids.repeat_interleave(new.shape[0] // ids.shape[0], dim=0), new), dim=1)

    @torch.no_grad()
    def shortened(self, ids: Tensor) -> Tensor:
        """What the model reads of a long prompt (S,): its head, what its tail wants of the middle, and its tail."""
        if self.selection != "reread":
            raise UnlimiformerError(f"selection is {self.selection!r}; a prompt is shortened by 'reread' alone")
        return self._laid_out(self._parted([ids])[0]).ids

    def _parted(self, prompts: Sequence[Tensor]) -> list[Query]:
        """Long prompts, whose middle is the document."""
        device, sources, tails = self.decoder.device, [], []
        for prompt in prompts:
            tokens = prompt.cpu()
            length = tokens.shape[0]
            head, end = min(_HEAD, length // 4, self.window // 4), length - min(_TAIL, length // 4)
            sources.append(TokenizedInput(tokens[head:end].to(device), tokens[:head].to(device), {}))
            question = max(end, length - _QUESTION)
            tails.append(PromptSuffix(tokens[end:], tokens[question:], tokens[end:question]))
        memories = self.reader.read_sources(sources, self.encode)
        return [Query(memory, tail) for memory, tail in zip(memories, tails, strict=True)]

    def _check(self, model: Any) -> None:
        config, name = self.config, type(model).__name__
        if config.window is not None and config.window > self.decoder.limit:
            raise UnlimiformerError(
                f"window is {config.window}; {name} reads at most {self.decoder.limit} tokens: give that or less"
            )
        if config.dtype == "int8":
            raise UnlimiformerError(
                "dtype is 'int8'; a decoder-only model's memory has many layers in a row, which one scale cannot "
                "serve: expected float32 or bfloat16"
            )
        if config.focus is not None:
            raise UnlimiformerError(
                f"focus is {config.focus}; it is for encoder–decoders, and {name} is decoder-only: leave it out"
            )
        if config.store != "exact":
            raise UnlimiformerError(f"store is {config.store!r}; expected 'exact' for a decoder-only model")
        if self.selection == "reread" and config.positions not in (None, "consecutive"):
            raise UnlimiformerError(
                f"positions is {config.positions!r} with selection 'reread', which reads side by side; expected "
                "'consecutive', or another selection"
            )
        if self.selection == "top-k" and (reason := self.decoder.refuse_own_tokens()) is not None:
            raise UnsupportedModelError(
                f"selection is 'top-k'; {name} {reason}, so that its heads cannot each see tokens of their own: "
                "expected 'reread', 'blocks' or 'blocks-by-layer'"
            )
        for setting, limit in (("layers", len(self.decoder.attentions)), ("heads", self.decoder.attentions[0].heads)):
            chosen = getattr(config, setting)
            if chosen is not None and (not chosen or max(chosen) >= limit):
                raise UnlimiformerError(f"{setting} is {list(chosen)}; the model has {limit}, counted from 0")
        if self.top_k > self.decoder.limit:
            raise UnlimiformerError(
                f"top_k is {self.top_k}; {name} reads at most {self.decoder.limit} tokens: give less than that"
            )
        if self.top_k < self.block and self.selection != "top-k":
            raise UnlimiformerError(f"top_k is {self.top_k} and a block has {self.block} tokens; expected at least one")


def _padded(rows: Sequence[Tensor], padding: int) -> tuple[Tensor, Tensor]:
    """Rows of ids side by side, padded on the left, and their mask."""
    longest = max(row.shape[0] for row in rows)
    ids = torch.full((len(rows), longest), padding)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, longest - row.shape[0] :] = row
        mask[number, longest - row.shape[0] :] = 1
    return ids, mask


def _prompt_cache(cache: Any, row: int, padded: int, length: int) -> DynamicCache | None:
    """One row's keys and values of all of its prompt but the last token; None where a layer keeps only the latest."""
    found = DynamicCache()
    for number, layer in enumerate(cache.layers):
        if layer.keys.shape[2] < max(padded, layer.get_seq_length()):  # the first of them are gone
            return None
        kept = slice(padded - length, padded - 1)
        found.update(layer.keys[row : row + 1, :, kept], layer.values[row : row + 1, :, kept], number)
    return found


def _joined(cached: Sequence[Tensor], tails: Sequence[PromptSuffix], padding: int) -> tuple[Tensor, Tensor]:
    """What the cache holds, and the tails: each padded on its left, since a cache has one length."""
    before, seen = _padded(cached, padding)
    after, also_seen = _padded([tail.ids for tail in tails], padding)
    return torch.cat((before, after), dim=1), torch.cat((seen, also_seen), dim=1)


def _cache(config: Any, filled: list[list[tuple[Tensor, Tensor]]], repeats: int) -> DynamicCache:
    """A cache of each layer's keys and values (G, n, d), of all rows, each as often as `generate` follows it."""
    cache = DynamicCache(config=config)
    for layer, rows in enumerate(filled):
        longest = max(keys.shape[1] for keys, _ in rows)
        keys, values = (
            torch.stack([torch.nn.functional.pad(row[i], (0, 0, longest - row[i].shape[1], 0)) for row in rows])
            for i in (0, 1)
        )
        cache.update(keys, values, layer)
    cache.batch_repeat_interleave(repeats)
    return cache
