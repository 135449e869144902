"""The public wrapper: gives a pretrained transformer an input of unlimited length, and can be removed again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .config import UnlimiformerConfig
from .engines import CausalEngine, Engine, Generated, Seq2SeqEngine
from .engines.question_format import QuestionFormat
from .engines.validation import check_tokenizer, check_weights
from .errors import InputError, UnsupportedModelError
from .hub.loading import load, usable_device
from .hub.saved_settings import with_defaults
from .memory import Memory
from .memory.encode import Progress
from .provenance import Provenance
from .summaries import ChapterSummary, Summary, SummaryRequest, summarizer
from .summaries.base import ignore
from .text.document_text import DocumentText
from .text.sources import TextSource, is_token_ids, read_document
from .text.tokenization import pieces


@dataclass(frozen=True)
class Output:
    """What was generated for one input.

    Parameters
    ----------
    texts : decoded sequences, best first. An encoder–decoder's text begins with its prompt.
    answers : the same without the prompt.
    sequences : (R, T) token ids.
    memory : the memory that was attended to.
    prompt_length : number of tokens at the beginning of each sequence that were given, not generated.
    provenance : where the first answer came from, if it was requested.
    selected : (m,) rows of the memory that a decoder-only model saw; None if every head retrieved its own.
    """

    texts: tuple[str, ...]
    answers: tuple[str, ...]
    sequences: Tensor
    memory: Memory
    prompt_length: int = 0
    provenance: Provenance | None = None
    selected: Tensor | None = None

    @property
    def text(self) -> str:
        """The first text."""
        return self.texts[0]

    @property
    def answer(self) -> str:
        """The first text without the prompt."""
        return self.answers[0]

    @property
    def token_ids(self) -> Tensor:
        """The first sequence, (T,)."""
        return self.sequences[0]

    @property
    def new_tokens(self) -> int:
        """Number of generated tokens of the first sequence."""
        return self.token_ids.shape[0] - self.prompt_length


class Unlimiformer:
    """Wraps a model from construction until `remove()` or the end of its `with` block.

    While it is wrapped, the model's own `generate` takes inputs of any length, and so does an encoder–decoder's
    `forward`.

    Parameters
    ----------
    model : a Hugging Face model, or a peft model around one.
    tokenizer : its tokenizer; None if all inputs are token ids.
    config : the settings; `settings` are single fields of it.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, config: UnlimiformerConfig | None = None, **settings: Any
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        base = _base_model(model)
        self.config = with_defaults(_merge_settings(config, settings), getattr(base.config, "_name_or_path", None))
        if self.config.device is not None:
            usable_device(self.config.device)
        check_weights(base)
        if tokenizer is not None:
            check_tokenizer(tokenizer, base.config, base.get_input_embeddings().num_embeddings)
        is_seq2seq = getattr(base.config, "is_encoder_decoder", False)
        engine_class = Seq2SeqEngine if is_seq2seq else CausalEngine
        self.engine: Engine = engine_class(model, base, tokenizer, self.config)
        self.window, self.top_k = self.engine.window, self.engine.top_k

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        config: UnlimiformerConfig | None = None,
        *,
        torch_dtype: Any = None,
        device_map: Any = None,
        **settings: Any,
    ) -> Unlimiformer:
        """Load model and tokenizer, and wrap the model.

        Parameters
        ----------
        name : a hub id, a folder, or a name from `unlimiformer models`.
        device_map : as in transformers; "auto" lets accelerate spread a model that is too large for one device.
        """
        model, tokenizer = load(name, torch_dtype, device_map=device_map)
        return cls(model, tokenizer, config, **settings)

    def index(
        self,
        source: TextSource,
        prefix: str | None = None,
        progress: Progress | None = None,
        folder: str | os.PathLike[str] | None = None,
        append: bool = False,
        overwrite: bool = False,
    ) -> Memory:
        """Encode an input once; the memory can then be queried any number of times.

        Parameters
        ----------
        source : a text, a path, token ids, or an iterable of pieces of text.
        prefix : text before every window.
        progress : called with the number of windows done and the total.
        folder : write the memory there while it is made, whatever its size. An interrupted run continues where it
            stopped, and windows that an older memory of the text shares with it are reused.
        append : put the source behind the text of the memory in the folder.
        overwrite : replace a memory of something else.
        """
        self._check_active()
        target = None if folder is None else Path(folder)
        return self.engine.index(source, target, prefix=prefix, progress=progress, append=append, overwrite=overwrite)

    def generate(
        self,
        source: TextSource | Memory | list,
        prompt: str | Sequence[str] | None = None,
        prefix: str | Sequence[str] | None = None,
        provenance: bool = False,
        **generation: Any,
    ) -> Any:
        """Generate from an input of any length, or from a memory; a list of them gives a list of outputs.

        Parameters
        ----------
        prompt : the beginning of an encoder–decoder's text; a decoder-only model's question about the input.
        prefix : text before every window. A list of prompts or prefixes gives each input its own.
        provenance : also tell where in the source each token of the (first) text came from.
        generation : arguments of the model's own `generate`.
        """
        self._check_active()
        is_batch = isinstance(source, list) and not is_token_ids(source)
        sources: list[Any] = source if is_batch else [source]  # type: ignore[assignment, list-item]
        memories = self._memories(sources, prefix)
        prompts = _one_per_input("prompts", prompt, len(memories))
        generated = self.engine.generate(memories, prompts, provenance, generation)
        outputs = [self._decode(part, memory) for part, memory in zip(generated, memories, strict=True)]
        return outputs if is_batch else outputs[0]

    def summarize(
        self,
        source: TextSource | Memory,
        *,
        words: int = 200,
        by_chapter: bool = False,
        method: str | None = None,
        question_format: QuestionFormat | None = None,
        folder: str | os.PathLike[str] | None = None,
        progress: Progress = ignore,
        on_part: Callable[[ChapterSummary], None] = ignore,
        **generation: Any,
    ) -> Summary:
        """Summarise a document of any length; every sentence knows the passages that it stands on.

        Parameters
        ----------
        source : a text, a path, pieces of text, or a memory of a text.
        words : about how many words the summary has; with `by_chapter`, the summary of each chapter.
        by_chapter : summarise every chapter on its own; headings tell where they begin.
        method : one of `summaries.METHODS`; None for the one that is best for the kind of model.
        question_format : how the model is asked for a summary; None as it was trained.
        folder : keeps what the model writes, so that an interrupted summary continues.
        progress : called with the number of sections that are read, and with their total.
        on_part : called with each part of the summary as soon as it is final.
        generation : arguments of the model's own `generate`.
        """
        self._check_active()
        if self.tokenizer is None:
            raise InputError("a summary needs a tokenizer; give one: Unlimiformer(model, tokenizer)")
        if is_token_ids(source):
            raise InputError("token ids were given; expected a text, a path, or a memory of a text")
        memory = source if isinstance(source, Memory) else None
        if memory is not None:
            self.engine.check(memory)
        if memory is None:
            document = read_document(source)  # type: ignore[arg-type]
        else:
            document = DocumentText(memory.text, memory.locations)
        request = SummaryRequest(
            document.text,
            document.locations,
            memory=memory,
            words=words,
            by_chapter=by_chapter,
            folder=None if folder is None else Path(folder),
            generation=generation,
            progress=progress,
            on_part=on_part,
        )
        name = getattr(_base_model(self.model).config, "_name_or_path", "")
        return summarizer(self.engine, question_format or QuestionFormat.for_model(name), method).summarize(request)

    def remove(self) -> None:
        """Remove retrieval from the model: every forward is the original object again."""
        self.engine.remove()

    def __enter__(self) -> Unlimiformer:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _check_active(self) -> None:
        if not self.engine.active:
            raise InputError("the wrapper was removed from its model; wrap the model again: Unlimiformer(model)")

    def _memories(self, sources: list[Any], prefix: str | Sequence[str] | None) -> list[Memory]:
        """The memory of each source: the source itself, or made now."""
        if not sources:
            raise InputError("no input was given; expected a text, a path, token ids or a memory")
        prefixes = _one_per_input("prefixes", prefix, len(sources))
        memories: list[Any] = list(sources)
        to_index = [i for i, source in enumerate(sources) if not isinstance(source, Memory)]
        for i, source in enumerate(sources):
            if i not in to_index:
                self.engine.check(source)
        if to_index:
            texts = None if prefix is None else [str(prefixes[i]) for i in to_index]
            new_memories = self.engine.index_many([sources[i] for i in to_index], texts)
            for i, memory in zip(to_index, new_memories, strict=True):
                memories[i] = memory
        return memories

    def _decode(self, generated: Generated, memory: Memory) -> Output:
        sequences, prompt_length, provenance = generated.sequences, generated.prompt_length, generated.provenance
        if self.tokenizer is None:
            empty = ("",) * sequences.shape[0]
            return Output(empty, empty, sequences, memory, prompt_length, provenance, generated.selected)
        texts = tuple(self.tokenizer.batch_decode(sequences, skip_special_tokens=True))
        answers = texts
        if prompt_length:
            answers = tuple(self.tokenizer.batch_decode(sequences[:, prompt_length:], skip_special_tokens=True))
        if provenance is not None:
            provenance = provenance.with_tokens(pieces(self.tokenizer, sequences[0, prompt_length:].tolist()))
        return Output(texts, answers, sequences, memory, prompt_length, provenance, generated.selected)


def _base_model(model: Any) -> Any:
    """The model inside a peft model."""
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UnsupportedModelError("the model has learned prompts (prefix or prompt tuning), which are not supported")
    return model.get_base_model()


def _merge_settings(config: UnlimiformerConfig | None, settings: dict[str, Any]) -> UnlimiformerConfig:
    unknown = sorted(set(settings) - set(UnlimiformerConfig.names()))
    if unknown:
        names = ", ".join(UnlimiformerConfig.names())
        raise InputError(f"unknown setting {', '.join(unknown)}; expected one of: {names}")
    return replace(config, **settings) if config is not None else UnlimiformerConfig(**settings)


def _one_per_input(name: str, values: str | Sequence[str] | None, inputs: int) -> list[str | None]:
    per_input: list[str | None] = [values] * inputs if values is None or isinstance(values, str) else list(values)
    if len(per_input) != inputs:
        raise InputError(f"{len(per_input)} {name} were given for {inputs} inputs; expected one for each, or one")
    return per_input
