"""Hooks of the documentation site: the README is its first page, and linked files outside of docs/ are part of it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")
"""The beginning of a Markdown link to a file, and the file."""


def site_path(file: str) -> str:
    """Where a file of the repository is on the site."""
    if file == "README.md":
        return "index.md"
    return file.removeprefix("docs/") if file.startswith("docs/") else f"repository/{file}"


def _repository_path(file: File) -> str:
    """Where a file of the site is in the repository."""
    return Path(file.abs_src_path or "").resolve().relative_to(ROOT).as_posix()


def _linked_files(page: str) -> set[str]:
    """The files of the repository that a page links to."""
    folder = posixpath.dirname(page)
    found = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    return {posixpath.normpath(posixpath.join(folder, target)) for _, target in found}


def on_files(files: Files, config: Any) -> Files:
    """Add the README, the pages of the project, and every file that a page links to and that is not in docs/."""
    pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    pages += [_repository_path(file) for file in files.documentation_pages()]
    linked = set().union(*(_linked_files(page) for page in pages))
    for file in sorted(linked | set(pages)):
        if not file.startswith("docs/") and (ROOT / file).is_file():
            files.append(File.generated(config, site_path(file), abs_src_path=str(ROOT / file)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between files of the site."""
    source, folder = _repository_path(page.file), posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        return match[1] + posixpath.relpath(site_path(target), folder or ".")

    return LINK.sub(link, markdown)
