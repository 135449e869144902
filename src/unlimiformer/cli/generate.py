"""`unlimiformer generate`: a text of any length in, generated text out."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UnlimiformerError
from ..utils.system import peak_memory
from .console import integers, messages, progress_bar, size
from .options import (
    AsJson,
    BatchSize,
    ComputeDtype,
    Device,
    Dtype,
    File,
    Model,
    Overlap,
    PositionsOption,
    Prefix,
    ProvenanceFile,
    Selection,
    TopK,
    Window,
    check_provenance_file,
    open_wrapped,
)

if TYPE_CHECKING:
    from ..memory.memory import Memory
    from ..model import Output, Unlimiformer


def command(
    file: File,
    model: Model,
    top_k: TopK = None,
    layers: Annotated[str | None, typer.Option(help="Decoder layers that retrieve, as 0,2,5; default: all.")] = None,
    heads: Annotated[str | None, typer.Option(help="Heads that retrieve, as 0,2,5; default: all.")] = None,
    window: Window = None,
    overlap: Overlap = None,
    prefix: Prefix = None,
    prompt: Annotated[
        str | None, typer.Option(help="Text that the answer starts with; a decoder-only model's question.")
    ] = None,
    selection: Selection = None,
    positions: PositionsOption = None,
    dtype: Dtype = None,
    device: Device = None,
    compute_dtype: ComputeDtype = None,
    batch_size: BatchSize = 4,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    min_new_tokens: Annotated[int, typer.Option(help="Shortest answer.")] = 0,
    num_beams: Annotated[int, typer.Option(help="Beams; 1 streams the answer as it comes.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(help="For --sample.")] = 1.0,
    seed: Annotated[int, typer.Option(help="For --sample.")] = 0,
    provenance: ProvenanceFile = None,
    as_json: AsJson = False,
) -> None:
    """Generate from a text of any length, or from a memory of it."""
    for option, value in (("--max-new-tokens", max_new_tokens), ("--num-beams", num_beams)):
        if value < 1:
            raise UnlimiformerError(f"{option} is {value}; expected at least 1")
    if not 0 <= min_new_tokens <= max_new_tokens:
        raise UnlimiformerError(
            f"--min-new-tokens is {min_new_tokens}; expected 0 to {max_new_tokens}, the longest answer"
        )
    check_provenance_file(provenance)
    if sample and temperature <= 0:
        raise UnlimiformerError(f"--temperature is {temperature}; expected more than 0")
    given = {
        "top_k": top_k,
        "layers": integers("--layers", layers),
        "heads": integers("--heads", heads),
        "window": window,
        "overlap": overlap,
        "prefix": prefix,
        "dtype": dtype,
        "batch_size": batch_size,
        "compute_dtype": compute_dtype,
        "selection": selection,
        "positions": positions,
    }
    source, wrapped = open_wrapped(file, model, given, device)
    from ..memory.memory import Memory

    with progress_bar("Encoding") as progress:
        started = time.perf_counter()
        memory = source if isinstance(source, Memory) else wrapped.index(source, progress=progress)
        encoding = time.perf_counter() - started
    generation: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "num_beams": num_beams,
        "do_sample": sample,
    }
    if sample:
        import torch

        torch.manual_seed(seed)
        generation["temperature"] = temperature
    streamed = num_beams == 1 and not as_json
    started = time.perf_counter()
    generation["provenance"] = provenance is not None
    output = wrapped.generate(memory, prompt=prompt, streamer=_streamer(wrapped) if streamed else None, **generation)
    prompt_length = wrapped.engine.prompt_length(prompt)
    figures = Figures.of(output, memory, encoding, time.perf_counter() - started, prompt_length)
    if provenance is not None:
        output.provenance.save(provenance)
        messages.print(f"wrote {provenance}")
    if as_json:
        typer.echo(json.dumps({"text": output.text, **vars(figures)}, indent=1))
        return
    if not streamed:
        typer.echo(output.text)
    messages.print(figures.line(), style="dim")


@dataclass(frozen=True)
class Figures:
    """What a run took."""

    source_tokens: int
    windows: int
    new_tokens: int
    encode_seconds: float
    seconds_per_token: float
    memory_bytes: int
    peak_bytes: int

    @classmethod
    def of(cls, output: Output, memory: Memory, encoding: float, decoding: float, prompt_length: int) -> Figures:
        """From an output, two times, and how many of its tokens were given."""
        made = max(1, output.token_ids.shape[0] - prompt_length)
        return cls(len(memory), memory.windows, made, encoding, decoding / made, memory.nbytes, peak_memory())

    def line(self) -> str:
        """For people."""
        return (
            f"{self.source_tokens:,} source tokens in {self.windows:,} windows · "
            f"encoded in {self.encode_seconds:.1f} s · "
            f"{self.new_tokens} tokens at {self.seconds_per_token * 1000:.0f} ms each · "
            f"memory {size(self.memory_bytes)}, peak {size(self.peak_bytes)}"
        )


def _streamer(wrapped: Unlimiformer) -> Any:
    from transformers import TextStreamer

    skip = wrapped.engine.prompt_length(None) == 0  # then the prompt is not part of what is generated
    return TextStreamer(wrapped.tokenizer, skip_prompt=skip, skip_special_tokens=True)
