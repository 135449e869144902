"""The demo: ask one model questions about a long text, with truncated and with unlimited input.

This module asks and measures; the command line prints the results.
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
    """Two answers to one question, with truncated and with unlimited input, and the passages behind the second."""

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
    def from_answers(
        cls, question: str, truncated: str, unlimited: Answer, passages: list[Passage], window: int
    ) -> DemoAnswer:
        """Combine the two answers; `window` is the number of tokens that the truncated model sees."""
        return cls(
            question=question,
            truncated=truncated.strip(),
            unlimited=unlimited.text.strip(),
            passages=passages,
            window=window,
            source_tokens=len(unlimited.output.memory),
            memory_bytes=unlimited.output.memory.nbytes,
            encode_seconds=unlimited.index_seconds,
            answer_seconds=unlimited.answer_seconds,
            output=unlimited.output,
        )

    def figures(self) -> dict[str, Any]:
        """Return all fields without the tensors, for JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in ("output", "passages")}
        return {**plain, "passages": [asdict(passage) for passage in self.passages]}


def ask(
    wrapped: Unlimiformer,
    text: str,
    questions: Sequence[str],
    asking: QuestionFormat | None = None,
    progress: Progress | None = None,
) -> Iterator[DemoAnswer]:
    """Ask each question twice: about as much of the text as the plain model sees, and about all of it."""
    settings: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
    qa = DocumentQA(wrapped, text, asking or QuestionFormat(form="{question}"))
    settings["num_beams"] = _BEAMS if qa.question_in_decoder else 1
    for question in questions:
        truncated = qa.ask_truncated(question, **settings)
        answer = qa.ask(question, progress, provenance=True, **settings)
        assert answer.output.provenance is not None, "requested by provenance=True"
        passages = answer.output.provenance.passages(2, 40)
        yield DemoAnswer.from_answers(question, truncated, answer, passages, qa.context_length)


def draw(answers: Sequence[DemoAnswer], path: Path, title: str) -> None:
    """Plot one strip per question: attention over the text in blue, the input of the truncated model in red."""
    plots = pyplot()
    figure, axes = plots.subplots(len(answers), 1, figsize=(8, 0.5 + 1.15 * len(answers)), squeeze=False, sharex=True)
    for axis, answer in zip(axes[:, 0], answers, strict=True):
        provenance = answer.output.provenance
        assert provenance is not None
        weights = provenance.weights[answer.output.memory.prefix_tokens :]
        bins = min(400, weights.shape[0])
        shares = [float(part.sum()) for part in weights.tensor_split(bins)]
        tokens = answer.source_tokens - answer.output.memory.prefix_tokens
        axis.bar([tokens * (i + 0.5) / bins for i in range(bins)], shares, width=tokens / bins, color="#2a6fb0")
        axis.axvspan(0, min(answer.window, tokens), color="#d9534f", alpha=0.25, lw=0)
        axis.set(yticks=[], xlim=(0, tokens))
        axis.set_title(f"{answer.question}  →  {answer.unlimited}", fontsize=9, loc="left")
    axes[-1, 0].set_xlabel(f"tokens of {title}; red: input of the truncated model", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plots.close(figure)
