"""The paper's way: an encoder–decoder generates the summary while every head retrieves from the whole document."""

from __future__ import annotations

from dataclasses import replace

from ..engines.answer_end import AnswerEnd
from ..errors import InputError
from ..memory import Memory
from ..provenance import Passage, Provenance
from ..provenance.evidence import EvidenceSearch
from ..text.answer_sentences import is_repetition
from ..text.passages import CharacterSpan
from ..text.sentences import split_sentences
from ..text.tokenization import pieces
from .base import Summarizer, SummaryRequest, summary_tokens
from .outline import outline
from .summary import ChapterSummary, Summary, SummarySentence

_PASSAGES = 2  # that are shown for a sentence


class Direct(Summarizer):
    """One call of `generate` over a memory of the document, or of each chapter; its attention tells the passages."""

    name = "direct"

    def summarize(self, request: SummaryRequest) -> Summary:
        """A summary of a document."""
        if self._engine.kind != "encoder-decoder":
            raise InputError(
                f"the way to summarise is 'direct' and {type(self._engine.base).__name__} is decoder-only; expected "
                "an encoder–decoder, or one of: hierarchical, grounded"
            )
        summaries: list[ChapterSummary] = []
        for title, span in self._spans(request):
            given = None if request.by_chapter else request.memory
            sentences = self._sentences(given, span, request)
            summaries.append(ChapterSummary(title, sentences))
            request.on_part(summaries[-1])
        return Summary(request.text, tuple(summaries), self.name, request.locations)

    def _spans(self, request: SummaryRequest) -> list[tuple[str | None, CharacterSpan]]:
        if not request.by_chapter:
            return [(None, (0, len(request.text)))]
        chapters = outline(request.text, self._engine.tokenizer, self._engine.window)
        return [(chapter.title, (chapter.sections[0][0], chapter.sections[-1][1])) for chapter in chapters]

    def _index(self, span: CharacterSpan, request: SummaryRequest) -> Memory:
        text, asked = request.text[slice(*span)], self._asked_before
        if self._format.place == "window":
            return self._engine.index(text, prefix=asked or None, progress=request.progress)
        return self._engine.index(asked + text, progress=request.progress)

    @property
    def _asked_before(self) -> str:
        """What stands before the document."""
        return "" if self._format.place == "decoder" else self._format.text(None)

    def _sentences(
        self, given: Memory | None, span: CharacterSpan, request: SummaryRequest
    ) -> tuple[SummarySentence, ...]:
        """The sentences about a part of the document; nothing stands before the text of a given memory."""
        memory = self._index(span, request) if given is None else given
        in_decoder = given is not None or self._format.place == "decoder"
        length = {"max_new_tokens": summary_tokens(request.words)}
        end = AnswerEnd([None], {**length, **request.generation}, self._engine.tokenizer)
        traced = self._engine.supports_provenance and memory.offsets is not None
        prompt = self._format.prompt(None, self._engine) if in_decoder else None
        generated = self._engine.generate([memory], [prompt], traced, end.generation)[0]
        tokens = generated.sequences[0, generated.prompt_length :]
        answer = end.text(self._engine.tokenizer.decode(tokens, skip_special_tokens=True))
        if generated.provenance is None:
            return self._searched(answer, span, request)
        provenance = generated.provenance.with_tokens(pieces(self._engine.tokenizer, tokens.tolist()))
        asked_first = given is None and self._format.place == "first"
        shift = span[0] - (len(self._asked_before) if asked_first else 0)
        return _traced(answer, provenance, shift)

    def _searched(self, answer: str, span: CharacterSpan, request: SummaryRequest) -> tuple[SummarySentence, ...]:
        """The sentences of an answer, with passages that share their words."""
        search = EvidenceSearch(request.text)
        return tuple(
            SummarySentence(sentence, search.find(sentence, [span]))
            for sentence in _distinct([answer[start:end].strip() for start, end in split_sentences(answer)])
        )


def _traced(answer: str, provenance: Provenance, shift: int) -> tuple[SummarySentence, ...]:
    """The sentences of an answer, with the passages that were attended to; positions are moved by `shift`."""
    sentences = {}
    for span in provenance.spans("sentence", _PASSAGES):
        if span.text.strip() in answer:
            sentences[span.text.strip()] = tuple(_moved(passage, shift) for passage in span.passages)
    return tuple(SummarySentence(text, sentences[text]) for text in _distinct(list(sentences)))


def _moved(passage: Passage, shift: int) -> Passage:
    return replace(passage, start=max(0, passage.start + shift), end=max(0, passage.end + shift))


def _distinct(sentences: list[str]) -> list[str]:
    said: list[str] = []
    for sentence in sentences:
        if sentence and not is_repetition(sentence, said):
            said.append(sentence)
    return said
