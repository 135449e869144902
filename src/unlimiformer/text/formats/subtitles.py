"""Subtitles (SRT, WebVTT): what is said, with the times at which it is said."""

from __future__ import annotations

import html
import re

from ...errors import InputError
from ..document_text import DocumentText, Location
from .base import Format
from .plain import decode

_TIME = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,]\d{1,3}"
_CUE = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\n]*$", re.MULTILINE)
_SPEAKER = re.compile(r"<v(?:\.[^ >]*)?[ \t]+([^>]+)>")
_MARKUP = re.compile(r"</?[a-zA-Z][^>]*>|<\d[\d:.]*>|\{\\[^}]*\}")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)]*\Z")
_LONGEST_PARAGRAPH = 600  # characters; then the next sentence begins a new one
_HEAD = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:WEBVTT\b|\s*\d+\s*\r?\n\s*\d{1,3}:\d{2}:\d{2}[.,]\d{1,3}\s*-->)")


class SubtitleFormat(Format):
    """Subtitles of a film, or a transcript with times."""

    name = "a subtitle file"
    suffixes = (".srt", ".vtt")

    def recognises(self, head: bytes, suffix: str) -> bool:
        """By its first cue, or by its suffix."""
        return suffix in self.suffixes or _HEAD.match(head) is not None

    def extract(self, data: bytes, name: str) -> DocumentText:
        """What is said, as paragraphs; the same line is not said twice in a row."""
        text = decode(data, name)
        cues = list(_CUE.finditer(text))
        if not cues:
            raise InputError(
                f"{name} is {self.name} without times; expected lines such as 00:00:01,000 --> 00:00:04,000"
            )
        ends = [*(cue.start() for cue in cues[1:]), len(text)]
        written: list[str] = []
        locations: list[Location] = []
        length = paragraph = 0
        last = ""
        for cue, end in zip(cues, ends, strict=True):
            said = _said(text[cue.end() : end])
            if not said or said == last:
                continue
            starts_anew = _SENTENCE_END.search(last) is not None and paragraph > _LONGEST_PARAGRAPH
            space = "" if not written else "\n\n" if starts_anew else "\n" if re.match(r"-|\w+: ", said) else " "
            paragraph = len(said) if starts_anew else paragraph + len(said)
            locations.append(Location(length + len(space), _time(cue)))
            written.append(space + said)
            length += len(written[-1])
            last = said
        if not written:
            raise InputError(f"{name} is {self.name} in which nothing is said; expected a text")
        return DocumentText("".join(written), tuple(locations))


def _said(block: str) -> str:
    """The words of a cue, without its markup. An empty line ends them; notes of the file stand behind it."""
    block = re.split(r"\n[ \t]*\n", block.strip("\n"), maxsplit=1)[0]
    marked = _SPEAKER.sub(lambda match: f"{match.group(1).strip()}: ", block)
    return " ".join(html.unescape(_MARKUP.sub("", marked)).split())


def _time(cue: re.Match[str]) -> str:
    hours, minutes, seconds = (int(cue.group(number) or 0) for number in (1, 2, 3))
    return f"{hours}:{minutes:02}:{seconds:02}"
