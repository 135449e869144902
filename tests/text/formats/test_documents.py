"""EPUB books, Word documents, HTML pages, subtitles, and texts in other encodings."""

from __future__ import annotations

import io
import random
import re
import zipfile

import pytest
from document_files import SAMPLES, SUBTITLES, make_docx, make_epub, make_zip, paragraph

from unlimiformer.errors import InputError
from unlimiformer.text.document_text import location_at
from unlimiformer.text.formats import FORMATS, SUFFIXES, extract, find_format
from unlimiformer.text.formats.html import html_text
from unlimiformer.text.formats.plain import decode
from unlimiformer.text.sources import read_document


@pytest.mark.parametrize("suffix", SAMPLES)
def test_every_format_is_recognised_by_its_content_and_by_its_name(suffix, tmp_path):
    path = tmp_path / f"document{suffix}"
    path.write_bytes(SAMPLES[suffix])
    text = read_document(path).text
    assert "Marten Oak" in text or "on board" in text
    if suffix != ".md":  # a text like any other
        assert extract(SAMPLES[suffix], "standard input").text == text
    assert suffix in SUFFIXES


def test_every_format_has_a_sample():
    assert {suffix for item in FORMATS for suffix in item.suffixes[:1]} <= set(SAMPLES)


def test_an_epub_book_has_its_chapters_in_order_without_its_contents():
    book = make_epub(
        ["<h2>The Storm</h2><p>It blew.</p>", "<p>It stopped.</p>", "<h1>Last</h1><p>All <i>slept</i>.</p>"],
        ["The Storm", "The Calm", "Last"],
    )
    assert extract(book, "book").text == (
        "## The Storm\n\nIt blew.\n\n# The Calm\n\nIt stopped.\n\n# Last\n\nAll slept."
    )


def test_a_protected_epub_book_is_refused_but_encrypted_fonts_are_not():
    def encryption(method):
        return ("META-INF/encryption.xml", f'<e><EncryptionMethod Algorithm="{method}"/></e>')

    fonts = make_epub(["<p>It blew.</p>"], extra=[encryption("http://www.idpf.org/2008/embedding")])
    assert extract(fonts, "book").text == "It blew."
    with pytest.raises(InputError, match="copy protection"):
        extract(make_epub(["<p>x</p>"], extra=[encryption("http://www.w3.org/2001/04/xmlenc#aes128-cbc")]), "book")


def test_a_word_document_has_headings_tables_and_no_markup():
    cells = "".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in ("Anna", "31"))
    body = paragraph("Terms", "Heading1") + paragraph("The tenant pays.") + f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
    assert extract(make_docx(body), "lease").text == "# Terms\n\nThe tenant pays.\n\nAnna | 31"


def test_an_html_page_has_no_scripts_and_keeps_blocks_apart():
    page = """<html><head><title>T</title><style>p {}</style></head><body><nav>Home</nav>
        <h2>The <em>Storm</em></h2><p>It blew<br>hard &amp; long.</p><div>Then<p>calm</p>after</div>
        <ul><li>one</li><li>two</li></ul><script>alert(1)</script><pre>a  b\n c</pre></body></html>"""
    expected = "## The Storm\n\nIt blew\nhard & long.\n\nThen\n\ncalm\n\nafter\n\n- one\n- two\n\na  b\n c"
    assert extract(page.encode(), "page").text == expected


@pytest.mark.parametrize(
    "page",
    [
        "<html><meta charset='iso-8859-1'><p>café".encode("latin1"),
        '<?xml version="1.0" encoding="iso-8859-1"?><html><p>café</p></html>'.encode("latin1"),
        "<html><p>café".encode(),
        "<html><p>café".encode("utf-16"),
        "<html><script charset='iso-8859-1' src='a.js'></script><form accept-charset='cp1251'></form><p>café".encode(),
    ],
)
def test_encodings_of_pages(page):
    assert extract(page, "page.html", ".html").text == "café"


def test_a_page_that_is_a_text_may_speak_of_encodings():
    assert html_text("<html><p>café</p><meta charset='latin-1'>", "page") == "café"


def test_rows_of_tables_and_rows_that_only_place_parts_of_a_page():
    data = "<tr><!-- x --><td>Anna<script>var x=1;</script></td><?pi y?><td><p>31</p></td></tr>"
    layout = (
        "<tr><td><h1>Title</h1><p>One.</p></td><td><style>p{}</style><ul><li>x</li><li>y</li></ul><p>z</p></td></tr>"
    )
    text = html_text(f"<html><body><table>{data}</table><table>{layout}</table></body></html>", "page")
    assert text == "Anna | 31\n\n# Title\n\nOne.\n\n- x\n- y\n\nz"


