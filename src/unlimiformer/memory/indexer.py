"""The indexer: from inputs to memories. Tokenizes, cuts into windows, encodes, and hands the states to a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..adapters.base import input_device, module_dtype
from ..config import UnlimiformerConfig
from ..datastore import DTYPES, ExactStore
from ..errors import InputError, MemoryMismatchError
from ..text.document_text import Location, move_locations
from ..text.sources import TextSource, as_token_ids, iter_text, locations_of, open_source
from ..text.tokenization import Tokens, prefix_token_ids, stream_tokens
from ..text.windows import WindowSpec
from .compute_dtype import resolve_compute_dtype
from .encode import EncodeFn, Progress, TokenizedInput, encode_windows, plan_input_windows
from .fingerprint import is_same_checkpoint, model_digest, tokenizer_digest
from .memory import EncodingSpec, Memory, RowSpec
from .partial_write import PartialWrite
from .sink import IndexSink, RamSink
from .writer import MemoryWriter

_OVERLAP, _CAUSAL_OVERLAP = 0.5, 0.25
_CHECKPOINT_ABOVE = 8192  # tokens of a training step: with more, activations are recomputed for the backward pass


@dataclass(frozen=True)
class EncoderInfo:
    """What the indexer must know of a wrapped model.

    Parameters
    ----------
    module : the encoder (or backbone), for its device, dtype and fingerprint.
    model_config : the model's config, for its fingerprint.
    encode : encodes a batch of windows.
    window : number of tokens that are encoded at once, including the prefix.
    vocabulary_size : number of embeddings.
    row : what a row holds, for decoder-only models; None for encoders.
    prefix_to_ids : token ids of the prefix text; None uses the tokenizer.
    width_of : how many numbers a row of a memory must have; None if it is not known.
    """

    module: nn.Module
    model_config: Any
    encode: EncodeFn
    window: int
    vocabulary_size: int
    row: RowSpec | None = None
    prefix_to_ids: Callable[[str | None], Tensor] | None = None
    width_of: Callable[[Memory], int | None] = lambda memory: None


class DistractorPool(Protocol):
    """Stored states of other documents, which are searched together with those of a training example."""

    def other_states(self, token_ids: Tensor) -> Tensor | None:
        """States (n, D) of documents other than the one with these token ids (S,)."""

    def record(self, token_ids: Tensor, states: Tensor) -> None:
        """Take note of a document's token ids (S,) and states (S, D)."""


