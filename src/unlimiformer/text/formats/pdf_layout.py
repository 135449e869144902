"""From the lines of a PDF's pages to paragraphs: columns, running heads, footnotes, hyphens at line ends."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ..document_text import DocumentText, Location

_HYPHENS = ("\x02", "\ufffe", "\xad")  # what a PDF reader gives for a hyphen at a line end
_LIGATURES = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
_NOTE_MARK = re.compile(r"(\d{1,3}|[*†‡§¶]+)\s*")
_PAGE_NUMBER = re.compile(r"\W*(?:page\s+)?(\d{1,4}|[ivxlc]{1,7})(?:\s*(?:of|/)\s*\d{1,4})?\W*", re.IGNORECASE)
_EDGE_NUMBER = re.compile(r"\A\W*(\d{1,4})\b|\b(\d{1,4})\W*\Z")
_SENTENCE_END = re.compile(r"[.!?:。！？][\"'”’»)\]]*\Z")
_MOST_HEAD_NUMBERS = 2  # in a running head: its chapter and the page
_LARGE = 1.12  # a font of more than so many times the size of the text is that of headings
_MOST_HEADING_WORDS = 16
_CELL_GAP = "  "  # between parts of a row that stand apart
_SHORT_BY = 0.15  # a line that ends so much before the others, as a share of the width, was not broken by the margin
_FEWEST_COLUMN_LINES, _FEWEST_COLUMN_WORDS = 3, 4


@dataclass(frozen=True)
class Line:
    """A line of text, or a part of one, on a page; `size` is the height of its font."""

    text: str
    left: float
    bottom: float
    right: float
    top: float
    size: float

    def same_row(self, other: Line) -> bool:
        """Whether two parts stand beside each other."""
        overlap = min(self.top, other.top) - max(self.bottom, other.bottom)
        return overlap > 0.5 * min(self.top - self.bottom, other.top - other.bottom)


@dataclass(frozen=True)
class Page:
    """A page: how it is cited, and its lines in the order of the file."""

    label: str
    lines: list[Line]


def assemble(pages: Iterable[Page]) -> DocumentText:
    """The text of all pages, with paragraphs between empty lines and headings as in Markdown."""
    pages = [replace(page, lines=_merge_parts(page.lines)) for page in pages]
    body_size = _body_size(pages)
    pages = _without_running_heads(pages, body_size)
    builder = _TextBuilder(body_size, _words(pages))
    for page in pages:
        builder.add_page(page.label, _columns(page.lines))
    return builder.finish()


def _body_size(pages: Sequence[Page]) -> float:
    """The size of most of the text."""
    sizes = Counter[float]()
    for page in pages:
        for line in page.lines:
            sizes[round(line.size, 1)] += len(line.text)
    return sizes.most_common(1)[0][0] if sizes else 1.0


def _merge_parts(lines: Sequence[Line]) -> list[Line]:
    """Join parts of one line that the file has one after the other; marks of footnotes are left out."""
    merged: list[Line] = []
    for line in lines:
        text = "".join(_LIGATURES.get(character, character) for character in line.text)
        text = re.sub(r"[ \t\r\n\u00a0]+", " ", text)
        if not text.strip():
            continue
        line = replace(line, text=text)
        last = merged[-1] if merged else None
        gap = line.left - last.right if last else 0.0
        if last is None or not last.same_row(line) or not -0.5 * line.size < gap < 1.2 * max(line.size, last.size):
            merged.append(line)
            continue
        if line.size < 0.8 * last.size and _NOTE_MARK.fullmatch(text.strip()) and re.search(r"\w\w\W*\Z", last.text):
            merged[-1] = replace(last, right=line.right)
            continue
        is_apart = gap > 0.15 * line.size and not last.text.endswith(" ") and not re.match(r"[\s,.;:!?)\]]", text)
        larger = last if len(last.text) >= len(text) else line
        merged[-1] = Line(
            last.text + " " * is_apart + text,
            last.left,
            min(last.bottom, line.bottom),
            line.right,
            max(last.top, line.top),
            larger.size,
        )
    return [replace(line, text=line.text.strip()) for line in merged]


def _rows(lines: Iterable[Line]) -> list[list[Line]]:
    """Lines from top to bottom, those that stand beside each other together."""
    rows: list[list[Line]] = []
    for line in lines:
        if rows and rows[-1][0].same_row(line):
            rows[-1].append(line)
        else:
            rows.append([line])
    return rows


def _edge_rows(page: Page) -> list[list[Line]]:
    """The two rows at the top and the two at the bottom of a page."""
    rows = _rows(sorted(page.lines, key=lambda line: -line.top))
    return rows if len(rows) <= 4 else rows[:2] + rows[-2:]


def _without_running_heads(pages: list[Page], body_size: float) -> list[Page]:
    """Leave out rows at the edges of pages that repeat, that are only a number, or that hold the page's number.

    Larger rows are headings: "Chapter 1", "Chapter 2" are not the same row.
    """
    edges = [[row for row in _edge_rows(page) if row[0].size <= _LARGE * body_size] for page in pages]
    texts = [[_row_text(row) for row in rows] for rows in edges]
    repeated = Counter(key for rows in texts for key in {_without_numbers(text) for text in rows})
    offsets = Counter[int]()
    for index, page_texts in enumerate(texts):
        offsets.update({number - index for text in page_texts for number in _edge_numbers(text)})
    offset, votes = offsets.most_common(1)[0] if offsets else (0, 0)
    kept_pages = []
    for index, (page, rows, row_texts) in enumerate(zip(pages, edges, texts, strict=True)):
        dropped: set[int] = set()
        for row, text in zip(rows, row_texts, strict=True):
            is_repeated = repeated[_without_numbers(text)] >= 3 and len(pages) >= 3
            is_numbered = votes >= max(2, len(pages) // 3) and index + offset in _edge_numbers(text) and len(text) < 100
            if is_repeated or is_numbered or (len(pages) > 1 and _PAGE_NUMBER.fullmatch(text)):
                dropped.update(map(id, row))
        kept_pages.append(replace(page, lines=[line for line in page.lines if id(line) not in dropped]))
    return kept_pages if any(page.lines for page in kept_pages) else pages


def _row_text(row: Sequence[Line]) -> str:
    return " ".join(line.text for line in sorted(row, key=lambda line: line.left))


def _without_numbers(text: str) -> str:
    """What a running head is compared by; the rows of a table, which have many numbers, differ by them."""
    bare, count = re.subn(r"\d+|\b[ivxlc]+\b", "#", text.casefold())
    return bare if count <= _MOST_HEAD_NUMBERS else text


def _edge_numbers(text: str) -> set[int]:
    """Numbers at the beginning and at the end of a text."""
    return {int(match.group(1) or match.group(2)) for match in _EDGE_NUMBER.finditer(text)}


def _columns(lines: list[Line]) -> list[list[Line]]:
    """The lines of a page as columns in reading order; lines across two columns are a column of their own."""
    gutter = _find_gutter(lines)
    if gutter is None:
        ordered = sorted(lines, key=lambda line: -line.top)
        return [_join_rows(ordered)] if ordered else []
    across = sorted((line for line in lines if _crosses(line, gutter)), key=lambda line: -line.top)
    parts: list[list[Line]] = []
    rest = [line for line in lines if not _crosses(line, gutter)]
    for spanning in (*across, None):
        above = [line for line in rest if spanning is None or line.bottom >= spanning.top - 0.3 * spanning.size]
        rest = [line for line in rest if line not in above]
        left = [line for line in above if line.right <= gutter]
        right = [line for line in above if line.right > gutter]
        parts += [*_columns(left), *_columns(right)]
        if spanning is not None:
            if parts and parts[-1] and _crosses(parts[-1][-1], gutter):
                parts[-1].append(spanning)
            else:
                parts.append([spanning])
    return parts


def _crosses(line: Line, x: float) -> bool:
    return line.left < x < line.right


def _find_gutter(lines: Sequence[Line]) -> float | None:
    """Where a page is divided into two columns of running text; None if it is not, and in tables."""
    if len(lines) < 2 * _FEWEST_COLUMN_LINES:
        return None
    left, right = min(line.left for line in lines), max(line.right for line in lines)
    quarter = (right - left) / 4
    candidates = {line.left - 0.5 for line in lines if left + quarter < line.left < right - quarter}
    if not candidates:
        return None
    gutter = min(sorted(candidates), key=lambda x: sum(_crosses(line, x) for line in lines))
    crossing = sum(_crosses(line, gutter) for line in lines)
    sides = [[line for line in lines if line.right <= gutter], [line for line in lines if line.left >= gutter]]
    if crossing > len(lines) / 3 or min(map(len, sides)) < _FEWEST_COLUMN_LINES:
        return None
    words = min(median(len(line.text.split()) for line in side) for side in sides)
    return gutter if words >= _FEWEST_COLUMN_WORDS else None


def _join_rows(lines: Sequence[Line]) -> list[Line]:
    """Join lines that stand beside each other, such as the cells of a table."""
    return [
        Line(
            _CELL_GAP.join(part.text for part in sorted(row, key=lambda part: part.left)),
            min(part.left for part in row),
            min(part.bottom for part in row),
            max(part.right for part in row),
            max(part.top for part in row),
            max(part.size for part in row),
        )
        for row in _rows(lines)
    ]


def _words(pages: Sequence[Page]) -> Counter[str]:
    """The words of a document that stand inside lines: they show whether a word has a hyphen."""
    words = Counter[str]()
    for page in pages:
        for line in page.lines:
            words.update(re.findall(r"\w+(?:-\w+)*", line.text.casefold())[:-1])
    return words


def _is_row(above: Line, line: Line) -> bool:
    """Whether a line is a row of a table, or of a table of contents."""
    has_cells = _CELL_GAP in line.text or _CELL_GAP in above.text
    return has_cells or (above.text[-1:].isdigit() and line.text[:1].isdigit())


@dataclass
class _TextBuilder:
    """Puts lines together to paragraphs, and notes where pages begin."""

    body_size: float
    words: Counter[str]
    _text: list[str] = field(default_factory=list)
    _length: int = 0
    _locations: list[Location] = field(default_factory=list)
    _paragraph: str = ""
    _starts: list[tuple[int, str]] = field(default_factory=list)  # pages that begin inside the paragraph
    _last: Line | None = None  # of the paragraph
    _kind: str = "body"
    _notes: list[tuple[str, str]] = field(default_factory=list)  # page and text of footnotes

    def add_page(self, label: str, columns: list[list[Line]]) -> None:
        """Add the columns of a page."""
        for column in columns:
            body, notes = self._split_notes(column)
            self._add_column(body, label)
            self._notes += [(label, note) for note in self._join_notes(notes)]

    def finish(self) -> DocumentText:
        """The text."""
        self._end_paragraph()
        return DocumentText("".join(self._text).strip("\n"), tuple(self._locations))

    def _split_notes(self, column: list[Line]) -> tuple[list[Line], list[Line]]:
        """The footnotes are small lines below others of a column, from the first that begins with a mark."""
        first = len(column)
        while first and column[first - 1].size < 0.93 * self.body_size:
            first -= 1
        while first < len(column) and not _NOTE_MARK.match(column[first].text):
            first += 1
        return (column[:first], column[first:]) if first else (column, [])

    def _join_notes(self, lines: Sequence[Line]) -> list[str]:
        notes: list[str] = []
        for line in lines:
            mark = _NOTE_MARK.match(line.text)
            if mark is not None and len(line.text) > mark.end():
                notes.append(f"Note {mark.group(1)}: {line.text[mark.end() :]}")
            elif notes:
                notes[-1] = self._join(notes[-1], line.text)
        return notes

    def _add_column(self, lines: Sequence[Line], label: str) -> None:
        if not lines:
            return
        left, right = min(line.left for line in lines), max(line.right for line in lines)
        gaps = [above.bottom - below.bottom for above, below in itertools.pairwise(lines)]
        pitch = median(gap for gap in gaps if gap > 0) if any(gap > 0 for gap in gaps) else 0.0
        above: Line | None = None
        for line in lines:
            kind = self._kind_of(line)
            if self._paragraph and self._begins_paragraph(line, above, kind, left, right, pitch):
                self._end_paragraph()
            if not self._paragraph:
                self._starts = [(0, label)]
                self._paragraph, self._kind = line.text, kind
            else:
                is_short = above is not None and above.right < right - _SHORT_BY * (right - left)
                is_row = above is not None and _is_row(above, line)
                is_broken = kind == "body" and (is_short or is_row)
                joined = f"{self._paragraph}\n{line.text}" if is_broken else self._join(self._paragraph, line.text)
                if self._starts[-1][1] != label:
                    self._starts.append((len(joined) - len(line.text), label))
                self._paragraph = joined
            self._last = above = line

    def _kind_of(self, line: Line) -> str:
        is_large = line.size > _LARGE * self.body_size
        return "heading" if is_large and len(line.text.split()) <= _MOST_HEADING_WORDS else "body"

    def _begins_paragraph(
        self, line: Line, above: Line | None, kind: str, left: float, right: float, pitch: float
    ) -> bool:
        """Whether a line does not continue the paragraph; `above` is the line above it in its column."""
        last = self._last
        assert last is not None
        if kind != self._kind or abs(line.size - last.size) > 0.08 * last.size:
            return True
        ended = _SENTENCE_END.search(self._paragraph) is not None
        if above is None:  # a new column or page: only the text can tell
            is_indented = line.left - left > 0.6 * line.size
            return (ended and is_indented) or (ended and not line.text[:1].islower()) or kind == "heading"
        if above.bottom - line.bottom > 1.4 * pitch and pitch:
            return True
        is_indented = line.left - left > 0.6 * line.size and line.left - above.left > 0.6 * line.size
        is_short = above.right < right - _SHORT_BY * (right - left)
        return is_indented or (is_short and ended)

    def _join(self, text: str, line: str) -> str:
        """A text and the line behind it; a hyphen at the line end is left out if the word has none elsewhere."""
        if text.endswith(_HYPHENS):
            text = text[:-1] + "-"
        if not text.endswith("-") or not text[-2:-1].isalpha() or not line[:1].isalpha():
            return f"{text} {line}"
        start = re.search(r"[\w-]*-\Z", text)
        end = re.match(r"\w+(?:-\w+)*", line)
        assert start is not None and end is not None
        with_hyphen, without = start.group() + end.group(), start.group()[:-1] + end.group()
        keeps = self.words[with_hyphen.casefold()] > self.words[without.casefold()] or line[:1].isupper()
        return text + line if keeps else text[:-1] + line

    def _end_paragraph(self) -> None:
        if self._paragraph:
            heading = "# " if self._kind == "heading" else ""
            self._put(
                heading + self._paragraph, [(start + len(heading) * (start > 0), at) for start, at in self._starts]
            )
        self._paragraph = ""
        notes, self._notes = self._notes, []
        for label, note in notes:
            self._put(note, [(0, label)])

    def _put(self, paragraph: str, starts: list[tuple[int, str]]) -> None:
        paragraph = paragraph.translate({ord(hyphen): "-" for hyphen in _HYPHENS})
        for start, label in starts:
            if not self._locations or self._locations[-1].label != label:
                self._locations.append(Location(self._length + start, label))
        self._text.append(paragraph + "\n\n")
        self._length += len(paragraph) + 2
