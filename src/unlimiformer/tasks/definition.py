"""Task definitions: which columns of a dataset are document, question and answer, and which metrics score the answers.

Each task is a versioned YAML file in `definitions`; users may write their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from ..utils.optional import require
from ..utils.value_types import check_types
from .example import Example, read_examples, validate
from .tfidf import rank_by_tfidf

_FOLDER = Path(__file__).with_name("definitions")
_DEFAULT_SYNTHETIC_COUNT = 24


@dataclass(frozen=True)
class SyntheticSpec:
    """Size of the documents of a synthetic task. The fields are the keys under `written` in the YAML file.

    Parameters
    ----------
    words : smallest and largest number of words around the facts.
    rivals : largest number of distractor facts in a document.
    questions : questions asked about each document.
    held_back : use the texts that no model of this project was trained with.
    """

    words: tuple[int, int]
    rivals: int
    questions: int = 1
    held_back: bool = False


@dataclass(frozen=True)
class Task:
    """A task; the fields are the keys of its YAML file.

    Parameters
    ----------
    fields : names of the dataset's columns for document, answer, question and id.
    leading_question : the document column starts with the question and an empty line.
    new_tokens : longest answer in tokens; None lets it follow the question.
    least_words : documents with fewer words are left out.
    sample : by split, the number of examples that are used, drawn at random and always the same.
    ordered_by : column whose text ranks the paragraphs of the document by TF-IDF.
    hub : dataset on a hub, and the archive inside it.
    written : the documents are synthetic, of this size.
    """

    name: str
    version: int
    about: str
    metrics: tuple[str, ...]
    fields: dict[str, str]
    new_tokens: int | None = None
    leading_question: bool = False
    ordered_by: str | None = None
    least_words: int | None = None
    sample: dict[str, int] | None = None
    hub: dict[str, str] | None = None
    written: SyntheticSpec | None = None

    def load(
        self,
        data: str | Path | None = None,
        split: str = "validation",
        count: int | None = None,
        report: Callable[[str], None] | None = None,
        seed: int = 0,
    ) -> list[Example]:
        """Load examples from a JSONL file, from the hub, or from the generator of a synthetic task.

        Parameters
        ----------
        data : JSONL file; None uses the task's own data.
        count : number of examples, taken evenly from all of them; None for all.
        report : called with a message for each malformed line of `data`; None makes such a line an error.
        seed : of a synthetic task.
        """
        if data is not None:
            examples = list(read_examples(Path(data), self.parse_matching_row, report))
        elif self.written is not None:
            from .synthetic import generate_examples

            examples = generate_examples(
                count or _DEFAULT_SYNTHETIC_COUNT, self.written, seed=2 * seed + (split != "train")
            )
        elif self.hub is not None:
            unknown = {self.fields["answer"]: None} if split == "test" else {}
            examples = [validate(self.example({**unknown, **row})) for row in self._load_hub_rows(split)]
        else:
            raise InputError(f"the task {self.name!r} has no data of its own; give a JSONL file: --data FILE")
        return sample_evenly(self._select(examples, split), count)

    def _select(self, examples: list[Example], split: str) -> list[Example]:
        """The examples that the task uses: not too short, and at most as many as it samples."""
        if self.least_words is not None:
            examples = [example for example in examples if len(example.document.split()) >= self.least_words]
        size = (self.sample or {}).get(split)
        if size is None or size >= len(examples):
            return examples
        chosen = sorted(random.Random(0).sample(range(len(examples)), size))
        return [examples[index] for index in chosen]

    def parse_matching_row(self, row: dict[str, Any]) -> Example | None:
        """Parse a row with the dataset's columns; return None for one with this library's own fields."""
        columns = {self.fields.get(name) for name in ("document", "answer")} - {None}
        has_own_fields = "document" in row and ("answer" in row or "questions" in row)
        if columns and (columns <= set(row) or not has_own_fields):
            return self.example(row)
        return None

    def example(self, row: dict[str, Any]) -> Example:
        """Parse one row of the dataset."""
        missing = [name for name in ("document", "answer") if self.fields.get(name) not in row]
        if missing:
            columns = ", ".join(repr(self.fields.get(name, name)) for name in missing)
            raise InputError(f"a row has the fields {', '.join(row)}; {self.name} needs {columns} as well")
        document, answer = (row[self.fields[name]] for name in ("document", "answer"))
        question, row_id = (row.get(self.fields.get(name, "")) for name in ("question", "id"))
        if self.ordered_by is not None:
            document = self._join_ranked(document, row.get(self.ordered_by))
        if not isinstance(document, str) or not isinstance(answer, str | None):
            raise InputError(f"the document or the answer of a row of {self.name} is no text; expected two texts")
        if self.leading_question:
            question, separator, document = document.partition("\n\n")
            if not separator:
                raise InputError(f"the document of {self.name} has no question before an empty line")
        return Example(document, answer or None, question, None if row_id is None else str(row_id))

    def _join_ranked(self, paragraphs: Any, title: Any) -> str:
        is_list = isinstance(paragraphs, list) and all(isinstance(paragraph, str) for paragraph in paragraphs)
        if not is_list or not isinstance(title, str):
            raise InputError(
                f"{self.name} needs a list of texts as {self.fields['document']!r} and a text as {self.ordered_by!r}; "
                "one of them has another type"
            )
        return "\n".join(rank_by_tfidf(paragraphs, title))

    def _load_hub_rows(self, split: str) -> Any:
        datasets = require("datasets", "train", f"the hub's dataset of {self.name}")
        assert self.hub is not None
        name, archive = self.hub["dataset"], self.hub.get("archive")
        try:
            if archive is None:
                return datasets.load_dataset(name, split=split)
            # this dataset exists only as zip archives of JSONL files
            file = f"zip://{archive}/{split}.jsonl::hf://datasets/{name}/{archive}.zip"
            return datasets.load_dataset("json", data_files=file, split="train")
        except Exception as error:
            raise InputError(
                f"{self.name} could not be loaded from {name!r} ({type(error).__name__}: {error}); connect to the hub, "
                "or give a JSONL file"
            ) from None


def sample_evenly(examples: list[Example], count: int | None) -> list[Example]:
    """Return `count` examples at even distances, or all if there are fewer; those of one id count as one."""
    groups: dict[Any, list[Example]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(number if example.id is None else example.id, []).append(example)
    if count is None or count >= len(groups):
        return examples
    ordered = list(groups.values())
    return [example for i in range(count) for example in ordered[i * len(ordered) // count]]


@cache
def tasks() -> dict[str, Task]:
    """Return the tasks of this package by name."""
    return {path.stem: _read_definition(path) for path in sorted(_FOLDER.glob("*.yaml"))}


def task(name: str) -> Task:
    """Return a task by its name, or read it from a YAML file."""
    if name.endswith((".yaml", ".yml")):
        return _read_definition(Path(name))
    if name not in tasks():
        raise InputError(f"no task {name!r}; expected a YAML file, or one of: {', '.join(tasks())}")
    return tasks()[name]


def _read_definition(path: Path) -> Task:
    try:
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as a task ({error}); expected a YAML file") from None
    keys = {field.name for field in fields(Task)} - {"name"}
    if not isinstance(definition, dict) or set(definition) - keys:
        unknown = ", ".join(sorted(map(str, set(definition) - keys))) if isinstance(definition, dict) else "no keys"
        raise InputError(f"{path} has {unknown}; expected: {', '.join(sorted(keys))}")
    if missing := {"version", "about", "metrics"} - set(definition):
        raise InputError(f"{path} does not have: {', '.join(sorted(missing))}")
    spec = definition.pop("written", None)
    check_types(Task, definition, str(path))
    counts = {name: definition.get(name) for name in ("new_tokens", "least_words")} | (definition.get("sample") or {})
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InputError(f"{path}: {name} is {value}; expected at least 1")
    if spec is not None:
        spec = _read_synthetic_spec(spec, path)
    definition = {"fields": {}, **definition, "metrics": tuple(definition["metrics"])}
    return Task(path.stem, **definition, written=spec)


def _read_synthetic_spec(values: Any, path: Path) -> SyntheticSpec:
    try:
        spec = SyntheticSpec(**values)
    except TypeError as error:
        raise InputError(f"{path}: written is invalid ({error}); expected at least words and rivals") from None
    check_types(SyntheticSpec, vars(spec), f"{path}: written")
    if not 1 <= spec.words[0] <= spec.words[1] or spec.rivals < 0 or spec.questions < 1:
        raise InputError(f"{path}: written is {values}; expected words from a smaller number to a larger one")
    return replace(spec, words=(spec.words[0], spec.words[1]))
