"""The optional packages that pyproject.toml declares, and a process in which none of them is installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
_NOT_FOR_USERS = ("dev", "docs", "all")  # packages of the developers, and the sum of the other extras
_MODULES = {
    "bert-score": ["bert_score"],
    "faiss-cpu": ["faiss"],
    "fastapi": ["fastapi", "starlette"],  # no other package here depends on starlette
    "python-multipart": ["multipart", "python_multipart"],
    "rouge-score": ["rouge_score"],
}  # where they are not named like the package


def _names(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", requirement)[0] for requirement in requirements}


def optional_packages() -> dict[str, set[str]]:
    """The packages of each extra, without those that are always installed."""
    project = tomllib.loads(_PYPROJECT.read_text())["project"]
    core = _names(project["dependencies"])
    extras = project["optional-dependencies"].items()
    return {extra: _names(packages) - core for extra, packages in extras if extra not in _NOT_FOR_USERS}


def optional_modules() -> set[str]:
    """The top-level modules of all optional packages."""
    packages = set().union(*optional_packages().values())
    return {module for package in packages for module in _MODULES.get(package, [package])}


class _FinderWithout:
    """All finders of the process, for which some modules do not exist."""

    def __init__(self, finders: list[Any], modules: set[str]) -> None:
        self._finders, self._modules = finders, modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._modules:
            return None
        specs = (finder.find_spec(name, path, target) for finder in self._finders if hasattr(finder, "find_spec"))
        return next((spec for spec in specs if spec is not None), None)

    def find_distributions(self, *args: Any) -> Iterator[Any]:
        packages = set().union(*optional_packages().values())
        for finder in self._finders:
            for distribution in getattr(finder, "find_distributions", lambda *_: ())(*args):
                if distribution.metadata["Name"] not in packages:
                    yield distribution


def uninstall_in_this_process() -> None:
    """Make all optional packages look as if they were not installed; nothing of them may be imported yet."""
    modules = optional_modules()
    imported = sorted(modules & set(sys.modules))
    if imported:
        raise RuntimeError(f"already imported: {', '.join(imported)}")
    sys.meta_path[:] = [_FinderWithout(list(sys.meta_path), modules)]
