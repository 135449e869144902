"""An adapter for questions about facts: LoRA changes of linear layers, applied inside `with adapter.active()`.

Descriptions, summaries and everything else come from the model as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from hashlib import sha256 as new_sha256
from typing import Any

from torch import Tensor, nn

from ...errors import InputError
from ...hub.lora_adapter import SHORT_ANSWERS, WEIGHTS, LowRankChange, read_changes, short_answers_folder
from ...memory.fingerprint import model_digest
from ...utils.files import sha256
from ..patching import replace_method


class AnswerAdapter:
    """The changes of one model; without any, `active()` does nothing.

    Parameters
    ----------
    model : the model whose layers are changed.
    changes : of layers, by their names in the model.
    """

    def __init__(self, model: nn.Module, changes: Sequence[LowRankChange] = ()) -> None:
        self._layers = [(_find_layer(model, change), _forward_wrapper(change)) for change in changes]
        self.is_active = False
        """Whether the changes are in effect."""

    @classmethod
    def load(cls, model: Any) -> AnswerAdapter:
        """The adapter in the folder that the model was loaded from, if there is one."""
        folder = short_answers_folder(model)
        return cls(model, () if folder is None else read_changes(folder))

    @property
    def exists(self) -> bool:
        """Whether there are changes."""
        return bool(self._layers)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Add the changes to the outputs of their layers; one call of the model at a time."""
        if self.is_active:
            raise InputError("the model is answering in another thread; expected one call at a time")
        with ExitStack() as stack:
            for layer, wrap_forward in self._layers:
                stack.callback(replace_method(layer, "forward", wrap_forward))
            self.is_active = self.exists
            stack.callback(setattr, self, "is_active", False)
            yield


def answers_digest(model: nn.Module) -> str:
    """A digest of what decides a model's answers: config, weights, and the adapter for questions about facts."""
    digest, folder = model_digest(model.config, model), short_answers_folder(model)
    return digest if folder is None else new_sha256(f"{digest} {sha256(folder / WEIGHTS)}".encode()).hexdigest()


def _forward_wrapper(change: LowRankChange) -> Callable[[Callable], Callable]:
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
