"""Install retrieval in a model and remove it again.

The encoder's forward indexes a long input and returns a placeholder (see `placeholder.py`); every cross-attention looks
up the memory of its rows there and attends to it. Inputs with real encoder states take the model's own path.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...adapters import Adapter, Call, CrossAttention
from ...adapters.base import input_device, module_dtype
from ...errors import InputError, UnsupportedModelError
from ...memory import Memory
from ...memory.indexer import Indexer
from ..patching import refuse_wrapped, replace_method
from .attention import attend
from .context import AttentionContext
from .placeholder import PlaceholderOutput, PlaceholderRegistry

_OUTPUT_FLAGS = {"return_dict", "output_attentions", "output_hidden_states", "output_router_logits", "use_cache"}


class HookManager:
    """The hooks in one encoder–decoder. `context` says what they do; it is changed by `override` only."""

    def __init__(self, model: nn.Module, adapter: Adapter, window: int) -> None:
        self.adapter, self.encoder, self.decoder = adapter, adapter.encoder(model), adapter.decoder(model)
        self.attentions = adapter.attentions(model)
        self.projection = adapter.states_projection(model)
        self.placeholders = PlaceholderRegistry()
        self.context = AttentionContext([])
        self._window = window
        self._encoder_forward = self.encoder.forward
        self._indexer: Indexer | None = None
        self._restore: list[Callable[[], None]] = []

    def install(self, context: AttentionContext, indexer: Indexer, index_short_inputs: bool = False) -> None:
        """Replace the forwards; after an error the model is unchanged.

        Parameters
        ----------
        indexer : makes memories of long inputs.
        index_short_inputs : also index inputs that fit the window, instead of passing them to the model.
        """
        self.context, self._indexer, self._index_short_inputs = context, indexer, index_short_inputs
        for module in (self.encoder, self.decoder, *(view.module for view in self.attentions)):
            refuse_wrapped(module, "forward")
        try:
            self._patch(self.encoder, self._wrap_encoder)
            if self.projection is not None:
                self._patch(self.projection, self._wrap_projection)
            for layer, view in enumerate(self.attentions):
                self._patch(view.module, partial(self._wrap_attention, layer, view))
            handle = self.decoder.register_forward_pre_hook(self._shorten_mask, with_kwargs=True)
            self._restore.append(handle.remove)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore every forward to the original object."""
        while self._restore:
            self._restore.pop()()
        self.placeholders.clear()

    @property
    def installed(self) -> bool:
        """Whether the hooks are in the model."""
        return bool(self._restore)

    @contextmanager
    def override(self, **changes: Any) -> Iterator[None]:
        """Change fields of the context inside a `with` block."""
        before, self.context = self.context, replace(self.context, **changes)
        try:
            yield
        finally:
            self.context = before

    def encoder_output(self, memories: list[Memory]) -> PlaceholderOutput:
        """What the encoder returns for inputs with these memories."""
        for view in self.attentions:
            view.clear_cached_weights()  # weights may have changed since the last input
        dtype, device = module_dtype(self.encoder), input_device(self.encoder)
        rows = self.placeholders.create(memories, memories[0].store.width, dtype, device)
        return PlaceholderOutput(last_hidden_state=rows)  # type: ignore[arg-type]

    def encode(self, ids: Tensor, aligned: dict[str, Tensor], **kwargs: Any) -> Tensor:
        """States (b, W, D) of windows (b, W), as the decoder would receive them."""
        states = self._encoder_forward(input_ids=ids, attention_mask=torch.ones_like(ids), **aligned, **kwargs)[0]
        return states if self.projection is None else self.projection(states)

    def _patch(self, module: nn.Module, wrap: Callable[[Callable], Callable]) -> None:
        self._restore.append(replace_method(module, "forward", wrap))

    def _wrap_encoder(self, original: Callable) -> Callable:
        signature = inspect.signature(original)

        def forward(*args: Any, **kwargs: Any) -> Any:
            arguments = _name_arguments(signature, args, kwargs)
            ids = arguments.pop("input_ids", None)
            self._refuse_long_embeddings(ids, arguments.get("inputs_embeds"))
            if ids is None or (ids.shape[1] <= self._window and not self._indexes_short_inputs()):
                return original(*args, **kwargs)
            if arguments.get("output_router_logits"):
                raise InputError(
                    "output_router_logits was requested with an input longer than the window, whose windows are "
                    "routed one by one: leave it out"
                )
            mask = arguments.pop("attention_mask", None)
            as_dict = arguments.get("return_dict") is not False
            output = self.encoder_output(self._index_rows(ids, mask, arguments))
            return output if as_dict else output.to_tuple()

        return forward

    def _indexes_short_inputs(self) -> bool:
        context = self.context
        return self._index_short_inputs or context.prefixes is not None or context.distractors is not None

    def _refuse_long_embeddings(self, ids: Tensor | None, embeddings: Tensor | None) -> None:
        if ids is None and embeddings is not None and embeddings.shape[1] > self._window:
            raise InputError(
                f"inputs_embeds has {embeddings.shape[1]} positions, more than the window of {self._window}; "
                "expected token ids for a long input: give input_ids"
            )

    def _index_rows(self, ids: Tensor, mask: Tensor | None, arguments: dict[str, Any]) -> list[Memory]:
        assert self._indexer is not None, "set by install"
        aligned, others = _split_arguments(arguments, ids)
        return self._indexer.index_rows(
            ids,
            mask,
            aligned,
            lambda window, cut: self.encode(window, cut, **others),
            prefixes=self.context.prefixes,
            distractors=self.context.distractors,
        )

    def _wrap_projection(self, original: Callable) -> Callable:
        def forward(states: Tensor) -> Tensor:
            return states if self.placeholders.find(states) is not None else original(states)

        return forward

    def _wrap_attention(self, layer: int, view: CrossAttention, original: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Any:
            call = Call(args, kwargs)
            states = call.get(view.states_argument)
            if states is None:  # otherwise the original could attend to a placeholder
                raise UnsupportedModelError(
                    f"{type(view.module).__name__} was called without {view.states_argument[1]!r}; this version of "
                    "transformers names it differently: please report the model and both versions"
                )
            batch_first = states if view.batch_first else states.transpose(0, 1)
            memories = self.placeholders.find(batch_first)
            if memories is None:
                return original(*args, **kwargs)
            queries = view.queries(call)  # (B, T, H, d)
            if self.context.trace is not None:
                self.context.trace.begin_call(layer, queries.shape[1])
            if self.context.observe is not None:
                self.context.observe(layer, view, queries, memories)
            context, log_sum = self._attend(layer, view, queries, memories)
            return view.project_output(context, log_sum, call)

        return forward

    def _attend(
        self, layer: int, view: CrossAttention, queries: Tensor, memories: list[Memory]
    ) -> tuple[Tensor, Tensor]:
        """Contexts and log-sum-exps of queries (B, T, H, d); rows with one memory (its beams) search together."""
        batch, length = queries.shape[:2]
        rows_by_memory: dict[int, list[int]] = {}
        for row, memory in enumerate(memories):
            rows_by_memory.setdefault(memory.key, []).append(row)
        contexts: list[Any] = [None] * batch
        log_sums: list[Any] = [None] * batch
        policy, trace = self.context.policies[layer], self.context.trace
        for rows in rows_by_memory.values():
            group = queries if len(rows_by_memory) == 1 else queries[rows]
            record = None if trace is None else partial(trace.record, layer, rows, length)
            outputs = attend(view, group.flatten(0, 1), memories[rows[0]], policy, record)
            context, log_sum = (output.unflatten(0, (len(rows), length)) for output in outputs)
            if len(rows_by_memory) == 1:
                return context, log_sum
            for position, row in enumerate(rows):
                contexts[row], log_sums[row] = context[position], log_sum[position]
        return torch.stack(contexts), torch.stack(log_sums)

    def _shorten_mask(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        """Give the decoder a mask of one visible state, so that no (target x source) mask is made of the input's."""
        states = Call(args, kwargs).get(self.adapter.decoder_states_argument)
        if self.placeholders.find(states) is None:
            return None
        position, name = self.adapter.mask_argument
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        if position < len(args):
            return (*args[:position], mask, *args[position + 1 :]), kwargs
        return args, {**kwargs, name: mask}


def _name_arguments(signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [name for name, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _split_arguments(arguments: dict[str, Any], ids: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split into arguments shaped like the ids, which are cut with them, and others.

    Positions are dropped, because they begin anew in every window, and so are output flags.
    """
    aligned, others = {}, {}
    for name, value in arguments.items():
        if name in _OUTPUT_FLAGS or name == "position_ids" or value is None:
            continue
        if isinstance(value, Tensor) and value.shape == ids.shape:
            aligned[name] = value
        else:
            others[name] = value
    return aligned, others
