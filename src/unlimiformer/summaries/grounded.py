"""A hierarchical summary of which every sentence is checked against the document."""

from __future__ import annotations

from ..provenance.evidence import EvidenceSearch
from .hierarchical import Hierarchical
from .selection import Statement
from .writer import SectionWriter

_PASSAGES = 4  # from which a sentence is rewritten


class Grounded(Hierarchical):
    """A sentence with a name or a number that is not in its part of the document is rewritten from its evidence.

    It is dropped if there is no evidence, or if the new sentence is no better.
    """

    name = "grounded"

    def _revise(self, statements: list[Statement], evidence: EvidenceSearch, writer: SectionWriter) -> list[Statement]:
        """The statements that the document supports, as they are or rewritten."""
        doubtful = [statement for statement in statements if not evidence.supports(statement.text, statement.origin)]
        sources = {statement: evidence.text(statement.text, statement.origin, _PASSAGES) for statement in doubtful}
        with_evidence = [statement for statement in sources if sources[statement]]
        rewritten = writer.write([sources[statement] for statement in with_evidence], 1)
        replacements = dict(zip(with_evidence, rewritten, strict=True))
        supported = []
        for statement in statements:
            sentences = replacements.get(statement, []) if statement in sources else [statement.text]
            kept = [sentence for sentence in sentences if evidence.supports(sentence, statement.origin)]
            supported += [Statement(sentence, statement.origin) for sentence in kept]
        return supported
