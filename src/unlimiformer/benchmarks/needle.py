"""One-line facts in real text, among rivals of their own kind, asked of the truncated plain model and of ours.

Every depth of a document has one fact of each kind, in wordings that take turns. All facts of a kind are rivals, with
other names and other answers, so that a model that finds any number passes nothing. Defaults were chosen with other
wordings than those that are reported.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from ..engines import Seq2SeqEngine
from ..errors import UnlimiformerError
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from ..utils.plotting import pyplot
from .timing import ms_per_token

NeedleWording = tuple[str, str]
"""A sentence and the question that it answers, with {subject} and {answer}."""

NEEDLE_WORDINGS: dict[str, dict[str, tuple[NeedleWording, ...]]] = {
    "choosing": {
        "number": (
            ("The code of the vault in {subject} is {answer}.", "What is the code of the vault in {subject}?"),
            (
                "The telephone number of the museum in {subject} is {answer}.",
                "What is the telephone number of the museum in {subject}?",
            ),
            (
                "The winning ticket of the lottery in {subject} had the number {answer}.",
                "What number did the winning ticket of the lottery in {subject} have?",
            ),
            (
                "The library of {subject} owns exactly {answer} books.",
                "How many books does the library of {subject} own?",
            ),
        ),
        "name": (
            ("The harbour master of {subject} is called {answer}.", "What is the harbour master of {subject} called?"),
            (
                "The head gardener at the palace of {subject} is {answer}.",
                "Who is the head gardener at the palace of {subject}?",
            ),
            ("The mayor of {subject} is named {answer}.", "What is the mayor of {subject} named?"),
            (
                "The oldest baker in {subject} is a woman called {answer}.",
                "What is the oldest baker in {subject} called?",
            ),
        ),
        "place": (
            ("The painter {subject} lives in {answer}.", "Where does the painter {subject} live?"),
            (
                "The violin of Professor {subject} was made in {answer}.",
                "Where was the violin of Professor {subject} made?",
            ),
            ("The engineer {subject} works in {answer}.", "Where does the engineer {subject} work?"),
            (
                "The ship of Captain {subject} was built in {answer}.",
                "Where was the ship of Captain {subject} built?",
            ),
        ),
    },
    "reported": {
        "number": (
            (
                "The bell in the tower of {subject} weighs {answer} kilograms.",
                "How many kilograms does the bell in the tower of {subject} weigh?",
            ),
            (
                "The registration number of the ferry to {subject} is {answer}.",
                "What is the registration number of the ferry to {subject}?",
            ),
        ),
        "name": (
            (
                "The night watchman of the station in {subject} is {answer}.",
                "Who is the night watchman of the station in {subject}?",
            ),
            (
                "The school in {subject} is led by a teacher named {answer}.",
                "What is the name of the teacher who leads the school in {subject}?",
            ),
        ),
        "place": (
            ("Doctor {subject} spent the winter in {answer}.", "Where did Doctor {subject} spend the winter?"),
            (
                "The letters of the merchant {subject} are kept in {answer}.",
                "Where are the letters of the merchant {subject} kept?",
            ),
        ),
    },
}

_PLACES = [
    "Lisbon",
    "Oslo",
    "Madrid",
    "Prague",
    "Dublin",
    "Naples",
    "Athens",
    "Warsaw",
    "Geneva",
    "Bergen",
    "Toledo",
    "Malmo",
    "Riga",
    "Porto",
    "Genoa",
    "Basel",
    "Krakow",
    "Ghent",
    "Lyon",
    "Turin",
    "Seville",
    "Bremen",
    "Tallinn",
    "Odessa",
    "Smyrna",
    "Cadiz",
    "Leiden",
    "Trieste",
    "Zagreb",
    "Tampere",
]
_NAMES = [
    "Duarte",
    "Ingrid",
    "Matteo",
    "Klara",
    "Fergus",
    "Paloma",
    "Stavros",
    "Agnieszka",
    "Bastien",
    "Sigrid",
    "Ramiro",
    "Annika",
    "Janis",
    "Teresa",
    "Lorenzo",
    "Ursula",
    "Wojtek",
    "Femke",
    "Odile",
    "Renzo",
    "Ximena",
    "Detlef",
    "Liisa",
    "Oksana",
    "Emre",
    "Jimena",
    "Pieter",
    "Nives",
    "Vesna",
    "Aino",
]
_SURNAMES = [
    "Solberg",
    "Keller",
    "Moreau",
    "Novak",
    "Byrne",
    "Castillo",
    "Papas",
    "Zielinski",
    "Dubois",
    "Haugen",
    "Ortega",
    "Lindqvist",
    "Ozols",
    "Pereira",
    "Ricci",
    "Vogel",
    "Kowalska",
    "Janssens",
    "Fournier",
    "Bianchi",
    "Navarro",
    "Brandt",
    "Tamm",
    "Bondar",
    "Demir",
    "Herrera",
    "Visser",
    "Kovac",
    "Horvat",
    "Virtanen",
]
_MOST_DEPTHS = min(len(_PLACES), len(_NAMES), len(_SURNAMES))
_ANSWER: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
_PLAIN_PROMPT = 2000


@dataclass(frozen=True)
class Needle:
    """A fact at a place of the document (0 is its beginning, 1 its end)."""

    kind: str
    depth: float
    sentence: str
    question: str
    answer: str

    def answered_by(self, text: str) -> bool:
        """Whether the answer is one of a text's words."""
        return self.answer.lower() in re.findall(r"\w+", text.lower())


