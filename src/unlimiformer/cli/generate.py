"""`unlimiformer generate`: generate text from an input of any length."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.system import peak_memory
from .console import messages, progress_bar, size
from .loading import open_wrapped
from .options import (
    DEFAULT_MODEL,
    AsJson,
    Device,
    Model,
    ProvenanceFile,
    Source,
    check_provenance_file,
    config_options,
    generation_options,
)

if TYPE_CHECKING:
    from ..model import Output, Unlimiformer


@config_options(
    *("top_k", "layers", "heads", "window", "overlap", "prefix", "focus", "selection", "positions", "dtype"),
    *("compute_dtype", "store", "recall", "batch_size"),
)
@generation_options(
    *("min_new_tokens", "num_beams", "length_penalty", "no_repeat_ngram_size", "repetition_penalty"),
    *("temperature", "top_p", "num_return_sequences"),
    max_new_tokens=256,
)
def command(
    file: Source,
    settings: dict[str, Any],
    generation: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    prompt: Annotated[
        str | None,
        typer.Option(help="Beginning of the text; a decoder-only model's question (default: summarize)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for --temperature and --top-p.")] = 0,
    device: Device = None,
    provenance: ProvenanceFile = None,
    as_json: AsJson = False,
) -> None:
    """Generate from a text of any length, or from a memory of it."""
    check_provenance_file(provenance)
    source, wrapped = open_wrapped(file, model, settings, device)
    from ..engines.answer_end import AnswerEnd
    from ..memory import Memory
    from ..qa import SUMMARY_PROMPT

    with progress_bar("Indexing") as progress:
        started = time.perf_counter()
        memory = source if isinstance(source, Memory) else wrapped.index(source, progress=progress)
        encode_seconds = time.perf_counter() - started
    if generation["do_sample"]:
        import torch

        torch.manual_seed(seed)
    beams = generation.get("num_beams") or getattr(wrapped.model.generation_config, "num_beams", None) or 1
    streams = beams == 1 and generation.get("num_return_sequences", 1) == 1 and not as_json
    started = time.perf_counter()
    if prompt is None and wrapped.engine.kind == "decoder-only":
        prompt = SUMMARY_PROMPT
    generation = AnswerEnd([prompt], generation, wrapped.tokenizer).generation
    output = wrapped.generate(
        memory,
        prompt=prompt,
        provenance=provenance is not None,
        streamer=_make_streamer(wrapped) if streams else None,
        **generation,
    )
    figures = Figures.measure(output, encode_seconds, time.perf_counter() - started)
    if provenance is not None:
        output.provenance.save(provenance)
        messages.print(f"wrote {provenance}")
    if as_json:
        typer.echo(json.dumps({"text": output.text, "texts": output.texts, **vars(figures)}, indent=1))
        return
    if not streams:
        typer.echo("\n\n".join(output.texts))
    messages.print(figures.line(), style="dim")


@dataclass(frozen=True)
class Figures:
    """Sizes and times of one generation."""

    source_tokens: int
    windows: int
    new_tokens: int
    encode_seconds: float
    seconds_per_token: float
    memory_bytes: int
    peak_bytes: int

    @classmethod
    def measure(cls, output: Output, encode_seconds: float, decode_seconds: float) -> Figures:
        """From an output and two times."""
        memory, new_tokens = output.memory, max(1, output.new_tokens)
        return cls(
            source_tokens=len(memory),
            windows=memory.windows,
            new_tokens=new_tokens,
            encode_seconds=encode_seconds,
            seconds_per_token=decode_seconds / new_tokens,
            memory_bytes=memory.nbytes,
            peak_bytes=peak_memory(),
        )

    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.source_tokens:,} source tokens in {self.windows:,} windows · "
            f"encoded in {self.encode_seconds:.1f} s · "
            f"{self.new_tokens} tokens at {self.seconds_per_token * 1000:.0f} ms each · "
            f"memory {size(self.memory_bytes)}, peak {size(self.peak_bytes)}"
        )


def _make_streamer(wrapped: Unlimiformer) -> Any:
    from transformers import TextStreamer

    skip_prompt = wrapped.engine.kind == "decoder-only"  # an encoder–decoder's prompt is part of its text
    return TextStreamer(wrapped.tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)
