"""Puts retrieval into a model and takes it out again: the only file that assigns a model's methods.

The encoder's forward reads a long input into memories and returns a placeholder of one state a row, whose numbers name
the row's memory. `generate` may repeat and reorder that placeholder as it likes: every cross-attention reads from it
which memory a row belongs to. Real states take the model's own path.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...adapters import Adapter, Call, CrossAttention
from ...adapters.base import plain_device, plain_dtype
from ...errors import UnlimiformerError, UnsupportedModelError
from ...memory.encode import Encode
from ...memory.memory import Memory
from ...provenance.trace import AttentionTrace
from ..patching import refuse_wrapped, replace_method
from .attention import RetrievalPolicy, attend
from .placeholder import PlaceholderOutput, PlaceholderRegistry

ReadRows = Callable[[Tensor, Tensor | None, dict[str, Tensor], Encode], list[Memory]]
"""Token ids (B, S), their mask, arrays shaped like them, and what encodes a window, to one memory a row."""


class HookManager:
    """The hooks in one model; `undo` puts every forward back."""

    def __init__(
        self, model: nn.Module, adapter: Adapter, read_rows: ReadRows, window: int, always_read: Callable[[], bool]
    ) -> None:
        self.placeholders = PlaceholderRegistry()
        self.adapter, self.encoder, self.decoder = adapter, adapter.encoder(model), adapter.decoder(model)
        self.attentions = adapter.attentions(model)
        self.projection = adapter.states_projection(model)
        self._read_rows, self._window, self._always_read = read_rows, window, always_read
        self._original_encoder = self.encoder.forward
        self.listener: AttentionTrace | None = None
        self.policies: list[RetrievalPolicy] = []
        self._undo: list[Callable[[], None]] = []

    def apply(self, policies: list[RetrievalPolicy]) -> None:
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
        self.placeholders.clear()

    @contextmanager
    def override_policies(self, policies: list[RetrievalPolicy]) -> Iterator[None]:
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
        rows = self.placeholders.placeholder(memories, memories[0].store.width, dtype, device)
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
            return states if self.placeholders.memories(states) is not None else original(states)

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
            memories = self.placeholders.memories(batch_first)
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
        if self.placeholders.memories(states) is None:
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
