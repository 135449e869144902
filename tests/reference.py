"""The reference implementation: the unwrapped model with full attention over the states of all windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput
from unlimiformer.text.windows import plan_windows


def differentiable_states(model: Any, ids: Tensor, window: int, overlap: float = 0.5) -> Tensor:
    """Encode ids (S,) to states (1, S, D) with gradients: the kept part of every window, one window at a time."""
    parts = []
    for win in plan_windows(ids.shape[0], window, overlap):
        piece = ids[None, win.start : win.end]
        states = model.get_encoder()(input_ids=piece, attention_mask=torch.ones_like(piece))[0]
        parts.append(states[:, win.keep_start - win.start : win.keep_end - win.start])
    return torch.cat(parts, dim=1)


concatenated_states = torch.no_grad()(differentiable_states)


def encoded(states: Tensor) -> dict[str, Any]:
    """Build the arguments with which a model attends to all of the states (1, S, D) of an encoder."""
    mask = torch.ones(states.shape[:2], dtype=torch.long)
    return {"encoder_outputs": PlaceholderOutput(last_hidden_state=states), "attention_mask": mask}


@torch.no_grad()
def logits_over(model: Any, states: Tensor, target: Tensor) -> Tensor:
    """Compute the model's logits for a target (1, T) with full attention over states (1, S, D)."""
    return model(**encoded(states), decoder_input_ids=target).logits


def relative(got: Tensor, expected: Tensor) -> float:
    """Divide the largest difference by the largest expected value."""
    return float((got - expected).abs().max() / expected.abs().max())


__all__ = ["concatenated_states", "differentiable_states", "encoded", "logits_over", "relative"]
