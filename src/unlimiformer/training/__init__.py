"""Training: the training methods of the Unlimiformer paper and the baselines it compares with."""

from ..tasks import Example, examples
from .causal_trainer import CausalTrainer
from .dataset import LengthLimits, Seq2SeqDataset
from .recipe import Recipe, read_recipe, recipes
from .run import train
from .seq2seq_trainer import UnlimiformerTrainer
from .settings import TrainingSettings
from .strategies import STRATEGIES, Strategy

__all__ = [
    "STRATEGIES",
    "CausalTrainer",
    "Example",
    "LengthLimits",
    "Recipe",
    "Seq2SeqDataset",
    "Strategy",
    "TrainingSettings",
    "UnlimiformerTrainer",
    "examples",
    "read_recipe",
    "recipes",
    "train",
]
