"""Our decoder-only models in lm-evaluation-harness, whose long tasks then see all of their prompts.

`python -m unlimiformer.integrations.lm_eval` is the harness's own command line, in which `--model unlimiformer` is known:
`run --model unlimiformer --model_args pretrained=NAME,top_k=256 --tasks …`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from ..engines import CausalEngine
from ..errors import UnlimiformerError
from ..hub.loading import load_on
from ..model import Unlimiformer

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError:
    raise UnlimiformerError("the harness needs the package `lm_eval`; install unlimiformer[harness]") from None

_SETTINGS = ("top_k", "window", "overlap", "block")


@register_model("unlimiformer")
class UnlimiformerLM(HFLM):
    """The harness's own model class; a prompt that is too long is read in windows, and shortened to what it asks for.

    `pretrained` is a catalogue name, a folder or a hub id; `dtype` is that of its weights. `long_from`: prompts of more
    tokens are long; by default those that leave the plain model no room for an answer.
    """

    def __init__(
        self,
        pretrained: str,
        device: str | None = None,
        dtype: str | None = None,
        long_from: int | None = None,
        max_gen_toks: int | None = None,
        **others: Any,
    ) -> None:
        settings = {name: others.pop(name) for name in _SETTINGS if name in others}
        best = "cuda" if torch.cuda.is_available() else "cpu"
        wanted = best if device in (None, "cuda") else device
        model, tokenizer = load_on(pretrained, wanted, None if dtype in (None, "auto") else _dtype(str(dtype)))
        wrapped = Unlimiformer(model, tokenizer, **settings)
        if not isinstance(wrapped.engine, CausalEngine):
            wrapped.remove()
            raise UnlimiformerError(
                f"{pretrained} is an encoder–decoder; the harness asks decoder-only models: expected one of these"
            )
        self._engine = wrapped.engine
        self._shown: dict[tuple[int, ...], list[int]] = {}
        super().__init__(pretrained=model, tokenizer=tokenizer, **others)
        if max_gen_toks is not None:
            self._max_gen_toks = max_gen_toks
        limit = self._engine.decoder.limit
        self._long_from = limit if long_from is None else min(long_from, limit)
        if self.max_gen_toks >= limit:
            raise UnlimiformerError(
                f"max_gen_toks is {self.max_gen_toks}; {pretrained} reads {limit} tokens: give less"
            )

    @property
    def max_gen_toks(self) -> int:
        """Tokens of an answer, unless its task says how many."""
        return getattr(self, "_max_gen_toks", 256)

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Prompts as they are read, side by side; `left_truncate_len` is what the answer leaves room for."""
        del truncation  # nothing is cut off
        room = left_truncate_len or self._engine.decoder.limit
        rows = [self._read(self.tok_encode(text), room) for text in strings]
        padded = self.tokenizer.pad({"input_ids": rows}, padding_side=padding_side, return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def _loglikelihood_tokens(self, requests: list[tuple], *args: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        """Continuations behind prompts as they are read."""
        limit = self._engine.decoder.limit
        short = [
            (texts, self._read(prompt, limit - len(continuation)), continuation)
            for texts, prompt, continuation in requests
        ]
        return super()._loglikelihood_tokens(short, *args, **kwargs)

    def _read(self, prompt: list[int], room: int) -> list[int]:
        """What the model sees of a prompt; all of it if there is room. The last one is kept: choices share theirs."""
        if len(prompt) <= min(self._long_from, room):
            return prompt
        key = tuple(prompt)
        if key not in self._shown:
            self._shown = {key: self._engine.shortened(torch.tensor(prompt)).tolist()}
        return self._shown[key]


def main() -> None:
    """The harness's command line."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except UnlimiformerError as error:
        sys.exit(f"error: {error}")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise UnlimiformerError(f"dtype is {name!r}; expected auto, float32, bfloat16 or float16")
    return found


if __name__ == "__main__":
    main()
