"""Training: every method of the paper, and its baselines."""

from ..tasks import Example, examples
from .causal_trainer import CausalTrainer
from .dataset import LengthLimits, Seq2SeqDataset
from .run import train
from .seq2seq_trainer import UnlimiformerTrainer
from .settings import TrainingSettings, read_recipe, recipes
from .strategies import STRATEGIES, Strategy

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
