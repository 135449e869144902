"""One cross-attention call over one memory: chooses the cheaper of equal orders of computing it.

Joins an adapter's projections with a store's search by the arithmetic of `attention`. Knows no hooks and no generation.
Shapes: N queries, H heads, G key-value heads, S stored tokens, D width of a state, d of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...adapters import CrossAttention
from ...datastore import Hits
from ...errors import UnlimiformerError
from ...functional import attend_dense, fold_queries, folding_is_cheaper, merge, unfold_values, weigh
from ...memory.memory import Memory
from ...provenance.trace import Ear
from .attention_grad import checkpointed_attention

EVERYTHING = 1 << 62
"""A top_k that no text reaches."""


def memorizing_layer(layers: int) -> int:
    """The one layer of so many that retrieves in Memorizing Transformers, if none was named."""
    return layers * 2 // 3


@dataclass(frozen=True)
class RetrievalPolicy:
    """What one layer may see: `top_k` tokens a head by retrieval, or the first window only.

    `random`: the `top_k` tokens are drawn anew in every call, the same for all heads, whatever their scores.
    `gate` (H,): how much each head trusts what it retrieved, before a sigmoid; the rest it takes from the first window.
    """

    top_k: int
    retrieves: bool = True
    heads: tuple[int, ...] | None = None
    random: bool = False
    gate: Tensor | None = None

    @property
    def needs_first_window(self) -> bool:
        """Whether a head sees what the truncated model would see."""
        return not self.retrieves or self.heads is not None or self.gate is not None


def attend(
    view: CrossAttention, queries: Tensor, memory: Memory, policy: RetrievalPolicy, ear: Ear | None = None
) -> tuple[Tensor, Tensor]:
    """Context (N, H, d) of `queries` (N, H, d) over a memory, and the log of the scores' sums (N, H)."""
    if memory.windows == 1:  # it fits the window: all of it is seen, as by the unwrapped model
        return _attend_stored(view, queries, memory, len(memory), ear)
    if not policy.retrieves or policy.heads == ():
        return _attend_first_window(view, queries, memory)
    if policy.random:
        return _attend_some(view, queries, memory, policy.top_k)
    if not policy.needs_first_window:
        return _attend_stored(view, queries, memory, policy.top_k, ear)
    trust = _trust(policy, view.heads, queries)
    context, log_sum = _attend_stored(view, queries, memory, policy.top_k, ear, trust > 0)
    local, local_log_sum = _attend_first_window(view, queries, memory)
    return torch.lerp(local, context, trust[:, None]), torch.where(trust > 0.5, log_sum, local_log_sum)


def _trust(policy: RetrievalPolicy, heads: int, queries: Tensor) -> Tensor:
    """The share (H,) of each head's answer that is what it retrieved."""
    share = torch.ones(heads).to(queries) if policy.gate is None else policy.gate.sigmoid().to(queries)
    if policy.heads is None:
        return share
    chosen = torch.zeros(heads, dtype=torch.bool, device=queries.device)
    chosen[list(policy.heads)] = True
    return share.where(chosen, 0.0)


def draw(rows: int, count: int) -> Tensor:
    """Numbers of `count` rows, or of all if there are fewer, each as likely as any other; in order."""
    return torch.randperm(rows)[:count].sort().values


def _attend_some(view: CrossAttention, queries: Tensor, memory: Memory, count: int) -> tuple[Tensor, Tensor]:
    """Attention to tokens drawn by chance."""
    store = memory.store
    drawn = draw(store.rows, count)
    states = store.whole()
    return checkpointed_attention(view, queries, states[drawn.to(states.device)].to(queries), None)


