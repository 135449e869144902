"""From whatever a user has (a text, a file, pieces, token ids) to token ids and the characters each of them covers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .errors import UnlimiformerError

Text: TypeAlias = "str | os.PathLike[str] | Sequence[int] | Tensor | Iterable[str]"
"""A text, a path, token ids, or an iterator of pieces of text. A plain string is always the text itself."""


def tokenize(source: Text, tokenizer: Any) -> tuple[Tensor, Tensor | None]:
    """Token ids (S,) and, for text and a fast tokenizer, the characters that each covers (S, 2)."""
    if isinstance(source, (Tensor, np.ndarray)):
        return _one_row(torch.as_tensor(source)), None
    if is_ids(source):
        return torch.tensor(source, dtype=torch.long), None
    text = read_text(source)  # type: ignore[arg-type]
    if not text.strip():
        raise UnlimiformerError("the text is empty; expected at least one word")
    _need(tokenizer)
    fast = getattr(tokenizer, "is_fast", False)
    encoded = tokenizer(text, return_offsets_mapping=fast, truncation=False, verbose=False)
    ids = torch.tensor(encoded["input_ids"], dtype=torch.long)
    return ids, torch.tensor(encoded["offset_mapping"], dtype=torch.int64) if fast else None


def _one_row(ids: Tensor) -> Tensor:
    if ids.dim() == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.dim() != 1 or ids.is_floating_point():
        raise UnlimiformerError(
            f"token ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; expected whole numbers of one input: "
            "give a list of inputs for several, each without padding"
        )
    return ids.long()


def opening_ids(text: str, tokenizer: Any) -> Tensor:
    """Token ids of a text that others follow: with the specials that open an input, without those that close it."""
    _need(tokenizer)
    ids, plain = tokenizer(text)["input_ids"], tokenizer(text, add_special_tokens=False)["input_ids"]
    start = next((i for i in range(len(ids) - len(plain) + 1) if ids[i : i + len(plain)] == plain), 0)
    return torch.tensor(ids[: start + len(plain)], dtype=torch.long)


def is_ids(source: Any) -> bool:
    """Whether this is a list of token ids."""
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(isinstance(item, int) for item in source)


def read_text(source: str | os.PathLike[str] | Iterable[str]) -> str:
    """The text of a string, a path object or an iterable of pieces."""
    if isinstance(source, str):
        return source
    if isinstance(source, os.PathLike):
        return read_file(Path(source))
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise UnlimiformerError(
            f"the input is a {type(source).__name__}; expected a text, a path, token ids or pieces of text "
            "(of a tokenizer's answer, give its input_ids)"
        )
    pieces = list(source)
    if not all(isinstance(piece, str) for piece in pieces):
        raise UnlimiformerError("the input is a sequence of things that are not text; expected pieces of text or ids")
    return "".join(pieces)


def read_file(path: Path) -> str:
    """A file's text; it must be UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UnlimiformerError(
            f"{path} does not exist; give the path of a text file, or - for standard input"
        ) from None
    except IsADirectoryError:
        raise UnlimiformerError(f"{path} is a folder; give the path of a text file") from None
    except PermissionError:
        raise UnlimiformerError(f"{path} may not be read; check its permissions") from None
    except UnicodeDecodeError as error:
        raise UnlimiformerError(not_utf8(str(path), error)) from None


def not_utf8(name: str, error: UnicodeDecodeError) -> str:
    """What to tell someone whose bytes are not UTF-8."""
    return (
        f"{name} is not UTF-8 (byte {error.start} is {error.object[error.start]:#04x}); "
        "convert it, for example with: iconv -f latin1 -t utf-8"
    )


def _need(tokenizer: Any) -> None:
    if tokenizer is None:
        raise UnlimiformerError("no tokenizer was given and the input is text; give one, or token ids")
