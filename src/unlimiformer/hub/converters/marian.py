"""Converter of Marian checkpoints that older versions of PyTorch wrote: the weights become safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checks import check_loaded


def convert(source: Path, out: Path) -> None:
    """Read the weights with a reader that makes nothing but tensors; write them with config and tokenizer."""
    import torch
    from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

    config = MarianConfig.from_pretrained(source)
    state = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    loaded: Any = MarianMTModel.from_pretrained(None, config=config, state_dict=state, output_loading_info=True)
    model, info = loaded
    check_loaded(str(source), info)
    model.generation_config = GenerationConfig.from_pretrained(source)
    model.save_pretrained(out)
    tokenizer = MarianTokenizer.from_pretrained(source, model_max_length=config.max_position_embeddings)
    tokenizer.save_pretrained(out)
