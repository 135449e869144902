"""OPUS-MT from a CTranslate2 int8 model inside an Argos package to an ordinary Marian folder."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..download import files_in, take

_NUMPY_TYPES = ("float32", "int8", "int16", "int32", "float16")


def convert(source: Path, out: Path) -> None:
    """Dequantises the weights and writes them with config and tokenizer."""
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    archive = next(source.glob("*.argosmodel"))
    root = next(name for name, _, _ in files_in(archive)).split("/")[0]
    take(archive, (root,), source / "argos")
    folder = source / "argos"
    weights = _Weights(folder / "model" / "model.bin")
    vocabulary = json.loads((folder / "model" / "shared_vocabulary.json").read_text())
    embedding = weights("decoder/embeddings/weight")
    pad, end = len(vocabulary), vocabulary.index("</s>")
    layers = {side: weights.layers(side) for side in ("encoder", "decoder")}
    heads, inner = int(weights.arrays["decoder/num_heads"]), weights("encoder/layer_0/ffn/linear_0/bias").shape[0]
    config = MarianConfig(
        vocab_size=pad + 1,
        d_model=embedding.shape[1],
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        max_position_embeddings=512,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=end,
        decoder_start_token_id=pad,
        forced_eos_token_id=end,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
    )
    model = MarianMTModel(config).eval()
    missing, unexpected = model.load_state_dict(_state(weights, model.state_dict(), layers), strict=False)
    missing = [name for name in missing if "embed_positions" not in name]  # computed, not learned
    if missing or unexpected:
        raise RuntimeError(f"the conversion of opus-mt-zh-en is incomplete: {missing} {unexpected}")
    model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.max_length = 512
    model.generation_config.num_beams = 1
    model.save_pretrained(out)
    (out / "vocab.json").write_text(json.dumps({**{t: i for i, t in enumerate(vocabulary)}, "<pad>": pad}))
    for name in ("source.spm", "target.spm"):
        shutil.copy(folder / "sentencepiece.model", out / name)
    MarianTokenizer(
        str(out / "source.spm"), str(out / "target.spm"), str(out / "vocab.json"), model_max_length=512
    ).save_pretrained(out)


def _state(weights: _Weights, expected: dict[str, Any], layers: dict[str, int]) -> dict[str, Any]:
    """Marian's names for CTranslate2's arrays."""
    import torch

    embedding = weights("decoder/embeddings/weight")
    embedding = torch.cat((embedding, embedding.new_zeros(1, embedding.shape[1])))  # the padding token is ours
    shared = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    state = {f"{name}.weight": embedding for name in shared if f"{name}.weight" in expected}
    state["final_logits_bias"] = torch.cat((weights("decoder/projection/bias"), torch.tensor([-1e4])))[None]
    for side, count in layers.items():
        for i in range(count):
            to, origin = f"model.{side}.layers.{i}.", f"{side}/layer_{i}/"
            for name, values in _layer(weights, origin, side == "decoder"):
                state[to + name] = values
    return state


def _layer(weights: _Weights, origin: str, decoder: bool) -> Iterator[tuple[str, Any]]:
    yield from _linear(weights, origin + "self_attention/linear_0", *(f"self_attn.{p}_proj" for p in "qkv"))
    yield from _linear(weights, origin + "self_attention/linear_1", "self_attn.out_proj")
    yield from _norm(weights, origin + "self_attention/layer_norm", "self_attn_layer_norm")
    if decoder:
        yield from _linear(weights, origin + "attention/linear_0", "encoder_attn.q_proj")
        yield from _linear(weights, origin + "attention/linear_1", "encoder_attn.k_proj", "encoder_attn.v_proj")
        yield from _linear(weights, origin + "attention/linear_2", "encoder_attn.out_proj")
        yield from _norm(weights, origin + "attention/layer_norm", "encoder_attn_layer_norm")
    yield from _linear(weights, origin + "ffn/linear_0", "fc1")
    yield from _linear(weights, origin + "ffn/linear_1", "fc2")
    yield from _norm(weights, origin + "ffn/layer_norm", "final_layer_norm")


def _linear(weights: _Weights, origin: str, *names: str) -> Iterator[tuple[str, Any]]:
    """A layer, or several that stand in one array."""
    for kind in ("weight", "bias"):
        for name, part in zip(names, weights(f"{origin}/{kind}").chunk(len(names)), strict=True):
            yield f"{name}.{kind}", part.clone()


def _norm(weights: _Weights, origin: str, name: str) -> Iterator[tuple[str, Any]]:
    yield f"{name}.weight", weights(origin + "/gamma")
    yield f"{name}.bias", weights(origin + "/beta")


class _Weights:
    """The arrays of a CTranslate2 file: a header, then for each its name, shape, type and bytes; then other names."""

    def __init__(self, path: Path) -> None:
        self.data, self.at = path.read_bytes(), 0
        self.arrays: dict[str, Any] = {}
        self.others: dict[str, str] = {}
        version = self._number("I")
        if version >= 2:
            self._text()
            self._number("I")
        for _ in range(self._number("I")):
            self._array()
        if version >= 3:
            for _ in range(self._number("I")):
                name = self._text()
                self.others[name] = self._text()

    def __call__(self, name: str) -> Any:
        """An array as float32; int8 rows are divided by their scales."""
        import torch

        name = self.others.get(name, name)
        values, scale = self.arrays[name], self.arrays.get(name + "_scale")
        if values.dtype == "int8" and scale is not None:
            values = values.astype("float32") / scale.reshape(-1, 1)
        return torch.tensor(values.astype("float32"))

    def layers(self, side: str) -> int:
        """How many layers encoder or decoder has."""
        return len({name.split("/")[1] for name in self.arrays if name.startswith(f"{side}/layer_")})

    def _number(self, kind: str) -> int:
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def _text(self) -> str:
        length = self._number("H")
        self.at += length
        return self.data[self.at - length : self.at].rstrip(b"\0").decode()

    def _array(self) -> None:
        import numpy as np

        name, rank = self._text(), self._number("B")
        shape = [self._number("I") for _ in range(rank)]
        kind, length = np.dtype(_NUMPY_TYPES[self._number("B")]), self._number("I")
        values = np.frombuffer(self.data, kind, offset=self.at, count=length // kind.itemsize)
        self.arrays[name] = values.reshape(shape)
        self.at += length
