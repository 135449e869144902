"""An adapter for questions about facts: low-rank changes of linear layers, in effect only while one is answered.

Descriptions, summaries and everything else come from the model as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import InputError
from ...hub.lora_adapter import SHORT_ANSWERS, LowRankChange, read_changes
from ..patching import replace_method


class AnswerAdapter:
    """The changes of one model; without any, nothing happens.

    Parameters
    ----------
    model : the model whose layers are changed.
    changes : of layers, by their names in the model.
    """

    def __init__(self, model: nn.Module, changes: Sequence[LowRankChange] = ()) -> None:
        self._layers = [(_find_layer(model, change), _adding(change)) for change in changes]
        self.is_active = False
        """Whether the changes are in effect."""

    @classmethod
    def load(cls, model: Any) -> AnswerAdapter:
        """The adapter in the folder that the model was loaded from, if there is one."""
        folder = Path(getattr(model.config, "_name_or_path", None) or "") / SHORT_ANSWERS
        return cls(model, read_changes(folder) if folder.is_dir() else ())

    @property
    def exists(self) -> bool:
        """Whether there are changes."""
        return bool(self._layers)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Add the changes to the outputs of their layers."""
        with ExitStack() as stack:
            for layer, add in self._layers:
                stack.callback(replace_method(layer, "forward", add))
            self.is_active = self.exists
            stack.callback(setattr, self, "is_active", False)
            yield


def _adding(change: LowRankChange) -> Callable[[Callable], Callable]:
    """A wrapper of a layer's `forward` that adds the change to its output."""
    down, up = change.down.T, change.scale * change.up.T

    def wrap(forward: Callable) -> Callable:
        @wraps(forward)
        def changed(states: Tensor) -> Tensor:
            nonlocal down, up  # moved once, not for every token
            down, up = (matrix.to(states.device, states.dtype) for matrix in (down, up))
            return forward(states) + states @ down @ up

        return changed

    return wrap


def _find_layer(model: nn.Module, change: LowRankChange) -> nn.Module:
    try:
        layer = model.get_submodule(change.layer)
    except AttributeError:
        layer = None
    shape = (change.up.shape[0], change.down.shape[1])
    if layer is None or (getattr(layer, "out_features", None), getattr(layer, "in_features", None)) != shape:
        raise InputError(
            f"the adapter in {SHORT_ANSWERS} changes a layer {change.layer} of {shape[1]} by {shape[0]}, which "
            f"{type(model).__name__} does not have; expected the adapter of this model: remove the folder"
        )
    return layer
