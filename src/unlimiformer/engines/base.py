"""The contract of an engine: what the public wrapper, and all code above it, may ask of a wrapped model."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..config import UnlimiformerConfig
from ..datastore import ExactStore
from ..errors import InputError, UnsupportedModelError
from ..memory import Memory
from ..memory.encode import Progress, TokenizedInput
from ..memory.indexer import Indexer
from ..provenance import Provenance
from ..text.sources import TextSource

Kind = Literal["encoder-decoder", "decoder-only"]


@dataclass(frozen=True)
class Generated:
    """What was generated for one input.

    Parameters
    ----------
    sequences : (R, T) token ids, best first.
    prompt_length : number of tokens at the beginning of each sequence that were given, not generated.
    provenance : where the first sequence came from, if it was requested.
    selected : (m,) rows of the memory that a decoder-only model saw; None if every head retrieved its own.
    """

    sequences: Tensor
    prompt_length: int
    provenance: Provenance | None = None
    selected: Tensor | None = None


class Engine(ABC):
    """One wrapped model.

    Parameters
    ----------
    model : the model as the user gave it.
    base : the model inside a peft model, or `model` itself.
    """

    kind: ClassVar[Kind]
    window: int
    """Number of tokens that are encoded at once."""
    top_k: int
    """Number of tokens that are retrieved."""

    def __init__(self, model: Any, base: Any, tokenizer: Any, config: UnlimiformerConfig) -> None:
        self.model, self.base, self.tokenizer, self.config = model, base, tokenizer, config

    # --- What every engine answers -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Number of input tokens that the model without this library sees."""

    @property
    @abstractmethod
    def supports_provenance(self) -> bool:
        """Whether `generate` can tell where an answer came from."""

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether the model is still wrapped."""

    @property
    @abstractmethod
    def indexer(self) -> Indexer:
        """Makes memories of inputs."""

    @abstractmethod
    def encode(self, ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
        """Stored states (b, W, D) of windows (b, W)."""

    @abstractmethod
    def build_search(self, memory: Memory) -> ExactStore:
        """The memory's store, with the search that the settings ask for."""

    @abstractmethod
    def generate(
        self, memories: list[Memory], prompts: list[str | None], provenance: bool, generation: dict[str, Any]
    ) -> list[Generated]:
        """Run the model's own `generate` on each memory; `generation` holds its arguments."""

    @abstractmethod
    def truncated_generate(
        self, texts: list[str], prompts: list[str | None], generation: dict[str, Any], answer_start: str = ""
    ) -> list[str]:
        """Answers of the plain model, which sees only as much of each text as its context holds.

        `answer_start`: words with which a decoder-only model begins every answer; what is returned follows them.
        """

    @abstractmethod
    def truncated_room(self, generation: dict[str, Any]) -> int:
        """Number of tokens of a text that `truncated_generate` reads."""

    @abstractmethod
    def decode_inputs(self, states: Tensor, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of the model's `generate`, to time decoding over a memory of `tokens` rows made of `states`."""

    @abstractmethod
    def remove(self) -> None:
        """Restore the model."""

    # --- Indexing, the same for all ----------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Device on which the model takes its token ids."""
        return self.indexer.device

    def check(self, memory: Memory) -> None:
        """Raise `MemoryMismatchError` for a memory that this wrapper would not have made."""
        self.indexer.check(memory)

    def count_windows(self, tokens: int) -> int:
        """Number of windows in which a text of so many tokens is encoded."""
        prefix_length = self.indexer.prefix_ids().shape[0]
        return len(self.indexer.window_spec.after_prefix(prefix_length).windows(tokens))

    def index(
        self,
        source: TextSource,
        folder: Path | None = None,
        *,
        prefix: str | None = None,
        progress: Progress | None = None,
        append: bool = False,
        overwrite: bool = False,
    ) -> Memory:
        """Encode one input into a memory, in RAM or in a folder."""
        if folder is not None:
            return self.indexer.index_to_folder(
                source,
                folder,
                self.build_search,
                prefix=prefix,
                progress=progress,
                append=append,
                overwrite=overwrite,
            )
        if append or overwrite:
            raise InputError("append and overwrite are for a memory on disk; give its folder")
        return self.index_many([source], None if prefix is None else [prefix], progress)[0]

    def index_many(
        self, sources: Sequence[TextSource], prefixes: Sequence[str] | None = None, progress: Progress | None = None
    ) -> list[Memory]:
        """Encode several inputs, with windows of different inputs in one batch."""
        memories = self.indexer.index_texts(sources, prefixes, progress)
        for memory in memories:
            memory.store = self.build_search(memory)
        return memories

    @torch.no_grad()
    def index_ids(self, ids: Tensor, prefix: Tensor, saveable: bool = False) -> Memory:
        """Encode token ids (S,) with a prefix (n,) before every window into a memory in RAM, without dropout.

        `saveable`: it can be saved, for which all weights of the encoder are read once more when they have changed.
        """
        training = self.model.training
        self.model.eval()
        try:
            source = TokenizedInput(ids.to(self.device), prefix.to(self.device), {})
            specs = [self.indexer.encoding_spec(prefix)] if saveable else None
            return self.indexer.index_inputs([source], specs=specs)[0]
        finally:
            self.model.train(training)

    def memory_name(self, ids: Tensor, prefix: Tensor) -> str:
        """A name for the memory that `index_ids` makes of these tokens with the encoder as it is now."""
        values = [self.indexer.encoding_spec(prefix).to_dict(), ids.tolist()]
        return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]

    # --- Encoder–decoders only ---------------------------------------------------------------------------------

    @property
    def cross_attentions(self) -> list[Any]:
        """The adapters of the decoder's cross-attentions, first layer first."""
        raise self._unsupported("an encoder–decoder")

    @property
    def encoder_parameters(self) -> list[torch.nn.Parameter]:
        """The weights of the encoder, with a token embedding that the decoder may share."""
        raise self._unsupported("an encoder–decoder")

    def context(self, **changes: Any) -> AbstractContextManager[None]:
        """Temporarily change how inputs are encoded and attended to; see `seq2seq.context.AttentionContext`."""
        raise self._unsupported("an encoder–decoder")

    def full_attention(self) -> AbstractContextManager[None]:
        """Temporarily let every layer attend to all tokens, as SLED does."""
        raise self._unsupported("an encoder–decoder")

    def encoder_outputs(self, memories: list[Memory]) -> dict[str, Any]:
        """Arguments with which the model attends to these memories instead of an encoded input."""
        raise self._unsupported("an encoder–decoder")

    def sample_queries(self, memory: Memory) -> list[Tensor]:
        """Real queries (N, D) of the decoder's layers over a memory, one tensor per call of a layer."""
        raise self._unsupported("an encoder–decoder")

    # --- Decoder-only models -----------------------------------------------------------------------------------

    @property
    def selection(self) -> str:
        """How tokens of the document are selected."""
        raise self._unsupported("a decoder-only model")

    def rank_heads(self) -> list[tuple[int, int]]:
        """The retrieval heads (layer, head) that select blocks."""
        raise self._unsupported("a decoder-only model")

    def selected_tokens(self, question: str | None) -> int:
        """Largest number of tokens of a document that are selected for a question; None asks for a summary."""
        raise self._unsupported("a decoder-only model")

    def prompt_ids(self, document_ids: Tensor, question: str) -> Tensor:
        """Token ids of the prompt with which the model answers a question about a document (S,)."""
        raise self._unsupported("a decoder-only model")

    def prompt_parts(self, question: str) -> tuple[Tensor, Tensor]:
        """Token ids of a prompt that stand before and behind a document that is read whole."""
        raise self._unsupported("a decoder-only model")

    def shorten_prompt(self, ids: Tensor) -> Tensor:
        """Token ids that the model reads of a prompt (S,) that exceeds its context."""
        raise self._unsupported("a decoder-only model")

    def _unsupported(self, expected: str) -> UnsupportedModelError:
        kind = "an encoder–decoder" if self.kind == "encoder-decoder" else "decoder-only"
        return UnsupportedModelError(f"{type(self.base).__name__} is {kind}; expected {expected} here")


