"""One cross-attention call over one memory, computed in the cheapest of several equivalent orders.

Joins an adapter's projections with a store's search. Knows no hooks and no generation.
Shapes: N queries, H heads, G key-value heads, S stored tokens, D width of a state, d of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...adapters import CrossAttention
from ...datastore import Hits
from ...errors import MemoryMismatchError
from ...functional import attend_dense, fold_queries, folding_is_cheaper, merge, softmax_weights, unfold_values
from ...memory import Memory
from .attention_grad import checkpointed_attention

EVERYTHING = 1 << 62
"""A `top_k` that exceeds the length of any input."""
RecordHits = Callable[[Memory, Tensor, Tensor], None]
"""Called with a memory, and index and weights (N, K) of the hits of N queries."""


def memorizing_layer(layers: int) -> int:
    """The layer that retrieves in Memorizing Transformers unless another is chosen: two thirds of the way up."""
    return layers * 2 // 3


@dataclass(frozen=True)
class RetrievalPolicy:
    """What one decoder layer attends to.

    Parameters
    ----------
    top_k : number of tokens that each head retrieves.
    retrieves : False for a layer that attends to the first window only.
    heads : heads that retrieve; the others attend to the first window. None means all.
    random : attend to `top_k` random tokens instead, drawn anew in every call and the same for all heads.
    gate : (H,) weight of the retrieved tokens against the first window for each head, before a sigmoid.
    """

    top_k: int
    retrieves: bool = True
    heads: tuple[int, ...] | None = None
    random: bool = False
    gate: Tensor | None = None

    @property
    def needs_first_window(self) -> bool:
        """Whether some head attends to the first window."""
        return not self.retrieves or self.heads is not None or self.gate is not None


def attend(
    view: CrossAttention, queries: Tensor, memory: Memory, policy: RetrievalPolicy, record: RecordHits | None = None
) -> tuple[Tensor, Tensor]:
    """Attend to a memory: `queries` (N, H, d) to contexts (N, H, d) and the log-sum-exp of the scores (N, H)."""
    if memory.windows == 1:  # the input fits the model: attend to all of it, as the unwrapped model does
        return _attend_stored(view, queries, memory, len(memory), record)
    if not policy.retrieves or policy.heads == ():
        return _attend_first_window(view, queries, memory)
    if policy.random:
        return _attend_random(view, queries, memory, policy.top_k)
    if not policy.needs_first_window:
        return _attend_stored(view, queries, memory, policy.top_k, record)
    gate = _retrieval_share(policy, view.heads, queries)
    context, log_sum = _attend_stored(view, queries, memory, policy.top_k, record, gate > 0)
    local, local_log_sum = _attend_first_window(view, queries, memory)
    return torch.lerp(local, context, gate[:, None]), torch.where(gate > 0.5, log_sum, local_log_sum)


def _retrieval_share(policy: RetrievalPolicy, heads: int, queries: Tensor) -> Tensor:
    """Share (H,) of the retrieved tokens in each head's context."""
    share = torch.ones(heads).to(queries) if policy.gate is None else policy.gate.sigmoid().to(queries)
    if policy.heads is None:
        return share
    retrieving = torch.zeros(heads, dtype=torch.bool, device=queries.device)
    retrieving[list(policy.heads)] = True
    return share.where(retrieving, 0.0)


def draw_rows(rows: int, count: int) -> Tensor:
    """Indices of `count` random rows (or of all if there are fewer), uniformly drawn, in order."""
    return torch.randperm(rows)[:count].sort().values


def _attend_random(view: CrossAttention, queries: Tensor, memory: Memory, count: int) -> tuple[Tensor, Tensor]:
    """Attention to random tokens."""
    store = memory.store
    drawn = draw_rows(store.rows, count)
    states = store.all_states()
    return checkpointed_attention(view, queries, states[drawn.to(states.device)].to(queries), None)


