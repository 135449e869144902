"""EPUB: the chapters of a book in their order, as HTML."""

from __future__ import annotations

import posixpath
import re
import zipfile
from typing import Any
from urllib.parse import unquote

from ...errors import InputError
from ..document_text import DocumentText
from .base import Format
from .html import html_text
from .zip_file import open_zip

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_FONT_ENCRYPTION = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


class EpubFormat(Format):
    """An electronic book."""

    name = "an EPUB book"
    suffixes = (".epub",)

    def recognises(self, head: bytes, suffix: str) -> bool:
        """By the media type that stands near the start."""
        return head.startswith(b"PK\x03\x04") and (b"application/epub+zip" in head or suffix == ".epub")

    def extract(self, data: bytes, name: str) -> DocumentText:
        """The text of all pages of the book, without its table of contents."""
        with open_zip(data, name, self.name) as archive:
            _check_readable(archive, name)
            package_path = _first(_parse(archive.read(_CONTAINER), name), "rootfile").get("full-path", "")
            package = _parse(archive.read(package_path), name)
            items = {item.get("id"): item for item in _all(package, "item")}
            folder = posixpath.dirname(package_path)
            titles = _contents(archive, folder, items, name)
            names = set(archive.namelist())
            parts = []
            for reference in _all(package, "itemref"):
                item = items.get(reference.get("idref"))
                if item is None or item.get("media-type") not in _PAGES or _is_contents(item):
                    continue
                path = _resolve(folder, item.get("href", ""))
                if path not in names:
                    continue
                text = html_text(archive.read(path), f"{name}, {path},")
                title = titles.get(path)
                if text and title and not text.startswith("#") and title not in text[:200]:
                    text = f"# {title}\n\n{text}"
                parts += [text] if text else []
        if not parts:
            raise InputError(f"{name} is an EPUB book without text; recognise the text of its pictures first")
        return DocumentText("\n\n".join(parts))


def _check_readable(archive: zipfile.ZipFile, name: str) -> None:
    """Refuse a book that is encrypted; encrypted fonts do not matter."""
    names = archive.namelist()
    if _CONTAINER not in names:
        raise InputError(f"{name} is an EPUB book without {_CONTAINER}; get it again")
    if _ENCRYPTION in names:
        methods = _all(_parse(archive.read(_ENCRYPTION), name), "EncryptionMethod")
        if any(method.get("Algorithm") not in _FONT_ENCRYPTION for method in methods):
            raise InputError(f"{name} is an EPUB book with copy protection (DRM); give one without it")


def _contents(archive: zipfile.ZipFile, folder: str, items: dict[str | None, Any], name: str) -> dict[str, str]:
    """The title of each page in the table of contents (EPUB 2: NCX, EPUB 3: a page of links)."""
    titles: dict[str, str] = {}
    for item in items.values():
        path = _resolve(folder, item.get("href", ""))
        is_page = _is_contents(item)
        if path not in archive.namelist() or not (is_page or item.get("media-type") == "application/x-dtbncx+xml"):
            continue
        root = _parse(archive.read(path), name)
        base = posixpath.dirname(path)
        links = [(link.get("href"), link) for link in _all(root, "a")] if is_page else []
        links += [(_first(point, "content").get("src"), _first(point, "navLabel")) for point in _all(root, "navPoint")]
        for target, label in links:
            title = " ".join("".join(label.itertext()).split())
            if target and title:
                titles.setdefault(_resolve(base, target), title)
    return titles


def _is_contents(item: Any) -> bool:
    """Whether a page is the table of contents of an EPUB 3."""
    return "nav" in (item.get("properties") or "").split()


def _parse(data: bytes, name: str) -> Any:
    """An XML file; entities are not expanded, and nothing else is loaded."""
    from lxml import etree

    try:
        return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, recover=True))
    except etree.XMLSyntaxError as error:
        raise InputError(f"{name} is a damaged EPUB book ({error}); get it again") from None


def _all(root: Any, tag: str) -> list[Any]:
    return [] if root is None else list(root.iter("{*}" + tag))


def _first(root: Any, tag: str) -> Any:
    found = _all(root, tag)
    if not found:
        raise KeyError(f"no {tag}")
    return found[0]


def _resolve(folder: str, target: str) -> str:
    """The path inside the archive that a link of a file in `folder` points to."""
    return posixpath.normpath(posixpath.join(folder, unquote(re.sub(r"#.*", "", target))))
