"""The documentation site: it builds without a warning, a broken link is noticed, and its drawings are up to date."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _build(site: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess:
    """Build the site in a folder, as `make site` does; warnings are errors."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # about the future of mkdocs, not about the site
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_the_site_is_built_without_a_warning(tmp_path):
    done = _build(tmp_path / "site")
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    home = (tmp_path / "site" / "index.html").read_text()
    assert "how_it_works/" in home and "page.png" in home
    reference = (tmp_path / "site" / "api" / "model" / "index.html").read_text()
    assert "from_pretrained" in reference
    assert (tmp_path / "site" / "figures" / "how_windows.svg").is_file()


@pytest.mark.parametrize("link", ["nowhere.md", "page.md#nowhere", "../README.md#nowhere"])
def test_a_broken_link_is_noticed(tmp_path, link):
    """A small site with the hooks and settings of ours."""
    for name in ("docs/page.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# Title\n\n[Here](#title)\n")
    shutil.copytree(ROOT / "docs_site", tmp_path / "docs_site")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = _build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode == 0, done.stderr
    (tmp_path / "docs" / "page.md").write_text(f"# Title\n\n[There]({link})\n")
    done = _build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0 and link.rpartition("/")[2].removeprefix("README.md") in done.stderr


def test_drawings_are_those_of_the_script():
    spec = importlib.util.spec_from_file_location("drawings", ROOT / "docs_site" / "drawings.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, svg in script.drawings().items():
        assert (script.FOLDER / name).read_text(encoding="utf-8") == svg, "run python docs_site/drawings.py"
