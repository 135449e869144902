"""Training: every method of the paper, and its baselines."""

from ..tasks import Example, examples
from .causal import CausalTrainer
from .features import Features, Limits
from .run import train
from .settings import TrainingSettings, read_recipe, recipes
from .strategies import STRATEGIES, Strategy
from .trainer import UnlimiformerTrainer

__all__ = [
    "STRATEGIES",
    "CausalTrainer",
    "Example",
    "Features",
    "Limits",
    "Strategy",
    "TrainingSettings",
    "UnlimiformerTrainer",
    "examples",
    "read_recipe",
    "recipes",
    "train",
]
