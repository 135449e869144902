"""SmolLM2 from a quantised GGUF file to an ordinary folder of float weights."""

from __future__ import annotations

from pathlib import Path


def convert(source: Path, out: Path) -> None:
    """Dequantises once: loading a GGUF file takes half a minute, loading the folder a second."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = next(source.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.bfloat16)
    # the weights are plain by now; what remembers the quantisation would refuse to save them
    for name, value in (("hf_quantizer", None), ("is_quantized", False), ("quantization_method", None)):
        setattr(model, name, value)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(out)
