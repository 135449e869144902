"""Text of any length to token ids, piece by piece, with the tokens that the whole text at once would have.

A tokenizer may look across any cut in its text. So a cut is made only where it is seen not to matter: the rest of the
piece, read on its own, must give the tokens that it gave in context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import UnlimiformerError

PIECE = 1 << 16
"""Characters that are tokenized at once."""
_CUTS_TRIED = 8


@dataclass(frozen=True)
class Tokens:
    """Neighbouring tokens: ids (n,) and the characters of the text that each covers (n, 2); None if it is unknown."""

    ids: Tensor
    offsets: Tensor | None


def stream_tokens(pieces: Iterable[str], tokenizer: Any) -> Iterator[Tokens]:
    """The tokens of a text that comes in pieces, with the specials that open and close it."""
    if tokenizer is None:
        raise UnlimiformerError("no tokenizer was given and the input is text; give one, or token ids")
    if not getattr(tokenizer, "is_fast", False):  # it does not tell which characters a token covers
        text = "".join(pieces)
        _expect_words(text)
        ids = tokenizer(text, truncation=False, verbose=False)["input_ids"]
        yield Tokens(torch.tensor(ids, dtype=torch.long), None)
        return
    opening, closing = _specials(tokenizer)
    yield _without_text(opening)
    rest, words = _Rest(), False
    for piece in pieces:
        words = words or bool(piece.strip())
        rest.text += piece
        while rest.enough:
            found = rest.take(tokenizer)
            if found is None:
                break
            yield found
    if not words:
        _expect_words("")
    yield rest.finish(tokenizer)
    yield _without_text(closing)


def opening_ids(text: str, tokenizer: Any) -> Tensor:
    """Token ids of a text that others follow: with the specials that open an input, without those that close it."""
    if tokenizer is None:
        raise UnlimiformerError("no tokenizer was given and the prefix is text; give one, or leave the prefix out")
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.cat((surrounding_ids(tokenizer, text)[0], torch.tensor(plain, dtype=torch.long)))


def surrounding_ids(tokenizer: Any, text: str = "a") -> tuple[Tensor, Tensor]:
    """The specials that open an input, and those that close it."""
    ids, plain = tokenizer(text)["input_ids"], tokenizer(text, add_special_tokens=False)["input_ids"]
    start = next((i for i in range(len(ids) - len(plain) + 1) if ids[i : i + len(plain)] == plain), 0)
    return torch.tensor(ids[:start], dtype=torch.long), torch.tensor(ids[start + len(plain) :], dtype=torch.long)


class _Rest:
    """Text whose tokens are still to be told. `before` characters of the whole text precede it."""

    def __init__(self) -> None:
        self.text, self.before = "", 0
        self._first: int | None = None  # where the first token starts, as told in context
        self._wanted = PIECE

    @property
    def enough(self) -> bool:
        return len(self.text) >= self._wanted

    def take(self, tokenizer: Any) -> Tokens | None:
        """The tokens before a cut of the first `_wanted` characters; None where no cut is safe: then more is read."""
        piece = self.text[: self._wanted]
        ids, offsets = _encode(piece, tokenizer)
        for token, character in _cuts(piece, offsets):
            alone, covered = _encode(piece[character:], tokenizer)
            shifted = [[start + character, end + character] for start, end in covered]
            if alone == ids[token:] and shifted[1:] == offsets[token:][1:]:
                told = self._told(ids[:token], offsets[:token])
                self._first = self.before + offsets[token][0]
                self.text, self.before = self.text[character:], self.before + character
                self._wanted = PIECE
                return told
        self._wanted *= 2
        return None

    def finish(self, tokenizer: Any) -> Tokens:
        return self._told(*_encode(self.text, tokenizer))

    def _told(self, ids: list[int], offsets: list[list[int]]) -> Tokens:
        places = torch.tensor(offsets, dtype=torch.int64).reshape(-1, 2) + self.before
        if self._first is not None and ids:
            places[0, 0] = self._first
        return Tokens(torch.tensor(ids, dtype=torch.long), places)


def _encode(text: str, tokenizer: Any) -> tuple[list[int], list[list[int]]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)
    return encoded["input_ids"], [list(pair) for pair in encoded["offset_mapping"]]


def _cuts(piece: str, offsets: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Tokens that open a word in the later half of a piece, and where to cut the text before them."""
    tried = 0
    for token in range(3 * len(offsets) // 4, len(offsets) // 4, -1):
        start = offsets[token][0]
        opens = start > 0 and (piece[start - 1].isspace() or piece[start : start + 1].isspace())
        if not opens or offsets[token - 1][1] > start:
            continue
        yield token, start
        if piece[start - 1].isspace():
            yield token, start - 1
        tried += 1
        if tried == _CUTS_TRIED:
            return


def _specials(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after every text."""
    encoded = tokenizer("a", return_special_tokens_mask=True, verbose=False)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    first = next((i for i, mark in enumerate(special) if not mark), len(ids))
    after = next((i for i in range(len(ids), first, -1) if not special[i - 1]), first)
    return ids[:first], ids[after:]


def _without_text(ids: list[int]) -> Tokens:
    return Tokens(torch.tensor(ids, dtype=torch.long), torch.zeros((len(ids), 2), dtype=torch.int64))


def _expect_words(text: str) -> None:
    if not text.strip():
        raise UnlimiformerError("the text is empty; expected at least one word")


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each of some generated tokens adds; together they are the text. Special tokens add nothing."""
    found: list[str] = []
    before = ""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], skip_special_tokens=True)
        whole = text if text.startswith(before) and not text.endswith("\ufffd") else before  # half a character waits
        found.append(whole[len(before) :])
        before = whole
    return found


def truncate_text(text: str, tokenizer: Any, limit: int) -> str:
    """The beginning of a text that has so many tokens."""
    if not tokenizer.is_fast:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return text if len(ids) <= limit else tokenizer.decode(ids[:limit])
    places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return text if len(places) <= limit else text[: places[limit - 1][1]]
