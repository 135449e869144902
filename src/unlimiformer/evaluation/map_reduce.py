"""Map-reduce as a baseline: the plain model is asked about every part of a document, then over its own answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..text.sentences import split_sentences
from ..text.tokenization import cut_text, truncate_text

_SMALLEST_PART = 16
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")


@dataclass(frozen=True)
class _Piece:
    text: str
    tokens: int


class MapReduce:
    """Answers one question about documents of any length.

    Parameters
    ----------
    ask : the plain model's answer from a text of at most `part_tokens` tokens.
    """

    def __init__(self, ask: Callable[[str], str], tokenizer: Any, part_tokens: int) -> None:
        if part_tokens < _SMALLEST_PART:
            raise InputError(
                f"the question leaves {part_tokens} tokens of the model's input for the text; expected at least "
                f"{_SMALLEST_PART}: ask a shorter question, or set a larger window or a smaller max_new_tokens"
            )
        self._ask, self._tokenizer, self._part_tokens = ask, tokenizer, part_tokens

    def answer(self, document: str) -> str:
        """Ask about every part, then over all answers; in groups as long as the answers do not fit one part."""
        parts = _pack(self._sentences(document), self._part_tokens)
        while len(parts) > 1:
            answers = [self._ask(part).strip() for part in parts]
            parts = _pack([self._line(answer) for answer in answers if answer], self._part_tokens)
        return self._ask(parts[0]) if parts else ""

    def _sentences(self, document: str) -> Iterator[_Piece]:
        """All sentences; one that is longer than a part is cut."""
        for start, end in split_sentences(document):
            for piece in cut_text(document[start:end], self._tokenizer, self._part_tokens):
                yield _Piece(piece, min(self._part_tokens, self._count(piece)))

    def _line(self, answer: str) -> _Piece:
        """An answer as a line of at most half a part: so every group has two or more, and there are fewer and fewer."""
        longest = self._part_tokens // 2
        text = truncate_text(answer, self._tokenizer, longest - 2)  # two for the full stop and the line break
        if not text.endswith(_SENTENCE_ENDS):  # T5's tokenizer drops line breaks: answers would run into one another
            text += "."
        return _Piece(f"{text}\n", min(longest, self._count(text) + 1))

    def _count(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _pack(pieces: Iterable[_Piece], limit: int) -> list[str]:
    """Join consecutive pieces to texts of at most `limit` tokens."""
    texts: list[str] = []
    tokens = 0
    for piece in pieces:
        if texts and tokens + piece.tokens <= limit:
            texts[-1] += piece.text
            tokens += piece.tokens
        else:
            texts.append(piece.text)
            tokens = piece.tokens
    return [text.strip() for text in texts]