@dataclass(frozen=True)
class NeedleRow:
    """One question, one method."""

    method: str
    tokens: int
    depth: float
    correct: bool
    kind: str
    question: str
    expected: str
    answer: str


def needles(depths: int, which: str, seed: int = 0) -> list[Needle]:
    """One fact of each kind for every depth."""
    if not 1 <= depths <= _MOST_DEPTHS:
        raise UnlimiformerError(f"depths is {depths}; expected 1 to {_MOST_DEPTHS}")
    rng = random.Random(seed)
    found = []
    for kind, forms in NEEDLE_WORDINGS[which].items():
        subjects = rng.sample(_SURNAMES if kind == "place" else _PLACES, depths)
        answers = {
            "number": [str(number) for number in rng.sample(range(10_000, 100_000), depths)],
            "name": rng.sample(_NAMES, depths),
            "place": rng.sample(_PLACES, depths),
        }[kind]
        for number, (subject, answer) in enumerate(zip(subjects, answers, strict=True)):
            sentence, question = forms[number % len(forms)]
            words = {"subject": subject, "answer": answer}
            depth = (number + 0.5) / depths
            found.append(Needle(kind, depth, sentence.format(**words), question.format(**words), answer))
    return found


def planted(text: str, facts: Sequence[Needle], tokens: int, tokenizer: Any, seed: int = 0) -> str:
    """A text of about so many tokens in which every fact has a line of its own, as far as can be from all others."""
    rng = random.Random(seed)
    count = len(tokenizer("\n".join(fact.sentence for fact in facts), verbose=False)["input_ids"])
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if count >= tokens:
        raise UnlimiformerError(
            f"{len(facts)} facts have {count} tokens, the document {tokens}; expected a longer one, or fewer --depths"
        )
    if len(ids) < tokens:
        raise UnlimiformerError(f"the texts have {len(ids)} tokens; expected {tokens}: give more of them (--text)")
    lines = tokenizer.decode(ids[: max(1, tokens - count)]).split("\n")
    order = sorted(facts, key=lambda fact: (fact.depth, rng.random()))
    for number, fact in reversed(list(enumerate(order))):
        lines.insert(round((number + 0.5) / len(order) * len(lines)), fact.sentence)
    return "\n".join(lines)


