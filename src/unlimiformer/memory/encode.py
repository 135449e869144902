"""Encode token ids window by window and keep the middle of each window. Knows no model and no store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError, UnsupportedModelError
from ..text.windows import Window, WindowSpec

EncodeFn = Callable[[Tensor, dict[str, Tensor]], Tensor]
"""Encode token ids (b, W) and further arrays of that shape to states (b, W, D)."""
Progress = Callable[[int, int], None]
"""Called with the number of windows done and the total. It only displays."""


@dataclass(frozen=True)
class TokenizedInput:
    """One input without padding: a prefix that precedes every window, and the text's token ids.

    `aligned` holds further arrays (S,) that are cut like `ids`, such as LED's global attention mask.
    """

    ids: Tensor
    prefix: Tensor
    aligned: dict[str, Tensor]

    @property
    def length(self) -> int:
        """Number of stored tokens: the prefix once, then the text."""
        return self.prefix.shape[0] + self.ids.shape[0]

    def equals(self, other: TokenizedInput) -> bool:
        """Whether the other input would be encoded to the same states."""
        return (
            torch.equal(self.ids, other.ids)
            and torch.equal(self.prefix, other.prefix)
            and self.aligned.keys() == other.aligned.keys()
            and all(torch.equal(values, other.aligned[name]) for name, values in self.aligned.items())
        )


@dataclass(frozen=True)
class EncodedChunk:
    """Stored states (n, D) of one window of input number `input_index`, for its tokens from `start` on.

    `first_window` holds all states of an encoder's first window, and is None for the later ones.
    """

    input_index: int
    start: int
    states: Tensor
    first_window: Tensor | None


def plan_input_windows(source: TokenizedInput, spec: WindowSpec) -> list[Window]:
    """The windows of an input's text; the prefix takes its share of each."""
    room = spec.after_prefix(source.prefix.shape[0])
    if room.window < 1:
        raise InputError(
            f"the prefix has {source.prefix.shape[0]} tokens and the window {spec.window}; expected room for the text: "
            "shorten the prefix or give a larger window"
        )
    return room.windows(source.ids.shape[0])


def encode_windows(
    inputs: Sequence[TokenizedInput],
    encode: EncodeFn,
    spec: WindowSpec,
    batch_size: int,
    done: int = 0,
    encode_whole: EncodeFn | None = None,
) -> Iterator[list[EncodedChunk]]:
    """Encode every window of every input and yield the chunks of one batch at a time, in order.

    Only windows of equal length share a batch, so nothing is ever padded. The first `done` windows are skipped.
    `encode_whole` encodes inputs that fit one window; None: as the others.
    """
    jobs = [(index, window) for index, source in enumerate(inputs) for window in plan_input_windows(source, spec)]
    for batch in _group_by_length(jobs[done:], inputs, batch_size):
        is_whole = _is_whole(batch[0], inputs)
        states = (encode_whole if is_whole and encode_whole is not None else encode)(*_stack(batch, inputs))
        yield [
            _keep_middle(states[row], index, window, inputs[index], spec.causal)
            for row, (index, window) in enumerate(batch)
        ]


def _group_by_length(jobs: list, inputs: Sequence[TokenizedInput], size: int) -> Iterator[list[tuple[int, Window]]]:
    """Batches of windows of equal length, in order; those that are a whole input stand apart."""
    batch: list[tuple[int, Window]] = []
    batch_kind: tuple[int, bool] | None = None
    for index, window in jobs:
        kind = inputs[index].prefix.shape[0] + window.end - window.start, _is_whole((index, window), inputs)
        if batch and (kind != batch_kind or len(batch) == size):
            yield batch
            batch = []
        batch.append((index, window))
        batch_kind = kind
    if batch:
        yield batch


def _is_whole(job: tuple[int, Window], inputs: Sequence[TokenizedInput]) -> bool:
    """Whether a window is all of its input."""
    index, window = job
    return window.start == 0 and window.end == inputs[index].ids.shape[0]


def _stack(batch: list[tuple[int, Window]], inputs: Sequence[TokenizedInput]) -> tuple[Tensor, dict[str, Tensor]]:
    """Token ids (b, W) of a batch of windows, prefix first, and the aligned arrays with zeros for the prefix."""
    ids = torch.stack(
        [torch.cat((inputs[n].prefix, inputs[n].ids[w.start : w.end].to(inputs[n].prefix))) for n, w in batch]
    )
    aligned = {}
    for name in inputs[batch[0][0]].aligned:
        rows = []
        for index, window in batch:
            values = inputs[index].aligned[name]
            prefix_values = values.new_zeros(inputs[index].prefix.shape[0])
            rows.append(torch.cat((prefix_values, values[window.start : window.end])))
        aligned[name] = torch.stack(rows)
    return ids, aligned


def _keep_middle(states: Tensor, index: int, window: Window, source: TokenizedInput, causal: bool) -> EncodedChunk:
    """The part of one window's states (W, D) that is stored; the first window also stores the prefix."""
    prefix_length = source.prefix.shape[0]
    if not torch.isfinite(states).all():
        raise UnsupportedModelError(
            f"the encoder gave NaN or infinite states for tokens {window.start} to {window.end}; "
            "expected finite numbers: check the model's weights and dtype (float16 overflows in some models)"
        )
    first = window.keep_start == 0
    begin = 0 if first else prefix_length + window.keep_start - window.start
    stored = states[begin : prefix_length + window.keep_end - window.start]
    start = 0 if first else prefix_length + window.keep_start
    return EncodedChunk(index, start, stored, states if first and not causal else None)
