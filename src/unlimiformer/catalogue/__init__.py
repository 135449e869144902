"""Real models and texts inside ordinary packages: for places that reach a package mirror and no model hub."""

from .entries import MODELS, TEXTS, ModelEntry, TextEntry
from .shelf import find_model, get_model, get_text, is_here, model_path, text_path

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
