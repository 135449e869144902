"""The text of a document, and where its pages or times begin."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Location:
    """A page or a time, as it is cited ("p. 37", "0:12:31"), and the character at which it begins."""

    start: int
    label: str


@dataclass(frozen=True)
class DocumentText:
    """A text; `locations` are in its order."""

    text: str
    locations: tuple[Location, ...] = ()

    def behind(self, beginning: str) -> DocumentText:
        """This text with another one before it."""
        return DocumentText(beginning + self.text, move_locations(self.locations, len(beginning)))

    def before(self, other: DocumentText) -> DocumentText:
        """This text, an empty line, and another text."""
        behind = other.behind(f"{self.text}\n\n")
        return DocumentText(behind.text, (*self.locations, *behind.locations))


def move_locations(locations: tuple[Location, ...], characters: int) -> tuple[Location, ...]:
    """The locations of a text that stands so many characters further behind."""
    return tuple(replace(location, start=location.start + characters) for location in locations)


def location_at(locations: tuple[Location, ...], start: int) -> str | None:
    """The label of the page or time that a character is on; None if there is none."""
    index = bisect_right([location.start for location in locations], start)
    return locations[index - 1].label if index else None


def locations_to_json(locations: tuple[Location, ...]) -> list[list[Any]]:
    """For JSON; the inverse of `locations_from_json`."""
    return [[location.start, location.label] for location in locations]


def locations_from_json(rows: Any) -> tuple[Location, ...]:
    """Locations as `locations_to_json` gave them; raise `TypeError` for anything else."""
    if not isinstance(rows, list):
        raise TypeError("locations are not a list")
    locations = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and type(row[0]) is int and isinstance(row[1], str)):
            raise TypeError("a location is not a number and a label")
        locations.append(Location(*row))
    starts = [location.start for location in locations]
    if starts != sorted(starts) or (starts and starts[0] < 0):
        raise TypeError("locations are not in order")
    return tuple(locations)
