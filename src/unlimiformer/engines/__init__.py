"""How each kind of model is given an unlimited input: one engine a kind, with the same questions to answer."""

from .base import Engine
from .causal.engine import CausalEngine
from .seq2seq.engine import Seq2SeqEngine

__all__ = ["DecoderOnlyEngine", "EncoderDecoderEngine", "Engine"]
