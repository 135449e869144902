"""Sections, then parts, then the document: the plain model summarises each section, and each part keeps the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ..engines.answer_end import loop_start
from ..provenance.evidence import EvidenceSearch
from ..text.answer_sentences import is_repetition
from .base import Summarizer, SummaryRequest
from .outline import SECTION_TOKENS, outline
from .parts import Part, divide_into_parts
from .selection import Statement, select_statements
from .summary import ChapterSummary, Summary, SummarySentence
from .writer import BATCH, SectionWriter


class Hierarchical(Summarizer):
    """Every section of the document gets one sentence or a few; where a part has too many, the most telling are kept.

    A part of the document is final when its sections are read, so that a long summary can be shown while it is written.
    """

    name = "hierarchical"

    def summarize(self, request: SummaryRequest) -> Summary:
        """A summary of a document."""
        section_tokens = min(SECTION_TOKENS, SectionWriter.room(self._engine))
        chapters = outline(request.text, self._engine.tokenizer, section_tokens)
        parts = divide_into_parts(chapters, request.words, request.by_chapter)
        evidence, said = EvidenceSearch(request.text), list[str]()
        summaries = []
        with SectionWriter.open(self._engine, self._format, request.generation, request.folder) as writer:
            for part, statements in _drafts(parts, request, writer):
                new = [s for s in self._revise(statements, evidence, writer) if not is_repetition(s.text, said)]
                shown = [] if request.by_chapter else list(said)
                sentences = []
                for statement in select_statements(new, part.words):
                    if loop_start(" ".join((*shown, statement.text))) is None:
                        shown.append(statement.text)
                        passages = evidence.find(statement.text, [statement.origin])
                        sentences.append(SummarySentence(statement.text, passages))
                said += [sentence.text for sentence in sentences]
                summaries.append(ChapterSummary(part.title, tuple(sentences)))
                request.on_part(summaries[-1])
        return self._join(summaries, request)

    def _revise(self, statements: list[Statement], evidence: EvidenceSearch, writer: SectionWriter) -> list[Statement]:
        """The statements about a part that may be shown."""
        del evidence, writer
        return statements


def _drafts(
    parts: Sequence[Part], request: SummaryRequest, writer: SectionWriter
) -> Iterator[tuple[Part, list[Statement]]]:
    """Each part with the statements about its sections, as soon as all are written.

    Sections are read in the order of the document, whatever the parts are, so that other parts can use them again.
    """
    sections = [(part, section) for part in parts for section in part.sections]
    statements: list[Statement] = []
    done = finished = 0
    for count, group in groupby(sections, key=lambda pair: pair[0].sentences_per_section):
        spans = [section for _, section in group]
        for start in range(0, len(spans), BATCH):
            batch = spans[start : start + BATCH]
            written = writer.write([request.text[first:last].strip() for first, last in batch], count)
            for span, sentences in zip(batch, written, strict=True):
                statements += [Statement(sentence, span) for sentence in sentences]
            done += len(batch)
            request.progress(done, len(sections))
            while finished < len(parts) and parts[finished].sections[-1][1] <= batch[-1][1]:
                part = parts[finished]
                inside = [s for s in statements if part.sections[0][0] <= s.origin[0] < part.sections[-1][1]]
                yield part, inside
                finished += 1
