"""Where the model looked: a trace of its attention while it generates, and the passages of the source behind it."""

from .provenance import Passage, Provenance, Span
from .trace import Attention, AttentionTrace

__all__ = ["Attention", "AttentionTrace", "Passage", "Provenance", "Span"]
