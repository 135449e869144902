"""Converter of OPUS-MT: a CTranslate2 int8 model inside an Argos package becomes a Marian folder."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..archive import extract_files, iter_files

_NUMPY_TYPES = ("float32", "int8", "int16", "int32", "float16")


def convert(source: Path, out: Path) -> None:
    """Dequantize the weights and write them with config and tokenizer."""
    from transformers import MarianMTModel, MarianTokenizer

    archive = next(source.glob("*.argosmodel"))
    root = next(name for name, _, _ in iter_files(archive)).split("/")[0]
    folder = source / "argos"
    extract_files(archive, (root,), folder)
    weights = _CTranslate2Weights(folder / "model" / "model.bin")
    vocabulary = json.loads((folder / "model" / "shared_vocabulary.json").read_text())
    pad = len(vocabulary)  # the padding token is added behind the vocabulary
    layers = {side: weights.count_layers(side) for side in ("encoder", "decoder")}
    model = MarianMTModel(_config(weights, layers, pad, end=vocabulary.index("</s>"))).eval()
    missing, unexpected = model.load_state_dict(_state_dict(weights, model.state_dict(), layers), strict=False)
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


def _config(weights: _CTranslate2Weights, layers: dict[str, int], pad: int, end: int) -> Any:
    """Build the Marian config; `pad` and `end` are token ids."""
    from transformers import MarianConfig

    heads, inner = int(weights.arrays["decoder/num_heads"]), weights("encoder/layer_0/ffn/linear_0/bias").shape[0]
    return MarianConfig(
        vocab_size=pad + 1,
        d_model=weights("decoder/embeddings/weight").shape[1],
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


def _state_dict(weights: _CTranslate2Weights, expected: dict[str, Any], layers: dict[str, int]) -> dict[str, Any]:
    """Return the arrays of CTranslate2 under the names of Marian; `expected` is the model's own state dict."""
    import torch

    embedding = weights("decoder/embeddings/weight")
    embedding = torch.cat((embedding, embedding.new_zeros(1, embedding.shape[1])))  # the added padding token
    shared = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    state = {f"{name}.weight": embedding for name in shared if f"{name}.weight" in expected}
    state["final_logits_bias"] = torch.cat((weights("decoder/projection/bias"), torch.tensor([-1e4])))[None]
    for side, count in layers.items():
        for i in range(count):
            for name, values in _layer(weights, f"{side}/layer_{i}/", side == "decoder"):
                state[f"model.{side}.layers.{i}.{name}"] = values
    return state


def _layer(weights: _CTranslate2Weights, origin: str, decoder: bool) -> Iterator[tuple[str, Any]]:
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


def _linear(weights: _CTranslate2Weights, origin: str, *names: str) -> Iterator[tuple[str, Any]]:
    """Yield weight and bias of a linear layer, or of several that are stored in one array."""
    for kind in ("weight", "bias"):
        for name, part in zip(names, weights(f"{origin}/{kind}").chunk(len(names)), strict=True):
            yield f"{name}.{kind}", part.clone()


def _norm(weights: _CTranslate2Weights, origin: str, name: str) -> Iterator[tuple[str, Any]]:
    yield f"{name}.weight", weights(origin + "/gamma")
    yield f"{name}.bias", weights(origin + "/beta")


class _CTranslate2Weights:
    """The arrays of a CTranslate2 file: a header; name, shape, type and bytes of each array; then aliases of names."""

    def __init__(self, path: Path) -> None:
        self._data, self._offset = path.read_bytes(), 0
        self.arrays: dict[str, Any] = {}
        self._aliases: dict[str, str] = {}
        version = self._read_number("I")
        if version >= 2:
            self._read_text()
            self._read_number("I")
        for _ in range(self._read_number("I")):
            self._read_array()
        if version >= 3:
            for _ in range(self._read_number("I")):
                name = self._read_text()
                self._aliases[name] = self._read_text()

    def __call__(self, name: str) -> Any:
        """Return an array as a float32 tensor; int8 rows are divided by their scales."""
        import torch

        name = self._aliases.get(name, name)
        values, scale = self.arrays[name], self.arrays.get(name + "_scale")
        if values.dtype == "int8" and scale is not None:
            values = values.astype("float32") / scale.reshape(-1, 1)
        return torch.tensor(values.astype("float32"))

    def count_layers(self, side: str) -> int:
        """Count the layers of the encoder or decoder."""
        return len({name.split("/")[1] for name in self.arrays if name.startswith(f"{side}/layer_")})

    def _read_number(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self._data, self._offset)
        self._offset += struct.calcsize("<" + code)
        return value

    def _read_text(self) -> str:
        length = self._read_number("H")
        self._offset += length
        return self._data[self._offset - length : self._offset].rstrip(b"\0").decode()

    def _read_array(self) -> None:
        import numpy as np

        name, rank = self._read_text(), self._read_number("B")
        shape = [self._read_number("I") for _ in range(rank)]
        dtype, length = np.dtype(_NUMPY_TYPES[self._read_number("B")]), self._read_number("I")
        values = np.frombuffer(self._data, dtype, offset=self._offset, count=length // dtype.itemsize)
        self.arrays[name] = values.reshape(shape)
        self._offset += length
