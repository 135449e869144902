"""Time to decode one token against the length of the source: ours and the orders of computing it that others use.

BART-base's shape with random weights, greedy, batch 1. States are random too: the work does not depend on their values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from ..adapters import Call, CrossAttention
from ..attention import fold_queries
from ..datastore import DTYPES, ExactStore
from ..install import PlaceholderOutput
from ..memory import Memory
from ..model import Unlimiformer
from ..pictures import pyplot

WINDOW = 1024
OURS = "ours"


@dataclass(frozen=True)
class Row:
    """One measurement."""

    method: str
    dtype: str
    tokens: int
    ms_per_token: float
    ratio_to_truncated: float
    bytes_per_source_token: float


def bart_base() -> Any:
    """BART-base with random weights."""
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    config = BartConfig(
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        forced_eos_token_id=None,
    )
    return BartForConditionalGeneration(config).eval()


@torch.no_grad()
def run(
    lengths: Sequence[int],
    new_tokens: int = 12,
    repeats: int = 3,
    top_k: int = WINDOW,
    say: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measures every method at every length; the truncated model beside each, in turn, so that noise hits all alike."""
    model = bart_base()
    rows: list[Row] = []
    for tokens in lengths:
        states = torch.nn.functional.layer_norm(torch.randn(tokens, 768, generator=_seeded(tokens)), (768,))
        methods = _methods(model, states, top_k)
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(repeats):
            for name, dtype, prepare in methods:
                with prepare() as decode:
                    times.setdefault((name, dtype), []).append(_ms_per_token(decode, new_tokens))
                say(f"{tokens:,} tokens, {name} {dtype}: {times[name, dtype][-1]:.1f} ms")
        truncated = min(times["truncated", "float32"])
        for (name, dtype), measured in times.items():
            best = min(measured)
            rows.append(Row(name, dtype, tokens, best, best / truncated, _bytes_per_token(name, dtype, model)))
    return rows


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """What goes into the JSON file."""
    return {"rows": [asdict(row) for row in rows]}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Milliseconds a token against source tokens, a line for each method."""
    plots = pyplot()
    figure, axes = plots.subplots(figsize=(7, 4.2))
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.method if row.method != OURS else f"{OURS}, {row.dtype}", []).append(row)
    for name, points in lines.items():
        style = "-o" if name.startswith(OURS) else "--s"
        axes.plot([p.tokens for p in points], [p.ms_per_token for p in points], style, label=name)
    axes.set(xscale="log", yscale="log", xlabel="source tokens", ylabel="ms per generated token")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plots.close(figure)


Decode = Callable[[int], list[float]]
Method = tuple[str, str, Callable[[], Any]]


def _methods(model: Any, states: Tensor, top_k: int) -> list[Method]:
    """Each method's name, dtype, and a context in which the model decodes by it; what takes long is built here."""
    methods: list[Method] = [("truncated", "float32", partial(_plain, model, states[:WINDOW]))]
    for name, order in (("retrieve-then-project", _RetrieveThenProject), ("all-layers-kv", _AllLayersKeysValues)):
        with Unlimiformer(model, top_k=top_k) as u:
            orders = [order(view, states, top_k) for view in u._installation.attentions]
        methods.append((name, "float32", partial(_other_order, model, states, orders)))
    for dtype in DTYPES:
        store = ExactStore.empty(states.shape[0], states.shape[1], DTYPES[dtype])
        store.put(0, states)
        methods.append((OURS, dtype, partial(_ours, model, store, top_k)))
    return methods


@contextmanager
def _plain(model: Any, states: Tensor) -> Iterator[Decode]:
    mask = torch.ones((1, states.shape[0]), dtype=torch.long)
    yield lambda n: _generate(model, PlaceholderOutput(last_hidden_state=states[None]), mask, n)  # type: ignore[arg-type]


@contextmanager
def _ours(model: Any, store: ExactStore, top_k: int) -> Iterator[Decode]:
    with Unlimiformer(model, top_k=top_k) as u:
        windows = max(2, 2 * store.rows // WINDOW)  # one window would be attended to whole
        memory = Memory(store, torch.zeros(store.rows, dtype=torch.long), None, windows)
        mask = torch.ones((1, 1), dtype=torch.long)
        yield lambda n: _generate(model, u._installation.output([memory]), mask, n)


@contextmanager
def _other_order(model: Any, states: Tensor, orders: list[Any]) -> Iterator[Decode]:
    """The same hooks with another order of computing one cross-attention."""
    with _ours(model, ExactStore(states), WINDOW) as decode:
        for order in orders:
            order.view.module.forward = order.forward  # taken out with the wrapper's own
        yield decode


class _RetrieveThenProject:
    """The paper's order: find hits with folded queries, gather them, compute their keys and values for each head."""

    def __init__(self, view: CrossAttention, states: Tensor, top_k: int) -> None:
        self.view, self.states, self.top_k = view, states, min(top_k, states.shape[0])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the module's forward."""
        call = Call(args, kwargs)
        queries = self.view.queries(call)[0]  # (T, H, d)
        key_weight = self.view.key_weight(self.states.shape[1], queries)
        value = self.view.value_weight(self.states.shape[1], queries)
        assert key_weight is not None and value is not None and value[1] is not None
        folded = fold_queries(queries, key_weight)[0]
        index = (folded @ self.states.T).topk(self.top_k, dim=-1, sorted=False).indices  # (H, K)
        hits = self.states[index]  # (H, K, D)
        keys, values = hits @ key_weight.transpose(1, 2), hits @ value[0].transpose(1, 2) + value[1][:, None]
        context = torch.nn.functional.scaled_dot_product_attention(queries[0][:, None], keys, values, scale=1.0)
        return self.view.finish(context.transpose(0, 1)[None], torch.empty(0), call)


class _AllLayersKeysValues:
    """Keys and values of every layer kept for all tokens, attention over all of them."""

    def __init__(self, view: CrossAttention, states: Tensor, top_k: int) -> None:
        self.view = view
        self.keys, self.values = (part(states).transpose(0, 1)[None].contiguous() for part in (view.keys, view.values))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the module's forward."""
        call = Call(args, kwargs)
        queries = self.view.queries(call).transpose(1, 2)  # (1, H, T, d)
        context = torch.nn.functional.scaled_dot_product_attention(queries, self.keys, self.values, scale=1.0)
        return self.view.finish(context.transpose(1, 2), torch.empty(0), call)


def _generate(model: Any, outputs: Any, mask: Tensor, new_tokens: int) -> list[float]:
    """When each token was there, in seconds."""
    clock = _Clock()
    model.generate(
        encoder_outputs=outputs,
        attention_mask=mask,
        streamer=clock,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        num_beams=1,
    )
    return clock.times


class _Clock(BaseStreamer):
    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _ms_per_token(decode: Decode, new_tokens: int) -> float:
    """Median time between tokens, after two to warm up: what happens once, and a neighbour's noise, do not count."""
    times = decode(3 + new_tokens)[3:]
    return statistics.median(after - before for before, after in pairwise(times)) * 1000


def _bytes_per_token(method: str, dtype: str, model: Any) -> float:
    width, layers = model.config.d_model, model.config.decoder_layers
    if method in ("truncated", "all-layers-kv"):
        return 2 * layers * width * 4
    return width * DTYPES[dtype].itemsize + (4 if dtype == "int8" else 0)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
