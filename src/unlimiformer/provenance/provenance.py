"""Where an answer came from: attention to source tokens, as passages of the text for every token and sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..memory import Memory
from ..text.sentences import split_sentences
from ..utils.files import atomic_write, friendly_os_errors
from .trace import Attention

UNITS = ("token", "sentence")
_STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True)
class Passage:
    """Characters [start, end) of the source, and the share of the attention that fell on them."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of the generated text, and the passages that they came from, best first."""

    text: str
    start: int
    end: int
    passages: list[Passage]


@dataclass(frozen=True)
class Provenance:
    """How much attention each source token got.

    Parameters
    ----------
    weights : (S,) attention over all generated tokens, layers and heads; they add up to one.
    hits : (S,) how often each source token was retrieved.
    layers : attention by layer, generated token and head; None where only the total is known.
    tokens : the text of every generated token.
    sentences : the passages of every sentence, where they were found without attention.
    """

    memory: Memory
    weights: Tensor
    hits: Tensor
    layers: dict[int, Attention] | None = None
    tokens: tuple[str, ...] = ()
    sentences: tuple[Span, ...] = ()

    @classmethod
    def from_sentences(cls, memory: Memory, sentences: Sequence[Span]) -> Provenance:
        """The sentences of an answer whose passages are known, but not the attention of its tokens."""
        if memory.offsets is None:
            raise InputError("the memory was made from token ids and has no text; index a text instead")
        weights = torch.zeros(len(memory))
        for sentence in sentences:
            for passage in sentence.passages:
                inside = (memory.offsets[:, 0] < passage.end) & (memory.offsets[:, 1] > passage.start)
                weights[inside] += passage.weight / max(1, int(inside.sum()))
        total = float(weights.sum())
        tokens = tuple(f"{sentence.text} " for sentence in sentences)
        return cls(memory, weights / total if total else weights, (weights > 0).long(), None, tokens, tuple(sentences))

    @classmethod
    def from_layers(cls, memory: Memory, layers: dict[int, Attention]) -> Provenance:
        """Sum up the attention of all layers."""
        weights = _sum_by_source_token(layers.values(), len(memory))
        hits = torch.zeros(len(memory), dtype=torch.long)
        for attention in layers.values():
            hits += torch.bincount(attention.index[attention.weights > 0].long(), minlength=len(memory))
        return cls(memory, weights, hits, layers)

    def with_tokens(self, tokens: Sequence[str]) -> Provenance:
        """A copy that knows the text of every generated token; itself if its sentences are known."""
        return self if self.sentences else replace(self, tokens=tuple(tokens))

    def attention(self, tokens: Sequence[int], layer: int | None = None, head: int | None = None) -> Tensor:
        """Attention (S,) from some generated tokens to each source token, optionally of one layer or head only."""
        if self.layers is None:
            raise InputError("the attention of single tokens is not known here; only `weights`, their total, is")
        layers = [self.layers[layer]] if layer is not None else list(self.layers.values())
        heads = slice(None) if head is None else slice(head, head + 1)
        rows = torch.tensor(list(tokens), dtype=torch.long)
        return _sum_by_source_token(
            [Attention(a.index[rows][:, heads], a.weights[rows][:, heads]) for a in layers], len(self.memory)
        )

    def passages(self, count: int = 3, tokens: int = 60) -> list[Passage]:
        """The `count` passages of `tokens` tokens that got most attention, best first, without overlap."""
        return _best_passages(self.weights, self.memory, count, tokens)

    def spans(self, unit: str = "sentence", count: int = 3, tokens: int = 40) -> list[Span]:
        """The tokens or sentences of the generated text, each with its best passages."""
        if unit not in UNITS:
            raise InputError(f"the unit is {unit!r}; expected one of: {', '.join(UNITS)}")
        if self.sentences:  # a sentence is the smallest unit; the space behind it belongs to its token
            spans = [replace(sentence, passages=sentence.passages[:count]) for sentence in self.sentences]
            is_token = unit == "token"
            return [replace(span, text=span.text + " ", end=span.end + 1) for span in spans] if is_token else spans
        if self.layers is None:
            raise InputError("the attention of single tokens is not known here; passages() gives that of all together")
        ends = list(accumulate(map(len, self.tokens)))
        starts = [0, *ends[:-1]]
        text = "".join(self.tokens)
        bounds = list(zip(starts, ends, strict=True)) if unit == "token" else split_sentences(text)
        spans = []
        for start, end in bounds:
            inside = [n for n, (a, b) in enumerate(zip(starts, ends, strict=True)) if start <= a < end and b > a]
            if inside:
                passages = _best_passages(self.attention(inside), self.memory, count, tokens)
                spans.append(Span(text[start:end], start, end, passages))
        return spans

    def histogram(self, bins: int = 50) -> list[float]:
        """Share of the attention in each of `bins` equal parts of the source: of its text, or of its tokens."""
        places, offsets = torch.arange(len(self.memory)), self.memory.offsets
        if offsets is not None:
            places = offsets[:, 0]
        bin_of_token = (places * bins // (int(places.max()) + 1)).long()
        return torch.zeros(bins).index_add_(0, bin_of_token, self.weights).tolist()

    def to_dict(self, bins: int = 100) -> dict[str, Any]:
        """Everything for JSON: passages with their text, spans, and the histogram."""
        quote = self.memory.citations.quote
        fields: dict[str, Any] = {"answer": "".join(self.tokens), "characters": len(self.memory.citations.text)}
        fields |= {"passages": quote(self.passages()), "histogram": self.histogram(bins)}
        if self.layers is not None or self.sentences:
            for unit in UNITS:
                fields[f"{unit}s"] = [{**asdict(span), "passages": quote(span.passages)} for span in self.spans(unit)]
        return fields

    def to_json(self) -> str:
        """`to_dict` as a JSON document."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    def to_html(self) -> str:
        """A self-contained page with answer and source, in which each word highlights its passages."""
        data = json.dumps({**self.to_dict(), "source": self.memory.text}).replace("<", "\\u003c")
        script = (_STATIC / "highlight.js").read_text(encoding="utf-8").replace("export ", "")
        parts = {"style": (_STATIC / "page.css").read_text(encoding="utf-8"), "script": script, "provenance": data}
        template = (_STATIC / "provenance.html").read_text(encoding="utf-8")
        return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], template)

    def save(self, path: Path) -> None:
        """Write JSON or HTML, depending on the file's extension."""
        render = {".json": self.to_json, ".html": self.to_html}.get(path.suffix)
        if render is None:
            raise InputError(f"the file is {path.name!r}; expected a name that ends with .json or .html")
        with friendly_os_errors(path):
            atomic_write(path, render())


def _sum_by_source_token(attentions: Iterable[Attention], length: int) -> Tensor:
    """Total attention (S,) of each source token, normalised to a sum of one."""
    sums = torch.zeros(length)
    for attention in attentions:
        sums.index_add_(0, attention.index.reshape(-1).long(), attention.weights.reshape(-1))
    return sums / sums.sum().clamp_min(1e-30)


def _best_passages(weights: Tensor, memory: Memory, count: int, tokens: int) -> list[Passage]:
    if memory.offsets is None:
        raise InputError("the memory was made from token ids and has no text; index a text instead")
    weights = weights.where(memory.offsets[:, 1] > 0, 0.0)  # prefix and special tokens cover no text
    tokens = min(tokens, weights.shape[0])
    cumulative = torch.cat((torch.zeros(1, dtype=torch.float64), weights.double().cumsum(0)))
    sums = cumulative[tokens:] - cumulative[:-tokens]
    passages: list[Passage] = []
    for _ in range(count):
        start = int(sums.argmax())
        if sums[start] <= 1e-12:
            break
        covered = memory.offsets[start : start + tokens]
        covered = covered[covered[:, 1] > 0]
        passages.append(Passage(int(covered[0, 0]), int(covered[-1, 1]), float(sums[start])))
        sums[max(0, start - tokens + 1) : start + tokens] = 0
    return passages
