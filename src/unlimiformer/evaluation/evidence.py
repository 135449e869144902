"""How much of the evidence for an answer a model was given."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]


def evidence_recall(evidence: Sequence[Span], seen: Sequence[Span] | None) -> float | None:
    """Percentage of the characters of the evidence that are in what was seen; None if either is unknown."""
    if not evidence or seen is None:
        return None
    wanted = {character for start, end in evidence for character in range(start, end)}
    found = {character for start, end in seen for character in range(start, end)}
    return 100 * len(wanted & found) / len(wanted)
