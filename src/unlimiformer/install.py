"""Puts retrieval into a model and takes it out again: the only file that assigns a model's methods.

The encoder's forward reads a long input into memories and returns a placeholder of one state a row, whose numbers name
the row's memory. `generate` may repeat and reorder that placeholder as it likes: every cross-attention reads from it
which memory a row belongs to. Real states take the model's own path.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from .adapters import Adapter, Call, CrossAttention
from .adapters.base import plain_device, plain_dtype
from .encoding import Encode
from .errors import UnlimiformerError, UnsupportedModelError
from .listening import Listener
from .memory import Memory
from .retrieval import Policy, attend

ReadRows = Callable[[Tensor, Tensor | None, dict[str, Tensor], Encode], list[Memory]]
"""Token ids (B, S), their mask, arrays shaped like them, and what encodes a window, to one memory a row."""

_MARK = (101.0, 7.0, 83.0, 59.0)  # whole numbers below 128 survive every floating dtype
_DIGITS = 4
_BASE = 128
_HEAD = len(_MARK) + _DIGITS


@dataclass
class PlaceholderOutput(BaseModelOutput):
    """An encoder's output; the last fields are those that some families look for."""

    global_attentions: Any = None
    router_logits: Any = None


class Switchboard:
    """Knows which memory a placeholder's row stands for."""

    def __init__(self) -> None:
        self._memories: WeakValueDictionary[int, Memory] = WeakValueDictionary()
        self._last: list[Memory] = []
        self._seen: tuple[Tensor, int | None, list[Memory] | None] | None = None

    def placeholder(self, memories: list[Memory], width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A state (B, 1, D) for each memory."""
        if width < _HEAD:
            raise UnlimiformerError(f"the model's states have {width} numbers; expected at least {_HEAD}")
        rows = torch.zeros((len(memories), 1, width))
        for row, memory in zip(rows[:, 0], memories, strict=True):
            self._memories[memory.key] = memory
            digits = [memory.key // _BASE**place % _BASE for place in range(_DIGITS)]
            row[:_HEAD] = torch.tensor([*_MARK, *map(float, digits)])
        self._last = memories  # alive until the next long input; a caller who needs them longer holds them
        return rows.to(device, dtype)

    def memories(self, states: Tensor | None) -> list[Memory] | None:
        """The memory of each row of a placeholder (B, 1, D); None for real states."""
        if states is None or states.shape[1] != 1 or states.shape[2] < _HEAD:
            return None
        version = None if states.is_inference() else states._version  # inference tensors are never changed in place
        seen = self._seen
        if seen is not None and seen[0] is states and seen[1] == version:
            return seen[2]
        found = self._read(states.detach()[:, 0].float().cpu())
        self._seen = (states, version, found)
        return found

    def clear(self) -> None:
        """Forgets all memories that nobody else holds."""
        self._last, self._seen = [], None

    def _read(self, rows: Tensor) -> list[Memory] | None:
        marked = (rows[:, : len(_MARK)] == torch.tensor(_MARK)).all() and (rows[:, _HEAD:] == 0).all()
        if not marked:
            return None
        keys = [sum(int(d) * _BASE**place for place, d in enumerate(row[len(_MARK) : _HEAD])) for row in rows]
        try:
            return [self._memories[key] for key in keys]
        except KeyError:
            raise UnlimiformerError(
                "the memory behind these encoder outputs is gone: another long input was read since. "
                "Encode with index() and hold the Memory for as long as it is needed"
            ) from None


def refuse_wrapped(module: Any, name: str) -> None:
    """Raises if a method was replaced by `replace_method` before."""
    if getattr(module.__dict__.get(name), "_unlimiformer", False):
        raise UnlimiformerError("the model is wrapped already; call remove() on the other wrapper first")


def replace_method(module: Any, name: str, make: Callable[[Callable], Callable]) -> Callable[[], None]:
    """Puts what `make` makes of a method in its place; returns what puts the method back."""
    own = module.__dict__.get(name)  # accelerate and others may have put one there

    def undo() -> None:
        if own is None:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = own

    replaced = make(getattr(module, name))
    replaced._unlimiformer = True  # type: ignore[attr-defined]
    setattr(module, name, replaced)
    return undo


class Installation:
    """The hooks in one model; `undo` puts every forward back."""

    def __init__(
        self, model: nn.Module, adapter: Adapter, read_rows: ReadRows, window: int, always_read: Callable[[], bool]
    ) -> None:
        self.switchboard = Switchboard()
        self.adapter, self.encoder, self.decoder = adapter, adapter.encoder(model), adapter.decoder(model)
        self.attentions = adapter.attentions(model)
        self.projection = adapter.states_projection(model)
        self._read_rows, self._window, self._always_read = read_rows, window, always_read
        self._original_encoder = self.encoder.forward
        self.listener: Listener | None = None
        self.policies: list[Policy] = []
        self._undo: list[Callable[[], None]] = []

    def apply(self, policies: list[Policy]) -> None:
        """Replaces the forwards; on any error the model is left as it was. `policies` may be changed between calls."""
        self.policies = policies
        for module in (self.encoder, self.decoder, *(view.module for view in self.attentions)):
            refuse_wrapped(module, "forward")
        try:
            self._patch(self.encoder, self._encoder_forward)
            if self.projection is not None:
                self._patch(self.projection, self._projection_forward)
            for layer, view in enumerate(self.attentions):
                self._patch(view.module, partial(self._attention_forward, layer, view))
            handle = self.decoder.register_forward_pre_hook(self._shorten_mask, with_kwargs=True)
            self._undo.append(handle.remove)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Every forward is the original object again."""
        while self._undo:
            self._undo.pop()()
        self.switchboard.clear()

    @contextmanager
    def seeing(self, policies: list[Policy]) -> Iterator[None]:
        """Layers see what these policies say, for a while."""
        before, self.policies = self.policies, policies
        try:
            yield
        finally:
            self.policies = before

    @property
    def applied(self) -> bool:
        """Whether the hooks are in the model."""
        return bool(self._undo)

    def output(self, memories: list[Memory]) -> PlaceholderOutput:
        """What the encoder would return for inputs that are these memories."""
        for view in self.attentions:
            view.forget()  # weights may have changed since the last input
        dtype, device = plain_dtype(self.encoder), plain_device(self.encoder)
        rows = self.switchboard.placeholder(memories, memories[0].store.width, dtype, device)
        return PlaceholderOutput(last_hidden_state=rows)  # type: ignore[arg-type]

    def encode(self, ids: Tensor, aligned: dict[str, Tensor], **others: Any) -> Tensor:
        """States (b, W, D) of windows (b, W), as the decoder would see them."""
        states = self._original_encoder(input_ids=ids, attention_mask=torch.ones_like(ids), **aligned, **others)[0]
        return states if self.projection is None else self.projection(states)

    def _patch(self, module: nn.Module, make: Callable[[Callable], Callable]) -> None:
        self._undo.append(replace_method(module, "forward", make))

    def _encoder_forward(self, original: Callable) -> Callable:
        signature = inspect.signature(original)

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = _named(signature, args, kwargs)
            ids = given.pop("input_ids", None)
            embeddings = given.get("inputs_embeds")
            if ids is None and embeddings is not None and embeddings.shape[1] > self._window:
                raise UnlimiformerError(
                    f"inputs_embeds has {embeddings.shape[1]} positions, more than the window of {self._window}; "
                    "expected token ids for a long input: give input_ids"
                )
            if ids is None or (ids.shape[1] <= self._window and not self._always_read()):
                return original(*args, **kwargs)
            if given.get("output_router_logits"):
                raise UnlimiformerError(
                    "output_router_logits was asked for with an input longer than the window, whose windows are routed "
                    "one by one: leave it out"
                )
            mask = given.pop("attention_mask", None)
            as_dict = given.get("return_dict") is not False
            aligned, others = _split_arguments(given, ids)
            memories = self._read_rows(ids, mask, aligned, lambda window, cut: self.encode(window, cut, **others))
            output = self.output(memories)
            return output if as_dict else output.to_tuple()

        return forward

    def _projection_forward(self, original: Callable) -> Callable:
        def forward(states: Tensor) -> Tensor:
            return states if self.switchboard.memories(states) is not None else original(states)

        return forward

    def _attention_forward(self, layer: int, view: CrossAttention, original: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Any:
            call = Call(args, kwargs)
            states = call.get(view.states_argument)
            if states is None:  # else a placeholder could slip through to the original, and be attended to
                raise UnsupportedModelError(
                    f"{type(view.module).__name__} was called without {view.states_argument[1]!r}; this version of "
                    "transformers names it otherwise: please report the model and both versions"
                )
            batch_first = states if view.batch_first else states.transpose(0, 1)
            memories = self.switchboard.memories(batch_first)
            if memories is None:
                return original(*args, **kwargs)
            queries = view.queries(call)  # (B, T, H, d)
            if self.listener is not None:
                self.listener.begins(layer, queries.shape[1])
            context, log_sum = self._attend_rows(layer, view, queries, memories)
            return view.finish(context, log_sum, call)

        return forward

    def _attend_rows(
        self, layer: int, view: CrossAttention, queries: Tensor, memories: list[Memory]
    ) -> tuple[Tensor, Tensor]:
        """Rows of one memory (its beams) search together: queries (B, T, H, d)."""
        batch, length = queries.shape[:2]
        groups: dict[int, list[int]] = {}
        for row, memory in enumerate(memories):
            groups.setdefault(memory.key, []).append(row)
        contexts: list[Any] = [None] * batch
        log_sums: list[Any] = [None] * batch
        for rows in groups.values():
            together = queries if len(groups) == 1 else queries[rows]
            ear = None if self.listener is None else self.listener.ear(layer, rows, length)
            found = attend(view, together.flatten(0, 1), memories[rows[0]], self.policies[layer], ear)
            context, log_sum = (each.unflatten(0, (len(rows), length)) for each in found)
            if len(groups) == 1:
                return context, log_sum
            for place, row in enumerate(rows):
                contexts[row], log_sums[row] = context[place], log_sum[place]
        return torch.stack(contexts), torch.stack(log_sums)

    def _shorten_mask(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        """The mask of a long input must not become one of target x source: a placeholder has one visible state."""
        states = Call(args, kwargs).get(self.adapter.decoder_states_argument)
        if self.switchboard.memories(states) is None:
            return None
        position, name = self.adapter.mask_argument
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        if position < len(args):
            return (*args[:position], mask, *args[position + 1 :]), kwargs
        return args, {**kwargs, name: mask}


_OUTPUT_FLAGS = {"return_dict", "output_attentions", "output_hidden_states", "output_router_logits", "use_cache"}


def _named(signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [name for name, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _split_arguments(given: dict[str, Any], ids: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Arguments shaped like the ids are cut with them; positions start anew in every window; flags are dropped."""
    aligned, others = {}, {}
    for name, value in given.items():
        if name in _OUTPUT_FLAGS or name == "position_ids" or value is None:
            continue
        if isinstance(value, Tensor) and value.shape == ids.shape:
            aligned[name] = value
        else:
            others[name] = value
    return aligned, others
