"""Inputs of every form (a text, a file, pieces of text, token ids) as pieces of text or as token ids."""

from __future__ import annotations

import codecs
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .file_types import HEAD_BYTES, detect, wide_encoding

TextSource: TypeAlias = "str | os.PathLike[str] | Sequence[int] | Tensor | Iterable[str]"
"""A text, a path, token ids, or an iterable of pieces of text. A plain string is always the text itself."""
_PIECE_SIZE = 1 << 16


def is_token_ids(source: Any) -> bool:
    """Whether the source is a list or tuple of token ids."""
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(isinstance(item, int) for item in source)


def as_token_ids(source: Any) -> Tensor | None:
    """Convert a source of token ids to a tensor (S,); return None for any other source."""
    if isinstance(source, (Tensor, np.ndarray)):
        return _to_one_row(torch.as_tensor(source))
    return torch.tensor(source, dtype=torch.long) if is_token_ids(source) else None


def iter_text(source: str | os.PathLike[str] | Iterable[str]) -> Iterator[str]:
    """Yield the text of a string, a path object or an iterable in pieces; a file is read as pieces are consumed."""
    if isinstance(source, str):
        return (source[start : start + _PIECE_SIZE] for start in range(0, len(source), _PIECE_SIZE))
    if isinstance(source, os.PathLike):
        return iter_file(Path(source))
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise InputError(
            f"the input is of type {type(source).__name__}; expected a text, a path, token ids or pieces of text "
            "(of a tokenizer's answer, give its input_ids)"
        )
    return _check_pieces(source)


def iter_file(path: Path) -> Iterator[str]:
    """Yield the text of a UTF-8 file in pieces."""
    try:
        with path.open("rb") as file:
            yield from decode_utf8(iter(lambda: file.read(_PIECE_SIZE), b""), str(path))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give the path of a text file, or - for standard input") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder and not a memory; give the path of a text file") from None
    except PermissionError:
        raise InputError(f"{path} may not be read; check its permissions") from None


def decode_utf8(parts: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode UTF-8 bytes to text with `\\n` line ends and without a byte order mark.

    A file that is not plain text is refused by its first bytes.

    Parameters
    ----------
    parts : the bytes, cut anywhere.
    name : what error messages call the source.
    """
    parts = _check_plain_text(iter(parts), name)
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoded_bytes, ends_in_return = 0, False
    for part in parts:
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(part)
        except UnicodeDecodeError as error:
            raise _not_utf8(name, decoded_bytes - pending + error.start, error) from None
        if decoded_bytes == 0:
            text = text.removeprefix("\ufeff")
        decoded_bytes += len(part)
        if ends_in_return:
            text = "\r" + text
        ends_in_return = text.endswith("\r")
        yield (text[:-1] if ends_in_return else text).replace("\r\n", "\n").replace("\r", "\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(name, decoded_bytes - len(error.object) + error.start, error) from None
    if ends_in_return:
        yield "\n"


def _check_plain_text(parts: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Return the same bytes after a look at the first ones; raise if they are those of another format."""
    head = b""
    while len(head) < HEAD_BYTES and (part := next(parts, None)) is not None:
        head += part
    if (file_type := detect(head[:HEAD_BYTES])) is not None:
        raise InputError(f"{name} is {file_type.name}; only plain text in UTF-8 can be read so far: {file_type.advice}")
    if (encoding := wide_encoding(head)) is not None:
        raise InputError(
            f"{name} is not UTF-8 (byte 0 is {head[0]:#04x}, a byte order mark of {encoding.upper()}); "
            f"expected text in UTF-8: convert it, for example with: iconv -f {encoding} -t utf-8"
        )
    return itertools.chain([head], parts)


def _not_utf8(name: str, position: int, error: UnicodeDecodeError) -> InputError:
    return InputError(
        f"{name} is not UTF-8 (byte {position} is {error.object[error.start]:#04x}); "
        "expected text in UTF-8: convert it, for example with: iconv -f latin1 -t utf-8"
    )


def _check_pieces(pieces: Iterable[Any]) -> Iterator[str]:
    for piece in pieces:
        if not isinstance(piece, str):
            raise InputError(
                f"the input is a sequence with an item of type {type(piece).__name__}, which is not text; "
                "expected pieces of text or token ids"
            )
        yield piece


def _to_one_row(ids: Tensor) -> Tensor:
    if ids.dim() == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.dim() != 1 or ids.is_floating_point():
        raise InputError(
            f"token ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; expected whole numbers of one input: "
            "give a list of inputs for several, each without padding"
        )
    return ids.long()
