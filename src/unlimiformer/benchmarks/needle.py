"""Questions about one-line facts in real text, among similar facts: ours against the truncated model and SLED.

Every depth of a document has one fact of each kind, in varying wordings. All facts of a kind have other names and other
answers, so a model that finds any number of the right kind is not right yet. The library's defaults were chosen with
other wordings than the reported ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from ..tasks.synthetic import generate_needles, plant_needles
from ..utils.optional import require
from ..utils.plotting import pyplot
from .timing import ms_per_token

_ANSWER: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
_PLAIN_PROMPT = 2000


@dataclass(frozen=True)
class NeedleRow:
    """The answer of one method to one question."""

    method: str
    tokens: int
    depth: float
    correct: bool
    kind: str
    question: str
    expected: str
    answer: str


def run(
    wrapped: Unlimiformer,
    text: str,
    lengths: Sequence[int],
    depths: int,
    *,
    which: str = "reported",
    baselines: bool = True,
    question_format: QuestionFormat | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[NeedleRow]:
    """Ask every question about one document of each length, and yield the rows as they come.

    Parameters
    ----------
    text : the text in which facts are planted.
    depths : number of places in a document.
    which : the set of wordings, "reported" or "choosing".
    baselines : also ask the truncated model and, for encoder–decoders, with full attention (SLED).
    """
    for tokens in lengths:
        facts = generate_needles(depths, which)
        document = plant_needles(text, facts, tokens, wrapped.tokenizer)
        qa = DocumentQA(wrapped, document, question_format or QuestionFormat())
        methods = _methods(qa, baselines)
        for number, fact in enumerate(facts):
            log(f"{tokens:,} tokens: question {number + 1} of {len(facts)}")
            for method, ask in methods.items():
                answer = ask(fact.question, **_ANSWER)
                yield NeedleRow(
                    method=method,
                    tokens=tokens,
                    depth=fact.depth,
                    correct=fact.answered_by(answer),
                    kind=fact.kind,
                    question=fact.question,
                    expected=fact.answer,
                    answer=answer,
                )


def _methods(qa: DocumentQA, baselines: bool) -> dict[str, Callable[..., str]]:
    methods: dict[str, Callable[..., str]] = {"ours": lambda question, **kwargs: qa.ask(question, **kwargs).text}
    if not baselines:
        return methods
    methods["truncated"] = qa.ask_truncated
    engine = qa.wrapped.engine
    if engine.kind == "encoder-decoder" and qa.wrapped.config.selection != "reread":

        def ask_with_full_attention(question: str, **generation: Any) -> str:
            with engine.full_attention():
                return qa.ask(question, **generation).text

        methods["SLED"] = ask_with_full_attention
    return methods


def speed(wrapped: Unlimiformer, text: str, tokens: int, new_tokens: int = 24, repeats: int = 3) -> dict[str, float]:
    """RAM and time per token for a long document, against the plain model with a short prompt."""
    facts = generate_needles(10, "reported")
    document = plant_needles(text, facts, tokens, wrapped.tokenizer)
    wrapped.generate("Warm up. " * 500, prompt="What?", max_new_tokens=2)
    with _PeakMemory() as peak:
        started = time.perf_counter()
        memory = wrapped.index(document)
        index_seconds = time.perf_counter() - started
        output = wrapped.generate(memory, prompt=facts[0].question, provenance=True, max_new_tokens=new_tokens)
    ids = torch.tensor(wrapped.tokenizer(text, verbose=False)["input_ids"][:_PLAIN_PROMPT])[None]
    ids = ids.to(wrapped.model.device)
    inputs = {"inputs": ids, "attention_mask": torch.ones_like(ids)}
    fixed_length = {"do_sample": False, "max_new_tokens": new_tokens, "min_new_tokens": new_tokens}

    class LongDocument:
        """Has a `generate` that answers from the memory, to be timed like a model's."""

        @staticmethod
        def generate(**generation: Any) -> None:
            wrapped.generate(memory, prompt=facts[0].question, **generation)

    step_ms: dict[str, list[float]] = {"ours": [], "plain": []}
    total_ms: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(repeats):
        step_ms["plain"].append(ms_per_token(wrapped.model, new_tokens, **inputs))
        step_ms["ours"].append(ms_per_token(LongDocument, new_tokens))
        started = time.perf_counter()
        wrapped.model.generate(**inputs, **fixed_length)
        middle = time.perf_counter()
        LongDocument.generate(**fixed_length)
        total_ms["plain"].append((middle - started) * 1000 / new_tokens)
        total_ms["ours"].append((time.perf_counter() - middle) * 1000 / new_tokens)
    return {
        "tokens": len(memory),
        "reading_seconds": index_seconds,
        "memory_bytes": memory.nbytes,
        "peak_beyond_the_model_bytes": peak.growth,
        "tokens_chosen": int((output.provenance.weights > 0).sum()),
        "plain_prompt_tokens": _PLAIN_PROMPT,
        "plain_ms_per_token": min(step_ms["plain"]),
        "ours_ms_per_token": min(step_ms["ours"]),
        "ratio": min(step_ms["ours"]) / min(step_ms["plain"]),
        "plain_ms_per_token_with_prompt": min(total_ms["plain"]),
        "ours_ms_per_token_with_choosing": min(total_ms["ours"]),
        "ratio_with_prompt_and_choosing": min(total_ms["ours"]) / min(total_ms["plain"]),
    }


