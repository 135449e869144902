"""Converter of flan-t5-small: two int8 ONNX graphs become a T5 folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...utils.optional import require


def convert(source: Path, out: Path) -> None:
    """Dequantize the weights and write them with config and tokenizer."""
    from safetensors.torch import save_file
    from transformers import PreTrainedTokenizerFast, T5Config

    state = {
        **_read_graph(source / "encoder.onnx", lambda name: re.sub(r"^enc\.", "encoder.", name)),
        **_read_graph(source / "decoder.onnx", lambda name: re.sub(r"^m\.", "", name)),
    }
    for side in ("encoder", "decoder"):
        state[f"{side}.embed_tokens.weight"] = state["shared.weight"].clone()
    save_file(
        {name: weight.contiguous() for name, weight in state.items()}, out / "model.safetensors", {"format": "pt"}
    )
    config = T5Config(
        vocab_size=state["shared.weight"].shape[0],
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_decoder_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        eos_token_id=1,
    ).to_dict()
    config.update(decoder_start_token_id=0, architectures=["T5ForConditionalGeneration"], n_positions=512)
    config["tie_word_embeddings"] = False  # unlike T5Config's default: this model's output layer has its own weights
    config.pop("scale_decoder_outputs", None)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"),
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=512,
    ).save_pretrained(out)
    _check_complete(out)


def _read_graph(path: Path, rename: Callable[[str], str]) -> dict[str, Any]:
    """Return dequantized weights by name. The weight of a linear layer is named by the node that uses it."""
    import numpy as np
    import torch

    onnx = require("onnx", "models", "converting flan-t5-small")

    graph = onnx.load(str(path)).graph
    arrays = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}

    def dequantize(base: str) -> Any:
        centred = arrays[base + "_quantized"].astype(np.float32) - arrays[base + "_zero_point"].astype(np.float32)
        return torch.tensor(centred * arrays[base + "_scale"])

    state = {}
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            layer = node.name.replace("/MatMul_quant", "").lstrip("/").replace("/", ".")
            state[rename(layer) + ".weight"] = dequantize(node.input[1].removesuffix("_quantized")).T
    for name, array in arrays.items():
        if name.endswith("layer_norm.weight"):
            state[rename(name)] = torch.tensor(array)
        elif name.endswith("weight_quantized"):
            base = name.removesuffix("_quantized")
            state[rename(base)] = dequantize(base)
    return state


def _check_complete(out: Path) -> None:
    """Load the converted model, and raise if a weight is missing or left over."""
    from transformers import T5ForConditionalGeneration

    loaded: Any = T5ForConditionalGeneration.from_pretrained(out, output_loading_info=True)
    mismatches = {name: keys for name, keys in loaded[1].items() if keys}
    if mismatches:
        raise RuntimeError(f"the conversion of flan-t5-small is incomplete: {mismatches}")
