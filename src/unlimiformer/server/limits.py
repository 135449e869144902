"""Limits on what clients of the server may send and ask for."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError


@dataclass(frozen=True)
class Limits:
    """Limits of one server, all positive.

    Parameters
    ----------
    document_bytes : size of one document, as UTF-8
    documents : number of stored documents
    question : characters in one question
    connections : open connections of clients
    waiting : answers that are being generated or are queued
    seconds : time for one answer; generation stops there. A summary that is written section by section has no limit
    new_tokens : generated tokens of one answer
    """

    document_bytes: int = 20_000_000
    documents: int = 100
    question: int = 2_000
    connections: int = 512
    waiting: int = 128
    seconds: float = 120.0
    new_tokens: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise InputError(f"the limit {name} is {value}; expected more than 0")
