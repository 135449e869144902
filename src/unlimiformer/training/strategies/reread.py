"""Training to answer from passages that are read again: question and passages in one window."""

from __future__ import annotations

from typing import Any, ClassVar

from .standard import Standard


class Reread(Standard):
    """Standard fine-tuning on windows of a question and passages, for a model that is used with selection "reread".

    The data should be passages (`passages:FILE`). At test time the question stands in the decoder while it searches
    them; `EvidenceLoss` trains that.
    """

    name = "reread"
    question_place: ClassVar[str | None] = "window"

    def settings(self) -> dict[str, Any]:
        """Return wrapper settings that read passages again."""
        return {"selection": "reread"}
