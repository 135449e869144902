"""The slow, obvious way: the unwrapped model with full attention over the states of all windows, one at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput
from unlimiformer.text.windows import plan_windows


def differentiable_states(model: Any, ids: Tensor, window: int, overlap: float = 0.5) -> Tensor:
    """States (1, S, D) of ids (S,), in the graph: the kept part of every window."""
    parts = []
    for win in plan_windows(ids.shape[0], window, overlap):
        piece = ids[None, win.start : win.end]
        states = model.get_encoder()(input_ids=piece, attention_mask=torch.ones_like(piece))[0]
        parts.append(states[:, win.keep_start - win.start : win.keep_end - win.start])
    return torch.cat(parts, dim=1)


concatenated_states = torch.no_grad()(differentiable_states)


@torch.no_grad()
def logits_over(model: Any, states: Tensor, target: Tensor) -> Tensor:
    """The model's logits for a target (1, T) with full attention over states (1, S, D)."""
    output = PlaceholderOutput(last_hidden_state=states)
    mask = torch.ones(states.shape[:2], dtype=torch.long)
    return model(encoder_outputs=output, attention_mask=mask, decoder_input_ids=target).logits


def relative(got: Tensor, expected: Tensor) -> float:
    """Largest difference, against the largest number expected."""
    return float((got - expected).abs().max() / expected.abs().max())


__all__ = ["concatenated_states", "differentiable_states", "logits_over", "relative"]