class _PeakMemory:
    """Measures how far the process's memory grows inside a `with` block."""

    def __enter__(self) -> _PeakMemory:
        psutil = require("psutil", "bench", "measuring memory")
        self._process, self._finished = psutil.Process(), threading.Event()
        self._before = self._highest = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._finished.wait(0.05):
            self._highest = max(self._highest, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        """Bytes between the beginning and the peak."""
        return self._highest - self._before


def accuracy(rows: Sequence[NeedleRow]) -> dict[tuple[str, int], float]:
    """The share of right answers by method and length."""
    marks: dict[tuple[str, int], list[bool]] = {}
    for row in rows:
        marks.setdefault((row.method, row.tokens), []).append(row.correct)
    return {key: sum(values) / len(values) for key, values in marks.items()}


def report(rows: Sequence[NeedleRow], **settings: Any) -> dict[str, Any]:
    """The content of the JSON file: settings, accuracy, and all rows."""
    shares = [{"method": m, "tokens": t, "accuracy": share} for (m, t), share in accuracy(rows).items()]
    return {**settings, "accuracy": shares, "rows": [asdict(row) for row in rows]}


def plot(rows: Sequence[NeedleRow], path: Path) -> None:
    """Draw a heat map for each method, over length and depth."""
    plots = pyplot("bench")
    methods = sorted({row.method for row in rows}, reverse=True)
    lengths, depths = sorted({row.tokens for row in rows}), sorted({row.depth for row in rows})
    width = 1.5 + len(methods) * (0.8 + 0.7 * len(lengths))
    figure, axes = plots.subplots(
        1, len(methods), figsize=(width, 1.2 + 0.32 * len(depths)), squeeze=False, sharey=True
    )
    for axis, method in zip(axes[0], methods, strict=True):
        grid = [[_share(rows, method, tokens, depth) for tokens in lengths] for depth in depths]
        image = axis.imshow(grid, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        axis.set_xticks(range(len(lengths)), [f"{tokens:,}" for tokens in lengths], rotation=30)
        axis.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
        axis.set(title=method, xlabel="tokens of the document")
    axes[0, 0].set_ylabel("depth of the fact")
    figure.colorbar(image, ax=list(axes[0]), label="right answers")
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plots.close(figure)


def _share(rows: Sequence[NeedleRow], method: str, tokens: int, depth: float) -> float:
    marks = [row.correct for row in rows if (row.method, row.tokens, row.depth) == (method, tokens, depth)]
    return sum(marks) / len(marks) if marks else float("nan")