def _attend_first_window(view: CrossAttention, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    if memory.first_window is None:
        raise MemoryMismatchError(
            "the memory has no first window, which layers or heads that do not retrieve attend to; index the text again"
        )
    states = memory.first_window.to(queries)
    return attend_dense(queries, view.keys(states), view.values(states), None, view.softcap, view.dropout)


def _attend_stored(
    view: CrossAttention,
    queries: Tensor,
    memory: Memory,
    top_k: int,
    record: RecordHits | None,
    recorded_heads: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over stored states; `recorded_heads` (H,) are the heads whose hits are recorded, None for all."""
    store = memory.store
    if torch.is_grad_enabled() and _requires_grad(view, queries, memory):
        return checkpointed_attention(view, queries, store.all_states().to(queries), top_k)
    with torch.no_grad():
        key_weight = view.key_weight(store.width, queries)
    if key_weight is not None and not _should_fold(view, queries, memory):
        key_weight = None
    folded = None if key_weight is None else fold_queries(queries.float(), key_weight)  # (N, H, D)
    if top_k >= store.rows and record is None:
        return _attend_to_all(view, queries, folded, memory)
    hits = _search(view, queries, folded, memory, top_k)
    weights, log_sum = softmax_weights(hits.score, hits.valid, view.softcap)
    if record is not None:
        head_mask = None if recorded_heads is None else recorded_heads.to(weights).repeat(queries.shape[0])[:, None]
        record(memory, hits.index, weights if head_mask is None else weights * head_mask)
    mixed = store.mix(hits.index, weights).unflatten(0, queries.shape[:2])  # (N, H, D)
    return _project_values(view, mixed.to(queries.device), queries), log_sum.to(queries.device).unflatten(
        0, queries.shape[:2]
    )


def _requires_grad(view: CrossAttention, queries: Tensor, memory: Memory) -> bool:
    tensors = (queries, memory.store.states, *view.module.parameters())
    return any(tensor.requires_grad for tensor in tensors)


def _should_fold(view: CrossAttention, queries: Tensor, memory: Memory) -> bool:
    store = memory.store
    return folding_is_cheaper(queries.shape[0], view.heads, view.groups, view.head_width, store.width, store.rows)


def _search(view: CrossAttention, queries: Tensor, folded: Tensor | None, memory: Memory, top_k: int) -> Hits:
    """Hits of the N x H queries, heads varying fastest."""
    device = memory.store.states.device
    if folded is not None:
        return memory.store.search(folded.flatten(0, 1).to(device), top_k)

    def score(block: Tensor) -> Tensor:
        return project_and_score(view, queries, block).flatten(0, 1).to(device)

    return memory.store.search_by(score, queries.shape[0] * view.heads, top_k)


def project_and_score(view: CrossAttention, queries: Tensor, block: Tensor) -> Tensor:
    """Scores (N, H, n) of a block of states (n, D) through their keys."""
    keys = view.keys(block.to(queries)).float()  # (n, G, d)
    grouped = queries.float().unflatten(1, (view.groups, -1))
    return torch.einsum("nghd,sgd->nghs", grouped, keys).flatten(1, 2)


def _attend_to_all(
    view: CrossAttention, queries: Tensor, folded: Tensor | None, memory: Memory
) -> tuple[Tensor, Tensor]:
    """Full attention, block by block, so that the scores of all tokens never exist at once."""
    context = log_sum = None
    for block in memory.store.blocks(queries.shape[0] * view.heads):
        if folded is None:
            states = block.to(queries)
            part, part_log_sum = attend_dense(queries, view.keys(states), view.values(states), None, view.softcap)
            part = part.float()
        else:
            scores = torch.einsum("nhe,se->nhs", folded, block.to(folded))
            weights, part_log_sum = softmax_weights(scores, None, view.softcap)
            part = torch.einsum("nhs,se->nhe", weights, block.to(folded))
        if context is None or log_sum is None:
            context, log_sum = part, part_log_sum
        else:
            context = merge(context, log_sum, part, part_log_sum)
            log_sum = torch.logaddexp(log_sum, part_log_sum)
    assert context is not None and log_sum is not None
    return (context.to(queries.dtype) if folded is None else _project_values(view, context, queries)), log_sum


def _project_values(view: CrossAttention, mixed: Tensor, queries: Tensor) -> Tensor:
    """Values (N, H, d) of weighted sums of states (N, H, D)."""
    with torch.no_grad():
        weight_and_bias = view.value_weight(mixed.shape[-1], queries)
    if weight_and_bias is not None:
        return unfold_values(mixed, *weight_and_bias).to(queries.dtype)
    n, heads, _ = mixed.shape
    values = view.values(mixed.to(queries).flatten(0, 1)).unflatten(0, (n, heads))  # (N, H, G, d)
    group_of_head = torch.arange(heads, device=values.device) // (heads // view.groups)
    return values[:, torch.arange(heads, device=values.device), group_of_head]
