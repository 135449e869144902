"""What a server lets its users do."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnlimiformerError


@dataclass(frozen=True)
class Limits:
    """`document_bytes`: of one text. `documents`: kept at once. `question`: characters. `waiting`: answers that are
    being written or wait for it. `seconds` and `new_tokens`: of one answer; it ends there.
    """

    document_bytes: int = 20_000_000
    documents: int = 100
    question: int = 2_000
    waiting: int = 32
    seconds: float = 120.0
    new_tokens: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise UnlimiformerError(f"the limit {name} is {value}; expected more than 0")
