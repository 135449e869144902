"""Extraction from archives that are damaged, or whose members point outside the target folder."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile

import pytest

from unlimiformer.errors import InputError
from unlimiformer.hub.archive import extract_files

HOSTILE = ["carrier/data/../../../evil", "carrier/data//etc/evil", "carrier/data/a\\..\\evil", "carrier/data/c:/evil"]


@pytest.mark.parametrize("name", HOSTILE)
def test_members_that_point_outside_are_refused(tmp_path, name):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("carrier/data/fine", "1")
        zipped.writestr(name, "2")
    with pytest.raises(InputError, match="points outside"):
        extract_files(archive, ("carrier/data/",), tmp_path / "out")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "device"])
def test_links_and_devices_in_a_tar_are_skipped(tmp_path, kind):
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as tarred:
        info = tarfile.TarInfo("data/link")
        info.type = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}[kind]
        info.linkname = "/etc/passwd"
        tarred.addfile(info)
        fine = tarfile.TarInfo("data/fine")
        fine.size = 1
        tarred.addfile(fine, io.BytesIO(b"1"))
    assert [p.name for p in extract_files(archive, ("data/",), tmp_path / "out")] == ["fine"]


def test_symlink_in_a_zip_is_skipped(tmp_path):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        info = zipfile.ZipInfo("data/link")
        info.external_attr = 0o120777 << 16
        zipped.writestr(info, "/etc/passwd")
        zipped.writestr("data/fine", "1")
    assert [p.name for p in extract_files(archive, ("data/",), tmp_path / "out")] == ["fine"]


def test_archive_without_the_members_is_refused(tmp_path):
    archive = tmp_path / "empty.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("elsewhere/a", "1")
    with pytest.raises(InputError, match="holds nothing under data/"):
        extract_files(archive, ("data/",), tmp_path / "out")


def test_zip_without_its_front_gives_the_files_that_are_left(tmp_path):
    whole, cut = tmp_path / "whole.zip", tmp_path / "cut.zip"
    with zipfile.ZipFile(whole, "w") as zipped:
        zipped.writestr("data/first", "1" * 5000)
        zipped.writestr("data/second", "2" * 5000)
    cut.write_bytes(whole.read_bytes()[3000:])
    (path,) = extract_files(cut, ("data/second",), tmp_path / "out")
    assert path.read_text() == "2" * 5000


def test_truncated_archive_is_refused(tmp_path):
    archive = tmp_path / "cut.tar.gz"
    with tarfile.open(archive, "w:gz") as tarred:
        info = tarfile.TarInfo("data/big")
        info.size = 200_000
        tarred.addfile(info, io.BytesIO(os.urandom(200_000)))
    archive.write_bytes(archive.read_bytes()[:100_000])
    with pytest.raises(InputError, match="cut off"):
        extract_files(archive, ("data/",), tmp_path / "out")
