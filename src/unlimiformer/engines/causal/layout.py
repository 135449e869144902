"""What a row of a decoder-only model's memory holds: of each layer, whichever is smallest for what it is wanted for.

Shapes: B rows of windows, n tokens, D width of a layer's input, G key-value heads, d of a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...adapters.causal import CausalAdapter, SelfAttention

Head = tuple[int, int]
"""A layer and a head in it, counted from 0."""


@dataclass(frozen=True)
class ColumnSpec:
    """Columns [start, stop) of a row: what is kept of one layer. `groups`: key-value heads whose keys it has."""

    layer: int
    kind: str
    groups: tuple[int, ...]
    start: int
    stop: int


class Layout:
    """The parts of a row, and how they are made and read."""

    def __init__(self, decoder: CausalAdapter, kinds: Iterable[tuple[int, str, tuple[int, ...]]]) -> None:
        self._decoder = decoder
        self.parts: dict[int, ColumnSpec] = {}
        self.width = 0
        for layer, kind, groups in kinds:
            view = decoder.attentions[layer]
            size = {
                "inputs": view.width,
                "keys and values": 2 * len(groups) * view.head_width,
                "keys": len(groups) * view.head_width,
            }[kind]
            self.parts[layer] = ColumnSpec(layer, kind, groups, self.width, self.width + size)
            self.width += size

    @classmethod
    def whole(cls, decoder: CausalAdapter, layers: Sequence[int]) -> Layout:
        """All that attention needs of some layers: their inputs, or keys before rotation with values."""
        kinds = []
        for layer in layers:
            view = decoder.attentions[layer]
            smaller = view.width < 2 * view.groups * view.head_width
            kinds.append((layer, "inputs" if smaller else "keys and values", tuple(range(view.groups))))
        return cls(decoder, kinds)

    @classmethod
    def for_heads(cls, decoder: CausalAdapter, heads: Iterable[Head]) -> Layout:
        """Only the keys that some heads look at."""
        groups: dict[int, set[int]] = {}
        for layer, head in heads:
            groups.setdefault(layer, set()).add(group_of(decoder.attentions[layer], head))
        return cls(decoder, [(layer, "keys", tuple(sorted(groups[layer]))) for layer in sorted(groups)])

    def __str__(self) -> str:
        return "; ".join(
            f"layer {part.layer}: {part.kind}" + (f" of {', '.join(map(str, part.groups))}" * (part.kind == "keys"))
            for part in self.parts.values()
        )

    def rows(self, inputs: dict[int, Tensor]) -> Tensor:
        """Rows (B, n, width) from the inputs (B, n, D) of each layer."""
        return torch.cat([self._made(part, inputs[part.layer]) for part in self.parts.values()], dim=-1)

    def keys(self, rows: Tensor, layer: int) -> dict[int, Tensor]:
        """Keys (n, d) before rotation of every key-value head that is kept, from rows (n, width)."""
        part, view = self.parts[layer], self._decoder.attentions[layer]
        kept = rows[:, part.start : part.stop]
        if part.kind == "inputs":
            return dict(enumerate(view.project(kept[None].to(self._decoder.dtype)).keys[0]))
        columns = kept.unflatten(1, (-1, view.head_width))
        return {group: columns[:, number] for number, group in enumerate(part.groups)}

    def keys_and_values(self, rows: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keys before rotation and values, (G, n, d) each, from rows (n, width) of a whole layer."""
        part, view = self.parts[layer], self._decoder.attentions[layer]
        kept = rows[:, part.start : part.stop].to(self._decoder.dtype)
        if part.kind == "inputs":
            projected = view.project(kept[None])
            return projected.keys[0], projected.values[0]
        keys, values = kept.unflatten(1, (2, view.groups, view.head_width)).unbind(1)
        return keys.transpose(0, 1), values.transpose(0, 1)

    def _made(self, part: ColumnSpec, inputs: Tensor) -> Tensor:
        if part.kind == "inputs":
            return inputs
        projected = self._decoder.attentions[part.layer].project(inputs)
        keys = projected.keys[:, list(part.groups)].transpose(1, 2).flatten(2)
        if part.kind == "keys":
            return keys
        return torch.cat((keys, projected.values.transpose(1, 2).flatten(2)), dim=-1)


def group_of(view: SelfAttention, head: int) -> int:
    """The key-value head that a head shares."""
    return head * view.groups // view.heads