def run(
    wrapped: Unlimiformer,
    text: str,
    lengths: Sequence[int],
    depths: int,
    which: str = "reported",
    plain: bool = True,
    asking: QuestionFormat | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[NeedleRow]:
    """Asks every question of one document of each length, and yields the rows as they come."""
    for tokens in lengths:
        facts = needles(depths, which)
        talk = DocumentQA(wrapped, planted(text, facts, tokens, wrapped.tokenizer), asking or QuestionFormat())
        methods = _methods(talk, plain)
        for number, fact in enumerate(facts):
            log(f"{tokens:,} tokens: question {number + 1} of {len(facts)}")
            for method, ask in methods.items():
                answer = ask(fact.question, **_ANSWER)
                correct = fact.answered_by(answer)
                yield NeedleRow(method, tokens, fact.depth, correct, fact.kind, fact.question, fact.answer, answer)


def _methods(talk: DocumentQA, plain: bool) -> dict[str, Callable[..., str]]:
    """Ours, the truncated plain model, and SLED's attention to all tokens where a model has such."""
    found: dict[str, Callable[..., str]] = {"ours": lambda question, **g: talk.ask(question, **g).text}
    if plain:
        found["truncated"] = talk.truncated
    engine = talk.wrapped.engine
    if plain and isinstance(engine, Seq2SeqEngine):

        def sled(question: str, **generation: Any) -> str:
            with engine.seeing_everything():
                return talk.ask(question, **generation).text

        found["SLED"] = sled
    return found


def speed(wrapped: Unlimiformer, text: str, tokens: int, new_tokens: int = 24, repeats: int = 3) -> dict[str, float]:
    """What a long document takes, beside the plain model with a short prompt: RAM, and time per token."""
    facts = needles(10, "reported")
    written = planted(text, facts, tokens, wrapped.tokenizer)
    wrapped.generate("Warm up. " * 500, prompt="What?", max_new_tokens=2)
    with _Peak() as peak:
        started = time.perf_counter()
        memory = wrapped.index(written)
        reading = time.perf_counter() - started
        prompted = wrapped.generate(memory, prompt=facts[0].question, provenance=True, max_new_tokens=new_tokens)
    ids = torch.tensor(wrapped.tokenizer(text, verbose=False)["input_ids"][:_PLAIN_PROMPT])[None]
    ids = ids.to(wrapped.model.device)
    call = {"inputs": ids, "attention_mask": torch.ones_like(ids)}
    fixed = {"do_sample": False, "max_new_tokens": new_tokens, "min_new_tokens": new_tokens}

    def ours(**generation: Any) -> None:
        wrapped.generate(memory, prompt=facts[0].question, **generation)

    class Query:
        generate = staticmethod(ours)

    steps: dict[str, list[float]] = {"ours": [], "plain": []}
    whole: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(repeats):
        steps["plain"].append(ms_per_token(wrapped.model, new_tokens, **call))
        steps["ours"].append(ms_per_token(Query, new_tokens))
        started = time.perf_counter()
        wrapped.model.generate(**call, **fixed)
        asked = time.perf_counter()
        ours(**fixed)
        whole["plain"].append((asked - started) * 1000 / new_tokens)
        whole["ours"].append((time.perf_counter() - asked) * 1000 / new_tokens)
    return {
        "tokens": len(memory),
        "reading_seconds": reading,
        "memory_bytes": memory.nbytes,
        "peak_beyond_the_model_bytes": peak.growth,
        "tokens_chosen": int((prompted.provenance.weights > 0).sum()),
        "plain_prompt_tokens": _PLAIN_PROMPT,
        "plain_ms_per_token": min(steps["plain"]),
        "ours_ms_per_token": min(steps["ours"]),
        "ratio": min(steps["ours"]) / min(steps["plain"]),
        "plain_ms_per_token_with_prompt": min(whole["plain"]),
        "ours_ms_per_token_with_choosing": min(whole["ours"]),
        "ratio_with_prompt_and_choosing": min(whole["ours"]) / min(whole["plain"]),
    }


class _Peak:
    """How far the process's memory grows above what it is at the beginning."""

    def __enter__(self) -> _Peak:
        self._process, self._over = psutil.Process(), threading.Event()
        self._before = self._highest = self._process.memory_info().rss
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self._highest = max(self._highest, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    @property
    def growth(self) -> int:
        """Bytes."""
        return self._highest - self._before


def accuracy(rows: Sequence[NeedleRow]) -> dict[tuple[str, int], float]:
    """The share of right answers by method and length."""
    found: dict[tuple[str, int], list[bool]] = {}
    for row in rows:
        found.setdefault((row.method, row.tokens), []).append(row.correct)
    return {name: sum(marks) / len(marks) for name, marks in found.items()}


def report(rows: Sequence[NeedleRow], **about: Any) -> dict[str, Any]:
    """For JSON."""
    shares = [{"method": m, "tokens": t, "accuracy": share} for (m, t), share in accuracy(rows).items()]
    return {**about, "accuracy": shares, "rows": [asdict(row) for row in rows]}


def plot(rows: Sequence[NeedleRow], path: Path) -> None:
    """A heat map a method, over length and depth."""
    plots = pyplot()
    methods = sorted({row.method for row in rows}, reverse=True)
    lengths, depths = sorted({row.tokens for row in rows}), sorted({row.depth for row in rows})
    width = 1.5 + len(methods) * (0.8 + 0.7 * len(lengths))
    figure, axes = plots.subplots(
        1, len(methods), figsize=(width, 1.2 + 0.32 * len(depths)), squeeze=False, sharey=True
    )
    for axis, method in zip(axes[0], methods, strict=True):
        grid = [[_share(rows, method, tokens, depth) for tokens in lengths] for depth in depths]
        picture = axis.imshow(grid, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        axis.set_xticks(range(len(lengths)), [f"{tokens:,}" for tokens in lengths], rotation=30)
        axis.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
        axis.set(title=method, xlabel="tokens of the document")
    axes[0, 0].set_ylabel("depth of the fact")
    figure.colorbar(picture, ax=list(axes[0]), label="right answers")
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plots.close(figure)


def _share(rows: Sequence[NeedleRow], method: str, tokens: int, depth: float) -> float:
    marks = [row.correct for row in rows if (row.method, row.tokens, row.depth) == (method, tokens, depth)]
    return sum(marks) / len(marks) if marks else float("nan")
