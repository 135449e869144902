"""BERTScore, computed by the `bert-score` package with a model that the user chooses.

The paper scores GovReport and SummScreen with `facebook/bart-large-mnli`, whose context of 1,024 tokens is longer than
the 512 of BERT, and found no model that can tell answers of BookSum apart. Text beyond the model's context is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import InputError
from ...hub import find_model
from ...utils.optional import require
from .base import Metric

PAPER = "facebook/bart-large-mnli"


class BertScore(Metric):
    """F of the greedy matching of words by their states in `layer` of `model`, without rescaling by a baseline.

    Parameters
    ----------
    model : an encoder, by registry name, folder or hub id; None for the paper's model.
    layer : None for the layer that the package recommends for this model, or else the last one.
    """

    name, parts = "bertscore", ("bertscore",)

    def __init__(self, model: str | None = None, layer: int | None = None) -> None:
        bert_score = require("bert_score", "evaluate", "BERTScore")
        from transformers import AutoConfig

        name = str(find_model(model or PAPER) or model or PAPER)
        try:
            config = AutoConfig.from_pretrained(name)
            if layer is None and name not in bert_score.utils.model2layers:
                layer = config.num_hidden_layers
            self._scorer: Any = bert_score.BERTScorer(model_type=name, num_layers=layer)
        except (OSError, ValueError, AssertionError, KeyError) as error:
            raise InputError(
                f"BERTScore cannot use {name!r} ({' '.join(str(error).split())[:200]}); expected an encoder: a folder, "
                "or a hub id where a hub can be reached"
            ) from None
        tokenizer = self._scorer._tokenizer
        context_length = getattr(config, "max_position_embeddings", None) or 512
        tokenizer.model_max_length = min(tokenizer.model_max_length, context_length)

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """Return F in percent for every answer and its best reference."""
        _, _, f = self._scorer.score(list(answers), [list(texts) for texts in references])
        return {"bertscore": [100 * float(score) for score in f]}
