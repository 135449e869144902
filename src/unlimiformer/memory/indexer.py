"""Reads inputs into memories: tokens, prefix, windows, states, store. Knows no attention and no hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..adapters.base import plain_device, plain_dtype
from ..config import UnlimiformerConfig
from ..datastore import DTYPES, ExactStore
from ..errors import UnlimiformerError
from ..text.sources import TextSource, as_token_ids, iter_text
from ..text.tokenization import Tokens, opening_ids, stream_tokens
from ..text.windows import WindowSpec
from .encode import Encode, EncodedChunk, Progress, TokenizedInput, encode_windows, plan
from .fingerprint import model_digest, tokenizer_digest
from .memory import EncodingSpec, Memory, RowSpec
from .storage import PartialWrite
from .writer import MemoryWriter

_OVERLAP, _CAUSAL_OVERLAP = 0.5, 0.25
_KEPT_TOKENS = 8192  # as many in the windows of a training step: all activations are kept; of more, none

Opening = Callable[[str | None], Tensor]
"""Token ids in front of every window, for the text that a user wants there."""


class Indexer:
    """How one wrapped model reads; `encoder` is asked for its device, dtype and weights only.

    `kept` says what a decoder-only model's row holds. `opening` makes token ids of a prefix, if not the tokenizer.
    """

    def __init__(
        self,
        config: UnlimiformerConfig,
        tokenizer: Any,
        model_config: Any,
        encoder: nn.Module,
        window: int,
        vocabulary: int,
        kept: RowSpec | None = None,
        opening: Opening | None = None,
    ) -> None:
        self.config, self.tokenizer, self.vocabulary = config, tokenizer, vocabulary
        self._model_config, self._encoder, self._kept = model_config, encoder, kept
        self._opening = opening or self._plain_opening
        default = _OVERLAP if kept is None else _CAUSAL_OVERLAP
        overlap = default if config.overlap is None else config.overlap
        self.cut = WindowSpec(window, overlap, causal=kept is not None)
        self._row_prefixes: Sequence[Tensor] | None = None
        self._beside: Callable[[Tensor], Tensor | None] | None = None
        self._read: list[tuple[Tensor, Tensor]] = []

    @property
    def device(self) -> torch.device:
        """Where token ids must be."""
        return plain_device(self._encoder)

    def recipe(self, prefix: Tensor) -> EncodingSpec:
        """What decides the states of a text that is read now, with these token ids in front of every window."""
        config = self.config
        return EncodingSpec(
            model_digest(self._model_config, self._encoder),
            tokenizer_digest(self.tokenizer),
            self.cut.window,
            self.cut.overlap,
            tuple(prefix.tolist()),
            str(self._store_dtype(windows=2)).removeprefix("torch."),
            config.compute_dtype,
            self._kept,
        )

    def prefix_ids(self, prefix: str | None = None) -> Tensor:
        """Token ids in front of every window, for a prefix or that of the settings."""
        return self._prefixes(None if prefix is None else [prefix], 1)[0]

    def check(self, memory: Memory) -> None:
        """Refuses a memory that this model, with these settings, would not have made."""
        if memory.recipe is None:
            raise UnlimiformerError("the memory was read inside the model's own forward; make one with index()")
        ignored = () if self.config.dtype is not None else ("dtype",)
        changes = self.recipe(torch.tensor(memory.recipe.prefix)).differences(memory.recipe, ignored)
        if isinstance(self.config.prefix, str) and tuple(self.prefix_ids().tolist()) != memory.recipe.prefix:
            changes.append("another prefix")
        if changes:
            raise UnlimiformerError(
                f"the memory was made with {', '.join(changes)}; expected the settings of this wrapper: "
                "index the text again, or wrap the model as it was"
            )

    @property
    def prefixes_rows(self) -> bool:
        """Whether something stands in front of what the model's own forward is given."""
        return self.config.prefix is not None or self._row_prefixes is not None

    @contextmanager
    def row_prefixes(self, prefixes: Sequence[Tensor] | None) -> Iterator[None]:
        """Token ids in front of every window, for each row of what the model's own forward is given meanwhile."""
        self._row_prefixes = prefixes
        try:
            yield
        finally:
            self._row_prefixes = None

    @contextmanager
    def beside(self, others: Callable[[Tensor], Tensor | None]) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """What is read for training stands among the states (n, D) that `others` has for its token ids.

        Yields a list of what is read, token ids and states.
        """
        self._beside, self._read = others, []
        try:
            yield self._read
        finally:
            self._beside, self._read = None, []

    def read_texts(
        self,
        texts: Sequence[TextSource],
        prefixes: Sequence[str] | None,
        encode: Encode,
        progress: Progress | None = None,
    ) -> list[Memory]:
        """One memory for each text, with the characters its tokens cover."""
        sources, words, places = [], [], []
        for text, prefix in zip(texts, self._prefixes(prefixes, len(texts)), strict=True):
            written: list[str] = []
            parts = list(self._tokens(text, prefix, partial(_noted, written)))
            known = [part.offsets for part in parts if part.offsets is not None]
            lead = torch.zeros((prefix.shape[0], 2), dtype=torch.int64)
            places.append(torch.cat((lead, *known)) if known else None)
            words.append("".join(written) if written else None)
            sources.append(
                TokenizedInput(torch.cat([part.ids for part in parts]).to(self.device), prefix.to(self.device), {})
            )
        with torch.no_grad():
            recipes = [self.recipe(source.prefix) for source in sources]
            memories = self.read_sources(sources, encode, progress, recipes)
        return [replace(m, written_text=w, offsets=p) for m, w, p in zip(memories, words, places, strict=True)]

    def read_to_disk(
        self,
        text: TextSource,
        prefix: str | None,
        folder: Path,
        encode: Encode,
        searched: Callable[[Memory], ExactStore],
        progress: Progress | None = None,
        append: bool = False,
        overwrite: bool = False,
    ) -> Memory:
        """One text's memory in a folder, as it is read: nothing of it but a batch of windows is ever in RAM.

        An interrupted run is taken up where it stopped; `append` puts the text behind that of the memory in the folder.
        `searched` gives the finished states a way of searching them.
        """
        ids = self.prefix_ids(prefix)
        if append:
            earlier = Memory.load(folder, verify=False)
            assert earlier.recipe is not None, "it was kept"
            ids = torch.tensor(earlier.recipe.prefix, dtype=torch.long) if prefix is None else ids
            text = _continued(earlier.text, text)
        recipe = self.recipe(ids)
        with PartialWrite.open(folder) as draft, torch.no_grad():
            if append and draft.completed:
                return Memory.load(folder)
            recorder = MemoryWriter(draft, recipe, self.config.batch_size, overwrite)
            source = recorder.write_tokens(self._tokens(text, ids, recorder.keep_text))
            dtype = self._store_dtype(recorder.windows)

            def note(done: int, of: int) -> None:
                recorder.record(done)
                if progress is not None:
                    progress(done, of)

            if progress is not None:
                progress(recorder.done, recorder.windows)
            device_source = TokenizedInput(source.ids, source.prefix.to(self.device), {})
            settings = (self.cut, recorder.batch_size, note, recorder.done)
            for piece in encode_windows([device_source], self._in_dtype(encode), *settings):
                recorder.put(piece, dtype)
            recorder.finish(searched(recorder.drafted()))
        return Memory.load(folder, verify=False)

    def read_rows(
        self,
        ids: Tensor,
        mask: Tensor | None,
        aligned: dict[str, Tensor],
        encode: Encode,
        progress: Progress | None = None,
    ) -> list[Memory]:
        """Memories of the rows of a batch (B, S), without their padding on either side; equal rows share one."""
        visible = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if visible.shape != ids.shape:
            raise UnlimiformerError(
                f"attention_mask has shape {tuple(visible.shape)} and input_ids {tuple(ids.shape)}; expected the same"
            )
        prefixes = self._prefixes(None, len(ids)) if self._row_prefixes is None else self._row_prefixes
        if len(prefixes) != len(ids):
            raise UnlimiformerError(f"{len(prefixes)} prefixes were given for {len(ids)} rows; expected one for each")
        sources: list[TokenizedInput] = []
        places: list[int] = []
        for row, (keep, prefix) in enumerate(zip(visible, prefixes, strict=True)):
            tokens = ids[row][keep]
            self._check(tokens)
            extra = {name: values[row][keep] for name, values in aligned.items()}
            if self._shares_opening(tokens, prefix):
                tokens, extra = tokens[1:], {name: values[1:] for name, values in extra.items()}
            source = TokenizedInput(tokens.to(self.device), prefix.to(self.device), extra)
            same = (place for place, other in enumerate(sources) if source.equals(other))
            places.append(next(same, len(sources)))
            sources += [source] if places[-1] == len(sources) else []
        memories = self.read_sources(sources, encode, progress)
        return [memories[place] for place in places]

    def _tokens(
        self, text: TextSource, prefix: Tensor, keep_text: Callable[[Iterable[str]], Iterator[str]]
    ) -> Iterator[Tokens]:
        """The checked tokens of a text, as they come; `keep_text` passes the text on its way."""
        ids = as_token_ids(text)
        parts = (
            iter([Tokens(ids, None)])
            if ids is not None
            else stream_tokens(
                keep_text(iter_text(text)),  # type: ignore[arg-type]
                self.tokenizer,
            )
        )
        first, count = True, 0
        for part in parts:
            if part.ids.shape[0] == 0:
                continue
            self._check(part.ids)
            count += part.ids.shape[0]
            if first and self._shares_opening(part.ids, prefix):
                part = Tokens(part.ids[1:], None if part.offsets is None else part.offsets[1:])
            first = False
            yield part
        if count == 0:
            raise UnlimiformerError("the input is empty: it has no tokens; expected at least one")

    def _shares_opening(self, ids: Tensor, prefix: Tensor) -> bool:
        """BART's <s> opens text and prefix alike: it stands once, before the prefix; in a causal model's prompt, never
        in the middle."""
        specials = getattr(self.tokenizer, "all_special_ids", ())
        if prefix.shape[0] == 0 or int(ids[0]) not in specials:
            return False
        return self.cut.causal or int(ids[0]) == int(prefix[0])

    def _check(self, ids: Tensor) -> None:
        if ids.shape[0] == 0:
            raise UnlimiformerError("the input is empty: it has no tokens; expected at least one")
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= self.vocabulary:
            raise UnlimiformerError(
                f"the input has token id {highest if highest >= self.vocabulary else lowest} and the model "
                f"{self.vocabulary} embeddings; expected ids of the model's own tokenizer"
            )

    def _prefixes(self, prefixes: Sequence[str] | None, rows: int) -> list[Tensor]:
        given = prefixes if prefixes is not None else self.config.prefix
        each = [given] * rows if given is None or isinstance(given, str) else list(given)
        if len(each) != rows:
            raise UnlimiformerError(f"{len(each)} prefixes were given for {rows} inputs; expected one for each, or one")
        return [self._opening(prefix) for prefix in each]

    def _plain_opening(self, prefix: str | None) -> Tensor:
        return torch.empty(0, dtype=torch.long) if prefix is None else opening_ids(prefix, self.tokenizer)

    def read_sources(
        self,
        sources: list[TokenizedInput],
        encode: Encode,
        progress: Progress | None = None,
        recipes: list[EncodingSpec] | None = None,
    ) -> list[Memory]:
        """Memories in RAM; without recipes they serve this model as it is now, and can be neither kept nor checked."""
        differentiable = False
        pieces: list[list[Tensor]] = [[] for _ in sources]
        memories: list[Memory] = []
        settings = (self.cut, self.config.batch_size)
        encode = self._in_dtype(encode)
        if torch.is_grad_enabled() and self._tokens_read(sources) > _KEPT_TOKENS:
            encode = _recomputed(encode)
        for piece in encode_windows(sources, encode, *settings, progress):
            differentiable = piece.states.requires_grad
            if piece.source == len(memories):
                recipe = None if recipes is None else recipes[piece.source]
                memories.append(self._new_memory(sources[piece.source], piece, recipe, differentiable))
            if differentiable:  # in training the states stay in the graph, as they are
                pieces[piece.source].append(piece.states)
            else:
                memories[piece.source].store.put(piece.start, piece.states)
        if differentiable:
            for memory, parts in zip(memories, pieces, strict=True):
                memory.store = ExactStore(torch.cat(parts))
        if self._beside is not None:
            for memory in memories:
                self._put_beside(memory, self._beside(memory.token_ids))
        return memories

    def _put_beside(self, memory: Memory, others: Tensor | None) -> None:
        states = memory.store.whole()
        self._read.append((memory.token_ids, states))
        if others is not None:
            memory.store = ExactStore(torch.cat((states, others.to(states))))
            memory.windows = max(2, memory.windows)  # it is no longer within one

    def _new_memory(
        self, source: TokenizedInput, piece: EncodedChunk, recipe: EncodingSpec | None, differentiable: bool
    ) -> Memory:
        windows = len(plan(source, self.cut))
        rows, width = 0 if differentiable else source.length, piece.states.shape[1]
        store = ExactStore.empty(rows, width, self._store_dtype(windows), self.config.device or piece.states.device)
        return Memory(
            store,
            torch.cat((source.prefix, source.ids)).cpu(),
            recipe,
            windows,
            source.prefix.shape[0],
            first_window=None if piece.first_window is None else piece.first_window.clone(),
            batch_size=self.config.batch_size,
        )

    def _store_dtype(self, windows: int) -> torch.dtype:
        """An input within the window is kept as the model has it; float16 would lose range."""
        if windows > 1 and (self.config.dtype is not None or self.cut.causal):
            return DTYPES[self.config.dtype or "bfloat16"]
        own = plain_dtype(self._encoder)
        return own if own in DTYPES.values() else torch.float32

    def _tokens_read(self, sources: Sequence[TokenizedInput]) -> int:
        """With those that several windows read."""
        return sum(win.end - win.start for source in sources for win in plan(source, self.cut))

    def _in_dtype(self, encode: Encode) -> Encode:
        if self.config.compute_dtype is None:
            return encode
        dtype = DTYPES[self.config.compute_dtype]

        def autocast(ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
            with torch.autocast(self.device.type, dtype=dtype):
                return encode(ids, aligned)

        return autocast


def _recomputed(encode: Encode) -> Encode:
    """Only states are kept: a window's activations are computed again for its gradients."""

    def encode_twice(ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
        return checkpoint(encode, ids, aligned, use_reentrant=False)

    return encode_twice


def _noted(written: list[str], pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        written.append(piece)
        yield piece


def _continued(earlier: str, text: TextSource) -> Iterator[str]:
    """A text and what follows it, on a line of its own."""
    yield from iter_text(earlier)
    if not earlier[-1:].isspace():
        yield "\n"
    yield from iter_text(text)  # type: ignore[arg-type]
