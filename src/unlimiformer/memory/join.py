"""Several memories as one: a question about several documents retrieves from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..datastore import ExactStore
from ..errors import InputError
from ..text.document_text import Location, move_locations
from .memory import Memory

_SEPARATOR = "\n\n"


def join_memories(memories: Sequence[Memory], names: Sequence[str]) -> Memory:
    """One memory, in RAM, of several documents that were encoded in the same way.

    A window's states depend on its own tokens alone, so they are those of the separate memories. Every citation has the
    name of its document; `document_starts` tells where each begins in the joined text.
    """
    if not memories or len(memories) != len(names):
        raise InputError(f"{len(memories)} memories and {len(names)} names were given; expected one name for each")
    first = memories[0]
    for memory, name in zip(memories, names, strict=True):
        if memory.spec is None or first.spec is None or memory.offsets is None or first.spec.differences(memory.spec):
            raise InputError(f"{name!r} was encoded in another way than {names[0]!r}; index it again with this model")
    if len(memories) == 1:
        return first
    prefix = first.prefix_tokens
    states = [memory.store.all_states() for memory in memories]
    texts = [memory.text for memory in memories]
    offsets, locations = [], []
    for memory, name, start in zip(memories, names, document_starts(texts), strict=True):
        assert memory.offsets is not None
        covers_text = memory.offsets[:, 1:] > 0  # a token that covers no text has no place
        offsets.append(torch.where(covers_text, memory.offsets + start, 0))
        if not memory.locations or memory.locations[0].start > 0:
            locations.append(Location(start, name))
        locations += [
            replace(location, label=f"{name}, {location.label}") for location in move_locations(memory.locations, start)
        ]

    def rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat((parts[0], *(part[prefix:] for part in parts[1:])))

    return replace(
        first,
        store=ExactStore(rows(states)),
        token_ids=rows([memory.token_ids for memory in memories]),
        windows=sum(memory.windows for memory in memories),
        offsets=rows(offsets),
        stored_text=_SEPARATOR.join(texts),
        locations=tuple(locations),
        key=Memory.next_key(),
    )


def document_starts(texts: Sequence[str]) -> list[int]:
    """The character at which each document begins in the joined text."""
    starts, position = [], 0
    for text in texts:
        starts.append(position)
        position += len(text) + len(_SEPARATOR)
    return starts
