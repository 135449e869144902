"""Decoder-only models with unlimited prompts for lm-evaluation-harness.

`python -m unlimiformer.integrations.lm_eval` is the command line of the harness with one more model type:
`run --model unlimiformer --model_args pretrained=NAME,top_k=256 --tasks …`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, MissingPackageError, UnlimiformerError, UnsupportedModelError
from ..hub.loading import load_on
from ..model import Unlimiformer
from ..utils.optional import require

try:
    register_model = require("lm_eval.api.registry", "harness", "lm-evaluation-harness").register_model
    HFLM: Any = require("lm_eval.models.huggingface", "harness", "lm-evaluation-harness").HFLM
except MissingPackageError as error:
    if __name__ == "__main__":
        sys.exit(f"error: {error}")
    raise

_CONFIG_FIELDS = ("top_k", "window", "overlap", "block")


@register_model("unlimiformer")
class UnlimiformerLM(HFLM):
    """The harness's Hugging Face model, with long prompts shortened by retrieval instead of truncation.

    Parameters
    ----------
    pretrained : a name of `unlimiformer models`, a folder, or a hub id
    dtype : dtype of the weights; "auto" or None for the one they are stored in
    long_from : prompts with more tokens than this are shortened; by default those that leave no room for an answer
    max_gen_toks : tokens of an answer where the task does not set them
    kwargs : `top_k`, `window`, `overlap` and `block` configure retrieval; all others go to the harness
    """

    def __init__(
        self,
        pretrained: str,
        device: str | None = None,
        dtype: str | None = None,
        long_from: int | None = None,
        max_gen_toks: int | None = None,
        **kwargs: Any,
    ) -> None:
        config = {name: kwargs.pop(name) for name in _CONFIG_FIELDS if name in kwargs}
        default_device = "cuda" if torch.cuda.is_available() else "cpu"
        load_device = default_device if device in (None, "cuda") else device
        load_dtype = None if dtype in (None, "auto") else _parse_dtype(str(dtype))
        model, tokenizer = load_on(pretrained, load_device, load_dtype)
        wrapped = Unlimiformer(model, tokenizer, **config)
        if wrapped.engine.kind != "decoder-only":
            wrapped.remove()
            raise UnsupportedModelError(
                f"{pretrained} is an encoder–decoder; the harness asks decoder-only models: expected one of these"
            )
        self._engine = wrapped.engine
        self._last_shortened: dict[tuple[int, ...], list[int]] = {}
        super().__init__(pretrained=model, tokenizer=tokenizer, **kwargs)
        if max_gen_toks is not None:
            self._max_gen_toks = max_gen_toks
        limit = self._engine.context_length
        self._long_from = limit if long_from is None else min(long_from, limit)
        if self.max_gen_toks >= limit:
            raise InputError(
                f"max_gen_toks is {self.max_gen_toks}; expected less than {limit}, the context length of {pretrained}"
            )

    @property
    def max_gen_toks(self) -> int:
        """Number of tokens of an answer where the task does not set it."""
        return getattr(self, "_max_gen_toks", 256)

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Tokenize prompts, shorten the long ones by retrieval, and pad them to one length.

        Parameters
        ----------
        left_truncate_len : largest length of a prompt that leaves room for the answer; nothing is truncated to it
        """
        del truncation
        room = left_truncate_len or self._engine.context_length
        rows = [self._shorten(self.tok_encode(text), room) for text in strings]
        padded = self.tokenizer.pad({"input_ids": rows}, padding_side=padding_side, return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def _loglikelihood_tokens(self, requests: list[tuple], *args: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        """Score continuations of prompts, of which the long ones are shortened by retrieval."""
        limit = self._engine.context_length
        shortened = [
            (texts, self._shorten(prompt, limit - len(continuation)), continuation)
            for texts, prompt, continuation in requests
        ]
        return super()._loglikelihood_tokens(shortened, *args, **kwargs)

    def _shorten(self, prompt: list[int], room: int) -> list[int]:
        """Return the token ids that the model reads of a prompt: all of them if there is room.

        The last result is cached, because the choices of one question share their prompt.
        """
        if len(prompt) <= min(self._long_from, room):
            return prompt
        key = tuple(prompt)
        if key not in self._last_shortened:
            self._last_shortened = {key: self._engine.shorten_prompt(torch.tensor(prompt)).tolist()}
        return self._last_shortened[key]


def main() -> None:
    """Run the command line of the harness."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except UnlimiformerError as error:
        sys.exit(f"error: {error}")


def _parse_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"dtype is {name!r}; expected auto, float32, bfloat16 or float16")
    return dtype


if __name__ == "__main__":
    main()
