"""The demo: ask one model questions about a long text, and compare with what the plain model answers.

This module asks and measures; the command line prints the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .evaluation.methods import Answerer, Item
from .memory.encode import Progress
from .model import Output, Unlimiformer
from .provenance.provenance import Passage
from .qa import DocumentQA, QuestionFormat
from .utils.plotting import pyplot

_BEAMS = 4  # a greedy copy of a long number may lose a digit


@dataclass(frozen=True)
class DemoAnswer:
    """Three answers to one question, and the passages behind the last.

    Parameters
    ----------
    truncated : of the plain model, from the first window of the text.
    word_search : of the plain model, from the passages that share most words with the question (BM25).
    unlimited : ours, from the whole text.
    window : number of tokens that the truncated model sees.
    """

    question: str
    truncated: str
    word_search: str
    unlimited: str
    passages: list[Passage]
    window: int
    source_tokens: int
    memory_bytes: int
    index_seconds: float
    answer_seconds: float
    output: Output

    def figures(self) -> dict[str, Any]:
        """Return all fields without the tensors, for JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in ("output", "passages")}
        return {**plain, "passages": [asdict(passage) for passage in self.passages]}


def ask(
    wrapped: Unlimiformer,
    text: str,
    questions: Sequence[str],
    question_format: QuestionFormat | None = None,
    progress: Progress | None = None,
) -> Iterator[DemoAnswer]:
    """Ask each question in three ways."""
    question_format = question_format or QuestionFormat(form="{question}")
    qa = DocumentQA(wrapped, text, question_format)
    generation: dict[str, Any] = {"do_sample": False, "num_beams": _BEAMS if qa.question_in_decoder else 1}
    truncated, word_search = (Answerer(wrapped, question_format, generation, method) for method in ("truncate", "bm25"))
    for question in questions:
        item = Item(question, text, question, ())
        answer = qa.ask(question, progress, provenance=True, **generation)
        assert answer.output.provenance is not None, "requested by provenance=True"
        memory = answer.output.memory
        yield DemoAnswer(
            question,
            truncated=truncated.answers([item])[0].text.strip(),
            word_search=word_search.answers([item])[0].text.strip(),
            unlimited=answer.text.strip(),
            passages=answer.output.provenance.passages(2, 40),
            window=wrapped.engine.window,
            source_tokens=len(memory),
            memory_bytes=memory.nbytes,
            index_seconds=answer.index_seconds,
            answer_seconds=answer.answer_seconds,
            output=answer.output,
        )


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
