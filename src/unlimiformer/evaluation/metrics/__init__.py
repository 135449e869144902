"""Metrics of answers, one class each. Every answer gets its own score, so that scores can be resampled and compared."""

from .base import Metric
from .bertscore import BertScore
from .entities import EntityRecall
from .overlap import F1, ExactMatch
from .rouge import Rouge

METRICS: dict[str, type[Metric]] = {metric.name: metric for metric in (Rouge, F1, ExactMatch, EntityRecall, BertScore)}

__all__ = ["F1", "METRICS", "BertScore", "EntityRecall", "ExactMatch", "Metric", "Rouge"]
