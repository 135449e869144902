"""How good answers are: metrics, runs that can be stopped and go on, comparisons."""

from .compare import Comparison, compare
from .methods import METHODS
from .metrics import METRICS, Metric
from .result import Result
from .run import evaluate
from .settings import EvaluationSettings

__all__ = [
    "METHODS",
    "METRICS",
    "Comparison",
    "EvaluationSettings",
    "Metric",
    "Result",
    "compare",
    "evaluate",
]
