"""Models and texts that ship inside ordinary Python packages, so that a package index is enough and no model hub is
needed; loading of models; settings that are saved with a model."""

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
    "is_cached",
    "model_path",
    "text_path",
]
