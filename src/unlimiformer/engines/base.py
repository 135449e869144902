"""What the public wrapper asks of an engine."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ..datastore import ExactStore
from ..errors import UnlimiformerError
from ..memory.indexer import Indexer
from ..memory.memory import Memory
from ..provenance.provenance import Provenance

Generated = tuple[Tensor, Provenance | None]
"""Sequences (R, T) for one input, best first, and where the model looked if that was asked for."""


def generation_setting(model: Any, generation: dict[str, Any], name: str, default: Any) -> Any:
    """What `generate` will go by: its argument, that of the configuration it is given, or the model's own."""
    places = (generation.get("generation_config"), model.generation_config)
    values = (generation.get(name), *(getattr(place, name, None) for place in places))
    return next((value for value in values if value is not None), default)


def ended(model: Any, generation: dict[str, Any], new: Tensor) -> Tensor:
    """Generated tokens (T,) with the first that ends them, without the padding behind it."""
    ends = generation_setting(model, generation, "eos_token_id", [])
    ends = torch.tensor(ends if isinstance(ends, list) else [ends], dtype=new.dtype, device=new.device)
    closing = torch.isin(new, ends).nonzero()
    if closing.numel():
        return new[: int(closing[0]) + 1]
    padding = generation_setting(model, generation, "pad_token_id", None)
    while padding is not None and new.numel() and int(new[-1]) == padding:  # it was stopped without an end
        new = new[:-1]
    return new


def refuse_without_cache(model: Any, generation: dict[str, Any]) -> None:
    """Provenance is heard step by step."""
    if not generation_setting(model, generation, "use_cache", True):
        raise UnlimiformerError("provenance was asked for with use_cache off; expected it on")


class Engine(Protocol):
    """One wrapped model. `window`: tokens read at once; `top_k`: tokens that are retrieved."""

    window: int
    top_k: int

    @property
    def context_length(self) -> int:
        """How many tokens the plain model sees."""

    @property
    def supports_provenance(self) -> bool:
        """Whether provenance is known."""

    @property
    def reader(self) -> Indexer:
        """How inputs are read."""

    @property
    def applied(self) -> bool:
        """Whether the model is still wrapped."""

    def encode(self, ids: Tensor, aligned: dict[str, Tensor]) -> Tensor:
        """What is kept (b, W, D) of windows (b, W)."""

    def searched(self, memory: Memory) -> ExactStore:
        """The memory's store with the way of searching that was asked for."""

    def generate(
        self, memories: list[Memory], prompts: list[str | None], provenance: bool, generation: dict[str, Any]
    ) -> list[Generated]:
        """What the model's own `generate` makes of each memory."""

    def prompt_length(self, prompt: str | None) -> int:
        """How many tokens at the beginning of a sequence were given, not generated."""

    def remove(self) -> None:
        """Leaves the model as it was."""
