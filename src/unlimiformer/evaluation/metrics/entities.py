"""Entity Mention Recall: the share of a reference's named entities that the answer mentions, found by spaCy.

The paper tags with `en_core_web_lg`. Give its name where it is installed; without a name the catalogue's small English
pipeline is used, which finds fewer entities: compare figures of one pipeline only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import UnlimiformerError
from ...hub import MODELS, get_model
from .base import Metric

DEFAULT = "en-core-web-sm"


class EntityRecall(Metric):
    """Unique entities of the reference that are among those of the answer. Without any in the reference: no score."""

    name, parts = "entities", ("entities",)

    def __init__(self, pipeline: str | None = None) -> None:
        try:
            import spacy
        except ImportError:
            raise UnlimiformerError("entity recall needs the package `spacy`; install unlimiformer[evaluate]") from None
        name = pipeline or DEFAULT
        try:
            self._tag: Any = spacy.load(get_model(name) if name in MODELS else name)
        except OSError as error:
            raise UnlimiformerError(
                f"spaCy cannot load {name!r} ({error}); expected an installed pipeline, a folder, or {DEFAULT}"
            ) from None

    def mentioned(self, text: str) -> set[str]:
        """The entities of a text, in small letters."""
        return {" ".join(entity.text.casefold().split()) for entity in self._tag(text).ents}

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """The best over the references."""
        found = []
        for answer, right in zip(answers, references, strict=True):
            said = self.mentioned(answer)
            wanted = [entities for entities in map(self.mentioned, right) if entities]
            shares = [100 * len(entities & said) / len(entities) for entities in wanted]
            found.append(max(shares, default=math.nan))
        return {"entities": found}
