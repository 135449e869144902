"""Where a text itself begins and ends in a file of Project Gutenberg or of its transcribers."""

from __future__ import annotations

import re

_PARAGRAPH = re.compile(r"\S.*?(?=\n[^\S\n]*\n|\Z)", re.DOTALL)
_NOTICE = re.compile(
    r"\[?(?:(?:this )?(?:e-?text|e-?book) (?:was )?produced|produced (?:from|by)\b|transcri(?:ber|bed)\b"
    r"|.*(?:distributed proofread|project gutenberg (?:e-?book|e-?text|licen)|copyright on this publication))",
    re.IGNORECASE | re.DOTALL,
)
_START = re.compile(r"^\*\*\* ?START OF TH\w+ PROJECT GUTENBERG.*$", re.IGNORECASE | re.MULTILINE)
_END = re.compile(r"^\W*END OF (?:TH\w+ )?PROJECT GUTENBERG", re.IGNORECASE | re.MULTILINE)
_NOTICES_WITHIN, _LONGEST_NOTICE = 2000, 1000  # characters


def text_body(text: str) -> tuple[int, int]:
    """Start and end of a text without the notices of Project Gutenberg and its transcribers; all of any other text."""
    started, ended = _START.search(text), list(_END.finditer(text))
    start = started.end() if started else 0
    end = ended[-1].start() if ended and ended[-1].start() > start else len(text)
    for paragraph in _PARAGRAPH.finditer(text, start, end):
        if paragraph.start() > start + _NOTICES_WITHIN:
            break
        if len(paragraph.group()) <= _LONGEST_NOTICE and _NOTICE.match(paragraph.group()):
            start = paragraph.end()
    return (start, end) if text[start:end].strip() else (0, len(text))
