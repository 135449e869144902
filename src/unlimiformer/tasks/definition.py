"""Tasks: which fields of a data set are what, how answers are measured. Each is a versioned YAML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import UnlimiformerError
from .jsonl import Example, checked, read_lines
from .tfidf import by_tf_idf

_KINDS = {int: "a whole number", list: "a list", dict: "names and values", str: "a text"}
_FOLDER = Path(__file__).with_name("definitions")


@dataclass(frozen=True)
class Size:
    """Of a written document: words of the text around the facts, rivals of a fact at most, questions asked of it.

    `held_back`: the texts are those that no model of ours was trained with.
    """

    words: tuple[int, int]
    rivals: int
    questions: int = 1
    held_back: bool = False


@dataclass(frozen=True)
class Task:
    """One task. `fields` names the columns of a row that are document, answer, question and id.

    `leading_question`: the document begins with the question and an empty line. `ordered_by`: the column that the
    paragraphs of the document are ranked by (TF-IDF). `hub`: where a hub has it. `written`: a program writes it.
    """

    name: str
    version: int
    about: str
    metrics: tuple[str, ...]
    new_tokens: int
    fields: dict[str, str]
    leading_question: bool = False
    ordered_by: str | None = None
    hub: dict[str, str] | None = None
    written: Size | None = None

    def load(
        self,
        data: str | Path | None = None,
        split: str = "validation",
        count: int | None = None,
        report: Callable[[str], None] | None = None,
        seed: int = 0,
    ) -> list[Example]:
        """All examples: of a file, of the hub, or written by a program; `count` of them, evenly spread."""
        if data is not None:
            found = list(read_lines(Path(data), self.example_if_it_fits, report))
        elif self.written is not None:
            from .synthetic import written

            found = written(count or 24, self.written, 2 * seed + (split != "train"))
        elif self.hub is not None:
            found = [checked(self.example(row)) for row in self._hub_rows(split)]
        else:
            raise UnlimiformerError(f"the task {self.name!r} has no data of its own; give a JSONL file: --data FILE")
        return spread(found, count)

    def example_if_it_fits(self, row: dict[str, Any]) -> Example | None:
        """One row, if it has the fields of the data set, or some of them and no document of our own shape."""
        wanted = {self.fields.get(name) for name in ("document", "answer")} - {None}
        if wanted and (wanted <= set(row) or "document" not in row):
            return self.example(row)
        return None

    def example(self, row: dict[str, Any]) -> Example:
        """One row of the data set."""
        missing = [name for name in ("document", "answer") if self.fields.get(name) not in row]
        if missing:
            wanted = ", ".join(repr(self.fields.get(name, name)) for name in missing)
            raise UnlimiformerError(f"a row has the fields {', '.join(row)}; {self.name} needs {wanted} as well")
        document, answer = (row[self.fields[name]] for name in ("document", "answer"))
        question, number = (row.get(self.fields.get(name, "")) for name in ("question", "id"))
        if self.ordered_by is not None:
            texts = isinstance(document, list) and all(isinstance(part, str) for part in document)
            if not texts or not isinstance(row.get(self.ordered_by), str):
                raise UnlimiformerError(
                    f"{self.name} wants a list of texts as {self.fields['document']!r} and a text as "
                    f"{self.ordered_by!r}; one of them is another thing"
                )
            document = "\n".join(by_tf_idf(document, row[self.ordered_by]))
        if not isinstance(document, str) or not isinstance(answer, str):
            raise UnlimiformerError(f"the document or the answer is no text; expected texts, as {self.name} has them")
        if self.leading_question:
            question, found, document = document.partition("\n\n")
            if not found:
                raise UnlimiformerError(f"the document of {self.name} has no question before an empty line")
        return Example(document, answer, question, None if number is None else str(number))

    def _hub_rows(self, split: str) -> Any:
        try:
            import datasets
        except ImportError:
            raise UnlimiformerError(
                "data sets of a hub need the package `datasets`; install unlimiformer[train], or give a JSONL file"
            ) from None
        assert self.hub is not None
        where, part = self.hub["dataset"], self.hub.get("archive")
        try:
            if part is None:
                return datasets.load_dataset(where, split=split)
            file = f"zip://{part}/{split}.jsonl::hf://datasets/{where}/{part}.zip"  # it has no form but these archives
            return datasets.load_dataset("json", data_files=file, split="train")
        except Exception as error:
            raise UnlimiformerError(
                f"{self.name} could not be loaded from {where!r} ({type(error).__name__}: {error}); expected a hub "
                "that can be reached, or a JSONL file"
            ) from None


def spread(found: list[Example], count: int | None) -> list[Example]:
    """So many of them, evenly spread, or all if there are fewer; those of one id stay together and count as one."""
    groups: dict[Any, list[Example]] = {}
    for number, example in enumerate(found):
        groups.setdefault(number if example.id is None else example.id, []).append(example)
    if count is None or count >= len(groups):
        return found
    together = list(groups.values())
    return [example for place in range(count) for example in together[place * len(together) // count]]


@cache
def tasks() -> dict[str, Task]:
    """The package's tasks by name."""
    return {path.stem: _read(path) for path in sorted(_FOLDER.glob("*.yaml"))}


def task(name: str) -> Task:
    """A task by its name, or from a YAML file."""
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    if name not in tasks():
        raise UnlimiformerError(f"no task {name!r}; expected a YAML file, or one of: {', '.join(tasks())}")
    return tasks()[name]


def _read(path: Path) -> Task:
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnlimiformerError(f"{path} cannot be read as a task ({error}); expected a YAML file") from None
    known = {each.name for each in fields(Task)} - {"name"}
    if not isinstance(told, dict) or set(told) - known:
        wrong = ", ".join(sorted(set(told) - known)) if isinstance(told, dict) else "no names"
        raise UnlimiformerError(f"{path} has {wrong}; expected: {', '.join(sorted(known))}")
    if missing := {"version", "about", "metrics", "new_tokens"} - set(told):
        raise UnlimiformerError(f"{path} does not say: {', '.join(sorted(missing))}")
    for name, kind in (("version", int), ("new_tokens", int), ("metrics", list), ("fields", dict), ("about", str)):
        if not isinstance(told.get(name, kind()), kind):
            raise UnlimiformerError(f"{path}: {name} is {told[name]!r}; expected {_KINDS[kind]}")
    size = told.pop("written", None)
    try:
        size = None if size is None else Size(**{**size, "words": tuple(size["words"])})
    except (TypeError, KeyError) as error:
        raise UnlimiformerError(f"{path}: written cannot be understood ({error}); expected words and rivals") from None
    told = {"fields": {}, **told, "metrics": tuple(told["metrics"])}
    return Task(path.stem, **told, written=size)
