"""Long documents with the answers that a model is to learn: from JSONL files, or data sets of a hub by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError


@dataclass(frozen=True)
class Size:
    """Of a written document: words of the text around the facts, rivals of a fact at most, questions asked of it."""

    words: tuple[int, int]
    rivals: int
    questions: int = 1


@dataclass(frozen=True)
class Example:
    """A document, what is asked about it (None: to summarise it), and the answer."""

    document: str
    answer: str
    question: str | None = None


HUB: dict[str, tuple[str, str | None]] = {
    "govreport": ("tau/scrolls", "gov_report"),
    "summscreen": ("tau/scrolls", "summ_screen_fd"),
    "qmsum": ("tau/scrolls", "qmsum"),
    "qasper": ("tau/scrolls", "qasper"),
    "narrativeqa": ("tau/scrolls", "narrative_qa"),
    "contractnli": ("tau/scrolls", "contract_nli"),
    "booksum": ("abertsch/booksum-fullbooks", None),
}
"""Names of the paper's data sets, and where a hub has them."""

WRITTEN: dict[str, Size] = {"facts": Size((20, 200), 9, 4), "long-facts": Size((200, 1500), 24, 8)}
"""Facts that a program writes into real texts."""
CONDENSED = "condensed"
"""Before a JSONL file: of its documents, what the answers are about."""

_ASKING = ("qmsum", "qasper", "narrativeqa", "contractnli")  # their inputs begin with a question and an empty line
_FIELDS = (("input", "output"), ("book", "summary"))
_SHAPES = (
    'a JSON object with "document", "answer" and optionally "question", or with "document" and "questions", a list of '
    '{"question", "answer"}'
)


def examples(source: str, split: str = "train", limit: int | None = None) -> list[Example]:
    """All examples of some sources, with commas between them; at most `limit`, evenly spread.

    A source is a JSONL file, condensed:FILE for what its answers are about, the name of a hub's data set, or facts that
    a program writes, as facts:2000; others with another seed: facts:2000:1.
    """
    sources = [source] if Path(source).is_file() else source.split(",")
    found = [example for each in sources for example in _of_source(each, split)]
    if limit is None or limit >= len(found):
        return found
    return [found[place * len(found) // limit] for place in range(limit)]


def _of_source(source: str, split: str) -> list[Example]:
    name, _, rest = source.partition(":")
    if Path(source).is_file():
        found = list(_of_file(Path(source)))
    elif source in HUB:
        found = [_of_hub(source, row) for row in _hub_rows(source, split)]
    elif name in WRITTEN and re.fullmatch(r"\d+(:\d+)?", rest):
        from .facts import written

        count, _, seed = rest.partition(":")
        found = written(int(count), WRITTEN[name], 2 * int(seed or 0) + (split != "train"))
    elif name == CONDENSED and Path(rest).is_file():
        from .condensing import condensed

        found = condensed(list(_of_file(Path(rest))))
    else:
        names = ", ".join((*HUB, *(f"{name}:2000" for name in WRITTEN)))
        missing = rest if name == CONDENSED else source
        raise UnlimiformerError(
            f"no file {missing!r}, and no data set of that name; expected a JSONL file, {CONDENSED}:FILE, or one of: "
            f"{names}"
        )
    if not found:
        wanted = "at least one, as facts:2000" if name in WRITTEN else f"lines, each {_SHAPES}"
        raise UnlimiformerError(f"{source} has no examples; expected {wanted}")
    return found


def _of_file(path: Path) -> Iterator[Example]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield from _of_line(line, f"{path}, line {number}")


def _of_line(line: str, where: str) -> list[Example]:
    try:
        told = json.loads(line)
    except ValueError as error:
        raise UnlimiformerError(f"{where}: no JSON ({error}); expected {_SHAPES}") from None
    if not isinstance(told, dict) or not isinstance(told.get("document"), str):
        raise UnlimiformerError(f'{where}: no text called "document"; expected {_SHAPES}')
    asked: Sequence[Any] = told["questions"] if isinstance(told.get("questions"), list) else [told]
    made = []
    for each in asked:
        answer = each.get("answer") if isinstance(each, dict) else None
        question = each.get("question") if isinstance(each, dict) else None
        if not isinstance(answer, str) or not isinstance(question, str | None):
            raise UnlimiformerError(f'{where}: an "answer" or "question" is missing or no text; expected {_SHAPES}')
        made.append(Example(told["document"], answer, question))
    return made


def _hub_rows(name: str, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise UnlimiformerError(
            "data sets of a hub need the package `datasets`; install unlimiformer[train], or give a JSONL file"
        ) from None
    where, part = HUB[name]
    try:
        if part is None:
            return datasets.load_dataset(where, split=split)
        file = f"zip://{part}/{split}.jsonl::hf://datasets/{where}/{part}.zip"  # it has no form but these archives
        return datasets.load_dataset("json", data_files=file, split="train")
    except Exception as error:
        raise UnlimiformerError(
            f"{name} could not be loaded from {where!r} ({type(error).__name__}: {error}); expected a hub that can be "
            "reached, or a JSONL file"
        ) from None


def _of_hub(name: str, row: dict[str, Any]) -> Example:
    names = next((names for names in _FIELDS if names[0] in row), None)
    if names is None:
        raise UnlimiformerError(f"{name} has the fields {', '.join(row)}; expected one of: input, book")
    document, answer = (row[field] for field in names)
    if name not in _ASKING:
        return Example(document, answer)
    question, _, document = document.partition("\n\n")
    return Example(document, answer, question)
