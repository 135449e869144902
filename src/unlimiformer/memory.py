"""What is kept of one long input: its states, one vector a token, and what is needed to show and to check them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .adapters.base import holds_plain_numbers
from .datastore import ExactStore
from .errors import UnlimiformerError
from .paths import sha256

FORMAT_VERSION = 1
_KEYS = itertools.count(1)


@dataclass(eq=False)
class Memory:
    """One encoded input. A wrapped model attends to it; `save` and `load` keep it on disk.

    token_ids (S,): the prefix's tokens, then the text's. offsets (S, 2): characters of the source text that a token
    covers, (0, 0) where it covers none; None when the input was token ids. first_window (W, D): what the truncated
    model would see, kept for layers and heads that do not retrieve.
    """

    store: ExactStore
    token_ids: Tensor
    fingerprint: str
    windows: int
    prefix_tokens: int = 0
    offsets: Tensor | None = None
    first_window: Tensor | None = None
    key: int = field(default_factory=lambda: next(_KEYS), repr=False)

    def __len__(self) -> int:
        return self.store.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the states."""
        return self.store.nbytes

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the memory to a folder, whole or not at all; an older memory there is replaced."""
        from safetensors.torch import save_file

        target = Path(folder)
        if target.exists() and not (target / "memory.json").exists():
            raise UnlimiformerError(f"{target} exists and is not a memory; give another path")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as building:
            made = Path(building) / "memory"
            made.mkdir()
            save_file(self._arrays(), made / "states.safetensors")
            about = {
                "format": FORMAT_VERSION,
                "fingerprint": self.fingerprint,
                "tokens": len(self),
                "windows": self.windows,
                "prefix_tokens": self.prefix_tokens,
                "sha256": {"states.safetensors": sha256(made / "states.safetensors")},
            }
            (made / "memory.json").write_text(json.dumps(about, indent=1) + "\n")
            _replace_folder(made, target, aside=Path(building) / "old")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Memory:
        """Reads a saved memory; a damaged or foreign folder is refused."""
        from safetensors.torch import load_file

        source = Path(folder)
        about = _read_about(source)
        for name, expected in about["sha256"].items():
            path = source / name
            if not path.exists():
                raise UnlimiformerError(f"{source} lacks {name}; the memory is incomplete: index the text again")
            if sha256(path) != expected:
                raise UnlimiformerError(
                    f"{path} does not match its checksum; the memory is damaged: index the text again"
                )
        arrays = load_file(source / "states.safetensors")
        return cls(
            ExactStore(arrays["states"], arrays.get("scales")),
            arrays["token_ids"],
            about["fingerprint"],
            about["windows"],
            about["prefix_tokens"],
            arrays.get("offsets"),
            arrays.get("first_window"),
        )

    def _arrays(self) -> dict[str, Tensor]:
        arrays = {
            "states": self.store.states,
            "scales": self.store.scales,
            "token_ids": self.token_ids,
            "offsets": self.offsets,
            "first_window": self.first_window,
        }
        return {name: array.detach().cpu().contiguous() for name, array in arrays.items() if array is not None}


def _replace_folder(made: Path, target: Path, aside: Path) -> None:
    """Puts one folder in another's place; where that fails, the old one is back."""
    if not target.exists():
        os.replace(made, target)
        return
    os.replace(target, aside)
    try:
        os.replace(made, target)
    except OSError:
        os.replace(aside, target)
        raise


def fingerprint(model: Any, *settings: Any) -> str:
    """Tells memories of one model and setting from all others: config, shapes and samples of the encoder's weights."""
    digest = hashlib.sha256()
    config = {k: v for k, v in model.config.to_dict().items() if not k.startswith("_") and k != "transformers_version"}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(json.dumps(settings, default=str).encode())
    for name, parameter in model.get_encoder().named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        if holds_plain_numbers(parameter):
            sample = parameter.detach().flatten()[:: max(1, parameter.numel() // 64)]
            digest.update(sample.to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()


def _read_about(source: Path) -> dict[str, Any]:
    try:
        about = json.loads((source / "memory.json").read_text())
    except FileNotFoundError:
        raise UnlimiformerError(f"{source} is not a memory: it has no memory.json; make one with index()") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnlimiformerError(f"{source}/memory.json cannot be read ({error}); index the text again") from None
    needed = ("fingerprint", "windows", "prefix_tokens", "sha256")
    if not isinstance(about, dict) or (about.get("format") == FORMAT_VERSION and not all(k in about for k in needed)):
        raise UnlimiformerError(f"{source}/memory.json is not that of a memory; index the text again")
    if about.get("format") != FORMAT_VERSION:
        raise UnlimiformerError(
            f"{source} has memory format {about.get('format')!r}; this version reads {FORMAT_VERSION}: "
            "index the text again"
        )
    return about
