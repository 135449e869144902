"""HTML, by lxml: paragraphs between empty lines, headings and lists as in Markdown."""

from __future__ import annotations

import re
from typing import Any

from ...errors import InputError
from ..document_text import DocumentText
from .base import Format
from .plain import find_encoding

_LEFT_OUT = {"script", "style", "noscript", "template", "nav", "svg", "head", "iframe", "object", "form", "button"}
_BLOCKS = {
    *("address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset"),
    *("figcaption", "figure", "footer", "header", "hr", "main", "ol", "p", "pre", "section", "table", "ul"),
}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_MOST_DEPTH = 200  # of nested elements; the text of deeper ones is joined
_SIGNATURE = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"\A\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.-]{1,30})[\"']")
_CHARSET = re.compile(rb"<meta\b[^>]*\bcharset\s*=", re.IGNORECASE)


class HtmlFormat(Format):
    """A web page that was saved as a file."""

    name = "an HTML page"
    suffixes = (".html", ".htm", ".xhtml")

    def recognises(self, head: bytes, suffix: str) -> bool:
        """By its first tag, or by its suffix."""
        return suffix in self.suffixes or _SIGNATURE.match(head) is not None

    def extract(self, data: bytes, name: str) -> DocumentText:
        """The text of the page's body."""
        text = html_text(data, name)
        if not text:
            raise InputError(f"{name} is an HTML page without text; save the page with its content, or give its text")
        return DocumentText(text)


def html_text(data: bytes | str, name: str) -> str:
    """The text of a page; its encoding is that of its own declaration, or else UTF-8 or the most likely one."""
    from lxml import etree, html

    was_text = isinstance(data, str)
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    if not data.strip():
        return ""
    if was_text:
        encoding: str | None = "utf-8"
    elif declared := _XML_ENCODING.match(data):
        encoding = declared.group(1).decode("ascii")
    else:
        encoding = None if _CHARSET.search(data[:2048]) else find_encoding([data], name)
    try:
        root = html.document_fromstring(
            data, parser=html.HTMLParser(encoding=encoding, no_network=True, huge_tree=True)
        )
    except (etree.ParserError, LookupError, ValueError):  # nothing but comments, or an unknown encoding
        return ""
    etree.strip_elements(root, etree.Comment, etree.ProcessingInstruction, *_LEFT_OUT, with_tail=False)
    writer = _Writer()
    writer.add(root, 0)
    return writer.text()


class _Writer:
    """Collects paragraphs."""

    def __init__(self) -> None:
        self._paragraphs: list[str] = []
        self._current: list[str] = []

    def text(self) -> str:
        """All paragraphs."""
        self._end()
        return "\n\n".join(self._paragraphs)

    def add(self, element: Any, depth: int) -> None:
        """Add an element with everything inside it; what follows it is added by its parent."""
        if not isinstance(element.tag, str):  # an entity that is not known
            return
        tag = element.tag.lower()
        if depth > _MOST_DEPTH:
            self._current.append(" ".join(element.itertext()))
            return
        if tag == "br":
            self._current.append("\n")
        elif tag == "pre":
            self._end()
            self._paragraphs += [block for block in ["".join(element.itertext()).strip("\n")] if block.strip()]
        elif tag in _HEADINGS:
            self._end()
            title = _squeeze(" ".join(element.itertext()))
            self._paragraphs += [f"{'#' * int(tag[1])} {title}"] if title else []
        elif tag == "tr" and _is_layout(element):
            for cell in element:
                self._end()
                self._add_inside(cell, depth + 1)
            self._end()
        elif tag == "tr":
            self._current.append("\n")
            self._current.append(" | ".join(filter(None, (_squeeze(" ".join(cell.itertext())) for cell in element))))
        elif tag == "li":
            self._current.append("\n- ")
            self._add_inside(element, depth)
        elif tag in _BLOCKS:
            self._end()
            self._add_inside(element, depth)
            self._end()
        else:
            self._add_inside(element, depth)

    def _add_inside(self, element: Any, depth: int) -> None:
        self._current.append(_one_line(element.text))
        for child in element:
            self.add(child, depth + 1)
            self._current.append(_one_line(child.tail))

    def _end(self) -> None:
        lines = [" ".join(line.split()) for line in "".join(self._current).split("\n")]
        lines = [line for line in lines if line and line != "-"]
        if lines:
            self._paragraphs.append("\n".join(lines))
        self._current = []


def _is_layout(row: Any) -> bool:
    """Whether a row of a table holds parts of a page and no data: a heading, or several blocks in one cell."""
    inside = [[child.tag for child in cell.iterdescendants()] for cell in row]
    return any(any(tag in _HEADINGS for tag in tags) or sum(tag in _BLOCKS for tag in tags) > 1 for tags in inside)


def _one_line(text: str | None) -> str:
    """A text in which line ends are spaces, as a browser shows it."""
    return re.sub(r"\s+", " ", text or "")


def _squeeze(text: str) -> str:
    return " ".join(text.split())
