"""Time to decode one token against the length of the source: ours and the orders of computing it that others use.

BART-base's shape with random weights, greedy, batch 1. Random weights ask random questions, by which no store can be
judged. So states and queries are those of a real model over a real text: `Sample.of` records them. An
orthonormal basis lifts them to BART-base's width, which keeps every score. Where more states are wanted than there are,
the real ones come again, each moved by half the difference of two others and shrunk to keep the spread of all. In the
wrapped model the search gets the recorded queries, layer by layer, two steps of a six-headed layer for twelve heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..adapters import Call, CrossAttention
from ..datastore import DTYPES, ExactStore, Hits, build
from ..datastore.ivf import IVFStore
from ..engines.seq2seq.placeholder import PlaceholderOutput
from ..engines.seq2seq.sample_queries import pool_queries, sample_queries
from ..functional import fold_queries
from ..memory.memory import Memory
from ..model import Unlimiformer
from ..utils.plotting import pyplot
from .timing import ms_per_token

WINDOW = 1024
OURS = "ours"
RECALL = 0.99
LONGEST_OF_OTHERS = 1 << 18
"""Longer inputs are measured for int8 alone: the others would need many gigabytes."""
_WIDTH, _HEADS, _LAYERS = 768, 12, 6


@dataclass(frozen=True)
class DecodeRow:
    """One measurement."""

    method: str
    dtype: str
    tokens: int
    ms_per_token: float
    ratio_to_truncated: float
    bytes_per_source_token: float
    mass_recall: float


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


@dataclass(frozen=True)
class Sample:
    """Real states (n, 768) and, for each layer, real folded queries (steps, 12, 768) over them."""

    states: Tensor
    queries: list[Tensor]

    @classmethod
    def of(cls, wrapped: Unlimiformer, memory: Memory) -> Sample:
        """Records a wrapped model over a memory."""
        calls = sample_queries(wrapped.model, wrapped.hooks, memory)
        layers = len(wrapped.hooks.attentions)
        generator = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(_WIDTH, memory.store.width, generator=generator)).Q
        queries = [torch.cat(calls[layer::layers]) @ basis.T for layer in range(layers)]
        whole = [layer[: layer.shape[0] // _HEADS * _HEADS].unflatten(0, (-1, _HEADS)) for layer in queries]
        return cls(torch.cat(list(memory.store.blocks())) @ basis.T, whole)

    def extended(self, tokens: int) -> Tensor:
        """So many states with the statistics of the real ones; as many as there are come as they are."""
        parts, generator = [self.states[:tokens]], torch.Generator().manual_seed(1)
        count = self.states.shape[0]
        for start in range(count, tokens, count):
            here = min(count, tokens - start)
            first, second = (self.states[torch.randint(count, (here,), generator=generator)] for _ in range(2))
            mean = self.states.mean(dim=0)
            parts.append((self.states[:here] - mean + 0.5 * (first - second)) / 1.5**0.5 + mean)
        return torch.cat(parts)


class _Replay(ExactStore):
    """A store that is asked the recorded queries, whatever it is asked."""

    def __init__(self, store: ExactStore, queries: list[Tensor]) -> None:
        super().__init__(store.states, store.scales)
        self._store, self._queries, self._calls = store, queries, 0

    def search(self, queries: Tensor, k: int) -> Hits:
        layer, step = self._calls % _LAYERS, self._calls // _LAYERS
        recorded = self._queries[layer % len(self._queries)]
        self._calls += 1
        return self._store.search(recorded[step % recorded.shape[0]], k)


@torch.no_grad()
def run(
    lengths: Sequence[int],
    sample: Sample,
    new_tokens: int = 12,
    repeats: int = 3,
    top_k: int = WINDOW,
    log: Callable[[str], None] = lambda _: None,
) -> list[DecodeRow]:
    """Measures every method at every length; the truncated model beside each, in turn, so that noise hits all alike."""
    model = bart_base()
    rows: list[DecodeRow] = []
    for tokens in lengths:
        states = sample.extended(tokens)
        methods = _methods(model, states, sample.queries, top_k, log)
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(repeats):
            for method in methods:
                with method.prepare() as decode:
                    times.setdefault((method.name, method.dtype), []).append(decode(new_tokens))
                log(f"{tokens:,} tokens, {method.name} {method.dtype}: {times[method.name, method.dtype][-1]:.1f} ms")
        truncated = min(times["truncated", "float32"])
        for method in methods:
            best = min(times[method.name, method.dtype])
            figures = (best, best / truncated, method.bytes_per_source_token, method.mass_recall)
            rows.append(DecodeRow(method.name, method.dtype, tokens, *figures))
    return rows


def report(rows: Sequence[DecodeRow]) -> dict[str, Any]:
    """What goes into the JSON file."""
    return {"rows": [asdict(row) for row in rows]}


def plot(rows: Sequence[DecodeRow], path: Path) -> None:
    """Milliseconds a token against source tokens, a line for each method."""
    plots = pyplot()
    figure, axes = plots.subplots(figsize=(7, 4.2))
    lines: dict[str, list[DecodeRow]] = {}
    for row in rows:
        lines.setdefault(f"{row.method}, {row.dtype}" if row.method.startswith(OURS) else row.method, []).append(row)
    for name, points in lines.items():
        style = "-o" if name.startswith(OURS) else "--s"
        axes.plot([p.tokens for p in points], [p.ms_per_token for p in points], style, label=name)
    axes.set(xscale="log", yscale="log", xlabel="source tokens", ylabel="ms per generated token")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plots.close(figure)


Decode = Callable[[int], float]


@dataclass(frozen=True)
class _Method:
    """A way of decoding: `prepare` is a context in which the model decodes by it."""

    name: str
    dtype: str
    bytes_per_source_token: float
    prepare: Callable[[], Any]
    mass_recall: float = 1.0


def _methods(
    model: Any, states: Tensor, queries: list[Tensor], top_k: int, log: Callable[[str], None]
) -> list[_Method]:
    """Each method's name, dtype, and a context in which the model decodes by it; what takes long is built here."""
    states_kept, all_kept = 4 * _WIDTH, 2 * 4 * _WIDTH * _LAYERS
    methods = [_Method("truncated", "float32", all_kept, partial(_plain, model, states[:WINDOW]))]
    others = states.shape[0] <= LONGEST_OF_OTHERS
    for name, order in (("retrieve-then-project", _RetrieveThenProject), ("all-layers-kv", _AllLayersKeysValues)):
        if not others:
            continue
        with Unlimiformer(model, top_k=top_k) as u:
            orders = [order(view, states, top_k) for view in u.hooks.attentions]
        kept = all_kept if order is _AllLayersKeysValues else states_kept
        methods.append(_Method(name, "float32", kept, partial(_other_order, model, states, orders)))
    for dtype in DTYPES:
        if dtype != "int8" and not others:
            continue
        store = ExactStore.empty(states.shape[0], states.shape[1], DTYPES[dtype])
        for start in range(0, states.shape[0], WINDOW):
            store.put(start, states[start : start + WINDOW])
        ours = partial(_ours, model, _Replay(store, queries), top_k)
        methods.append(_Method(OURS, dtype, store.nbytes / store.rows, ours))
    log(f"{states.shape[0]:,} tokens, building cells")
    asked = pool_queries([layer.flatten(0, 1) for layer in queries])
    cells = build("cells", store, asked, top_k, RECALL)
    if isinstance(cells, IVFStore):
        ours = partial(_ours, model, _Replay(cells, queries), top_k)
        beside = cells.nbytes / cells.rows
        methods.append(_Method(f"{OURS}, cells", "int8", beside, ours, cells.measured.mass_recall))
    return methods


@contextmanager
def _plain(model: Any, states: Tensor) -> Iterator[Decode]:
    mask = torch.ones((1, states.shape[0]), dtype=torch.long)
    outputs = PlaceholderOutput(last_hidden_state=states[None])  # type: ignore[arg-type]
    yield lambda n: ms_per_token(model, n, encoder_outputs=outputs, attention_mask=mask)


@contextmanager
def _ours(model: Any, store: ExactStore, top_k: int) -> Iterator[Decode]:
    with Unlimiformer(model, top_k=top_k) as u:
        windows = max(2, 2 * store.rows // WINDOW)  # one window would be attended to whole
        memory = Memory(store, torch.zeros(store.rows, dtype=torch.long), None, windows)
        mask = torch.ones((1, 1), dtype=torch.long)
        yield lambda n: ms_per_token(model, n, encoder_outputs=u.hooks.output([memory]), attention_mask=mask)


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
