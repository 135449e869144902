"""What a question's wording tells: whether it asks for one fact, or for much of the document."""

from __future__ import annotations

import re

_BROAD = re.compile(
    r"\b(summar\w*|describe\w*|discuss\w*|explain\w*|outline|overview|compare|contrast|list all|tell me about|plot"
    r"|themes?|main (points?|ideas?)|relationship|significan\w+|importan(t|ce)|what happens"
    r"|how (does|do|did|has|have|is|are|was|were)\b.*\b(change|changed|develop|developed|evolve|evolved)"
    r"|what role|who (is|was)\b.*\b(and (what|how|why)))\b",
    re.IGNORECASE | re.DOTALL,
)


_FACT = re.compile(r"\?\s*$|^\W*(who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did)\b", re.I)


def is_broad(question: str | None) -> bool:
    """Whether a prompt wants an answer of several sentences, from many places of a document; None is a summary.

    What is no question is an instruction, and broad.
    """
    return question is None or _FACT.search(question) is None or _BROAD.search(question) is not None
