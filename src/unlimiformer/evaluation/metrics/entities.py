"""Entity Mention Recall: the share of a reference's named entities, tagged by spaCy, that the answer mentions.

The paper tags with `en_core_web_lg`: give its name where it is installed. By default the registry's small English
pipeline is used, which finds fewer entities; compare scores of the same pipeline only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import InputError
from ...hub import MODELS, get_model
from ...utils.optional import require
from .base import Metric

DEFAULT = "en-core-web-sm"


class EntityRecall(Metric):
    """Share of the reference's unique entities that are among those of the answer; NaN if the reference has none."""

    name, parts = "entities", ("entities",)

    def __init__(self, pipeline: str | None = None) -> None:
        spacy = require("spacy", "evaluate", "entity recall")
        name = pipeline or DEFAULT
        try:
            self._pipeline: Any = spacy.load(get_model(name) if name in MODELS else name)
        except OSError as error:
            raise InputError(
                f"spaCy cannot load {name!r} ({error}); expected an installed pipeline, a folder, or {DEFAULT}"
            ) from None

    def find_entities(self, text: str) -> set[str]:
        """Return the named entities of a text in lower case."""
        return {" ".join(entity.text.casefold().split()) for entity in self._pipeline(text).ents}

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """Return the recall in percent for every answer and its best reference."""
        recalls = []
        for answer, texts in zip(answers, references, strict=True):
            in_answer = self.find_entities(answer)
            in_references = [entities for entities in map(self.find_entities, texts) if entities]
            shares = [100 * len(entities & in_answer) / len(entities) for entities in in_references]
            recalls.append(max(shares, default=math.nan))
        return {"entities": recalls}