class Indexer:
    """Makes memories of inputs with one wrapped model."""

    def __init__(self, config: UnlimiformerConfig, tokenizer: Any, encoder: EncoderInfo) -> None:
        self.config, self.tokenizer, self._encoder = config, tokenizer, encoder
        self._prefix_to_ids = encoder.prefix_to_ids or self._tokenize_prefix
        default = _OVERLAP if encoder.row is None else _CAUSAL_OVERLAP
        overlap = default if config.overlap is None else config.overlap
        self.window_spec = WindowSpec(encoder.window, overlap, causal=encoder.row is not None)

    @property
    def device(self) -> torch.device:
        """Device on which the model takes its token ids."""
        return input_device(self._encoder.module)

    def encoding_spec(self, prefix: Tensor, windows: int = 2) -> EncodingSpec:
        """What decides the states of a text that is indexed now, with this prefix (n,) before each of its windows."""
        return EncodingSpec(
            model=model_digest(self._encoder.model_config, self._encoder.module),
            tokenizer=tokenizer_digest(self.tokenizer),
            window=self.window_spec.window,
            overlap=self.window_spec.overlap,
            prefix=tuple(prefix.tolist()),
            dtype=str(self._store_dtype(windows=2)).removeprefix("torch."),
            compute_dtype=self._compute_dtype(windows),
            row=self._encoder.row,
        )

    def prefix_ids(self, prefix: str | None = None) -> Tensor:
        """Token ids of a prefix, or of the prefix in the settings."""
        return self._prefixes(None if prefix is None else [prefix], 1)[0]

    def check(self, memory: Memory) -> None:
        """Raise `MemoryMismatchError` for a memory that this model with these settings would not have made."""
        if memory.spec is None:
            raise MemoryMismatchError("the memory was encoded inside the model's own forward; make one with index()")
        ignored: tuple[str, ...] = () if self.config.dtype is not None else ("dtype",)
        spec = self.encoding_spec(torch.tensor(memory.spec.prefix))
        model = self._encoder.model_config, self._encoder.module
        if memory.spec.model != spec.model and is_same_checkpoint(memory.spec.model, *model):
            ignored += ("model",)
        changes = spec.differences(memory.spec, ignored)
        if isinstance(self.config.prefix, str) and tuple(self.prefix_ids().tolist()) != memory.spec.prefix:
            changes.append("another prefix")
        if changes:
            raise MemoryMismatchError(
                f"the memory was made with {', '.join(changes)}; expected the settings of this wrapper: "
                "index the text again, or wrap the model with the settings of the memory"
            )
        width = self._encoder.width_of(memory)
        if width not in (None, memory.store.width):
            raise MemoryMismatchError(
                f"the memory has states of {memory.store.width} numbers and the model of {width}: it is damaged; index "
                "the text again"
            )
        self._check_ids(memory.token_ids)

    def index_texts(
        self, texts: Sequence[TextSource], prefixes: Sequence[str] | None = None, progress: Progress | None = None
    ) -> list[Memory]:
        """One memory in RAM per text, with the text and the characters that each token covers."""
        texts = [open_source(text) for text in texts]
        inputs, stored_texts, offsets = [], [], []
        for text, prefix in zip(texts, self._prefixes(prefixes, len(texts)), strict=True):
            pieces: list[str] = []
            parts = list(self._tokenize(text, prefix, partial(_record_pieces, pieces)))
            part_offsets = [part.offsets for part in parts if part.offsets is not None]
            prefix_offsets = torch.zeros((prefix.shape[0], 2), dtype=torch.int64)
            offsets.append(torch.cat((prefix_offsets, *part_offsets)) if part_offsets else None)
            stored_texts.append("".join(pieces) if pieces else None)
            ids = torch.cat([part.ids for part in parts]).to(self.device)
            inputs.append(TokenizedInput(ids, prefix.to(self.device), {}))
        with torch.no_grad():
            windows = [len(plan_input_windows(source, self.window_spec)) for source in inputs]
            specs = [self.encoding_spec(source.prefix, n) for source, n in zip(inputs, windows, strict=True)]
            memories = self.index_inputs(inputs, progress=progress, specs=specs)
        return [
            replace(memory, stored_text=text, offsets=characters, locations=locations_of(source))
            for memory, text, characters, source in zip(memories, stored_texts, offsets, texts, strict=True)
        ]

    def index_to_folder(
        self,
        text: TextSource,
        folder: Path,
        build_search: Callable[[Memory], ExactStore],
        *,
        prefix: str | None = None,
        progress: Progress | None = None,
        append: bool = False,
        overwrite: bool = False,
    ) -> Memory:
        """Write a text's memory to a folder while it is encoded; only one batch of windows is ever in RAM.

        An interrupted run continues where it stopped.

        Parameters
        ----------
        build_search : makes the store with which the finished states are searched.
        append : put the text behind that of the memory in the folder.
        overwrite : replace a memory of another text or with other settings.
        """
        prefix_ids = self.prefix_ids(prefix)
        text = open_source(text)
        locations = locations_of(text)
        if append:
            earlier = Memory.load(folder, verify=False)
            assert earlier.spec is not None, "a saved memory has one"
            if prefix is None:
                prefix_ids = torch.tensor(earlier.spec.prefix, dtype=torch.long)
            text, locations = _join_texts(earlier, text)
        spec = self.encoding_spec(prefix_ids)
        with PartialWrite.open(folder) as partial_write, torch.no_grad():
            if append and partial_write.was_published:
                return Memory.load(folder)
            writer = MemoryWriter(partial_write, spec, self.config.batch_size, overwrite)
            source = writer.write_tokens(self._tokenize(text, prefix_ids, writer.write_text))
            writer.spec = self.encoding_spec(prefix_ids, writer.windows)
            writer.store_dtype = self._store_dtype(writer.windows)
            if progress is not None:
                progress(writer.done, writer.windows)
            source = TokenizedInput(source.ids, source.prefix.to(self.device), {})
            encode, whole = (self._in_compute_dtype(self._encoder.encode, windows) for windows in (2, 1))
            batches = encode_windows([source], encode, self.window_spec, writer.batch_size, writer.done, whole)
            self._fill(writer, batches, writer.done, writer.windows, progress)
            writer.publish(build_search(writer.memory()), locations)
        return Memory.load(folder, verify=False)

    def index_rows(
        self,
        ids: Tensor,
        mask: Tensor | None,
        aligned: dict[str, Tensor],
        encode: EncodeFn,
        *,
        prefixes: Sequence[Tensor] | None = None,
        distractors: DistractorPool | None = None,
    ) -> list[Memory]:
        """Memories of the rows of a padded batch (B, S); equal rows share one.

        Parameters
        ----------
        mask : (B, S) 0 where `ids` is padding, on either side.
        aligned : further arguments of the encoder that are shaped like `ids`.
        prefixes : token ids before every window, for each row; None uses those of the settings.
        distractors : in training, states of other documents that each row's store also holds.
        """
        visible = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if visible.shape != ids.shape:
            raise InputError(
                f"attention_mask has shape {tuple(visible.shape)} and input_ids {tuple(ids.shape)}; expected the same"
            )
        prefixes = self._prefixes(None, len(ids)) if prefixes is None else prefixes
        if len(prefixes) != len(ids):
            raise InputError(f"{len(prefixes)} prefixes were given for {len(ids)} rows; expected one for each")
        inputs: list[TokenizedInput] = []
        input_of_row: list[int] = []
        for row, (keep, prefix) in enumerate(zip(visible, prefixes, strict=True)):
            tokens = ids[row][keep]
            self._check_ids(tokens)
            extra = {name: values[row][keep] for name, values in aligned.items()}
            if self._drops_opening_token(tokens, prefix):
                tokens, extra = tokens[1:], {name: values[1:] for name, values in extra.items()}
            source = TokenizedInput(tokens.to(self.device), prefix.to(self.device), extra)
            equal = (index for index, other in enumerate(inputs) if source.equals(other))
            input_of_row.append(next(equal, len(inputs)))
            if input_of_row[-1] == len(inputs):
                inputs.append(source)
        memories = self.index_inputs(inputs, encode)
        if distractors is not None:
            for memory in memories:
                _add_distractors(memory, distractors)
        return [memories[index] for index in input_of_row]

    def index_inputs(
        self,
        inputs: Sequence[TokenizedInput],
        encode: EncodeFn | None = None,
        progress: Progress | None = None,
        specs: Sequence[EncodingSpec] | None = None,
    ) -> list[Memory]:
        """Memories in RAM of inputs that are tokenized already.

        Without `specs` they serve this model as it is now, and can be neither saved nor checked.
        """
        plans = [plan_input_windows(source, self.window_spec) for source in inputs]
        encode, whole = (self._in_compute_dtype(encode or self._encoder.encode, windows) for windows in (2, 1))
        encoded_tokens = sum(window.end - window.start for plan in plans for window in plan)
        if torch.is_grad_enabled() and encoded_tokens > _CHECKPOINT_ABOVE:
            encode, whole = _with_checkpointing(encode), _with_checkpointing(whole)
        windows = [len(plan) for plan in plans]
        sink = RamSink(inputs, windows, [self._store_dtype(count) for count in windows], specs, self.config)
        batches = encode_windows(inputs, encode, self.window_spec, self.config.batch_size, encode_whole=whole)
        self._fill(sink, batches, 0, sum(windows), progress)
        return sink.memories()

    @staticmethod
    def _fill(sink: IndexSink, batches: Iterable[list], done: int, total: int, progress: Progress | None) -> None:
        for chunks in batches:
            for chunk in chunks:
                sink.put(chunk)
            done += len(chunks)
            sink.commit(done)
            if progress is not None:
                progress(done, total)

    def _tokenize(
        self, text: TextSource, prefix: Tensor, record: Callable[[Iterable[str]], Iterator[str]]
    ) -> Iterator[Tokens]:
        """Checked tokens of a text, as a stream; `record` passes the pieces of text on and stores them."""
        ids = as_token_ids(text)
        if ids is None:
            parts = stream_tokens(record(iter_text(text)), self.tokenizer)  # type: ignore[arg-type]
        else:
            parts = iter([Tokens(ids, None)])
        first, count = True, 0
        for part in parts:
            if part.ids.shape[0] == 0:
                continue
            self._check_ids(part.ids)
            count += part.ids.shape[0]
            if first and self._drops_opening_token(part.ids, prefix):
                part = Tokens(part.ids[1:], None if part.offsets is None else part.offsets[1:])
            first = False
            yield part
        if count == 0:
            raise InputError("the input is empty: it has no tokens; expected at least one")

    def _drops_opening_token(self, ids: Tensor, prefix: Tensor) -> bool:
        """Whether the text's first token repeats the prefix's: BART's <s> stands once, before the prefix.

        In a causal model's prompt no special token may stand in the middle.
        """
        special_ids = getattr(self.tokenizer, "all_special_ids", ())
        if prefix.shape[0] == 0 or int(ids[0]) not in special_ids:
            return False
        return self.window_spec.causal or int(ids[0]) == int(prefix[0])

    def _check_ids(self, ids: Tensor) -> None:
        if ids.shape[0] == 0:
            raise InputError("the input is empty: it has no tokens; expected at least one")
        lowest, highest, size = int(ids.min()), int(ids.max()), self._encoder.vocabulary_size
        if lowest < 0 or highest >= size:
            raise InputError(
                f"the input has token id {highest if highest >= size else lowest} and the model {size} embeddings; "
                "expected ids of the model's own tokenizer"
            )

    def _prefixes(self, prefixes: Sequence[str] | None, rows: int) -> list[Tensor]:
        texts = prefixes if prefixes is not None else self.config.prefix
        per_row = [texts] * rows if texts is None or isinstance(texts, str) else list(texts)
        if len(per_row) != rows:
            raise InputError(f"{len(per_row)} prefixes were given for {rows} inputs; expected one for each, or one")
        return [self._prefix_to_ids(text) for text in per_row]

    def _tokenize_prefix(self, prefix: str | None) -> Tensor:
        return torch.empty(0, dtype=torch.long) if prefix is None else prefix_token_ids(prefix, self.tokenizer)

    def _store_dtype(self, windows: int) -> torch.dtype:
        """Dtype of the stored states; an input within the window keeps the model's own, except float16."""
        if windows > 1 and (self.config.dtype is not None or self.window_spec.causal):
            return DTYPES[self.config.dtype or "bfloat16"]
        dtype = module_dtype(self._encoder.module)
        return dtype if dtype in DTYPES.values() else torch.float32  # float16 would lose range

    def _compute_dtype(self, windows: int) -> str | None:
        """The type in which an input of so many windows is encoded; "auto" changes it for long inputs only."""
        if windows == 1 and self.config.compute_dtype == "auto":
            return None
        return resolve_compute_dtype(self.config.compute_dtype, self._encoder.module)

    def _in_compute_dtype(self, encode: EncodeFn, windows: int) -> EncodeFn:
        """Encode an input of so many windows in the type of the settings."""
        name = self._compute_dtype(windows)
        if name is None:
            return encode
        dtype = DTYPES[name]

        def autocast_encode(ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
            with torch.autocast(self.device.type, dtype=dtype):
                return encode(ids, aligned)

        return autocast_encode


def _with_checkpointing(encode: EncodeFn) -> EncodeFn:
    """Keep only the states in the graph; a window's activations are computed again in the backward pass."""

    def checkpointed_encode(ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
        return checkpoint(encode, ids, aligned, use_reentrant=False)

    return checkpointed_encode


def _add_distractors(memory: Memory, distractors: DistractorPool) -> None:
    states = memory.store.all_states()
    other_states = distractors.other_states(memory.token_ids)
    distractors.record(memory.token_ids, states)
    if other_states is not None:
        memory.store = ExactStore(torch.cat((states, other_states.to(states))))
        memory.windows = max(2, memory.windows)  # it no longer fits one window


def _record_pieces(recorded: list[str], pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        recorded.append(piece)
        yield piece


def _join_texts(earlier: Memory, text: TextSource) -> tuple[Iterator[str], tuple[Location, ...]]:
    """The text of a memory and its continuation, which begins on a new line, and the locations of both."""
    before = earlier.text
    line_end = "" if before[-1:].isspace() else "\n"
    start = len(before) + len(line_end)
    later = move_locations(locations_of(text), start)
    return chain(iter_text(before), [line_end], iter_text(text)), (*earlier.locations, *later)  # type: ignore[arg-type]
