"""The page in a real browser: upload, progress, ask, hover, cancel, reload; hostile texts; small screens, keyboards."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import make_book, make_tokenizer
from document_files import make_pdf, set_column
from running_server import RunningServer
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.server.answers import ServedAnswer
from unlimiformer.server.documents import DocumentStore

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="no browser: apt-get install chromium chromium-driver"
)


@pytest.fixture
def server(tmp_path):
    wrapped = Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9)
    server = RunningServer(wrapped, QuestionFormat("decoder", "{question}"), tmp_path / "library")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def chrome():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,900"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Page:
    """The page, with the actions of a user."""

    def __init__(self, driver, url) -> None:
        self.driver = driver
        driver.get(url)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.wait_for(lambda: next(iter(self.all(selector)), None), selector)

    def wait_for(self, condition, description="", seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if result := condition():
                return result
            time.sleep(0.02)
        raise AssertionError(
            f"waited {seconds} s: {description}; the page says: {self.driver.find_element('tag name', 'body').text}"
        )

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def upload(self, path: Path) -> None:
        self.one("#file").send_keys(str(path))

    def paste(self, name: str, text: str) -> None:
        self.one("details summary").click() if not self.one("#paste-name").is_displayed() else None
        self.script("document.getElementById('paste-name').value = arguments[0]", name)
        self.script("document.getElementById('paste-text').value = arguments[0]", text)
        self.one("#paste button").click()

    def wait_until_ready(self) -> None:
        self.wait_for(lambda: self.one("#send").is_enabled(), "a document that can be asked")

    def ask(self, question: str) -> None:
        self.script("document.getElementById('question').value = arguments[0]", question)
        self.one("#send").click()
        self.wait_for(lambda: "Answered" in self.one("#message").text, "an answer")

    def highlighted(self) -> list[str]:
        """Return the passages that are highlighted in the source."""
        return self.script("return [...(CSS.highlights.get('passages') ?? [])].map((range) => range.toString())")


@pytest.fixture
def page(chrome, server):
    chrome.set_window_size(1300, 900)
    return Page(chrome, server.url)


@pytest.fixture
def book_file(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(make_book(900))
    return path


def test_upload_progress_ask_and_hover(page, server, tmp_path):
    book_file = tmp_path / "book.txt"
    book_file.write_text(make_book(8000))  # long enough to show progress
    page.script(
        "window.states = []; new MutationObserver(() => {"
        "for (const bar of document.querySelectorAll('progress')) window.states.push(bar.parentElement.textContent) })"
        ".observe(document.getElementById('documents'), {childList: true, subtree: true})"
    )
    page.upload(book_file)
    page.wait_until_ready()
    assert "8,002 tokens" in page.one("#documents .state").text
    assert page.all("#documents li[aria-current='true']"), "the new document is marked as the selected one"
    states = page.script("return window.states")
    assert states and all(
        re.fullmatch(r"Indexing [\d,]+ of [\d,]+ windows(, about \d+ (s|min) left)?", state) for state in states
    ), states
    assert page.script("return document.getElementById('text').textContent") == make_book(8000)
    page.one("#compare").click()
    page.ask("w3 w4")
    assert "Truncated:" in page.one(".truncated").text
    document = server.worker.documents.all()[0]
    provenance = server.worker.answer(document, "w3 w4", lambda text: None, threading.Event()).provenance
    words = page.all(".answer .word")
    assert "".join(word.text for word in words).replace(" ", "") == provenance["answer"].replace(" ", "")
    from selenium.webdriver import ActionChains

    for index in (0, len(words) - 1):
        ActionChains(page.driver).move_to_element(words[index]).perform()
        expected = [passage["text"] for passage in provenance["tokens"][index]["passages"]]
        page.wait_for(lambda expected=expected: page.highlighted() == expected, f"{expected}")
    assert len(page.all("#strip i")) == 100 and page.all("#strip i.active")
    page.all(".passages button")[0].click()
    assert page.highlighted() == [provenance["passages"][0]["text"]]
    is_visible = page.script(
        "const box = [...CSS.highlights.get('passages')][0].getBoundingClientRect();"
        "const frame = document.getElementById('text').getBoundingClientRect();"
        "return box.bottom > frame.top && box.top < frame.bottom"
    )
    assert is_visible, "the page scrolls to the passage"


def test_answer_streams_and_can_be_stopped(page, server, book_file, monkeypatch):
    def answer_slowly(document, question, on_text, cancelled, **_):
        for word in count():
            if cancelled.is_set():
                break
            on_text(f"word{word} ")
            time.sleep(0.05)
        return ServedAnswer("half an answer", None, None, 1.0, "cancelled")

    page.upload(book_file)
    page.wait_until_ready()
    monkeypatch.setattr(server.worker, "answer", answer_slowly)
    page.script("document.getElementById('question').value = 'w1'")
    page.one("#send").click()
    page.wait_for(lambda: "word3" in page.one(".answer").text, "a stream")
    assert not page.one("#send").is_enabled()
    page.one("#cancel").click()
    page.wait_for(lambda: "Stopped: cancelled" in page.one("#message").text, "the end")
    assert page.one(".answer").text == "half an answer" and page.one("#send").is_enabled()


def test_documents_survive_reload_and_can_be_deleted(page, book_file):
    page.upload(book_file)
    page.wait_until_ready()
    page.driver.refresh()
    page.wait_until_ready()
    assert page.one("#documents .select").text == "book.txt"
    assert page.script("return document.getElementById('text').textContent.length") == len(make_book(900))
    page.one("#documents [aria-label='Delete book.txt']").click()
    page.driver.switch_to.alert.accept()
    page.wait_for(lambda: not page.all("#documents li"), "an empty list")
    assert page.script("return document.getElementById('text').textContent") == ""


def test_hostile_names_and_texts_are_shown_as_text(page, server, tmp_path):
    text = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\n" * 40
    page.paste("../../x", text)
    page.wait_until_ready()
    page.paste("<b onmouseover=alert(1)>name</b>", "w1 w2 w3 <i>w4</i>")
    page.wait_for(lambda: len(page.all("#documents li")) == 2, "two documents")
    assert [button.text for button in page.all("#documents .select")] == ["../../x", "<b onmouseover=alert(1)>name</b>"]
    page.all("#documents .select")[0].click()
    page.wait_for(
        lambda: page.script("return document.getElementById('text').textContent") == text, "the text, unchanged"
    )
    page.wait_until_ready()
    page.ask("<img src=x onerror='window.hacked=1'>")
    assert page.script("return window.hacked === undefined")
    assert not page.all("#text img, #text script, #answers img, #documents b")
    assert [path.name for path in tmp_path.iterdir()] == ["library"]


def test_offsets_after_characters_of_two_utf16_units(page, server):
    text = "🙂" * 50 + " " + make_book(300)
    page.paste("smiles", text)
    page.wait_until_ready()
    page.ask("w3")
    document = server.worker.documents.all()[0]
    provenance = server.worker.answer(document, "w3", lambda text: None, threading.Event()).provenance
    page.all(".passages button")[0].click()
    assert page.highlighted() == [provenance["passages"][0]["text"]]


def test_small_screen_and_keyboard(page, book_file):
    page.driver.set_window_size(400, 800)
    page.upload(book_file)
    page.wait_until_ready()
    assert page.script("return document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"
    from selenium.webdriver.common.keys import Keys

    page.one("#question").send_keys("w3 w4", Keys.ENTER)
    page.wait_for(lambda: "Answered" in page.one("#message").text, "an answer")
    page.script("CSS.highlights.delete('passages')")
    sentence = page.one(".sentence")
    assert "show where this came from" in sentence.get_attribute("aria-label")
    sentence.send_keys(Keys.ENTER)
    assert page.wait_for(page.highlighted, "passages highlighted by keyboard")
    unlabelled = page.script(
        "return [...document.querySelectorAll('button, input, textarea')].filter((e) =>"
        "!(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label'))).length"
    )
    assert unlabelled == 0, "a screen reader has a name for every control"


def test_provenance_file(chrome, tmp_path):
    """The file that `--provenance FILE.html` writes needs no server, and shows a hostile text as text."""
    text = "<script>window.hacked=1</script></script><!-- " + make_book(300)
    with Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9) as wrapped:
        output = wrapped.generate(text, prompt="w3", provenance=True, max_new_tokens=8, do_sample=False, num_beams=2)
    output.provenance.save(tmp_path / "provenance.html")
    page = Page(chrome, (tmp_path / "provenance.html").as_uri())
    provenance = json.loads(output.provenance.to_json())
    words = page.wait_for(lambda: page.all(".word"), "words")
    from selenium.webdriver import ActionChains

    ActionChains(page.driver).move_to_element(words[1]).perform()
    expected = [passage["text"] for passage in provenance["tokens"][1]["passages"]]
    page.wait_for(lambda: page.highlighted() == expected, f"{expected}")
    assert page.script("return window.hacked === undefined")
    assert page.script("return document.getElementById('text').textContent") == text
    requests = page.script("return performance.getEntriesByType('resource').length")
    assert requests == 0, "the file loads nothing else"


def test_real_answer_highlights_its_fact(chrome, tmp_path):
    """flan-t5-small-answers, a fact in a scene of Macbeth: the words of the answer highlight it."""
    from unlimiformer.hub import get_model, get_text

    get_model("flan-t5-small-answers")
    lines = get_text("shakespeare/macbeth").read_text().split("\n")[300:560]
    fact = "The harbour master of Lisbon is called Duarte."
    lines.insert(150, f"\n{fact}\n")
    wrapped = Unlimiformer.from_pretrained("flan-t5-small-answers")
    server = RunningServer(wrapped, QuestionFormat.for_model("flan-t5-small-answers"), tmp_path)
    try:
        chrome.set_window_size(1300, 900)
        page = Page(chrome, server.url)
        page.paste("a scene", "\n".join(lines))
        page.wait_until_ready()
        page.ask("What is the harbour master of Lisbon called?")
        assert page.one(".answer").text == "Duarte"
        from selenium.webdriver import ActionChains

        ActionChains(chrome).move_to_element(page.one(".answer .word")).perform()
        page.wait_for(lambda: any("called Duarte" in text for text in page.highlighted()), "the fact is highlighted")
    finally:
        server.stop()


def test_a_pdf_is_cited_by_page_and_an_answer_is_downloaded_with_its_sources(page, tmp_path):
    words = make_book(240).split()
    pages = [set_column([" ".join(words[start : start + 80])], 72, 760, 450) for start in (0, 80, 160)]
    (tmp_path / "report.pdf").write_bytes(make_pdf(pages))
    page.upload(tmp_path / "report.pdf")
    page.wait_until_ready()
    page.ask("w3 w4")
    assert re.match(r"p\. [123], \d+ % of the attention: ", page.one(".passages button").text)
    link = page.one(".tools a")
    assert link.get_attribute("download") == "answer.md"
    text = unquote(link.get_attribute("href").partition(",")[2])
    assert text.startswith("**w3 w4**") and re.search(r"1\. report\.pdf, p\. [123]: “w", text)


def test_a_question_may_refer_to_the_one_before(page, server, book_file, monkeypatch):
    asked = []

    def answer(document, question, on_text, cancelled, **options):
        asked.append((question, [turn.question for turn in options["turns"]]))
        understood = f"{question} w9" if options["turns"] else None
        return ServedAnswer("w7", None, None, 1.0, None, understood)

    monkeypatch.setattr(server.worker, "answer", answer)
    page.upload(book_file)
    page.wait_until_ready()
    page.ask("Who is w5?")
    assert page.one("#new-conversation").is_displayed()
    page.ask("And where is he?")
    page.wait_for(lambda: page.one(".understood").text == "And where is he? w9", "the question as it was understood")
    page.one("#new-conversation").click()
    page.ask("Who is w6?")
    page.wait_for(lambda: len(asked) == 3, "three questions")
    assert asked == [("Who is w5?", []), ("And where is he?", ["Who is w5?"]), ("Who is w6?", [])]


def test_a_file_that_is_chosen_while_another_is_sent(page, tmp_path, monkeypatch):
    add = DocumentStore.add
    monkeypatch.setattr(DocumentStore, "add", lambda *arguments, **most: time.sleep(1) or add(*arguments, **most))
    for name in ("first.txt", "second.txt"):
        (tmp_path / name).write_text(make_book(200))
        page.upload(tmp_path / name)
    page.wait_for(lambda: len(page.all("#documents li")) >= 2, "both documents")
    time.sleep(2.5)  # a third one would have come by now
    assert sorted(button.text for button in page.all("#documents .select")) == ["first.txt", "second.txt"]


def test_several_documents_are_asked_at_once(page, tmp_path):
    for name, text in (("first.txt", make_book(200)), ("second.txt", make_book(300))):
        (tmp_path / name).write_text(text)
        page.upload(tmp_path / name)
    page.wait_for(lambda: len(page.all("#documents li")) == 2, "two documents")
    page.wait_until_ready()
    for box in page.all("#documents input"):
        box.click()
    page.wait_for(lambda: page.one("#selected-name").text == "first.txt, second.txt", "both names")
    page.wait_until_ready()
    assert not page.one("#summary").is_enabled()
    page.ask("w3 w4")
    assert re.match(r"(first|second)\.txt, \d+ % of the attention", page.one(".passages button").text)
    page.all(".passages button")[0].click()
    name = page.one(".passages button").text.split(",")[0]
    page.wait_for(lambda: page.one("#documents li[aria-current='true'] .select").text == name, "its document is shown")
    quote = page.one(".passages button").text.split(": ", 1)[1]
    page.wait_for(lambda: page.highlighted() and page.highlighted()[0].startswith(quote[:20]), "its passage")


def test_the_documentation_of_the_api_works_offline(chrome, server):
    chrome.get(f"{server.url}/docs")
    page = Page.__new__(Page)
    page.driver = chrome
    page.wait_for(lambda: page.all(".opblock"), "the list of routes")
    sources = page.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert all(source.startswith((server.url, "data:")) for source in sources), sources
