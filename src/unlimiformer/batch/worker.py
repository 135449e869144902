"""A model that does the work of a run, document by document or several at once."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from ..config import UnlimiformerConfig
from ..errors import UnlimiformerError
from ..hub import MODELS, get_model
from ..hub.loading import load_on
from ..memory import remote
from ..memory.fingerprint import model_digest
from ..memory.memory import Memory
from ..model import Unlimiformer
from ..qa import Answer, QuestionFormat, ask_together
from ..utils.files import cache_folder, folder_size
from .documents import Document
from .job import Job, ResultRow, failure


class Worker:
    """A model that does a task; `about` says which, and where."""

    def __init__(self, work: Job, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        if work.model in MODELS:
            get_model(work.model)
        if work.task == "index":
            remote.check(str(work.memories))
        self.work = work
        self._model, self._tokenizer = load_on(work.model, work.device)
        self._asking = QuestionFormat.for_model(work.model)
        self._given = {name: value for name, value in work.config.items() if value is not None}
        if work.task == "index" and self._model.config.is_encoder_decoder:
            self._given.setdefault("dtype", "int8")
        self._settings: dict[str, Any] | None = self._given
        self._wrapped = Unlimiformer(self._model, self._tokenizer, UnlimiformerConfig(**self._given))
        self.about = {"model_digest": model_digest(self._model.config, self._model), "device": str(self._model.device)}

    def do(self, documents: Sequence[Document]) -> list[ResultRow]:
        """A row for each document, in order; one that cannot be done says why, and keeps none of the others back.

        A device that is lost is raised: nothing that follows would succeed here.
        """
        try:
            return self._rows(documents)
        except Exception as error:
            if _device_is_lost(error):
                raise
            if len(documents) > 1:
                return [row for document in documents for row in self.do([document])]
            return [failure(documents[0].unreadable(error), explanation(error))]

    def close(self) -> None:
        """Leaves the model as it was."""
        self._wrapped.remove()

    def _rows(self, documents: Sequence[Document]) -> list[ResultRow]:
        if documents[0].error is not None:
            raise UnlimiformerError(documents[0].error)
        started = time.perf_counter()
        if self.work.task == "index":
            told = [self._indexed(document) for document in documents]
        else:
            told = self._answered(documents)
        seconds = (time.perf_counter() - started) / len(documents)
        heads = ({"id": document.id, "digest": document.digest} for document in documents)
        return [{**head, **row, "seconds": seconds} for head, row in zip(heads, told, strict=True)]

    def _answered(self, documents: Sequence[Document]) -> list[ResultRow]:
        questions = self.work.asked(documents[0])
        if not questions:
            raise UnlimiformerError('no question: expected --question, or "question" or "questions" in the line')
        sources = [self._source(document) for document in documents]
        self._read_like([source for source in sources if isinstance(source, Memory)])
        engine, answers = self._wrapped.engine, [list[ResultRow]() for _ in documents]
        generation = {**self.work.generation, "provenance": engine.supports_provenance and self.work.passages > 0}
        for question in questions:
            replies = ask_together(self._wrapped, sources, [question] * len(sources), self._asking, **generation)
            if self._reads_once:
                sources = [reply.output.memory for reply in replies]
            for told, reply in zip(answers, replies, strict=True):
                told.append({"question": question, "answer": reply.text, **self._passages(reply)})
        tokens = [len(reply.output.memory) for reply in replies]
        if self.work.task == "summarize":
            found = [{"summary": reply.text, **self._passages(reply)} for reply in replies]
        else:
            found = [{"answers": told} for told in answers]
        return [{**row, "tokens": count} for row, count in zip(found, tokens, strict=True)]

    @property
    def _reads_once(self) -> bool:
        """Whether one memory of a text serves all questions."""
        return not self._model.config.is_encoder_decoder or self._asking.place == "decoder"

    def _source(self, document: Document) -> Any:
        if document.memory is not None:
            return Memory.load(document.memory)
        return document.source()

    def _read_like(self, memories: Sequence[Memory]) -> None:
        """Wraps the model as it was wrapped for these memories, where the work leaves that open."""
        recipes = {tuple(memory.recipe.settings.items()) for memory in memories if memory.recipe is not None}
        if len(recipes) > 1:
            raise UnlimiformerError("memories that were made with different settings cannot be asked in one call")
        settings = {**dict(*recipes), **self._given}
        if settings != self._settings:
            self._wrapped.remove()
            self._settings = None
            self._wrapped = Unlimiformer(self._model, self._tokenizer, UnlimiformerConfig(**settings))
            self._settings = settings

    def _passages(self, reply: Answer) -> ResultRow:
        return {} if reply.output.provenance is None else {"passages": reply.quotes(self.work.passages)}

    def _indexed(self, document: Document) -> ResultRow:
        if document.memory is not None:
            raise UnlimiformerError("it is a memory already; expected a text")
        place = remote.join(str(self.work.memories), folder_name(document.id, self.work.identity()))
        folder = (
            cache_folder() / "uploads" / sha256(place.encode()).hexdigest()[:16]
            if remote.is_url(place)
            else Path(place)
        )
        memory = self._wrapped.index(document.source(), folder=folder, overwrite=True)
        told = {"tokens": len(memory), "windows": memory.windows, "bytes": folder_size(folder)}
        if remote.is_url(place):
            del memory
            remote.publish(folder, place)
            shutil.rmtree(folder)
        return {"memory": self._seen(place), **told}

    def _seen(self, place: str) -> str:
        """A place as rows name it."""
        if remote.is_url(place) or self.work.relative_to is None:
            return place
        path, base = Path(place).absolute(), Path(self.work.relative_to).absolute()
        return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def folder_name(name: str, identity: dict[str, Any]) -> str:
    """A folder's name for an id: readable, safe on every system, and of no other id and no other settings."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:60]
    return f"{readable}-{sha256(json.dumps([name, identity], sort_keys=True).encode()).hexdigest()[:10]}"


def explanation(error: Exception) -> str:
    """What went wrong, in a line."""
    words = " ".join(str(error).split())
    return words if isinstance(error, UnlimiformerError) else f"{type(error).__name__}: {words}"


def _device_is_lost(error: Exception) -> bool:
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