def _attend_first_window(view: CrossAttention, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    if memory.first_window is None:
        raise UnlimiformerError(
            "the memory was made for a model in which all layers and heads retrieve; with layers or heads set, "
            "index the text again"
        )
    states = memory.first_window.to(queries)
    return attend_dense(queries, view.keys(states), view.values(states), None, view.softcap, view.dropout)


def _attend_stored(
    view: CrossAttention,
    queries: Tensor,
    memory: Memory,
    top_k: int,
    ear: Ear | None,
    heard: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over stored states; `heard` (H,) are the heads whose attention counts, None for all."""
    store = memory.store
    if torch.is_grad_enabled() and _needs_gradients(view, queries, memory):
        return checkpointed_attention(view, queries, store.whole().to(queries), top_k)
    with torch.no_grad():
        key_weight = view.key_weight(store.width, queries)
    if key_weight is not None and not _fold(view, queries, memory):
        key_weight = None
    folded = None if key_weight is None else fold_queries(queries.float(), key_weight)  # (N, H, D)
    if top_k >= store.rows and ear is None:
        return _attend_everything(view, queries, folded, memory)
    hits = _search(view, queries, folded, memory, top_k)
    weights, log_sum = weigh(hits.score, hits.valid, view.softcap)
    if ear is not None:
        counted = weights if heard is None else weights * heard.to(weights).repeat(queries.shape[0])[:, None]
        ear.hear(memory, hits.index, counted)
    mixed = store.mix(hits.index, weights).unflatten(0, queries.shape[:2])  # (N, H, D)
    return _values_of(view, mixed.to(queries.device), queries), log_sum.to(queries.device).unflatten(
        0, queries.shape[:2]
    )


def _needs_gradients(view: CrossAttention, queries: Tensor, memory: Memory) -> bool:
    trained = (queries, memory.store.states, *view.module.parameters())
    return any(tensor.requires_grad for tensor in trained)


def _fold(view: CrossAttention, queries: Tensor, memory: Memory) -> bool:
    store = memory.store
    return folding_is_cheaper(queries.shape[0], view.heads, view.groups, view.head_width, store.width, store.rows)


def _search(view: CrossAttention, queries: Tensor, folded: Tensor | None, memory: Memory, top_k: int) -> Hits:
    """Hits of the N x H queries, heads fastest."""
    device = memory.store.states.device
    if folded is not None:
        return memory.store.search(folded.flatten(0, 1).to(device), top_k)

    def score(block: Tensor) -> Tensor:
        return _project_and_score(view, queries, block).flatten(0, 1).to(device)

    return memory.store.search_by(score, queries.shape[0] * view.heads, top_k)


def _project_and_score(view: CrossAttention, queries: Tensor, block: Tensor) -> Tensor:
    """Scores (N, H, n) of a block of states (n, D) by way of their keys."""
    keys = view.keys(block.to(queries)).float()  # (n, G, d)
    grouped = queries.float().unflatten(1, (view.groups, -1))
    return torch.einsum("nghd,sgd->nghs", grouped, keys).flatten(1, 2)


def _attend_everything(
    view: CrossAttention, queries: Tensor, folded: Tensor | None, memory: Memory
) -> tuple[Tensor, Tensor]:
    """Full attention (k at least S), block by block: no array of all scores exists."""
    context = log_sum = None
    for block in memory.store.blocks(queries.shape[0] * view.heads):
        if folded is None:
            states = block.to(queries)
            part, part_log_sum = attend_dense(queries, view.keys(states), view.values(states), None, view.softcap)
            part = part.float()
        else:
            scores = torch.einsum("nhe,se->nhs", folded, block.to(folded))
            weights, part_log_sum = weigh(scores, None, view.softcap)
            part = torch.einsum("nhs,se->nhe", weights, block.to(folded))
        if context is None or log_sum is None:
            context, log_sum = part, part_log_sum
        else:
            context = merge(context, log_sum, part, part_log_sum)
            log_sum = torch.logaddexp(log_sum, part_log_sum)
    assert context is not None and log_sum is not None
    return (context.to(queries.dtype) if folded is None else _values_of(view, context, queries)), log_sum


def _values_of(view: CrossAttention, mixed: Tensor, queries: Tensor) -> Tensor:
    """Values (N, H, d) of weighted sums of states (N, H, D)."""
    with torch.no_grad():
        found = view.value_weight(mixed.shape[-1], queries)
    if found is not None:
        return unfold_values(mixed, *found).to(queries.dtype)
    n, heads, _ = mixed.shape
    values = view.values(mixed.to(queries).flatten(0, 1)).unflatten(0, (n, heads))  # (N, H, G, d)
    group_of_head = torch.arange(heads, device=values.device) // (heads // view.groups)
    return values[:, torch.arange(heads, device=values.device), group_of_head]
