"""Reads token ids in windows with a given encode callable and keeps the middle of each. Knows no model and no store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UnlimiformerError
from ..text.windows import Window, WindowSpec

Encode = Callable[[Tensor, dict[str, Tensor]], Tensor]
"""Token ids (b, W) and other arrays of that shape to states (b, W, D)."""
Progress = Callable[[int, int], None]
"""Told how many windows are done, of how many."""


@dataclass(frozen=True)
class TokenizedInput:
    """One row of input without padding: a prefix read before every window, and the text proper.

    `aligned` are further arrays (S,) beside `ids`, cut in the same way (LED's global attention mask).
    """

    ids: Tensor
    prefix: Tensor
    aligned: dict[str, Tensor]

    @property
    def length(self) -> int:
        """Tokens that will be kept: the prefix once, then the text."""
        return self.prefix.shape[0] + self.ids.shape[0]

    def equals(self, other: TokenizedInput) -> bool:
        """Whether the other's states would be these."""
        return (
            torch.equal(self.ids, other.ids)
            and torch.equal(self.prefix, other.prefix)
            and self.aligned.keys() == other.aligned.keys()
            and all(torch.equal(values, other.aligned[name]) for name, values in self.aligned.items())
        )


@dataclass(frozen=True)
class EncodedChunk:
    """States (n, D) of a source's tokens start … start + n; `first_window` are all states of an encoder's first."""

    source: int
    start: int
    states: Tensor
    first_window: Tensor | None


def plan(source: TokenizedInput, cut: WindowSpec) -> list[Window]:
    """The windows of a source's text, which share the model's window with the prefix."""
    room = cut.behind(source.prefix.shape[0])
    if room.window < 1:
        raise UnlimiformerError(
            f"the prefix has {source.prefix.shape[0]} tokens and the window {cut.window}; expected room for the text: "
            "shorten the prefix or give a larger window"
        )
    return room.windows(source.ids.shape[0])


def encode_windows(
    sources: Sequence[TokenizedInput],
    encode: Encode,
    cut: WindowSpec,
    batch_size: int,
    progress: Progress | None = None,
    done: int = 0,
) -> Iterator[EncodedChunk]:
    """Encodes every window of every source, several at once, and yields what is kept of each.

    Only windows of one length share a batch, so that nothing is ever padded. The first `done` windows are left out.
    """
    jobs = [(number, win) for number, source in enumerate(sources) for win in plan(source, cut)]
    for batch in _batches(jobs[done:], sources, batch_size):
        states = encode(*_assemble(batch, sources))
        for row, (number, win) in enumerate(batch):
            yield _keep(states[row], number, win, sources[number], cut.causal)
        done += len(batch)
        if progress is not None:
            progress(done, len(jobs))


def _batches(jobs: list, sources: Sequence[TokenizedInput], size: int) -> Iterator[list]:
    batch: list[tuple[int, Window]] = []
    length = 0
    for number, win in jobs:
        here = sources[number].prefix.shape[0] + win.end - win.start
        if batch and (here != length or len(batch) == size):
            yield batch
            batch = []
        batch.append((number, win))
        length = here
    if batch:
        yield batch


def _assemble(batch: list[tuple[int, Window]], sources: Sequence[TokenizedInput]) -> tuple[Tensor, dict[str, Tensor]]:
    ids = torch.stack(
        [torch.cat((sources[n].prefix, sources[n].ids[w.start : w.end].to(sources[n].prefix))) for n, w in batch]
    )
    aligned = {}
    for name in sources[batch[0][0]].aligned:
        parts = []
        for number, win in batch:
            values = sources[number].aligned[name]
            lead = values.new_zeros(sources[number].prefix.shape[0])
            parts.append(torch.cat((lead, values[win.start : win.end])))
        aligned[name] = torch.stack(parts)
    return ids, aligned


def _keep(states: Tensor, number: int, win: Window, source: TokenizedInput, causal: bool) -> EncodedChunk:
    """The kept part of one window's states (W, D); the first window keeps the prefix as well."""
    lead = source.prefix.shape[0]
    if not torch.isfinite(states).all():
        raise UnlimiformerError(
            f"the encoder gave NaN or infinite states for tokens {win.start} to {win.end}; "
            "expected finite numbers: check the model's weights and dtype (float16 overflows in some models)"
        )
    first = win.keep_start == 0
    begin = 0 if first else lead + win.keep_start - win.start
    kept = states[begin : lead + win.keep_end - win.start]
    return EncodedChunk(number, 0 if first else lead + win.keep_start, kept, states if first and not causal else None)
