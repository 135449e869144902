"""Time to decode one token against the length of the source: ours and the orders of computing it that others use.

BART-base's shape with random weights, greedy, batch 1. States are random too: the work does not depend on their values.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..adapters import Call, CrossAttention
from ..attention import fold_queries
from ..datastore import DTYPES, ExactStore
from ..memory import Memory
from ..model import Unlimiformer

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
                gc.collect()
        truncated = min(times["truncated", "float32"])
        for (name, dtype), measured in times.items():
            best = min(measured)
            rows.append(Row(name, dtype, tokens, best, best / truncated, _bytes_per_token(name, dtype, model)))
            say(f"{tokens:>9,} {name} {dtype}: {best:.1f} ms (median {statistics.median(measured):.1f})")
    return rows


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """What goes into the JSON file."""
    return {"rows": [asdict(row) for row in rows]}


Decode = Callable[[int], Any]
Method = tuple[str, str, Callable[[], Any]]


def _methods(model: Any, states: Tensor, top_k: int) -> list[Method]:
    first = states[:WINDOW]
    methods: list[Method] = [
        ("truncated", "float32", lambda: _plain(model, first)),
        ("retrieve-then-project", "float32", lambda: _other_order(model, states, top_k, _RetrieveThenProject)),
        ("all-layers-kv", "float32", lambda: _other_order(model, states, top_k, _AllLayersKeysValues)),
    ]
    for dtype in DTYPES:
        methods.append((OURS, dtype, lambda dtype=dtype: _ours(model, states, top_k, dtype)))
    return methods


@contextmanager
def _plain(model: Any, states: Tensor) -> Iterator[Decode]:
    from transformers.modeling_outputs import BaseModelOutput

    mask = torch.ones((1, states.shape[0]), dtype=torch.long)
    yield lambda n: _generate(model, BaseModelOutput(last_hidden_state=states[None]), mask, n)  # type: ignore[arg-type]


@contextmanager
def _ours(model: Any, states: Tensor, top_k: int, dtype: str) -> Iterator[Decode]:
    with Unlimiformer(model, top_k=top_k) as u:
        memory = _memory(u, states, dtype)
        mask = torch.ones((1, 1), dtype=torch.long)
        yield lambda n: _generate(model, u._installation.output([memory]), mask, n)


@contextmanager
def _other_order(model: Any, states: Tensor, top_k: int, order: type) -> Iterator[Decode]:
    """The same hooks with another order of computing one cross-attention."""
    with Unlimiformer(model, top_k=top_k) as u:
        memory = _memory(u, states, "float32")
        for view in u._installation.attentions:
            computed = order(view, states, top_k)
            view.module.forward = computed.forward  # undone with the wrapper: `remove` restores what was there before it
        mask = torch.ones((1, 1), dtype=torch.long)
        yield lambda n: _generate(model, u._installation.output([memory]), mask, n)


def _memory(u: Unlimiformer, states: Tensor, dtype: str) -> Memory:
    store = ExactStore.empty(states.shape[0], states.shape[1], DTYPES[dtype])
    store.put(0, states)
    return Memory(store, torch.zeros(states.shape[0], dtype=torch.long), u._reader.fingerprint, 1)


class _RetrieveThenProject:
    """The paper's order: find hits with folded queries, gather them, compute their keys and values for each head."""

    def __init__(self, view: CrossAttention, states: Tensor, top_k: int) -> None:
        self.view, self.states, self.top_k = view, states, min(top_k, states.shape[0])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        view, call = self.view, Call(args, kwargs)
        queries = view.queries(call)[0]  # (T, H, d)
        key_weight, (value_weight, value_bias) = view.key_weight(768, queries), view.value_weight(768, queries)  # type: ignore[misc]
        folded = fold_queries(queries, key_weight)[0]  # type: ignore[arg-type]
        index = (folded @ self.states.T).topk(self.top_k, dim=-1, sorted=False).indices  # (H, K)
        hits = self.states[index]  # (H, K, D)
        keys = hits @ key_weight.transpose(1, 2)  # type: ignore[union-attr]
        values = hits @ value_weight.transpose(1, 2) + value_bias[:, None]  # type: ignore[index]
        context = torch.nn.functional.scaled_dot_product_attention(queries[0][:, None], keys, values, scale=1.0)
        return view.finish(context.transpose(0, 1)[None], torch.empty(0), call)


class _AllLayersKeysValues:
    """Keys and values of every layer kept for all tokens, attention over all of them."""

    def __init__(self, view: CrossAttention, states: Tensor, top_k: int) -> None:
        self.view = view
        self.keys, self.values = (part(states).transpose(0, 1)[None].contiguous() for part in (view.keys, view.values))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = Call(args, kwargs)
        queries = self.view.queries(call).transpose(1, 2)  # (1, H, T, d)
        context = torch.nn.functional.scaled_dot_product_attention(queries, self.keys, self.values, scale=1.0)
        return self.view.finish(context.transpose(1, 2), torch.empty(0), call)


def _generate(model: Any, outputs: Any, mask: Tensor, new_tokens: int) -> Any:
    return model.generate(
        encoder_outputs=outputs,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        num_beams=1,
    )


def _ms_per_token(decode: Decode, new_tokens: int) -> float:
    """Time of one more token: a long run less a short one, so that what happens once does not count."""
    decode(2)
    started = time.perf_counter()
    decode(2)
    short = time.perf_counter() - started
    started = time.perf_counter()
    decode(2 + new_tokens)
    return (time.perf_counter() - started - short) / new_tokens * 1000


def _bytes_per_token(method: str, dtype: str, model: Any) -> float:
    width, layers = model.config.d_model, model.config.decoder_layers
    if method in ("truncated", "all-layers-kv"):
        return 2 * layers * width * 4
    return width * DTYPES[dtype].itemsize + (4 if dtype == "int8" else 0)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
