"""From whatever a user has (a text, a file, pieces, token ids) to its text in pieces, or its token ids."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import UnlimiformerError

TextSource: TypeAlias = "str | os.PathLike[str] | Sequence[int] | Tensor | Iterable[str]"
"""A text, a path, token ids, or an iterator of pieces of text. A plain string is always the text itself."""
_BYTES = 1 << 16


def is_ids(source: Any) -> bool:
    """Whether this is a list of token ids."""
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(isinstance(item, int) for item in source)


def as_token_ids(source: Any) -> Tensor | None:
    """Token ids (S,), if that is what the source is."""
    if isinstance(source, (Tensor, np.ndarray)):
        return _one_row(torch.as_tensor(source))
    return torch.tensor(source, dtype=torch.long) if is_ids(source) else None


def iter_text(source: str | os.PathLike[str] | Iterable[str]) -> Iterator[str]:
    """The text of a string, a path object or an iterable, in pieces; a file is read as they are asked for."""
    if isinstance(source, str):
        return (source[start : start + _BYTES] for start in range(0, len(source), _BYTES))
    if isinstance(source, os.PathLike):
        return iter_file(Path(source))
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise UnlimiformerError(
            f"the input is a {type(source).__name__}; expected a text, a path, token ids or pieces of text "
            "(of a tokenizer's answer, give its input_ids)"
        )
    return _only_text(source)


def iter_file(path: Path) -> Iterator[str]:
    """A file's text in pieces; it must be UTF-8."""
    try:
        with path.open("rb") as file:
            yield from decode_utf8(iter(lambda: file.read(_BYTES), b""), str(path))
    except FileNotFoundError:
        raise UnlimiformerError(
            f"{path} does not exist; give the path of a text file, or - for standard input"
        ) from None
    except IsADirectoryError:
        raise UnlimiformerError(f"{path} is a folder and not a memory; give the path of a text file") from None
    except PermissionError:
        raise UnlimiformerError(f"{path} may not be read; check its permissions") from None


def decode_utf8(parts: Iterable[bytes], name: str) -> Iterator[str]:
    """UTF-8 bytes as text, with line ends as Python has them; `name` is what to call them in an error."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before, ends_in_return = 0, False
    for part in parts:
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(part)
        except UnicodeDecodeError as error:
            raise UnlimiformerError(_not_utf8(name, before - pending + error.start, error)) from None
        before += len(part)
        if ends_in_return:
            text = "\r" + text
        ends_in_return = text.endswith("\r")
        yield (text[:-1] if ends_in_return else text).replace("\r\n", "\n").replace("\r", "\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise UnlimiformerError(_not_utf8(name, before - len(error.object) + error.start, error)) from None
    if ends_in_return:
        yield "\n"


def _not_utf8(name: str, byte: int, error: UnicodeDecodeError) -> str:
    return (
        f"{name} is not UTF-8 (byte {byte} is {error.object[error.start]:#04x}); "
        "convert it, for example with: iconv -f latin1 -t utf-8"
    )


def _only_text(pieces: Iterable[Any]) -> Iterator[str]:
    for piece in pieces:
        if not isinstance(piece, str):
            raise UnlimiformerError(
                "the input is a sequence of things that are not text; expected pieces of text or ids"
            )
        yield piece


def _one_row(ids: Tensor) -> Tensor:
    if ids.dim() == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.dim() != 1 or ids.is_floating_point():
        raise UnlimiformerError(
            f"token ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; expected whole numbers of one input: "
            "give a list of inputs for several, each without padding"
        )
    return ids.long()
