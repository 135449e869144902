"""One model, one long text, some questions: what the truncated model answers, what it answers with all of the text.

Knows how to ask and to measure; how it is printed is the command's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .memory.encode import Progress
from .model import Output, Unlimiformer
from .provenance.provenance import Passage
from .qa import Answer, DocumentQA, QuestionFormat
from .utils.plotting import pyplot

_BEAMS = 4  # a greedy copy of a long number may lose a digit


@dataclass(frozen=True)
class DemoAnswer:
    """One question's two answers, and where the second came from."""

    question: str
    truncated: str
    unlimited: str
    passages: list[Passage]
    window: int
    source_tokens: int
    memory_bytes: int
    encode_seconds: float
    answer_seconds: float
    output: Output

    @classmethod
    def of(cls, question: str, truncated: str, reply: Answer, passages: list[Passage], window: int) -> DemoAnswer:
        """From a reply and what is known beside it."""
        output = reply.output
        figures = (window, len(output.memory), output.memory.nbytes, reply.reading, reply.answering)
        return cls(question, truncated.strip(), reply.text.strip(), passages, *figures, output)

    def figures(self) -> dict[str, Any]:
        """All but the tensors."""
        plain = {name: value for name, value in vars(self).items() if name not in ("output", "passages")}
        return {**plain, "passages": [asdict(passage) for passage in self.passages]}


@dataclass(frozen=True)
class PlantedFact:
    """A sentence that stands nowhere in the text until it is planted there, and the question that it answers."""

    place: float
    sentence: str
    question: str


FACTS = (
    PlantedFact(0.20, "The harbour master of Lisbon is called Duarte.", "What is the harbour master of Lisbon called?"),
    PlantedFact(0.35, "The code of the vault in Prague is 48213.", "What is the code of the vault in Prague?"),
    PlantedFact(0.65, "The painter Marit Solberg lives in Bergen.", "Where does the painter Marit Solberg live?"),
)


def plant(text: str, facts: Sequence[PlantedFact]) -> str:
    """The text with each fact as a paragraph of its own, at the first empty line after its place."""
    lines = text.split("\n")
    for fact in sorted(facts, key=lambda fact: fact.place, reverse=True):
        at = int(len(lines) * fact.place)
        while at < len(lines) and lines[at].strip():
            at += 1
        lines.insert(at, f"\n{fact.sentence}\n")
    return "\n".join(lines)


def ask(
    wrapped: Unlimiformer,
    text: str,
    questions: Sequence[str],
    asking: QuestionFormat | None = None,
    progress: Progress | None = None,
) -> Iterator[DemoAnswer]:
    """Asks each question twice: of as much of the text as the plain model sees, and of all of it."""
    settings: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
    talk = DocumentQA(wrapped, text, asking or QuestionFormat(form="{question}"))
    beams = _BEAMS if talk.asks_the_decoder else 1
    for question in questions:
        truncated = talk.truncated(question, num_beams=beams, **settings)
        reply = talk.ask(question, progress, provenance=True, num_beams=beams, **settings)
        assert reply.output.provenance is not None, "it was asked for"
        yield DemoAnswer.of(question, truncated, reply, reply.output.provenance.passages(2, 40), talk.context_length)


def draw(answers: Sequence[DemoAnswer], path: Path, title: str) -> None:
    """A strip a question: where in the text its attention fell, and where the truncated model's input ends."""
    plots = pyplot()
    figure, axes = plots.subplots(len(answers), 1, figsize=(8, 0.5 + 1.15 * len(answers)), squeeze=False, sharex=True)
    for axis, answer in zip(axes[:, 0], answers, strict=True):
        provenance = answer.output.provenance
        assert provenance is not None
        weights = provenance.weights[answer.output.memory.prefix_tokens :]
        bins = min(400, weights.shape[0])
        share = [float(part.sum()) for part in weights.tensor_split(bins)]
        tokens = answer.source_tokens - answer.output.memory.prefix_tokens
        axis.bar([tokens * (i + 0.5) / bins for i in range(bins)], share, width=tokens / bins, color="#2a6fb0")
        axis.axvspan(0, min(answer.window, tokens), color="#d9534f", alpha=0.25, lw=0)
        axis.set(yticks=[], xlim=(0, tokens))
        axis.set_title(f"{answer.question}  →  {answer.unlimited}", fontsize=9, loc="left")
    axes[-1, 0].set_xlabel(f"tokens of {title}; red: all that the truncated model reads", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plots.close(figure)