def test_deeply_nested_elements_keep_their_text():
    page = "<html><body>" + "<div>" * 1000 + "deep" + "</div>" * 1000 + "</body></html>"
    assert "deep" in extract(page.encode(), "page").text


def test_subtitles_are_sentences_with_times():
    document = extract(SUBTITLES.encode(), "film.srt")
    assert document.text == "The ship left the harbour at dawn.\n- Who was on board?"
    assert location_at(document.locations, document.text.index("dawn")) == "0:00:03"
    assert location_at(document.locations, document.text.index("board")) == "1:02:07"


def test_speakers_and_repetitions_of_web_subtitles():
    cues = "WEBVTT\n\nNOTE made by hand\n\n1\n00:01.000 --> 00:04.000 align:start\n<v Anna>Hello &amp; welcome.\n\n"
    cues += "00:04.000 --> 00:05.000\n<v Anna>Hello &amp; welcome.\n\n00:05.000 --> 00:06.000\n<v Ben>Thanks.\n"
    assert extract(cues.encode(), "talk").text == "Anna: Hello & welcome.\nBen: Thanks."


def test_what_is_said_in_subtitles_may_begin_like_a_note():
    cues = "1\n00:00:01,000 --> 00:00:02,000\nNOTED, CAPTAIN.\n\n"
    cues += "2\n00:00:03,000 --> 00:00:04,000\nREGIONAL MANAGERS\nSTYLE it!\n"
    assert extract(cues.encode(), "film.srt").text == "NOTED, CAPTAIN. REGIONAL MANAGERS STYLE it!"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "cp1251", "shift_jis", "gb18030"]
)
def test_texts_in_other_encodings(encoding):
    texts = {
        "cp1250": "Maják střežil starý muž, který každý večer zapaloval světlo a psal jména lodí. " * 5,
        "cp1251": "Смотритель маяка каждый вечер зажигал лампу и записывал в книгу имена всех лодок. " * 5,
        "shift_jis": "灯台守は毎晩ランプに火をともし、すべての船の名前を本に書きました。" * 5,
        "gb18030": "灯塔看守人每天晚上点亮灯，并把所有船只的名字写在他的书里。" * 5,
    }
    text = texts.get(
        encoding, "Le gardien du phare était âgé; il allumait la lampe à la tombée de la nuit, même l’été. " * 5
    )
    assert decode(text.encode(encoding), "book.txt") == text


def test_a_late_byte_decides_the_encoding(tmp_path):
    text = (
        "The keeper lit the lamp. " * 20_000
        + "Then he went to the café on the quay, as he did every evening of that year."
    )
    path = tmp_path / "book.txt"
    path.write_bytes(text.encode("cp1252"))
    assert read_document(path).text == text


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(
        InputError, match=r"blob is not a text, and not of a format that is known; expected a text, a PDF"
    ):
        extract(random.Random(0).randbytes(1000), "blob")


def test_a_zip_bomb_is_refused():
    bomb = make_zip(("mimetype", "application/epub+zip"), ("a.xhtml", b"0" * (64 << 20)))
    with pytest.raises(InputError, match=r"would unpack to 67,.* bytes"):
        extract(bomb, "book.epub")


@pytest.mark.parametrize("suffix", [".pdf", ".epub", ".docx"])
def test_a_file_that_was_cut_is_refused_by_name(suffix):
    data = SAMPLES[suffix]
    with pytest.raises(InputError, match=r"^half"):
        extract(data[: len(data) // 3], "half", suffix)


@pytest.mark.parametrize(
    ("data", "suffix", "message"),
    [
        (b"<html><script>1</script></html>", ".html", "without text"),
        (make_epub(["<p></p>"]), ".epub", "without text"),
        (make_docx(""), ".docx", "without text"),
        (b"Hello.", ".srt", "without times"),
        (make_zip(("mimetype", "application/epub+zip")), ".epub", "container.xml"),
    ],
)
def test_documents_without_text_are_refused(data, suffix, message):
    with pytest.raises(InputError, match=message):
        extract(data, "document", suffix)


def test_a_format_of_plain_text_is_none():
    assert find_format(b"Just words.", ".txt", "book.txt") is None


def test_an_unreadable_page_of_a_book_is_named():
    book = make_epub(["<p>one</p>", "<p>two</p>"], extra=[])
    damaged = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(book)) as old, zipfile.ZipFile(damaged, "w") as new:
        pages = [name for name in old.namelist() if name.endswith("html")]
        for name in old.namelist():
            new.writestr(name, bytes(range(256)) * 8 if name == pages[1] else old.read(name))
    with pytest.raises(InputError, match=rf"^book\.epub, {re.escape(pages[1])}, is not a text"):
        extract(damaged.getvalue(), "book.epub", ".epub")
