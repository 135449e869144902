"""Examples as token ids: what stands before every window, the document, what the decoder is given, the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ..errors import UnlimiformerError
from ..qa import QuestionFormat
from ..tasks import Example
from ..text.tokenization import opening_ids, surrounding_ids

IGNORED = -100
"""A label that is no target, as transformers has it."""

Inputs = Callable[[Tensor, int], list[Tensor]]
"""A document's ids, and the window's room for them, to the inputs of one or more examples."""


_LOOKED_AT = 64  # batches that a group may still join


def whole(ids: Tensor, room: int) -> list[Tensor]:
    """All of a document, as one input."""
    del room
    return [ids]


@dataclass(frozen=True)
class LengthLimits:
    """Longest document, and longest answer, in tokens; None for no limit."""

    source: int | None
    target: int | None


class Seq2SeqDataset(Dataset):
    """The features of some examples; documents are tokenized once. `cut` counts documents that a limit cut short.

    `sharing` are lists of features that have one input: questions of one document that the decoder is asked.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Any,
        asking: QuestionFormat,
        limits: LengthLimits,
        window: int,
        inputs: Inputs = whole,
    ) -> None:
        self.examples, self._tokenizer, self._asking, self._limits = examples, tokenizer, asking, limits
        self._documents: dict[str, Tensor] = {}
        self._opening, self._closing = surrounding_ids(tokenizer)
        self.cut = 0
        self._features: list[dict[str, Any]] = []
        shared: dict[tuple[str, int], list[int]] = {}
        for example in examples:
            for part, feature in enumerate(self._made(example, window, inputs)):
                shared.setdefault((example.document, part), []).append(len(self._features))
                self._features.append(feature)
        self.sharing = list(shared.values()) if asking.place == "decoder" else [[i] for i in range(len(self))]

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._features[index]

    def _made(self, example: Example, window: int, inputs: Inputs) -> list[dict[str, Any]]:
        asked = self._asking.text(example.question)
        before = self._asking.place == "window"
        prefix = opening_ids(asked, self._tokenizer) if before else torch.empty(0, dtype=torch.long)
        prompt = [] if before else self._tokenizer(asked, add_special_tokens=False)["input_ids"]
        opening, closing = self._opening[:0] if before else self._opening, self._closing  # a prefix has its own
        room = window - prefix.shape[0] - opening.shape[0] - closing.shape[0]
        if room < 1:
            raise UnlimiformerError(
                f"a question has {prefix.shape[0]} tokens and the window {window}; expected room for the document"
            )
        answer = self._tokenizer(text_target=example.answer, verbose=False)["input_ids"]
        if self._limits.target is not None and len(answer) > self._limits.target:
            answer = [*answer[: self._limits.target - 1], answer[-1]]  # the end of the answer stays an end
        shared = {
            "prefix_ids": prefix,
            "prompt_ids": torch.tensor(prompt, dtype=torch.long),
            "answer_ids": torch.tensor(answer, dtype=torch.long),
        }
        return [
            {"input_ids": torch.cat((opening, part, closing)), **shared}
            for part in inputs(self._document(example.document), room)
        ]

    def _document(self, text: str) -> Tensor:
        """The text's own token ids, up to the limit."""
        if text not in self._documents:
            ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            if not ids:
                raise UnlimiformerError(f"a document has no tokens: {text[:40]!r}; expected some text")
            limit = self._limits.source
            self.cut += limit is not None and len(ids) > limit
            self._documents[text] = torch.tensor(ids[:limit], dtype=torch.long)
        return self._documents[text]


class GroupedSampler(Sampler[int]):
    """An order by chance, another in every epoch, in which features that share their input are in one batch.

    What stands in one batch is then read once. More of them than a batch holds are split; batches that could not be
    filled come last.
    """

    def __init__(self, features: Seq2SeqDataset, batch_size: int, seed: int) -> None:
        self._features, self._batch_size, self._seed, self._epoch = features, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Told by the trainer, also when it goes on in the middle of an epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._features)

    def __iter__(self) -> Iterator[int]:
        chance = torch.Generator().manual_seed(self._seed + self._epoch)
        batches: list[list[int]] = []
        for group in _shuffled(self._features.sharing, chance):
            members = _shuffled(group, chance)
            for start in range(0, len(members), self._batch_size):
                part = members[start : start + self._batch_size]
                room = self._batch_size - len(part)
                open_batch = next((batch for batch in batches[-_LOOKED_AT:] if len(batch) <= room), None)
                if open_batch is None:
                    batches.append(part)
                else:
                    open_batch += part
        full, rest = ([b for b in batches if (len(b) == self._batch_size) is whole] for whole in (True, False))
        for batch in (*_shuffled(full, chance), *rest):
            yield from batch


def _shuffled(items: Sequence[Any], chance: torch.Generator) -> list[Any]:
    return [items[place] for place in torch.randperm(len(items), generator=chance).tolist()]


class Collator:
    """Features side by side, padded on the right; nothing that is padding is ever read."""

    def __init__(self, padding: int, start: int, window: int) -> None:
        self._padding, self._start, self._window = padding, start, window

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """A batch. Where every input fits the window, what stands before it is part of it, as in the plain model,
        unless some inputs are the same, and need to be read only once."""
        prefixes, documents = ([each[name] for each in features] for name in ("prefix_ids", "input_ids"))
        joined = [torch.cat(parts) for parts in zip(prefixes, documents, strict=True)]
        fits = all(row.shape[0] <= self._window for row in joined)
        fits = fits and len({tuple(row.tolist()) for row in joined}) == len(joined)
        rows = joined if fits else documents
        batch = {
            "input_ids": padded(rows, self._padding),
            "attention_mask": padded([torch.ones_like(row) for row in rows], 0),
            "prompt_ids": padded([each["prompt_ids"] for each in features], IGNORED),
        }
        if not fits:
            batch["prefix_ids"] = padded(prefixes, IGNORED)
        whole = [torch.cat((each["prompt_ids"], each["answer_ids"])) for each in features]
        shifted = [torch.cat((torch.tensor([self._start]), row[:-1])) for row in whole]
        unasked = [torch.full_like(each["prompt_ids"], IGNORED) for each in features]
        labels = [torch.cat((no, each["answer_ids"])) for no, each in zip(unasked, features, strict=True)]
        batch["decoder_input_ids"] = padded(shifted, self._padding)
        batch["labels"] = padded(labels, IGNORED)
        return batch


def unpadded(rows: Tensor) -> list[Tensor]:
    """Rows (B, n) without what the collator padded them with."""
    return [row[row != IGNORED] for row in rows]


def padded(rows: Sequence[Tensor], value: int) -> Tensor:
    """Rows side by side, padded on the right."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
