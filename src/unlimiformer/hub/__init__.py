"""Real models and texts inside ordinary packages: for places that reach a package mirror and no model hub."""

from .cache import find_model, get_model, get_text, is_cached, model_path, text_path
from .registry import MODELS, TEXTS, ModelEntry, TextEntry

__all__ = [
    "MODELS",
    "TEXTS",
    "ModelEntry",
    "TextEntry",
    "find_model",
    "get_model",
    "get_text",
    "is_here",
    "model_path",
    "text_path",
]
