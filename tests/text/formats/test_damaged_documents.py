"""Damaged documents give a text or a message that names the file; any other exception is a defect."""

from __future__ import annotations

import io
import zipfile

import pytest
from document_files import SAMPLES, make_zip
from fuzzing import EXAMPLES, bounded, damaged_bytes
from hypothesis import given
from hypothesis import strategies as st

from unlimiformer.errors import InputError
from unlimiformer.text.document_text import DocumentText
from unlimiformer.text.formats import extract

_ZIPS = (".epub", ".docx")
_PIECES = {
    ".html": ["<div>" * 400, "<table><tr><td>", "&#1114112;", "&#x0;", "<!--", "<![CDATA[", '<meta charset="utf-99">'],
    ".srt": ["00:00:01,000 --> 00:00:02,000\n", "-->", "999:99:99.999 --> 0:0:0.0", "<v >", "{\\an8}", "&#55357;"],
    ".vtt": ["NOTE\n", "<00:01.000>", "WEBVTT", "STYLE\n", "-->"],
    ".pdf": ["endobj", "stream\n", "/Length -1", "/Kids [1 0 R]", "xref\n", "<<", "/Type /Page", "1 0 obj"],
    ".md": ["\x00", "\ufeff", "# " * 300],
    ".txt": ["\x00", "\ufeff", "\x1b"],
}


def _damaged(suffix: str) -> st.SearchStrategy[bytes]:
    """Documents with damaged bytes, with pieces of their format where they do not belong, or with damage inside."""
    data = SAMPLES[suffix]
    strategies = [damaged_bytes(data), damaged_bytes(data).flatmap(damaged_bytes)]
    if pieces := _PIECES.get(suffix):
        places = st.tuples(st.integers(0, len(data)), st.sampled_from(pieces), st.integers(1, 30))
        strategies.append(places.map(lambda p: data[: p[0]] + p[1].encode("utf-8") * p[2] + data[p[0] :]))
    if suffix in _ZIPS:
        strategies += [_damaged_inside(data)] * 2
    return st.one_of(strategies)


@st.composite
def _damaged_inside(draw, data: bytes) -> bytes:
    """A sound archive with one file that is damaged, missing, empty, or another one's."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name, other = draw(st.sampled_from(sorted(files))), draw(st.sampled_from(sorted(files)))
    action = draw(st.sampled_from(["damage", "damage", "damage", "remove", "empty", "swap", "nest"]))
    if action == "damage":
        files[name] = draw(damaged_bytes(files[name]))
    elif action == "remove":
        del files[name]
    elif action == "nest":
        files[name] = b"<a>" * 2000 + files[name]
    else:
        files[name] = files[other] if action == "swap" else b""
    return make_zip(*files.items())


@pytest.mark.parametrize("suffix", SAMPLES)
def test_damaged_files_give_a_text_or_a_message(suffix):
    outcomes = []

    @given(_damaged(suffix), st.booleans())
    @bounded
    def probe(data, is_named):
        try:
            outcomes.append(extract(data, "damaged", suffix if is_named else ""))
        except InputError as error:
            outcomes.append(str(error))

    probe()
    assert len(outcomes) > EXAMPLES // 2
    assert any(isinstance(outcome, DocumentText) for outcome in outcomes)
    for outcome in outcomes:
        if isinstance(outcome, str):
            assert outcome.startswith("damaged") and len(outcome) < 1000
        else:
            outcome.text.encode("utf-8")
            assert all(0 <= location.start <= len(outcome.text) for location in outcome.locations)
