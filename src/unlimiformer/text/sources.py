"""Inputs of every form (a text, a file, pieces of text, token ids) as pieces of text or as token ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .document_text import DocumentText, Location
from .formats import HEAD_BYTES, find_format, iter_plain_file

TextSource: TypeAlias = "str | DocumentText | os.PathLike[str] | Sequence[int] | Tensor | Iterable[str]"
"""A text, perhaps with its pages, a path, token ids, or pieces of text. A plain string is always the text itself."""
_PIECE_SIZE = 1 << 16


def is_token_ids(source: Any) -> bool:
    """Whether the source is a list or tuple of token ids."""
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(isinstance(item, int) for item in source)


def as_token_ids(source: Any) -> Tensor | None:
    """Convert a source of token ids to a tensor (S,); return None for any other source."""
    if isinstance(source, (Tensor, np.ndarray)):
        return _to_one_row(torch.as_tensor(source))
    return torch.tensor(source, dtype=torch.long) if is_token_ids(source) else None


def iter_text(source: str | DocumentText | os.PathLike[str] | Iterable[str]) -> Iterator[str]:
    """The text of a string, a path object or an iterable in pieces; plain text is read as pieces are consumed."""
    if isinstance(source, str):
        return (source[start : start + _PIECE_SIZE] for start in range(0, len(source), _PIECE_SIZE))
    if isinstance(source, os.PathLike):
        return iter_text(open_file(Path(source)))
    if isinstance(source, DocumentText):
        return iter_text(source.text)
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise InputError(
            f"the input is of type {type(source).__name__}; expected a text, a path, token ids or pieces of text "
            "(of a tokenizer's answer, give its input_ids)"
        )
    return _check_pieces(source)


def open_file(path: Path) -> DocumentText | Iterator[str]:
    """The text of a file: of plain text in pieces that are read as they are consumed, of other formats as a whole."""
    with _readable_errors(path):
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        found = find_format(head, path.suffix, str(path))
        return _iter_plain(path) if found is None else found.extract(path.read_bytes(), str(path))


def open_source(source: Any) -> Any:
    """The text of a path object, as `open_file` gives it; any other source as it is."""
    return open_file(Path(source)) if isinstance(source, os.PathLike) else source


def locations_of(source: Any) -> tuple[Location, ...]:
    """Where the pages of a source begin, if it has pages."""
    return source.locations if isinstance(source, DocumentText) else ()


def read_document(source: TextSource) -> DocumentText:
    """A source as one text, with its pages."""
    opened = open_source(source)
    return opened if isinstance(opened, DocumentText) else DocumentText("".join(iter_text(opened)))


def _iter_plain(path: Path) -> Iterator[str]:
    with _readable_errors(path):
        yield from iter_plain_file(path)


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give the path of a document, or - for standard input") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder and not a memory; give the path of a document") from None
    except PermissionError:
        raise InputError(f"{path} may not be read; check its permissions") from None


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
