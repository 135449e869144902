"""Reads inputs into memories: tokens, prefix, windows, states, store. Knows no attention and no hooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .adapters.base import plain_device, plain_dtype
from .config import UnlimiformerConfig
from .datastore import DTYPES, ExactStore
from .encoding import Encode, Piece, Progress, Source, encode_windows, plan
from .errors import UnlimiformerError
from .memory import Memory
from .sources import Text, opening_ids, tokenize


@dataclass(frozen=True)
class Reader:
    """How one wrapped model reads; `encoder` is asked for its device and dtype only."""

    config: UnlimiformerConfig
    tokenizer: Any
    encoder: nn.Module
    window: int
    vocabulary: int
    fingerprint: str

    @property
    def device(self) -> torch.device:
        """Where token ids must be."""
        return plain_device(self.encoder)

    def read_texts(
        self, texts: Sequence[Text], prefixes: Sequence[str] | None, encode: Encode, progress: Progress | None = None
    ) -> list[Memory]:
        """One memory for each text, with the characters its tokens cover."""
        rows = [tokenize(text, self.tokenizer) for text in texts]
        sources = self._sources([ids for ids, _ in rows], prefixes, [{}] * len(rows))
        with torch.no_grad():
            memories = self._read(sources, encode, progress)
        for memory, source, (_, offsets) in zip(memories, sources, rows, strict=True):
            if offsets is not None:
                lead = torch.zeros((source.prefix.shape[0], 2), dtype=torch.int64)
                memory.offsets = torch.cat((lead, offsets[offsets.shape[0] - source.ids.shape[0] :]))
        return memories

    def read_rows(
        self,
        ids: Tensor,
        mask: Tensor | None,
        aligned: dict[str, Tensor],
        encode: Encode,
        progress: Progress | None = None,
    ) -> list[Memory]:
        """One memory for each row of a batch (B, S), padded on either side; padding is left out."""
        visible = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if visible.shape != ids.shape:
            raise UnlimiformerError(
                f"attention_mask has shape {tuple(visible.shape)} and input_ids {tuple(ids.shape)}; expected the same"
            )
        rows = [row[keep] for row, keep in zip(ids, visible, strict=True)]
        extras = [{name: values[i][visible[i]] for name, values in aligned.items()} for i in range(len(rows))]
        return self._read(self._sources(rows, None, extras), encode, progress)

    def _sources(
        self, rows: list[Tensor], prefixes: Sequence[str] | None, aligned: list[dict[str, Tensor]]
    ) -> list[Source]:
        sources = []
        for ids, prefix, extra in zip(rows, self._prefix_ids(prefixes, len(rows)), aligned, strict=True):
            self._check(ids)
            # BART's <s> opens text and prefix alike: it stands once, before the prefix
            specials = getattr(self.tokenizer, "all_special_ids", ())
            shared = prefix.shape[0] > 0 and ids.shape[0] > 1 and int(ids[0]) == int(prefix[0])
            dropped = int(shared and int(ids[0]) in specials)
            extra = {name: values[dropped:] for name, values in extra.items()}
            sources.append(Source(ids[dropped:].to(self.device), prefix.to(self.device), extra))
        return sources

    def _check(self, ids: Tensor) -> None:
        if ids.shape[0] == 0:
            raise UnlimiformerError("the input is empty: it has no tokens; expected at least one")
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= self.vocabulary:
            raise UnlimiformerError(
                f"the input has token id {highest if highest >= self.vocabulary else lowest} and the model "
                f"{self.vocabulary} embeddings; expected ids of the model's own tokenizer"
            )

    def _prefix_ids(self, prefixes: Sequence[str] | None, rows: int) -> list[Tensor]:
        given = prefixes if prefixes is not None else self.config.prefix
        if given is None:
            return [torch.empty(0, dtype=torch.long)] * rows
        each = [given] * rows if isinstance(given, str) else list(given)
        if len(each) != rows:
            raise UnlimiformerError(f"{len(each)} prefixes were given for {rows} inputs; expected one for each, or one")
        return [opening_ids(prefix, self.tokenizer) for prefix in each]

    def _read(self, sources: list[Source], encode: Encode, progress: Progress | None) -> list[Memory]:
        differentiable = False
        pieces: list[list[Tensor]] = [[] for _ in sources]
        memories: list[Memory] = []

        def encode_in_dtype(ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
            with self._autocast():
                return encode(ids, aligned)

        settings = (self.window, self.config.overlap, self.config.batch_size)
        for piece in encode_windows(sources, encode_in_dtype, *settings, progress):
            differentiable = piece.states.requires_grad
            if piece.source == len(memories):
                memories.append(self._new_memory(sources[piece.source], piece, rows=0 if differentiable else None))
            if differentiable:  # in training the states stay in the graph, as they are
                pieces[piece.source].append(piece.states)
            else:
                memories[piece.source].store.put(piece.start, piece.states)
        if differentiable:
            for memory, parts in zip(memories, pieces, strict=True):
                memory.store = ExactStore(torch.cat(parts))
        return memories

    def _new_memory(self, source: Source, piece: Piece, rows: int | None) -> Memory:
        config = self.config
        windows = len(plan(source, self.window, config.overlap))
        dtype = plain_dtype(self.encoder)
        if config.dtype is not None and windows > 1:  # an input within the window is kept as the model has it
            dtype = DTYPES[config.dtype]
        if dtype not in DTYPES.values():
            dtype = torch.float32  # float16 would lose range
        keeps_first = config.layers is not None or config.heads is not None
        store = ExactStore.empty(
            source.length if rows is None else rows, piece.states.shape[1], dtype, config.device or piece.states.device
        )
        return Memory(
            store,
            torch.cat((source.prefix, source.ids)).cpu(),
            self.fingerprint,
            windows,
            source.prefix.shape[0],
            first_window=piece.first_window.clone() if keeps_first and piece.first_window is not None else None,
        )

    def _autocast(self) -> Any:
        if self.config.compute_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.config.compute_dtype])
