"""How answers end: a length that follows the question, no loops, whole sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..text.questions import is_broad
from ..text.sentences import whole_sentences

_SHORT_ANSWER, _LONG_ANSWER = 64, 256  # tokens, for a question about a fact and for a broad one
_WORDS, _TOKENS = 4, 12  # so many words, or so many tokens, are a repetition
_LENGTHS = ("max_new_tokens", "max_length", "generation_config")


def answer_tokens(questions: Sequence[str | None]) -> int:
    """Longest answer to some questions, in tokens; None asks for a summary."""
    return _LONG_ANSWER if any(map(is_broad, questions)) else _SHORT_ANSWER


class AnswerEnd:
    """How the answers to some questions end, unless the user's arguments of `generate` say otherwise."""

    def __init__(self, questions: Sequence[str | None], generation: dict[str, Any], tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.generation = dict(generation)
        """The arguments of `generate`."""
        if not any(generation.get(name) is not None for name in _LENGTHS):
            self.generation["max_new_tokens"] = answer_tokens(questions)
        own = generation.get("logits_processor") or ()
        self.generation["logits_processor"] = LogitsProcessorList([RepetitionLimit(tokenizer), *own])

    def text(self, answer: str) -> str:
        """The answer up to the beginning of a loop, and without its last sentence if the length cut it off."""
        start = loop_start(answer)
        limit = self.generation.get("max_new_tokens")
        if start is not None:
            answer = answer[:start].rstrip()
        elif limit is None or len(self._tokenizer(answer, add_special_tokens=False)["input_ids"]) < limit - 1:
            return answer
        return whole_sentences(answer)


def loop_start(text: str) -> int | None:
    """Where some words are written for the third time; None if nothing is."""
    words = [(match.group().lower(), match.start()) for match in re.finditer(r"\w+", text)]
    counts = Counter[tuple[str, ...]]()
    for first in range(len(words) - _WORDS + 1):
        phrase = tuple(word for word, _ in words[first : first + _WORDS])
        counts[phrase] += 1
        if counts[phrase] == 3 and _has_letters("".join(phrase)):
            return words[first][1]
    return None


@dataclass(frozen=True)
class _Piece:
    """The text of a token, and whether it begins a word."""

    text: str
    starts_word: bool


class RepetitionLimit(LogitsProcessor):
    """Forbids a token that would write the same words once more than `times` times.

    Once is an answer, twice may be a name or an enumeration, three times is a loop. What has no letters, such as a long
    number, is never forbidden.
    """

    def __init__(self, tokenizer: Any, times: int = 2) -> None:
        self._tokenizer, self._times = tokenizer, times
        self._given = torch.empty((0, 0), dtype=torch.long)  # the tokens that `generate` was given
        self._pieces: dict[int, _Piece] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V) of the next token behind `input_ids` (R, T), with -inf for what is forbidden."""
        start = self._given.shape[1]
        if start == 0 or not torch.equal(input_ids[:, :start], self._given):  # a new call of `generate`
            self._given, start = input_ids.clone(), input_ids.shape[1]
        for row, tokens in enumerate(input_ids[:, start:].tolist()):
            forbidden = self._repeated_word(tokens) | self._repeated_tokens(tokens)
            if forbidden:
                scores[row, torch.tensor(sorted(forbidden), device=scores.device)] = float("-inf")
        return scores

    def _repeated_word(self, tokens: list[int]) -> set[int]:
        """First tokens of the words that followed the last three words `times` times already."""
        words: list[tuple[str, int]] = []
        for token in tokens:
            piece = self._piece(token)
            if not words or piece.starts_word:
                words.append(("", token))
            words[-1] = (words[-1][0] + piece.text, words[-1][1])
        normal = [re.sub(r"\W+", "", word).lower() for word, _ in words]
        last = normal[1 - _WORDS :]
        if len(last) < _WORDS - 1:
            return set()
        followed: dict[str, list[int]] = {}
        for first in range(len(normal) - _WORDS + 1):
            if normal[first : first + _WORDS - 1] == last:
                followed.setdefault(normal[first + _WORDS - 1], []).append(words[first + _WORDS - 1][1])
        repeated = (
            firsts for word, firsts in followed.items() if len(firsts) >= self._times and _has_letters(word, *last)
        )
        return {token for firsts in repeated for token in firsts}

    def _repeated_tokens(self, tokens: list[int]) -> set[int]:
        """Tokens that followed the last eleven tokens as often: for languages without spaces between words."""
        last = tokens[1 - _TOKENS :]
        if len(last) < _TOKENS - 1 or not _has_letters(*(self._piece(token).text for token in last)):
            return set()
        starts = (first for first in range(len(tokens) - _TOKENS + 1) if tokens[first : first + _TOKENS - 1] == last)
        counts = Counter(tokens[first + _TOKENS - 1] for first in starts)
        return {token for token, count in counts.items() if count >= self._times}

    def _piece(self, token: int) -> _Piece:
        if token not in self._pieces:
            text, twice = (self._tokenizer.decode([token] * times) for times in (1, 2))
            self._pieces[token] = _Piece(text, starts_word=len(twice.split()) > len(text.split()))
        return self._pieces[token]


def _has_letters(*texts: str) -> bool:
    return any(character.isalpha() for text in texts for character in text)
