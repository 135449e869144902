"""What is stored of one long input: encoding it, keeping it in RAM or on disk, checking that it fits a model."""

from .memory import EncodingSpec, Memory, RowSpec

__all__ = ["EncodingSpec", "Memory", "RowSpec"]
