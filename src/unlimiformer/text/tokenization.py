"""Tokenize text of any length piece by piece, with the same tokens as tokenizing the whole text at once.

A tokenizer may look across any cut in its text. So the text is cut only where a check shows that the cut does not
matter: the text after it, tokenized on its own, must give the same tokens as it gave together with the text before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError

PIECE = 1 << 16
"""Characters that are tokenized at once."""
_MAX_CUTS_TRIED = 8


@dataclass(frozen=True)
class Tokens:
    """Consecutive tokens of a text.

    Parameters
    ----------
    ids : token ids (n,).
    offsets : characters of the whole text that each token covers, (n, 2); None if the tokenizer does not tell.
    """

    ids: Tensor
    offsets: Tensor | None


def stream_tokens(pieces: Iterable[str], tokenizer: Any) -> Iterator[Tokens]:
    """Yield the tokens of a text that comes in pieces, with the special tokens that open and close it."""
    if tokenizer is None:
        raise InputError("no tokenizer was given and the input is text; give a tokenizer, or token ids")
    if not getattr(tokenizer, "is_fast", False):  # a slow tokenizer reports no offsets, so no cut can be checked
        text = "".join(pieces)
        _check_has_words(bool(text.strip()))
        ids = tokenizer(text, truncation=False, verbose=False)["input_ids"]
        yield Tokens(torch.tensor(ids, dtype=torch.long), None)
        return
    opening, closing = _special_ids(tokenizer)
    yield _special_tokens(opening)
    buffer, has_words = _Buffer(), False
    for piece in pieces:
        has_words = has_words or bool(piece.strip())
        buffer.text += piece
        while buffer.is_full:
            tokens = buffer.take(tokenizer)
            if tokens is None:
                break
            yield tokens
    _check_has_words(has_words)
    yield buffer.finish(tokenizer)
    yield _special_tokens(closing)


def prefix_token_ids(text: str, tokenizer: Any) -> Tensor:
    """Tokenize a text that other text follows: with the special tokens that open an input, without the closing ones."""
    if tokenizer is None:
        raise InputError("no tokenizer was given and the prefix is text; give a tokenizer, or leave the prefix out")
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.cat((special_ids(tokenizer, text)[0], torch.tensor(plain, dtype=torch.long)))


def special_ids(tokenizer: Any, text: str = "a") -> tuple[Tensor, Tensor]:
    """Return the ids of the special tokens that open an input, and of those that close it."""
    ids, plain = tokenizer(text)["input_ids"], tokenizer(text, add_special_tokens=False)["input_ids"]
    start = next((i for i in range(len(ids) - len(plain) + 1) if ids[i : i + len(plain)] == plain), 0)
    return torch.tensor(ids[:start], dtype=torch.long), torch.tensor(ids[start + len(plain) :], dtype=torch.long)


class _Buffer:
    """Text that is not tokenized yet; `start` is its position in the whole text, in characters."""

    def __init__(self) -> None:
        self.text, self.start = "", 0
        self._first_offset: int | None = None  # where the first token starts, as reported before the cut
        self._needed = PIECE

    @property
    def is_full(self) -> bool:
        return len(self.text) >= self._needed

    def take(self, tokenizer: Any) -> Tokens | None:
        """Remove and return the tokens before a safe cut; None if there is none, and more text is needed."""
        piece = self.text[: self._needed]
        ids, offsets = _encode(piece, tokenizer)
        for token, character in _candidate_cuts(piece, offsets):
            ids_after, offsets_after = _encode(piece[character:], tokenizer)
            shifted = [[start + character, end + character] for start, end in offsets_after]
            if ids_after == ids[token:] and shifted[1:] == offsets[token:][1:]:
                tokens = self._to_tokens(ids[:token], offsets[:token])
                self._first_offset = self.start + offsets[token][0]
                self.text, self.start = self.text[character:], self.start + character
                self._needed = PIECE
                return tokens
        self._needed *= 2
        return None

    def finish(self, tokenizer: Any) -> Tokens:
        """Return the tokens of all text that is left."""
        return self._to_tokens(*_encode(self.text, tokenizer))

    def _to_tokens(self, ids: list[int], offsets: list[list[int]]) -> Tokens:
        positions = torch.tensor(offsets, dtype=torch.int64).reshape(-1, 2) + self.start
        if self._first_offset is not None and ids:
            positions[0, 0] = self._first_offset
        return Tokens(torch.tensor(ids, dtype=torch.long), positions)


def _encode(text: str, tokenizer: Any) -> tuple[list[int], list[list[int]]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)
    return encoded["input_ids"], [list(pair) for pair in encoded["offset_mapping"]]


def _candidate_cuts(piece: str, offsets: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Yield tokens in the middle of a piece that open a word, and the character at which to cut before them."""
    tried = 0
    for token in range(3 * len(offsets) // 4, len(offsets) // 4, -1):
        start = offsets[token][0]
        opens_word = start > 0 and (piece[start - 1].isspace() or piece[start : start + 1].isspace())
        if not opens_word or offsets[token - 1][1] > start:
            continue
        yield token, start
        if piece[start - 1].isspace():
            yield token, start - 1
        tried += 1
        if tried == _MAX_CUTS_TRIED:
            return


def _special_ids(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and after every text."""
    encoded = tokenizer("a", return_special_tokens_mask=True, verbose=False)
    ids, is_special = encoded["input_ids"], encoded["special_tokens_mask"]
    first = next((i for i, special in enumerate(is_special) if not special), len(ids))
    end = next((i for i in range(len(ids), first, -1) if not is_special[i - 1]), first)
    return ids[:first], ids[end:]


def _special_tokens(ids: list[int]) -> Tokens:
    """Wrap special tokens, which cover no text."""
    return Tokens(torch.tensor(ids, dtype=torch.long), torch.zeros((len(ids), 2), dtype=torch.int64))


def _check_has_words(has_words: bool) -> None:
    if not has_words:
        raise InputError("the text is empty; expected at least one word")


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Decode generated tokens to the text that each adds; joined, they are the whole text.

    A special token adds nothing. A token that ends inside a character adds nothing; the token that completes the
    character adds all of it.
    """
    additions: list[str] = []
    before = ""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], skip_special_tokens=True)
        complete = text.startswith(before) and not text.endswith("\ufffd")
        after = text if complete else before
        additions.append(after[len(before) :])
        before = after
    return additions


def truncate_text(text: str, tokenizer: Any, limit: int) -> str:
    """Cut a text after its first `limit` tokens."""
    if not tokenizer.is_fast:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return text if len(ids) <= limit else tokenizer.decode(ids[:limit])
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return text if len(offsets) <= limit else text[: offsets[limit - 1][1]]


def cut_text(text: str, tokenizer: Any, limit: int) -> list[str]:
    """Cut a text into pieces of `limit` tokens; the last one may be shorter."""
    if not tokenizer.is_fast:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [tokenizer.decode(ids[start : start + limit]) for start in range(0, len(ids), limit)]
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    cuts = [0, *(offsets[token][0] for token in range(limit, len(offsets), limit)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts)]
