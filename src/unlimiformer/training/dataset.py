"""Examples as token ids, and how they form batches: dataset, sampler and collator for encoder–decoder training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ..errors import InputError
from ..qa import QuestionFormat
from ..tasks import Example
from ..text.tokenization import prefix_token_ids, special_ids

IGNORE_INDEX = -100
"""The label of positions without a loss, as in PyTorch and transformers; also pads ids of the collator."""

SplitDocument = Callable[[Tensor, int], list[Tensor]]
"""Splits a document's token ids into the inputs of one or more examples; see `Strategy.inputs`."""


_SORTED_BATCHES = 32  # so many are sorted by length at a time
_OPEN_BATCHES = 64  # the newest batches that a group may still be added to; bounds the search in large datasets


def whole_document(ids: Tensor, room: int) -> list[Tensor]:
    """Return all of a document as the input of one example."""
    del room
    return [ids]


@dataclass(frozen=True)
class LengthLimits:
    """Largest number of tokens of a document (`source`) and of an answer (`target`); None for no limit."""

    source: int | None
    target: int | None


class Seq2SeqDataset(Dataset):
    """Tokenized examples. A document that several examples share is tokenized once.

    An item has `prefix_ids` (before every window), `input_ids` (the document), `prompt_ids` (at the start of the
    decoder's text) and `answer_ids`. A question is in the prefix, in the prompt, or at the start of the document.

    Parameters
    ----------
    question_format : where questions go, and their wording.
    limits : longer documents and answers are truncated.
    window : number of tokens that the encoder takes at once.
    split_document : makes the inputs of one or more items from a document.

    Attributes
    ----------
    truncated_documents : number of documents that were longer than the limit.
    input_groups : lists of item indices that share one encoder input. Each item is alone in its group unless
        questions go to the decoder.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Any,
        question_format: QuestionFormat,
        *,
        limits: LengthLimits,
        window: int,
        split_document: SplitDocument = whole_document,
    ) -> None:
        self.examples, self._tokenizer, self._question_format = examples, tokenizer, question_format
        self._limits, self._window, self._split_document = limits, window, split_document
        self._documents: dict[str, Tensor] = {}
        self._opening, self._closing = special_ids(tokenizer)
        self.truncated_documents = 0
        self._items: list[dict[str, Any]] = []
        groups: dict[tuple[str, int], list[int]] = {}
        for example in examples:
            for part, item in enumerate(self._build_items(example)):
                groups.setdefault((example.document, part), []).append(len(self._items))
                self._items.append(item)
        in_decoder = question_format.place == "decoder"
        self.input_groups = list(groups.values()) if in_decoder else [[index] for index in range(len(self))]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._items[index]

    def _build_items(self, example: Example) -> list[dict[str, Any]]:
        question = self._question_format.text(example.question)
        in_decoder, nothing = self._question_format.place == "decoder", torch.empty(0, dtype=torch.long)
        prompt = self._tokenizer(question, add_special_tokens=False)["input_ids"] if in_decoder else []
        prefix = nothing if in_decoder or not question else prefix_token_ids(question, self._tokenizer)
        opening, closing = self._opening if prefix.numel() == 0 else nothing, self._closing  # a prefix has its own
        room = self._window - prefix.shape[0] - opening.shape[0] - closing.shape[0]
        if room < 1:
            raise InputError(
                f"a question has {prefix.shape[0]} tokens and the window {self._window}; expected room for the "
                "document: shorten the question, or set a larger window"
            )
        if self._question_format.place == "first":
            prefix, opening = nothing, torch.cat((opening, prefix))
        shared = {
            "prefix_ids": prefix,
            "prompt_ids": torch.tensor(prompt, dtype=torch.long),
            "answer_ids": self._answer_ids(example.answer),
        }
        return [
            {"input_ids": torch.cat((opening, part, closing)), **shared}
            for part in self._split_document(self._document_ids(example.document), room)
        ]

    def _answer_ids(self, answer: str | None) -> Tensor:
        ids = self._tokenizer(text_target=answer, verbose=False)["input_ids"]
        limit = self._limits.target
        if limit is not None and len(ids) > limit:
            ids = [*ids[: limit - 1], ids[-1]]  # keep the end token
        return torch.tensor(ids, dtype=torch.long)

    def _document_ids(self, text: str) -> Tensor:
        """Return the ids of a document without special tokens, up to the limit."""
        if text not in self._documents:
            ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            if not ids:
                raise InputError(f"a document has no tokens: {text[:40]!r}; expected some text")
            limit = self._limits.source
            self.truncated_documents += limit is not None and len(ids) > limit
            self._documents[text] = torch.tensor(ids[:limit], dtype=torch.long)
        return self._documents[text]


class GroupedSampler(Sampler[int]):
    """A random order, different in every epoch, in which items with the same encoder input share a batch.

    Such a batch encodes that input once. A group larger than a batch is split; incomplete batches come last. Inputs of
    a batch have similar lengths, so that little padding is computed.
    """

    def __init__(self, dataset: Seq2SeqDataset, batch_size: int, seed: int) -> None:
        self._dataset, self._batch_size, self._seed, self._epoch = dataset, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that decides the order; a resumed run sets the epoch in which it was stopped."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        batches: list[list[int]] = []
        for group in self._sort_nearby(_shuffle(self._dataset.input_groups, generator)):
            members = _shuffle(group, generator)
            for start in range(0, len(members), self._batch_size):
                part = members[start : start + self._batch_size]
                room = self._batch_size - len(part)
                open_batch = next((batch for batch in batches[-_OPEN_BATCHES:] if len(batch) <= room), None)
                if open_batch is None:
                    batches.append(part)
                else:
                    open_batch += part
        full = [batch for batch in batches if len(batch) == self._batch_size]
        incomplete = [batch for batch in batches if len(batch) < self._batch_size]
        for batch in (*_shuffle(full, generator), *incomplete):
            yield from batch

    def _sort_nearby(self, groups: list[list[int]]) -> list[list[int]]:
        """The groups, those of some batches at a time sorted by the lengths of their inputs."""
        count = _SORTED_BATCHES * self._batch_size
        parts = [groups[start : start + count] for start in range(0, len(groups), count)]
        return [group for part in parts for group in sorted(part, key=self._input_length)]

    def _input_length(self, group: list[int]) -> int:
        return self._dataset[group[0]]["input_ids"].shape[0]


def _shuffle(items: Sequence[Any], generator: torch.Generator) -> list[Any]:
    return [items[index] for index in torch.randperm(len(items), generator=generator).tolist()]


class Collator:
    """Makes a batch of dataset items, padded on the right; padding is masked and never stored or attended to."""

    def __init__(self, pad_token: int, start_token: int, window: int) -> None:
        self._pad_token, self._start_token, self._window = pad_token, start_token, window

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the arguments of the model's forward, with `prompt_ids` and, for long inputs, `prefix_ids`.

        If every prefix and document together fit the window, they are joined to one input, as for the plain model.
        If some of these inputs are equal, they stay separate, so that an equal input is encoded only once.
        """
        prefixes, documents = ([item[name] for item in items] for name in ("prefix_ids", "input_ids"))
        joined = [torch.cat(parts) for parts in zip(prefixes, documents, strict=True)]
        fit = all(row.shape[0] <= self._window for row in joined)
        distinct = len({tuple(row.tolist()) for row in joined}) == len(joined)
        rows = joined if fit and distinct else documents
        batch = {
            "input_ids": pad_rows(rows, self._pad_token),
            "attention_mask": pad_rows([torch.ones_like(row) for row in rows], 0),
            "prompt_ids": pad_rows([item["prompt_ids"] for item in items], IGNORE_INDEX),
        }
        if not (fit and distinct):
            batch["prefix_ids"] = pad_rows(prefixes, IGNORE_INDEX)
        targets = [torch.cat((item["prompt_ids"], item["answer_ids"])) for item in items]
        shifted = [torch.cat((torch.tensor([self._start_token]), row[:-1])) for row in targets]
        ignored = [torch.full_like(item["prompt_ids"], IGNORE_INDEX) for item in items]
        labels = [torch.cat((prompt, item["answer_ids"])) for prompt, item in zip(ignored, items, strict=True)]
        batch["decoder_input_ids"] = pad_rows(shifted, self._pad_token)
        batch["labels"] = pad_rows(labels, IGNORE_INDEX)
        return batch


def pad_rows(rows: Sequence[Tensor], value: int) -> Tensor:
    """Stack rows of different lengths into one tensor (B, n), padded on the right with `value`."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def strip_padding(rows: Tensor) -> list[Tensor]:
    """Return the rows of a tensor (B, n) without the positions that are `IGNORE_INDEX`."""
    return [row[row != IGNORE_INDEX] for row in rows]
