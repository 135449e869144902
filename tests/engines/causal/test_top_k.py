"""The selection `top-k`, compared with attention that is computed by hand."""

from __future__ import annotations

import torch
from causal_helpers import TOLERANCE, ScoreRecorder, generate, random_prompt
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer

PREFIX, DOCUMENT, SUFFIX, TOP_K = 5, 40, 7, 6


def _attend_by_hand(view, hidden_states, positions, document_keys, document_values):
    """Self-attention of prefix and suffix (1, 12, D); the tokens of the suffix also see their best document tokens."""
    local = view.project(hidden_states)
    queries, keys = view.rotate(local.queries[0], positions), view.rotate(local.keys[0], positions)
    contexts = torch.zeros_like(queries)
    for head in range(view.heads):
        group = head // 2
        for token in range(PREFIX + SUFFIX):
            local_scores = queries[head, token] @ keys[group, : token + 1].T * view.scaling
            document_scores = queries[head, token] @ document_keys[group].T * view.scaling
            if token < PREFIX:  # the prefix comes before the document
                document_scores = document_scores[:0]
            best, rows = document_scores.topk(min(TOP_K, document_scores.shape[0]))
            weights = torch.cat((local_scores, best)).softmax(-1)
            values = torch.cat((local.values[0][group, : token + 1], document_values[group][rows]))
            contexts[head, token] = weights @ values
    return view.module.o_proj(contexts.transpose(0, 1).flatten(1))[None], None


def test_each_head_attends_to_its_best_tokens():
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt(length=DOCUMENT)
    recorder = ScoreRecorder()
    with Unlimiformer(model, selection="top-k", positions="as-encoded", top_k=TOP_K, window=64, layers=(2,)) as u:
        generate(u, prefix, document, suffix, logits_processor=[recorder], max_new_tokens=1, do_sample=False)
        got = recorder.steps[0][0]
        decoder = u.engine.decoder
        view = decoder.attentions[2]
        # the first two layers see prefix and suffix only, at their own positions; the last one adds its hits
        positions = torch.cat((torch.arange(PREFIX), torch.arange(SUFFIX) + PREFIX + DOCUMENT))
        inputs = decoder.inputs(torch.cat((prefix, document))[None], [2])[2][:, PREFIX:]
        projected = view.project(inputs)
        document_keys = view.rotate(projected.keys[0], torch.arange(DOCUMENT) + PREFIX)
        original = view.module.forward

        def forward(hidden_states, **_):
            view.module.forward = original  # `project` must not call this function again
            return _attend_by_hand(view, hidden_states, positions, document_keys, projected.values[0])

        view.module.forward = forward
        try:
            with torch.no_grad():
                ids = torch.cat((prefix, suffix))[None]
                expected = model(ids, position_ids=positions[None]).logits[0, -1]
        finally:
            view.module.__dict__.pop("forward", None)
    assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max()
