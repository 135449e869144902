"""The first sentences of every part of a document: what a summary must be better than."""

from __future__ import annotations

from ..errors import InputError
from ..provenance import Passage
from ..text.sentences import split_sentences
from .base import Summarizer, SummaryRequest
from .outline import outline
from .parts import divide_into_parts
from .summary import ChapterSummary, Summary, SummarySentence

_SECTION_TOKENS = 512


class LeadingSentences(Summarizer):
    """Takes sentences from the beginning of each part until it has its words; needs no model."""

    name = "leading"

    def summarize(self, request: SummaryRequest) -> Summary:
        """The first sentences of every part."""
        chapters = outline(request.text, self._engine.tokenizer, _SECTION_TOKENS)
        if not chapters:
            raise InputError("the document has no sentences; expected a text to summarise")
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
        if not request.by_chapter:
            summaries = [ChapterSummary(None, tuple(sentence for part in summaries for sentence in part.sentences))]
        return Summary(request.text, tuple(summaries), self.name)
