"""What a row of a decoder-only model's memory holds: for each layer, the smallest thing that serves its purpose.

Shapes: B rows of windows, n tokens, D width of a layer's input, G key-value heads, d of a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...adapters.causal import CausalAdapter, SelfAttention
from ..head_ranking import Head


@dataclass(frozen=True)
class ColumnSpec:
    """Columns [start, stop) of a row, which belong to one layer.

    `content` is "inputs", "keys" or "keys and values"; `groups` are the key-value heads whose keys are stored.
    """

    layer: int
    content: str
    groups: tuple[int, ...]
    start: int
    stop: int


class RowLayout:
    """The columns of a row, and how they are computed and read."""

    def __init__(self, decoder: CausalAdapter, contents: Iterable[tuple[int, str, tuple[int, ...]]]) -> None:
        self._decoder = decoder
        self.columns: dict[int, ColumnSpec] = {}
        self.width = 0
        for layer, content, groups in contents:
            view = decoder.attentions[layer]
            size = {
                "inputs": view.width,
                "keys and values": 2 * len(groups) * view.head_width,
                "keys": len(groups) * view.head_width,
            }[content]
            self.columns[layer] = ColumnSpec(layer, content, groups, self.width, self.width + size)
            self.width += size

    @classmethod
    def whole(cls, decoder: CausalAdapter, layers: Sequence[int]) -> RowLayout:
        """Everything that attention needs of some layers: their inputs, or unrotated keys with values."""
        contents = []
        for layer in layers:
            view = decoder.attentions[layer]
            inputs_are_smaller = view.width < 2 * view.groups * view.head_width
            contents.append((layer, "inputs" if inputs_are_smaller else "keys and values", tuple(range(view.groups))))
        return cls(decoder, contents)

    @classmethod
    def for_heads(cls, decoder: CausalAdapter, heads: Iterable[Head]) -> RowLayout:
        """Only the keys that some heads attend to."""
        groups: dict[int, set[int]] = {}
        for layer, head in heads:
            groups.setdefault(layer, set()).add(group_of(decoder.attentions[layer], head))
        return cls(decoder, [(layer, "keys", tuple(sorted(groups[layer]))) for layer in sorted(groups)])

    def __str__(self) -> str:
        return "; ".join(
            f"layer {spec.layer}: {spec.content}" + f" of {', '.join(map(str, spec.groups))}" * (spec.content == "keys")
            for spec in self.columns.values()
        )

    def rows(self, inputs: dict[int, Tensor]) -> Tensor:
        """Rows (B, n, width) from the inputs (B, n, D) of each layer."""
        return torch.cat([self._compute(spec, inputs[spec.layer]) for spec in self.columns.values()], dim=-1)

    def keys(self, rows: Tensor, layer: int) -> dict[int, Tensor]:
        """Unrotated keys (n, d) of every stored key-value head, from rows (n, width)."""
        spec, view = self.columns[layer], self._decoder.attentions[layer]
        columns = rows[:, spec.start : spec.stop]
        if spec.content == "inputs":
            return dict(enumerate(view.project(columns[None].to(self._decoder.dtype)).keys[0]))
        by_group = columns.unflatten(1, (-1, view.head_width))
        return {group: by_group[:, position] for position, group in enumerate(spec.groups)}

    def keys_and_values(self, rows: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Unrotated keys and values, (G, n, d) each, from rows (n, width) of a whole layer."""
        spec, view = self.columns[layer], self._decoder.attentions[layer]
        columns = rows[:, spec.start : spec.stop].to(self._decoder.dtype)
        if spec.content == "inputs":
            projected = view.project(columns[None])
            return projected.keys[0], projected.values[0]
        keys, values = columns.unflatten(1, (2, view.groups, view.head_width)).unbind(1)
        return keys.transpose(0, 1), values.transpose(0, 1)

    def _compute(self, spec: ColumnSpec, inputs: Tensor) -> Tensor:
        if spec.content == "inputs":
            return inputs
        projected = self._decoder.attentions[spec.layer].project(inputs)
        keys = projected.keys[:, list(spec.groups)].transpose(1, 2).flatten(2)
        if spec.content == "keys":
            return keys
        return torch.cat((keys, projected.values.transpose(1, 2).flatten(2)), dim=-1)


def group_of(view: SelfAttention, head: int) -> int:
    """The key-value head that a head uses."""
    return head * view.groups // view.heads
