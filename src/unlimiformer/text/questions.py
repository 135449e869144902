"""What a question's wording tells: whether it asks for one fact, a description or a summary, and of which part."""

from __future__ import annotations

import re
from typing import Literal

_DESCRIPTION = re.compile(
    r"\b(summar\w*|describe\w*|discuss\w*|explain\w*|outline|overview|compare|contrast|list all|tell me about"
    r"|the plot(?! of land)"
    r"|themes?|main (points?|ideas?)|relationship|significan\w+|importance|what happens|throughout the \w+"
    r"|setting of the (?!sun)|traits|characteristics|opinions?|views? (on|of)|comments? on|th(ink|ought) (of|about)"
    r"|sa(y|id) on (?!(?:his|her|their|the|an?)\b)\w+|said about|talk(s|ed|ing)? about|debate[ds]?|disagree\w*"
    r"|attitudes?|to what extent"
    r"|how (does|do|did)\b.*\bdiffer"
    r"|how (does|do|did|has|have|is|are|was|were)\b.*\b(change|changed|develop|developed|evolve|evolved)"
    r"|what role|role in (the|this)|features of|interact\w*|who (is|are|was|were)\b.*\b(and (what|how|why)))\b",
    re.IGNORECASE | re.DOTALL,
)
_ASKS = r"^\W*(what|why|how) (is|are|was|were|do|does|did|would|should|could)\b"  # and not "what year did", "how many"
_MATTERS = "advantages?|disadvantages?|arguments|aspects|barriers|challenges|concerns|feedback|measures|reasons"
_DISCUSSION = re.compile(
    rf"{_ASKS} the ((team|group|government|committee|participants|members)|(\w+ )?({_MATTERS}))\b"
    rf"|^\W*what ({_MATTERS}) (are|was|were|do|does|did|ha[sd]|have)\b"
    rf"|{_ASKS}.*\b(evaluated?|elaborated?|(agreed?|decided?|decisions?|concluded?|conclusions?) (on|about|regarding)"
    r"|(suggest|propose|recommend)(ed|d|s)? (on|about|regarding))\b",
    re.IGNORECASE | re.DOTALL,
)
_QUESTION = re.compile(r"\?|^\W*(who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did)\b", re.I)
_DOCUMENTS = "text|document|story|book|novel|tale|play|meeting|transcript|paper|article|report"
_WHOLE = rf"((the|this) )?((whole|entire|full) )?({_DOCUMENTS})"
_POLITELY = r"^\W*(please )?((can|could) you (please )?)?"
_SUMMARY = re.compile(
    rf"{_POLITELY}summari[sz]e( {_WHOLE}( in [\w -]+)?| the plot)?\W*$"
    rf"|{_POLITELY}((give|write) (me )?)?((a|an|the) )?((short|brief) )?(summary|overview) of {_WHOLE}\W*$"
    rf"|{_POLITELY}(what is|what['’]s|describe|tell me|outline)( the)? (plot|summary|main points?)( of {_WHOLE})?\W*$"
    rf"|^\W*(what is|what['’]s) {_WHOLE} about\W*$",
    re.IGNORECASE,
)
_FEELING = re.compile(
    r"^\W*how (do|does|did|will|would|can|could|must|may|might)\b[^?]*\bfeel\b"
    r"|^\W*how (is|was|are|were)\b[^?]*\bfeeling\b",
    re.IGNORECASE,
)
_MORE = re.compile(r"\band (how|why|what)\b", re.IGNORECASE)
_OF_DOCUMENT = rf"of (the|this) ((whole|entire) )?({_DOCUMENTS})"
_ENDING = re.compile(
    rf"\bhow (does|did|do) ((the|this) ({_DOCUMENTS})|it|everything)( \w+)? (end|conclude|finish)\b"
    rf"|\b(the|its) ((very )?end|ending|conclusion) {_OF_DOCUMENT}\b"
    rf"|\b(the|this) ({_DOCUMENTS})(['’]s|s)? end(s|ed|ing)?\b",
    re.IGNORECASE,
)
_OPENING = re.compile(
    rf"\bhow (does|did|do) ((the|this) ({_DOCUMENTS})|it|everything)( \w+)? (begin|start|open)\b"
    rf"|\b(the|its) ((very )?(beginning|start)|opening) {_OF_DOCUMENT}\b"
    rf"|\b(the|this) ({_DOCUMENTS})(['’]s|s)? (begins?|began|beginning|starts?|started|opens?|opened|opening)\b",
    re.IGNORECASE,
)


def asked_part(question: str) -> Literal["beginning", "end"] | None:
    """Which part of the document a question names: "How does the story end?"."""
    if _ENDING.search(question):
        return "end"
    return "beginning" if _OPENING.search(question) else None


def asks_for_feeling(question: str) -> bool:
    """Whether a question asks how somebody feels, which one adjective tells."""
    return _FEELING.search(question) is not None and _MORE.search(question) is None


def is_descriptive(question: str) -> bool:
    """Whether a question asks for a description, which a document gives in many places."""
    matches = _DESCRIPTION.search(question) or _DISCUSSION.search(question)
    return matches is not None and not asks_for_feeling(question)


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
