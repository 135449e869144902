"""Converter of quantized GGUF files: the file becomes a folder of bfloat16 weights with a tokenizer."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path


def convert(source: Path, out: Path) -> None:
    """Dequantize the weights once: a GGUF file loads in half a minute, the folder in a second.

    What transformers prints about each tensor is dropped; errors are raised as ever.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = next(source.glob("*.gguf")).name
    with redirect_stderr(StringIO()):
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.bfloat16)
    # the weights are dequantized already, but with these attributes save_pretrained would refuse to save them
    for name, value in (("hf_quantizer", None), ("is_quantized", False), ("quantization_method", None)):
        setattr(model, name, value)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    with redirect_stderr(StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    tokenizer.save_pretrained(out)
