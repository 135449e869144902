"""The first sentences of every part of a document: what a summary must be better than."""

from __future__ import annotations

from ..provenance import Passage
from ..text.sentences import split_sentences
from .base import Summarizer, SummaryRequest
from .outline import SECTION_TOKENS, outline
from .parts import divide_into_parts
from .summary import ChapterSummary, Summary, SummarySentence


class LeadingSentences(Summarizer):
    """Takes sentences from the beginning of each part until it has its words; needs no model."""

    name = "leading"

    def summarize(self, request: SummaryRequest) -> Summary:
        """The first sentences of every part."""
        chapters = outline(request.text, self._engine.tokenizer, SECTION_TOKENS)
        summaries = []
        for part in divide_into_parts(chapters, request.words, request.by_chapter):
            first, last = part.sections[0][0], part.sections[-1][1]
            sentences: list[SummarySentence] = []
            words = 0
            for start, end in split_sentences(request.text[first:last]):
                text = " ".join(request.text[first + start : first + end].split())
                words += len(text.split())
                if sentences and words > part.words:
                    break
                sentences.append(SummarySentence(text, (Passage(first + start, first + end, 1.0),)))
            summaries.append(ChapterSummary(part.title, tuple(sentences)))
            request.on_part(summaries[-1])
        return self._join(summaries, request)
