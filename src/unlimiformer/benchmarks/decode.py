"""Time to decode one token against the length of the source, for retrieval and for other ways to compute the same.

The model has BART-base's shape and random weights, and decodes greedily with batch size 1. Random weights give random
queries, on which no store can be judged. So the states and the queries of a real model over a real text are recorded
(`Sample.of`) and replayed:

- An orthonormal basis lifts them to BART-base's width, which keeps every score.
- Where more states are needed than were recorded, the recorded ones are repeated. Each copy is moved by half the
  difference of two other states, and shrunk so that the spread of all states stays the same.
- The search in the wrapped model gets the recorded queries, layer by layer. Two steps of a layer with six heads
  serve one step with twelve heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..adapters import Call, CrossAttention
from ..datastore import DTYPES, ExactStore, Hits
from ..datastore.ivf import IVFStore, build_ivf
from ..engines.seq2seq.placeholder import PlaceholderOutput
from ..engines.seq2seq.sample_queries import pool_queries
from ..functional import fold_queries
from ..memory.memory import Memory
from ..model import Unlimiformer
from ..utils.plotting import pyplot
from .machine import Machine
from .report import report
from .timing import ms_per_token

__all__ = ["WINDOW", "DecodeRow", "Sample", "bart_base", "plot", "report", "run"]

WINDOW = 1024
OURS = "ours"
RECALL = 0.99
MAX_FLOAT_TOKENS = 1 << 18
"""Longer sources are measured with int8 states only: the other methods would need many gigabytes."""
_WIDTH, _HEADS, _LAYERS = 768, 12, 6
_STATE_BYTES = 4 * _WIDTH  # of one source token: its float32 state
_KEY_VALUE_BYTES = 2 * 4 * _WIDTH * _LAYERS  # of one source token: float32 keys and values of every layer


@dataclass(frozen=True)
class DecodeRow:
    """The measurements of one method at one length of the source.

    `reading_share`: the bytes that a token needs (weights of the decoder, states that are searched), as a share of what
    the machine reads in that time; above 1 if a cache holds them; None if every query reads other states.
    """

    method: str
    dtype: str
    tokens: int
    ms_per_token: float
    ratio_to_truncated: float
    bytes_per_source_token: float
    mass_recall: float
    reading_share: float | None


def bart_base() -> Any:
    """Return a model of BART-base's shape with random weights."""
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
    """Real states (S, 768) and, for each layer, real folded queries (steps, 12, 768) over them."""

    states: Tensor
    queries: list[Tensor]

    @classmethod
    def of(cls, wrapped: Unlimiformer, memory: Memory) -> Sample:
        """Record the states of a memory and the queries of a wrapped model over it."""
        calls = wrapped.engine.sample_queries(memory)
        layers = len(wrapped.engine.cross_attentions)
        generator = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(_WIDTH, memory.store.width, generator=generator)).Q
        queries = [torch.cat(calls[layer::layers]) @ basis.T for layer in range(layers)]
        steps = [layer[: layer.shape[0] // _HEADS * _HEADS].unflatten(0, (-1, _HEADS)) for layer in queries]
        return cls(torch.cat(list(memory.store.blocks())) @ basis.T, steps)

    def extend(self, tokens: int) -> Tensor:
        """Return that many states: the recorded ones, then, where more are needed, copies with the same statistics."""
        parts, generator = [self.states[:tokens]], torch.Generator().manual_seed(1)
        count = self.states.shape[0]
        for start in range(count, tokens, count):
            copies = min(count, tokens - start)
            first, second = (self.states[torch.randint(count, (copies,), generator=generator)] for _ in range(2))
            mean = self.states.mean(dim=0)
            parts.append((self.states[:copies] - mean + 0.5 * (first - second)) / 1.5**0.5 + mean)
        return torch.cat(parts)


class _ReplayStore(ExactStore):
    """A store that ignores the queries it is given and searches for the recorded ones."""

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
    *,
    machine: Machine,
    log: Callable[[str], None] = lambda line: None,
) -> list[DecodeRow]:
    """Measure every method at every length of the source; the fastest repeat counts.

    Methods take turns, the truncated model among them, so that disturbances affect all of them alike.
    """
    model = bart_base()
    weights = sum(parameter.nbytes for parameter in model.get_decoder().parameters())  # with those of the last layer
    rows: list[DecodeRow] = []
    for tokens in lengths:
        states = sample.extend(tokens)
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
            rows.append(
                DecodeRow(
                    method=method.name,
                    dtype=method.dtype,
                    tokens=tokens,
                    ms_per_token=best,
                    ratio_to_truncated=best / truncated,
                    bytes_per_source_token=method.bytes_per_source_token,
                    mass_recall=method.mass_recall,
                    reading_share=(
                        None
                        if method.bytes_per_step is None
                        else machine.reading_share(weights + method.bytes_per_step, best / 1000)
                    ),
                )
            )
    return rows


def plot(rows: Sequence[DecodeRow], path: Path) -> None:
    """Draw milliseconds per token against source tokens, one line per method."""
    plt = pyplot("bench")
    figure, axes = plt.subplots(figsize=(7, 4.2))
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
    plt.close(figure)


Decode = Callable[[int], float]
"""Generates that many tokens and returns the milliseconds per token."""


@dataclass(frozen=True)
class _Method:
    """A way to decode; `prepare` returns a context manager that yields a `Decode` function.

    `bytes_per_step`: what all layers together must read of the source for one token; None if that differs by query.
    """

    name: str
    dtype: str
    bytes_per_source_token: float
    bytes_per_step: float | None
    prepare: Callable[[], Any]
    mass_recall: float = 1.0


def _methods(
    model: Any, states: Tensor, queries: list[Tensor], top_k: int, log: Callable[[str], None]
) -> list[_Method]:
    """Build all methods that are measured over the states (S, 768), including their stores."""
    window = states[:WINDOW]
    read: float = _KEY_VALUE_BYTES * window.shape[0]
    methods = [_Method("truncated", "float32", _KEY_VALUE_BYTES, read, partial(_decode_plain, model, window))]
    int8_only = states.shape[0] > MAX_FLOAT_TOKENS
    if not int8_only:
        methods += _other_orders(model, states, top_k)
    for dtype in DTYPES:
        if dtype != "int8" and int8_only:
            continue
        store = ExactStore.empty(states.shape[0], states.shape[1], DTYPES[dtype])
        for start in range(0, states.shape[0], WINDOW):
            store.put(start, states[start : start + WINDOW])
        prepare = partial(_decode_retrieving, model, _ReplayStore(store, queries), top_k)
        methods.append(_Method(OURS, dtype, store.nbytes / store.rows, _LAYERS * store.nbytes, prepare))
    log(f"{states.shape[0]:,} tokens, building the ivf store")
    build_queries = pool_queries([layer.flatten(0, 1) for layer in queries])
    ivf = build_ivf(store, build_queries, top_k, RECALL)  # from the last store, int8
    if isinstance(ivf, IVFStore):
        prepare = partial(_decode_retrieving, model, _ReplayStore(ivf, queries), top_k)
        size, found = ivf.nbytes / ivf.rows, ivf.measured.mass_recall
        methods.append(_Method(f"{OURS}, ivf", "int8", size, None, prepare, found))
    return methods


def _other_orders(model: Any, states: Tensor, top_k: int) -> list[_Method]:
    """Build the methods that compute the same cross-attention in another order."""
    methods = []
    for name, order, size, read in (
        ("retrieve-then-project", _RetrieveThenProject, _STATE_BYTES, _LAYERS * _STATE_BYTES),
        ("all-layers-kv", _AllLayersKeysValues, _KEY_VALUE_BYTES, _KEY_VALUE_BYTES),
    ):
        with Unlimiformer(model, top_k=top_k) as u:
            orders = [order(view, states, top_k) for view in u.engine.cross_attentions]
        prepare = partial(_decode_in_order, model, states, orders)
        methods.append(_Method(name, "float32", size, read * states.shape[0], prepare))
    return methods


@contextmanager
def _decode_plain(model: Any, states: Tensor) -> Iterator[Decode]:
    """Decode with the plain model over states (S, D)."""
    mask = torch.ones((1, states.shape[0]), dtype=torch.long)
    outputs = PlaceholderOutput(last_hidden_state=states[None])  # type: ignore[arg-type]
    yield lambda n: ms_per_token(model, n, encoder_outputs=outputs, attention_mask=mask)


@contextmanager
def _decode_retrieving(model: Any, store: ExactStore, top_k: int) -> Iterator[Decode]:
    """Decode with the wrapped model over a store."""
    with Unlimiformer(model, top_k=top_k) as u:
        windows = max(2, 2 * store.rows // WINDOW)  # a memory of one window would be attended to without retrieval
        memory = Memory(store, torch.zeros(store.rows, dtype=torch.long), None, windows)
        yield lambda n: ms_per_token(model, n, **u.engine.encoder_outputs([memory]))


@contextmanager
def _decode_in_order(model: Any, states: Tensor, orders: list[Any]) -> Iterator[Decode]:
    """Decode with the wrapped model, whose cross-attentions compute in another order."""
    with _decode_retrieving(model, ExactStore(states), WINDOW) as decode:
        for order in orders:
            order.view.module.forward = order.forward  # the wrapper removes it together with its own
        yield decode


class _RetrieveThenProject:
    """The paper's order: search with folded queries, gather the hits, compute their keys and values for each head."""

    def __init__(self, view: CrossAttention, states: Tensor, top_k: int) -> None:
        self.view, self.states, self.top_k = view, states, min(top_k, states.shape[0])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the forward of the cross-attention module."""
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
        return self.view.project_output(context.transpose(0, 1)[None], torch.empty(0), call)


class _AllLayersKeysValues:
    """Store the keys and values of every layer for all tokens, and attend to all of them."""

    def __init__(self, view: CrossAttention, states: Tensor, top_k: int) -> None:
        self.view = view
        self.keys, self.values = (part(states).transpose(0, 1)[None].contiguous() for part in (view.keys, view.values))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the forward of the cross-attention module."""
        call = Call(args, kwargs)
        queries = self.view.queries(call).transpose(1, 2)  # (1, H, T, d)
        context = torch.nn.functional.scaled_dot_product_attention(queries, self.keys, self.values, scale=1.0)
        return self.view.project_output(context.transpose(1, 2), torch.empty(0), call)
