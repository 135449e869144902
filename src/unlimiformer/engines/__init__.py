"""How each kind of model is given an unlimited input: one engine a kind, with the same questions to answer."""

from .base import Engine
from .decoder_only import DecoderOnlyEngine
from .encoder_decoder import EncoderDecoderEngine

__all__ = ["DecoderOnlyEngine", "EncoderDecoderEngine", "Engine"]
