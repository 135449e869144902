"""What a question's wording tells: whether it asks for one fact, for a description, or for a summary."""

from __future__ import annotations

import re

_DESCRIPTION = re.compile(
    r"\b(summar\w*|describe\w*|discuss\w*|explain\w*|outline|overview|compare|contrast|list all|tell me about"
    r"|the plot(?! of land)"
    r"|themes?|main (points?|ideas?)|relationship|significan\w+|importance|what happens|throughout the \w+"
    r"|setting of the (?!sun)|traits|characteristics|opinions?|views? (on|of)|comments? on|th(ink|ought) (of|about)"
    r"|sa(y|id) on (?!his|her|their|the|a)"
    r"|how (does|do|did|has|have|is|are|was|were)\b.*\b(change|changed|develop|developed|evolve|evolved)"
    r"|what role|who (is|are|was|were)\b.*\b(and (what|how|why)))\b",
    re.IGNORECASE | re.DOTALL,
)
_QUESTION = re.compile(r"\?|^\W*(who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did)\b", re.I)
_DOCUMENTS = "text|document|story|book|novel|tale|play|meeting|transcript|paper|article|report"
_WHOLE = rf"((the|this) )?((whole|entire|full) )?({_DOCUMENTS})"
_POLITELY = r"^\W*(please )?((can|could) you (please )?)?"
_SUMMARY = re.compile(
    rf"{_POLITELY}summari[sz]e( {_WHOLE}( in [\w -]+)?| the plot)?\W*$"
    rf"|{_POLITELY}((give|write) (me )?)?((a|an|the) )?((short|brief) )?(summary|overview) of {_WHOLE}\W*$"
    rf"|{_POLITELY}(what is|what's|describe|tell me|outline)( the)? (plot|summary|main points?)( of {_WHOLE})?\W*$"
    rf"|^\W*(what is|what's) {_WHOLE} about\W*$",
    re.IGNORECASE,
)


def is_descriptive(question: str) -> bool:
    """Whether a question asks for a description, which a document gives in many places."""
    return _DESCRIPTION.search(question) is not None


def is_question(prompt: str) -> bool:
    """Whether a prompt is a question; otherwise it is an instruction."""
    return _QUESTION.search(prompt) is not None


def is_broad(question: str | None) -> bool:
    """Whether a prompt wants an answer of several sentences, from many places of a document; None is a summary.

    An instruction is broad.
    """
    return question is None or not is_question(question) or is_descriptive(question)


def asks_for_summary(question: str | None) -> bool:
    """Whether a question asks for a summary of the whole document; None does."""
    return question is None or _SUMMARY.search(question) is not None
