"""A model that processes the documents of a batch run, one by one or several in one call."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from ..config import UnlimiformerConfig
from ..engines.answer_end import answer_tokens
from ..engines.causal.answer_adapter import answers_digest
from ..errors import InputError, UnlimiformerError
from ..hub import MODELS, get_model
from ..hub.loading import load_on
from ..memory import remote
from ..memory.memory import Memory
from ..model import Unlimiformer
from ..qa import Answer, QuestionFormat, answer_batch
from ..summaries import summary_words
from ..utils.files import cache_folder, folder_size
from .documents import Document
from .job import Job, ResultRow, failure_row


class Worker:
    """A loaded model that does a job; `info` has the model's digest and its device."""

    def __init__(self, job: Job, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        if job.model in MODELS:
            get_model(job.model)
        if job.task == "index":
            remote.check(str(job.memories))
        self._job = job
        self._model, self._tokenizer = load_on(job.model, job.device)
        self._question_format = QuestionFormat.for_model(job.model)
        if job.summary_prompt is not None:
            self._question_format = replace(self._question_format, summary_prompt=job.summary_prompt)
        self._config = {name: value for name, value in job.config.items() if value is not None}
        if job.task == "index" and self._model.config.is_encoder_decoder:
            self._config.setdefault("dtype", "int8")
        self._wrapped_config: dict[str, Any] | None = self._config
        self._wrapped = Unlimiformer(self._model, self._tokenizer, UnlimiformerConfig(**self._config))
        self.info = {"model_digest": answers_digest(self._model), "device": str(self._model.device)}

    def process(self, documents: Sequence[Document]) -> list[ResultRow]:
        """Return one row per document, in order. A document that fails gets a failure row and does not affect others.

        An error of the device itself is raised, since every later document would fail too.
        """
        try:
            return self._process_together(documents)
        except Exception as error:
            if _is_device_error(error):
                raise
            if len(documents) > 1:
                return [row for document in documents for row in self.process([document])]
            return [failure_row(documents[0].with_error(error), describe_error(error))]

    def close(self) -> None:
        """Unwrap the model."""
        self._wrapped.remove()

    def _process_together(self, documents: Sequence[Document]) -> list[ResultRow]:
        if documents[0].error is not None:
            raise InputError(documents[0].error)
        started = time.perf_counter()
        if self._job.task == "index":
            results = [self._index(document) for document in documents]
        elif self._job.task == "summarize" and not self._model.config.is_encoder_decoder:
            results = [self._summarize(document) for document in documents]
        else:
            results = self._answer(documents)
        seconds = (time.perf_counter() - started) / len(documents)
        return [
            {"id": document.id, "digest": document.digest, **result, "seconds": seconds}
            for document, result in zip(documents, results, strict=True)
        ]

    def _answer(self, documents: Sequence[Document]) -> list[ResultRow]:
        questions = self._job.questions_for(documents[0])
        if not questions:
            raise InputError('no question: expected --question, or "question" or "questions" in the line')
        sources = [self._load_source(document) for document in documents]
        self._match_memories([source for source in sources if isinstance(source, Memory)])
        engine, rows = self._wrapped.engine, [list[ResultRow]() for _ in documents]
        generation = {**self._job.generation, "provenance": engine.supports_provenance and self._job.passages > 0}
        for question in questions:
            repeated = [question] * len(sources)
            answers = answer_batch(self._wrapped, sources, repeated, self._question_format, **generation)
            if self._can_reuse_memory:
                sources = [answer.output.memory for answer in answers]
            for document_rows, answer in zip(rows, answers, strict=True):
                document_rows.append({"question": question, "answer": answer.text, **self._quote_passages(answer)})
        if self._job.task == "summarize":
            results = [{"summary": answer.text, **self._quote_passages(answer)} for answer in answers]
        else:
            results = [{"answers": document_rows} for document_rows in rows]
        tokens = [len(answer.output.memory) for answer in answers]
        return [{**result, "tokens": count} for result, count in zip(results, tokens, strict=True)]

    def _summarize(self, document: Document) -> ResultRow:
        """Summarise one document section by section; a batch is made of its sections."""
        source = self._load_source(document)
        if isinstance(source, Memory):
            self._match_memories([source])
        generation = {"max_new_tokens": answer_tokens([None]), **self._job.generation}
        words = summary_words(generation.pop("max_new_tokens"))
        summary = self._wrapped.summarize(source, words=words, question_format=self._question_format, **generation)
        row: ResultRow = {"summary": summary.text}
        if self._job.passages > 0:
            sentences = [sentence for chapter in summary.to_dict()["chapters"] for sentence in chapter["sentences"]]
            row["sentences"] = [
                {**sentence, "passages": sentence["passages"][: self._job.passages]} for sentence in sentences
            ]
        tokens = len(self._tokenizer(summary.document, add_special_tokens=False, verbose=False)["input_ids"])
        return {**row, "tokens": tokens}

    @property
    def _can_reuse_memory(self) -> bool:
        """Whether one memory of a text serves all questions, because they are not put before it."""
        return not self._model.config.is_encoder_decoder or self._question_format.place == "decoder"

    def _load_source(self, document: Document) -> Any:
        return document.source() if document.memory is None else Memory.load(document.memory)

    def _match_memories(self, memories: Sequence[Memory]) -> None:
        """Wrap the model with the settings that the memories were made with, where the job does not set them."""
        variants = {tuple(memory.spec.settings.items()) for memory in memories if memory.spec is not None}
        if len(variants) > 1:
            raise InputError("memories that were made with different settings cannot be used in one call")
        config = {**dict(*variants), **self._config}
        if config != self._wrapped_config:
            self._wrapped.remove()
            self._wrapped_config = None  # stays so if wrapping fails, and the next document wraps again
            self._wrapped = Unlimiformer(self._model, self._tokenizer, UnlimiformerConfig(**config))
            self._wrapped_config = config

    def _quote_passages(self, answer: Answer) -> ResultRow:
        return {} if answer.output.provenance is None else {"passages": answer.quotes(self._job.passages)}

    def _index(self, document: Document) -> ResultRow:
        if document.memory is not None:
            raise InputError("it is a memory already; expected a text")
        target = remote.join(str(self._job.memories), folder_name(document.id, self._job.identity()))
        is_remote = remote.is_url(target)
        upload = cache_folder() / "uploads" / sha256(target.encode()).hexdigest()[:16]
        folder = upload if is_remote else Path(target)
        memory = self._wrapped.index(document.source(), folder=folder, overwrite=True)
        sizes = {"tokens": len(memory), "windows": memory.windows, "bytes": folder_size(folder)}
        if is_remote:
            del memory  # it maps the files that are removed
            remote.upload(folder, target)
            shutil.rmtree(folder)
        return {"memory": target if is_remote else self._relative_path(target), **sizes}

    def _relative_path(self, folder: str) -> str:
        """Name a folder as seen from the job's `relative_to`, if it is inside."""
        if self._job.relative_to is None:
            return folder
        path, base = Path(folder).absolute(), Path(self._job.relative_to).absolute()
        return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def folder_name(name: str, identity: dict[str, Any]) -> str:
    """Return a folder name for a document id: readable, safe on every system, unique for the id and the settings."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:60]
    return f"{readable}-{sha256(json.dumps([name, identity], sort_keys=True).encode()).hexdigest()[:10]}"


def describe_error(error: Exception) -> str:
    """Return an error's message on one line; errors of other libraries with their type."""
    message = " ".join(str(error).split())
    return message if isinstance(error, UnlimiformerError) else f"{type(error).__name__}: {message}"


def _is_device_error(error: Exception) -> bool:
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
