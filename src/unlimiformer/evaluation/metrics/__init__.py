"""One class a metric; each scores every answer by itself, so that scores can be drawn again and compared."""

from .base import Metric
from .bertscore import BertScore
from .entities import EntityRecall
from .overlap import F1, ExactMatch
from .rouge import Rouge

METRICS: dict[str, type[Metric]] = {each.name: each for each in (Rouge, F1, ExactMatch, EntityRecall, BertScore)}

__all__ = ["F1", "METRICS", "BertScore", "EntityRecall", "ExactMatch", "Metric", "Rouge"]
