"""Where the model looked: attention to source tokens, told as passages of the text for tokens and sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UnlimiformerError
from ..memory.memory import Memory
from ..utils.files import atomic_write
from .trace import Attention

UNITS = ("token", "sentence")
_STATIC = Path(__file__).with_name("static")
_SENTENCE = re.compile(r"\s*[^.!?。！？]*(?:[.!?。！？]+[\"'”’)]*|$)", re.S)


@dataclass(frozen=True)
class Passage:
    """Characters [start, end) of the source, and the share of all attention that fell on them."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of what was generated, and the passages that they came from, best first."""

    text: str
    start: int
    end: int
    passages: list[Passage]


@dataclass(frozen=True)
class Provenance:
    """How much attention each source token got: `weights` (S,), of sum one, over all tokens, layers and heads.

    `hits` (S,): how often each was retrieved. `layers`: the same for every generated token, head by head, where it is
    known. `words`: the text of every generated token.
    """

    memory: Memory
    weights: Tensor
    hits: Tensor
    layers: dict[int, Attention] | None = None
    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, memory: Memory, layers: dict[int, Attention]) -> Provenance:
        """Of what was heard."""
        weights = _spread(layers.values(), len(memory))
        hits = torch.zeros(len(memory), dtype=torch.long)
        for each in layers.values():
            hits += torch.bincount(each.index[each.weights > 0].long(), minlength=len(memory))
        return cls(memory, weights, hits, layers)

    def said(self, words: Sequence[str]) -> Provenance:
        """With the text of every generated token."""
        return replace(self, words=tuple(words))

    def attention(self, tokens: Sequence[int], layer: int | None = None, head: int | None = None) -> Tensor:
        """How much each source token (S,), of sum one, got from these generated tokens; of one layer or head alone."""
        if self.layers is None:
            raise UnlimiformerError("where each token came from is not known here; only `weights`, of all together, is")
        chosen = [self.layers[layer]] if layer is not None else list(self.layers.values())
        heads = slice(None) if head is None else slice(head, head + 1)
        places = torch.tensor(list(tokens), dtype=torch.long)
        return _spread(
            [Attention(a.index[places][:, heads], a.weights[places][:, heads]) for a in chosen], len(self.memory)
        )

    def passages(self, count: int = 3, tokens: int = 60) -> list[Passage]:
        """The `count` stretches of `tokens` tokens that got most attention, none overlapping, best first."""
        return _passages(self.weights, self.memory, count, tokens)

    def spans(self, unit: str = "sentence", count: int = 3, tokens: int = 40) -> list[Span]:
        """The tokens or the sentences of what was generated, each with its best passages."""
        if unit not in UNITS:
            raise UnlimiformerError(f"the unit is {unit!r}; expected one of: {', '.join(UNITS)}")
        if self.layers is None:
            raise UnlimiformerError("where each token came from is not known here; passages() tells it of all together")
        ends = list(accumulate(map(len, self.words)))
        starts = [0, *ends[:-1]]
        text = "".join(self.words)
        bounds = list(zip(starts, ends, strict=True)) if unit == "token" else _sentences(text)
        found = []
        for start, end in bounds:
            inside = [n for n, (a, b) in enumerate(zip(starts, ends, strict=True)) if start <= a < end and b > a]
            if inside:
                looked = _passages(self.attention(inside), self.memory, count, tokens)
                found.append(Span(text[start:end], start, end, looked))
        return found

    def histogram(self, bins: int = 50) -> list[float]:
        """The share of the attention that fell on each of so many equal parts of the source: of its text, if known."""
        places, offsets = torch.arange(len(self.memory)), self.memory.offsets
        if offsets is not None:
            places = offsets[:, 0]
        place = (places * bins // (int(places.max()) + 1)).long()
        return torch.zeros(bins).index_add_(0, place, self.weights).tolist()

    def told(self, bins: int = 100) -> dict[str, Any]:
        """All of it, for JSON: passages with their text, spans, and the histogram."""
        source = self.memory.text

        def quoted(passages: list[Passage]) -> list[dict[str, Any]]:
            return [{**asdict(each), "text": source[each.start : each.end]} for each in passages]

        told: dict[str, Any] = {"answer": "".join(self.words), "characters": len(source)}
        told |= {"passages": quoted(self.passages()), "histogram": self.histogram(bins)}
        if self.layers is not None:
            for unit in UNITS:
                spans = self.spans(unit)
                told[f"{unit}s"] = [{**asdict(span), "passages": quoted(span.passages)} for span in spans]
        return told

    def to_json(self) -> str:
        """All of it."""
        return json.dumps(self.told(), indent=1, ensure_ascii=False) + "\n"

    def to_html(self) -> str:
        """A page of its own, with the source: its words light the passages that they came from."""
        told = json.dumps({**self.told(), "source": self.memory.text}).replace("<", "\\u003c")
        script = (_STATIC / "highlight.js").read_text(encoding="utf-8").replace("export ", "")
        parts = {"style": (_STATIC / "page.css").read_text(encoding="utf-8"), "script": script, "told": told}
        page = (_STATIC / "provenance.html").read_text(encoding="utf-8")
        return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], page)

    def save(self, path: Path) -> None:
        """As JSON or as a page, by the name of the file."""
        write = {".json": self.to_json, ".html": self.to_html}.get(path.suffix)
        if write is None:
            raise UnlimiformerError(f"the file is {path.name!r}; expected a name that ends with .json or .html")
        try:
            atomic_write(path, write())
        except OSError as error:
            raise UnlimiformerError(f"cannot write {path}: {error.strerror}") from None


def _spread(attention: Any, length: int) -> Tensor:
    """Added up by source token (S,), of sum one."""
    sums = torch.zeros(length)
    for each in attention:
        sums.index_add_(0, each.index.reshape(-1).long(), each.weights.reshape(-1))
    return sums / sums.sum().clamp_min(1e-30)


def _passages(weights: Tensor, memory: Memory, count: int, tokens: int) -> list[Passage]:
    if memory.offsets is None:
        raise UnlimiformerError("the memory was made from token ids and knows no text; index a text instead")
    weights = weights.where(memory.offsets[:, 1] > 0, 0.0)  # prefix and special tokens are nowhere in the text
    tokens = min(tokens, weights.shape[0])
    before = torch.cat((torch.zeros(1, dtype=torch.float64), weights.double().cumsum(0)))
    sums = before[tokens:] - before[:-tokens]
    found: list[Passage] = []
    for _ in range(count):
        start = int(sums.argmax())
        if sums[start] <= 1e-12:
            break
        inside = memory.offsets[start : start + tokens]
        inside = inside[inside[:, 1] > 0]
        found.append(Passage(int(inside[0, 0]), int(inside[-1, 1]), float(sums[start])))
        sums[max(0, start - tokens + 1) : start + tokens] = 0
    return found


def _sentences(text: str) -> list[tuple[int, int]]:
    """Where they begin and end."""
    return [found.span() for found in _SENTENCE.finditer(text) if found.group().strip()]
