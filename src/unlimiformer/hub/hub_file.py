"""Download one file from a model hub, where a hub can be reached. Its content is pinned by its hash."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from ..utils.files import sha256
from ..utils.quiet import without_notices
from .registry import HubFile

_SECONDS = 3  # to wait for the hub's first answer


def download_from_hub(file: HubFile, digest: str, folder: Path) -> Path | None:
    """Return the downloaded file, or None if the hub cannot be reached, does not have it, or has another one."""
    from huggingface_hub import hf_hub_download

    if not hub_is_reachable():
        return None
    try:
        with without_notices():
            path = Path(hf_hub_download(file.repository, file.path, local_dir=folder, etag_timeout=_SECONDS))
    except Exception:  # a hub fails in many ways; the packages are there for all of them
        return None
    if sha256(path) != digest:
        path.unlink()
        return None
    return path


def hub_is_reachable() -> bool:
    """Whether the hub answers; the hub's own library would try for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=_SECONDS):
            return True
    except OSError:
        return False
