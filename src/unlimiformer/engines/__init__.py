"""Engines give a model an unlimited input: one class for encoder–decoders, one for decoder-only models."""

from .base import Engine, Generated
from .causal.engine import CausalEngine
from .seq2seq.engine import Seq2SeqEngine

__all__ = ["CausalEngine", "Engine", "Generated", "Seq2SeqEngine"]