def generation_setting(model: Any, generation: dict[str, Any], name: str, default: Any) -> Any:
    """The value that `generate` will use: its argument, that of its generation config, or the model's own."""
    configs = (generation.get("generation_config"), model.generation_config)
    values = (generation.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in values if value is not None), default)


def strip_padding(model: Any, generation: dict[str, Any], tokens: Tensor) -> Tensor:
    """Generated tokens (T,) up to the end token, without the padding behind it."""
    end_ids = generation_setting(model, generation, "eos_token_id", [])
    end_ids = torch.tensor(
        end_ids if isinstance(end_ids, list) else [end_ids], dtype=tokens.dtype, device=tokens.device
    )
    ends = torch.isin(tokens, end_ids).nonzero()
    if ends.numel():
        return tokens[: int(ends[0]) + 1]
    padding = generation_setting(model, generation, "pad_token_id", None)
    while padding is not None and tokens.numel() and int(tokens[-1]) == padding:  # stopped without an end token
        tokens = tokens[:-1]
    return tokens


def require_cache(model: Any, generation: dict[str, Any]) -> None:
    """Raise if the generation runs without a cache: attention is traced step by step."""
    if not generation_setting(model, generation, "use_cache", True):
        raise InputError("provenance was requested with use_cache=False; expected use_cache=True")
