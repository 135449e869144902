"""The engine of decoder-only models: a question selects what it needs of a document that was indexed in windows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, wraps
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ...adapters.registry import causal_adapter_for
from ...config import UnlimiformerConfig
from ...datastore import ExactStore
from ...errors import InputError, MemoryMismatchError, UnsupportedModelError
from ...memory import Memory, RowSpec
from ...memory.encode import TokenizedInput
from ...memory.indexer import EncoderInfo, Indexer
from ...text.passages import PASSAGE_TOKENS, PassageSplitter
from ...text.questions import is_broad
from ..base import Engine, Generated, generation_setting, require_cache
from ..head_ranking import Head
from ..patching import refuse_wrapped, replace_method
from .answer_adapter import AnswerAdapter
from .block_scorer import BlockScorer
from .generation import GENERATORS, Query, RereadGenerator, repeats_per_row
from .kv_cache import KeysValues, PrefixReader, fill_cache, join_cached, pad_left
from .positions import POSITIONS, Positions
from .prompts import PromptSuffix, PromptTemplate
from .retrieval_heads import retrieval_heads
from .row_layout import RowLayout
from .selection import PassageSelector
from .truncated import TruncatedDocument

_WINDOW, _BLOCK, _NEW_TOKENS = 1024, 32, 256
_TOP_K, _BROAD_TOP_K = 512, 2048
_CONTEXT_SHARES = (4, 2, 1)  # a question about a fact is answered from a quarter, half and all of top_k tokens
_TRUNCATED_QUESTION = 128  # tokens that the truncated baseline leaves for the question and what surrounds it
_TRUNCATED_ANSWER = 128  # and those that it leaves for an answer, unless max_new_tokens is given
_BEST_HEADS, _EARLIEST_HEADS = 8, 2  # heads that score; for "reread" those of them in the first layers
_EXAMPLES_FROM = 2048  # context length from which there is room for examples in the prompt
_PROMPT_ARGUMENTS = ("input_ids", "inputs", "attention_mask")
_PREFIX, _SUFFIX, _QUESTION = 64, 256, 64  # tokens of a long prompt whose parts are unknown


class CausalEngine(Engine):
    """One wrapped decoder-only model."""

    kind = "decoder-only"

    def __init__(self, model: Any, base: Any, tokenizer: Any, config: UnlimiformerConfig) -> None:
        super().__init__(model, base, tokenizer, config)
        self.decoder = causal_adapter_for(base)
        self.block = config.block or _BLOCK
        self.window = config.window or min(_WINDOW, self.decoder.max_positions)
        self.top_k = config.top_k or _TOP_K
        self._check_settings()
        has_room = self.decoder.max_positions >= _EXAMPLES_FROM
        self.template = PromptTemplate(
            tokenizer, has_room if config.prompt_examples is None else config.prompt_examples
        )
        self._adapter = AnswerAdapter.load(base)
        self._prefix_readers = {adapted: PrefixReader(self.decoder) for adapted in (False, True)}
        self._generator = GENERATORS[self.selection](self)
        self._truncated: tuple[tuple, TruncatedDocument] | None = None
        self._model_generate = model.generate
        refuse_wrapped(model, "generate")
        self._restore: Callable[[], None] | None = replace_method(model, "generate", self._wrap_generate)

    @property
    def selection(self) -> str:
        """How tokens of the document are selected."""
        return self.config.selection or "reread"

    @property
    def context_length(self) -> int:
        """The plain model reads up to its limit."""
        return self.decoder.max_positions

    @property
    def supports_provenance(self) -> bool:
        """Selected blocks are known; the tokens of each head (`top-k`) are not."""
        return self._generator.supports_provenance

    @property
    def active(self) -> bool:
        """Whether the model's `generate` takes long prompts."""
        return self._restore is not None

    def remove(self) -> None:
        """Restore the model's own `generate`."""
        if self._restore is not None:
            self._restore()
        self._restore = None

    def selected_tokens(self, question: str | None) -> int:
        """The setting `top_k`; by default more for a broad question than for one about a fact."""
        return self.config.top_k or (_BROAD_TOP_K if is_broad(question) else _TOP_K)

    def context_sizes(self, question: str) -> list[int]:
        """Numbers of tokens of the contexts from which a question is answered: one for a broad question, or several."""
        largest = self.selected_tokens(question)
        return [largest] if is_broad(question) else [max(1, largest // share) for share in _CONTEXT_SHARES]

    def rank_heads(self) -> list[Head]:
        """The heads that score blocks: the best retrieval heads that are allowed.

        For `reread`, which stores only what scores, those of them that lie in the first layers: they find as much, and
        the layers behind them are not computed when a document is indexed.
        """
        return self._scoring_heads

    @cached_property
    def _scoring_heads(self) -> list[Head]:
        layers, heads = self.config.layers, self.config.heads
        allowed = [
            (layer, head)
            for layer, head in retrieval_heads(self.decoder, self.block)
            if (layers is None or layer in layers) and (heads is None or head in heads)
        ]
        if self.selection == "blocks-by-layer":
            return allowed
        best = allowed[:_BEST_HEADS]
        return sorted(best)[:_EARLIEST_HEADS] if self.selection == "reread" else best

    @cached_property
    def layout(self) -> RowLayout:
        """What a row of a memory holds."""
        return self._generator.layout()

    def layout_of(self, memory: Memory) -> RowLayout:
        """What a row of a memory holds: `layout`, unless an earlier version stored the keys of more heads."""
        row = None if memory.spec is None else memory.spec.row
        if row is None or row.layout == str(self.layout) or self.selection != "reread":
            return self.layout
        if max(layer for layer, _, _ in row.columns) >= len(self.decoder.attentions):
            raise MemoryMismatchError(
                "the memory has keys of layers that the model does not have; index the text again"
            )
        return RowLayout(self.decoder, row.columns)

    @cached_property
    def block_scorer(self) -> BlockScorer:
        """Scores blocks for a question."""
        return BlockScorer(self.decoder, self.rank_heads(), self.block)

    @cached_property
    def passage_selector(self) -> PassageSelector:
        """Selects passages for a question."""
        tokenize = self.template.question_ids
        return PassageSelector(self.block_scorer, self.layout_of, self.block, self._splitter, tokenize)

    @cached_property
    def _splitter(self) -> PassageSplitter:
        return PassageSplitter(self.tokenizer, min(PASSAGE_TOKENS, max(1, self.top_k // 4)))

    @cached_property
    def indexer(self) -> Indexer:  # type: ignore[override]
        """Makes memories of documents."""
        encoder = EncoderInfo(
            self.decoder.backbone,
            self.base.config,
            self.encode,
            self.window,
            self.base.get_input_embeddings().num_embeddings,
            RowSpec(self.selection, self.block, str(self.layout)),
            self.template.prefix,
            lambda memory: self.layout_of(memory).width,
        )
        return Indexer(self.config, self.tokenizer, encoder)

    def encode(self, ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
        """Rows (b, W, width) of windows (b, W)."""
        del aligned
        return self.layout.rows(self.decoder.inputs(ids, sorted(self.layout.columns)))

    def build_search(self, memory: Memory) -> ExactStore:
        """The store itself: blocks are scored by a scan."""
        return memory.store

    @torch.no_grad()
    def generate(
        self, memories: list[Memory], prompts: list[str | None], provenance: bool, generation: dict[str, Any]
    ) -> list[Generated]:
        """Run the model's own `generate` on prefix, what each prompt needs of its document, and suffix."""
        queries = []
        for memory, prompt in zip(memories, prompts, strict=True):
            if prompt is None:
                raise InputError(
                    "no prompt was given; expected what the model is to do with the document, such as a question: "
                    "generate(memory, prompt=…)"
                )
            queries.append(Query(memory, self.template.suffix(prompt)))
        if provenance:
            require_cache(self.model, generation)
        if provenance and not self.supports_provenance:
            raise InputError(f"provenance was requested with selection {self.selection!r}; it is known for blocks only")
        new_tokens = self.answer(queries, generation, provenance)
        per_query = new_tokens.split(new_tokens.shape[0] // len(queries))
        return [
            Generated(sequences, 0, query.provenance if provenance else None, query.selected_rows)
            for sequences, query in zip(per_query, queries, strict=True)
        ]

    def answer(self, queries: list[Query], generation: dict[str, Any], provenance: bool = False) -> Tensor:
        """Generated tokens (rows, T) for queries."""
        return self._generator.generate(queries, generation, provenance)

    @torch.no_grad()
    def truncated_generate(
        self, texts: list[str], prompts: list[str | None], generation: dict[str, Any], answer_start: str = ""
    ) -> list[str]:
        """Answers of the plain model to as much of each text as its context holds; several texts are one batch."""
        groups: dict[bool, list[int]] = {}
        for number, prompt in enumerate(prompts):
            groups.setdefault(self.uses_adapter(prompt), []).append(number)
        answers: dict[int, str] = {}
        for uses_adapter, numbers in groups.items():
            some_texts, some_prompts = [texts[number] for number in numbers], [prompts[number] for number in numbers]
            with self.use_adapter(uses_adapter):
                written = self._truncated_generate(some_texts, some_prompts, generation, answer_start)
            answers |= zip(numbers, written, strict=True)
        return [answers[number] for number in range(len(texts))]

    def _truncated_generate(
        self, texts: list[str], prompts: list[str | None], generation: dict[str, Any], answer_start: str
    ) -> list[str]:
        room = self.truncated_room(generation)
        prefixes = [self.template.with_examples(self.template.prefix(None), prompt or "") for prompt in prompts]
        if len(texts) == 1 and not answer_start:
            return [self._truncated_document(texts[0], prefixes[0], room).ask(prompts[0] or "", **generation)]
        documents = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        rows = [
            torch.cat(
                (
                    prefix,
                    torch.tensor(ids[:room], dtype=torch.long),
                    self.template.suffix(prompt or "", answer_start).ids,
                )
            )
            for prefix, ids, prompt in zip(prefixes, documents, prompts, strict=True)
        ]
        self.check_context(max(len(row) for row in rows))
        padded, mask = pad_left(rows, self.padding_id)
        sequences = self.call_generate(padded, mask, generation)[:, padded.shape[1] :]
        first_of_each = sequences[:: sequences.shape[0] // len(texts)]
        return self.tokenizer.batch_decode(first_of_each, skip_special_tokens=True)

    def check_context(self, tokens: int) -> None:
        """Raise if the plain model cannot read a prompt of so many tokens."""
        if tokens > self.context_length:
            raise InputError(
                f"the question and the text before it have {tokens:,} tokens, and the model reads at most "
                f"{self.context_length:,}; expected a shorter question"
            )

    def truncated_room(self, generation: dict[str, Any]) -> int:
        """The context without the prefix, and without what is reserved for question and answer."""
        reserved = _TRUNCATED_QUESTION + generation.get("max_new_tokens", _TRUNCATED_ANSWER)
        return max(1, self.decoder.max_positions - reserved - self.template.longest_prefix)

    def decode_inputs(self, states: Tensor, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of `generate` with a prompt as long as what is selected; the memory's length does not matter."""
        del states, tokens, dtype
        ids = torch.full((1, 64 + self.top_k), 3, device=self.device)
        return {"inputs": ids, "attention_mask": torch.ones_like(ids)}

    @torch.no_grad()
    def prompt_ids(self, document_ids: Tensor, question: str) -> Tensor:
        """Token ids of the prompt with which the model answers a question about a document (S,)."""
        memory = self.index_ids(document_ids, self.template.prefix(None))
        return self._reread().build_prompts(Query(memory, self.template.suffix(question)))[-1].ids

    def prompt_parts(self, question: str) -> tuple[Tensor, Tensor]:
        """Token ids of a prompt that stand before and behind a document that is read whole."""
        return self.template.prefix(None), self.template.suffix(question).ids

    @torch.no_grad()
    def shorten_prompt(self, ids: Tensor) -> Tensor:
        """A long prompt (S,) shortened to its prefix, what its suffix needs of the middle, and its suffix."""
        return self._reread().build_prompts(self._split_prompts([ids])[0])[-1].ids

    # --- Used by the generators --------------------------------------------------------------------------------

    def uses_adapter(self, question: str | None) -> bool:
        """Whether a question is answered with the model's adapter: one about a fact, from passages that are read."""
        return self._adapter.exists and self.selection == "reread" and not is_broad(question)

    def use_adapter(self, is_used: bool = True) -> AbstractContextManager[None]:
        """A context in which the model's adapter is in effect, or not."""
        return self._adapter.active() if is_used else nullcontext()

    @property
    def prefix_reader(self) -> PrefixReader:
        """Reads prefixes with the weights that are in effect."""
        return self._prefix_readers[self._adapter.is_active]

    def positions(self, memory: Memory) -> Positions:
        """The positions that retrieved tokens of a memory get."""
        spec = self.indexer.window_spec.after_prefix(memory.prefix_tokens)
        return POSITIONS[self.config.positions or "consecutive"](memory.text_tokens, spec)

    @property
    def padding_id(self) -> int:
        """Token id for padding: the model's pad token, or its end token, or 0."""
        for name in ("pad_token_id", "eos_token_id"):
            for config in (self.model.generation_config, self.base.config, self.tokenizer):
                token_id = getattr(config, name, None)
                token_id = token_id[0] if isinstance(token_id, list) else token_id
                if token_id is not None:
                    return token_id
        return 0

    @property
    def default_new_tokens(self) -> int:
        """Longest answer, in tokens, where the user set nothing."""
        return _NEW_TOKENS

    def tokenize(self, text: str) -> Tensor:
        """Token ids (n,) of a text, without special tokens."""
        return torch.tensor(
            self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.long
        )

    def ends_sentence(self, token: int) -> bool:
        """Whether a token ends a sentence or a line."""
        return self._splitter.ends_sentence(token)

    def require_cache(self, generation: dict[str, Any]) -> None:
        """Raise if `generate` runs without the cache that holds the document."""
        if not generation_setting(self.model, generation, "use_cache", True):
            raise InputError(
                f"use_cache is off with selection {self.selection!r}, in which the document is in the cache; "
                "expected it on, or selection 'reread'"
            )

    def call_generate(self, ids: Tensor, mask: Tensor, generation: dict[str, Any], cache: Any = None) -> Any:
        """Call the model's own `generate`, with our defaults where the user set nothing."""
        arguments = dict(generation)
        if not {"max_new_tokens", "max_length", "generation_config"} & set(arguments):
            arguments["max_new_tokens"] = _NEW_TOKENS
        if generation_setting(self.model, generation, "pad_token_id", None) is None:
            arguments["pad_token_id"] = self.padding_id
        if cache is not None:
            arguments["past_key_values"] = cache
        device = self.decoder.device
        return self._model_generate(input_ids=ids.to(device), attention_mask=mask.to(device), **arguments)

    def cached_prompts(
        self,
        cached_ids: list[Tensor],
        others: list[Tensor],
        by_layer: list[list[KeysValues]],
        generation: dict[str, Any],
    ) -> tuple[Tensor, Tensor, DynamicCache]:
        """Token ids and mask of prompts, and a cache of their first tokens: keys and values of each layer and row."""
        cache = fill_cache(self.base.config, by_layer, repeats_per_row(self.model, generation))
        return *join_cached(cached_ids, others, self.padding_id), cache

    def continue_cache(
        self,
        queries: list[Query],
        cached_ids: list[Tensor],
        by_layer: list[list[KeysValues]],
        generation: dict[str, Any],
    ) -> Tensor:
        """Generated tokens (rows, T) behind a cache and the suffixes of the queries."""
        suffixes = [query.suffix.ids for query in queries]
        ids, mask, cache = self.cached_prompts(cached_ids, suffixes, by_layer, generation)
        output = self.call_generate(ids, mask, generation, cache)
        sequences = output if isinstance(output, Tensor) else output.sequences
        return sequences[:, ids.shape[1] :]

    # --- Long prompts in the model's own `generate` ------------------------------------------------------------

    def _wrap_generate(self, original: Callable) -> Callable:
        """A `generate` that takes prompts longer than the model's limit: their middle is the document."""
        signature = inspect.signature(original)

        @wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            arguments |= arguments.pop("kwargs", {})
            ids = arguments.get("input_ids", arguments.get("inputs"))
            if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[1] <= self.decoder.max_positions:
                return original(*args, **kwargs)
            generation = {name: value for name, value in arguments.items() if name not in _PROMPT_ARGUMENTS}
            return self._generate_long(ids, arguments.get("attention_mask"), generation)

        return generate

    @torch.no_grad()
    def _generate_long(self, ids: Tensor, mask: Tensor | None, generation: dict[str, Any]) -> Tensor:
        """Long prompts (B, S), each followed by its generated tokens."""
        if generation.get("return_dict_in_generate"):
            raise InputError(
                f"return_dict_in_generate is not supported for prompts over {self.decoder.max_positions} tokens: the "
                "prompt is shortened first, so the scores would not belong to it; leave it out"
            )
        for name in ("max_length", "min_length"):  # they count the prompt, of which the model will see a part
            if (length := generation.pop(name, None)) is not None:
                generation[name.replace("length", "new_tokens")] = max(1, length - ids.shape[1])
        visible = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        prompts = [row[keep] for row, keep in zip(ids, visible, strict=True)]
        new_tokens = self.answer(self._split_prompts(prompts), generation)
        return torch.cat((ids.repeat_interleave(new_tokens.shape[0] // ids.shape[0], dim=0), new_tokens), dim=1)

    def _split_prompts(self, prompts: Sequence[Tensor]) -> list[Query]:
        """Queries made of long prompts: their middle is the document."""
        device, inputs, suffixes = self.decoder.device, [], []
        for prompt in prompts:
            tokens = prompt.cpu()
            length = tokens.shape[0]
            start, end = min(_PREFIX, length // 4, self.window // 4), length - min(_SUFFIX, length // 4)
            inputs.append(TokenizedInput(tokens[start:end].to(device), tokens[:start].to(device), {}))
            question = tokens[max(end, length - _QUESTION) :]
            text = "" if self.tokenizer is None else self.tokenizer.decode(question, skip_special_tokens=True)
            suffixes.append(PromptSuffix(tokens[end:], question, text))
        memories = self.indexer.index_inputs(inputs)
        return [Query(memory, suffix, own_prompt=True) for memory, suffix in zip(memories, suffixes, strict=True)]

    # --- Internals ---------------------------------------------------------------------------------------------

    def _reread(self) -> RereadGenerator:
        if not isinstance(self._generator, RereadGenerator):
            raise InputError(f"selection is {self.selection!r}; a prompt is built by 'reread' only")
        return self._generator

    def _truncated_document(self, text: str, prefix: Tensor, room: int) -> TruncatedDocument:
        """The document of the last call is kept, so that several questions read it once."""
        cache_key = (text, tuple(prefix.tolist()), room, self._adapter.is_active)
        if self._truncated is None or self._truncated[0] != cache_key:
            self._truncated = None  # frees its memory first
            document = TruncatedDocument(self, text, prefix, room)
            self._truncated = (cache_key, document)
        return self._truncated[1]

    def _check_settings(self) -> None:
        config, name, limit = self.config, type(self.base).__name__, self.decoder.max_positions
        if config.window is not None and config.window > limit:
            raise InputError(f"window is {config.window}; {name} reads at most {limit} tokens: give that or less")
        if config.dtype == "int8":
            raise InputError(
                "dtype is 'int8'; each stored row of a decoder-only model combines several layers, which cannot share "
                "one scale: expected float32 or bfloat16"
            )
        if config.focus is not None:
            raise InputError(
                f"focus is {config.focus}; it is for encoder–decoders, and {name} is decoder-only: leave it out"
            )
        if config.store not in ("exact", "auto"):
            raise InputError(f"store is {config.store!r}; expected 'exact' or 'auto' for a decoder-only model")
        if self.selection == "reread" and config.positions not in (None, "consecutive"):
            raise InputError(
                f"positions is {config.positions!r} with selection 'reread', which puts blocks side by side; expected "
                "'consecutive', or another selection"
            )
        if self.selection == "top-k" and (reason := self.decoder.top_k_unsupported_reason()) is not None:
            raise UnsupportedModelError(
                f"selection is 'top-k'; {name} {reason}, so that its heads cannot each see tokens of their own: "
                "expected 'reread', 'blocks' or 'blocks-by-layer'"
            )
        attentions = self.decoder.attentions
        for setting, size in (("layers", len(attentions)), ("heads", attentions[0].heads)):
            indices = getattr(config, setting)
            if indices is not None and (not indices or max(indices) >= size):
                raise InputError(f"{setting} is {list(indices)}; the model has {size}, counted from 0")
        if self.top_k > limit:
            raise InputError(f"top_k is {self.top_k}; {name} reads at most {limit} tokens: give less than that")
        if self.top_k < self.block and self.selection != "top-k":
            raise InputError(f"top_k is {self.top_k} and a block has {self.block} tokens; expected at least one block")
