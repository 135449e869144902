"""OpenAI's protocol with its real clients: the package `openai`, and the command `llm`."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from conftest import make_book, make_tokenizer
from document_files import make_pdf, set_column
from running_server import RunningServer
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.qa.messages import Message, read_messages, split_message
from unlimiformer.server.answers import StopStrings

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} w1 {{ message['content'] }} w2 {% endfor %}"
    "{% if add_generation_prompt %}assistant w1 {% endif %}"
)


def wrap_llama():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, top_k=12, block=4)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = RunningServer(wrap_llama(), QuestionFormat(), tmp_path_factory.mktemp("library"))
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, *contents, **options):
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    options = {"max_tokens": 6, "temperature": 0, **options}
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "tiny" and client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.models.retrieve("gpt-9")


def test_a_short_chat_is_answered_by_the_plain_model(client, server):
    completion = ask(client, "w5 w6 w7")
    wrapped = server.worker.wrapped
    prompt = wrapped.tokenizer("user w1 w5 w6 w7 w2 assistant w1 ", return_tensors="pt", add_special_tokens=False)
    output = wrapped.model.generate(**prompt, max_new_tokens=6, do_sample=False)
    length = prompt["input_ids"].shape[1]
    expected = wrapped.tokenizer.decode(output[0, length:], skip_special_tokens=True)
    assert completion.choices[0].message.content == expected
    assert completion.usage.prompt_tokens == length
    assert completion.usage.total_tokens == length + completion.usage.completion_tokens
    assert completion.choices[0].finish_reason in ("stop", "length")


def test_a_stream_is_the_same_answer(client):
    whole = ask(client, "w5 w6 w7")
    chunks = list(ask(client, "w5 w6 w7", stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip() == whole.choices[0].message.content.strip()
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def count_indexed(server, monkeypatch):
    """A list that grows with every text that is indexed."""
    indexed = []
    index = server.worker.wrapped.index
    monkeypatch.setattr(
        server.worker.wrapped, "index", lambda *args, **options: indexed.append(1) or index(*args, **options)
    )
    return indexed


def test_a_long_message_is_indexed_once_and_found_again(client, server, monkeypatch):
    indexed = count_indexed(server, monkeypatch)
    book = make_book(400)
    first = ask(client, f"{book}\n\nQuestion: w5 w6?")
    assert len(indexed) == 1 and first.usage.prompt_tokens > 400
    assert first.choices[0].message.content
    second = ask(client, f"{book}\n\nQuestion: w5 w6?", first.choices[0].message.content, "w7 w8 w9 w10 w11?")
    other_place = ask(client, f"w5 w6?\n\n{book}")
    assert len(indexed) == 1
    assert other_place.choices[0].message.content == first.choices[0].message.content
    assert second.choices[0].message.content
    assert first.choices[0].model_extra["passages"][0]["text"] in book


def test_a_chat_of_many_short_messages_exceeds_the_window(client, server, monkeypatch):
    indexed = count_indexed(server, monkeypatch)
    contents = [f"w{n} " * 20 for n in range(61)]
    assert ask(client, *contents).usage.prompt_tokens > 1000
    assert len(indexed) == 1


def test_files(client, server, monkeypatch):
    words = make_book(300).split()
    pages = [set_column([" ".join(words[start : start + 100])], 72, 760, 450) for start in (0, 100, 200)]
    stored = client.files.create(file=("book.pdf", make_pdf(pages)), purpose="user_data")
    assert client.files.wait_for_processing(stored.id, poll_interval=0.05).status == "processed"
    assert stored.id in [file.id for file in client.files.list()]
    assert client.files.content(stored.id).text.split() == words
    indexed = count_indexed(server, monkeypatch)
    attached = {"type": "file", "file": {"file_id": stored.id}}
    by_id = ask(client, [attached, {"type": "text", "text": "w5 w6 w7?"}])
    assert indexed == [] and by_id.choices[0].model_extra["passages"][0]["location"] in ("p. 1", "p. 2", "p. 3")
    data = base64.b64encode(make_pdf(pages)).decode()
    inline = {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}", "filename": "book.pdf"}}
    by_data = ask(client, [inline, {"type": "text", "text": "w5 w6 w7?"}])
    assert indexed == [] and by_data.choices[0].message.content == by_id.choices[0].message.content
    assert client.files.delete(stored.id).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.retrieve(stored.id)


def test_stop_strings_and_lengths(client):
    text = ask(client, "w5 w6 w7", max_tokens=12).choices[0].message.content
    words = text.split()
    stopped = ask(client, "w5 w6 w7", max_tokens=12, stop=[words[2]])
    assert stopped.choices[0].message.content.split() == words[: words.index(words[2])]
    assert stopped.choices[0].finish_reason == "stop"
    assert ask(client, "w5 w6 w7", max_tokens=2).choices[0].finish_reason == "length"
    assert ask(client, "w5 w6 w7", max_completion_tokens=2).usage.completion_tokens == 2


def test_temperature_samples(client):
    texts = {ask(client, "w5 w6 w7", temperature=2.0, max_tokens=8).choices[0].message.content for _ in range(8)}
    assert len(texts) > 1


def test_completions_of_any_length(client, server):
    completion = client.completions.create(model="tiny", prompt="w5 w6 w7", max_tokens=4, temperature=0)
    streamed = client.completions.create(model="tiny", prompt="w5 w6 w7", max_tokens=4, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed).strip() == completion.choices[0].text.strip()
    limit = server.worker.context_length
    long = client.completions.create(model="tiny", prompt=make_book(limit + 200), max_tokens=4, temperature=0)
    assert long.usage.prompt_tokens > limit and long.choices[0].text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 2}, "n is 2; expected 1"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is"),
        ({"stop": [""]}, "expected at most 16"),
        ({"temperature": 9}, "temperature: "),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "expected text or file"),
        ({"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "x"}]}, "the assistant's"),
    ],
)
def test_requests_that_cannot_be_fulfilled_are_refused(client, options, message):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "w5"}], **options}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**body)
    assert message in str(error.value)


def test_the_token_protects_the_protocol_and_its_documentation(tmp_path):
    server = RunningServer(wrap_llama(), QuestionFormat(), tmp_path, token="secret")
    try:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
            for path in ("/docs", "/openapi.json"):
                with pytest.raises(openai.AuthenticationError):
                    client.get(f"{server.url}{path}", cast_to=str)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret") as client:
            assert client.models.list().data
    finally:
        server.stop()


def test_an_encoder_decoder_answers_too(tmp_path):
    wrapped = Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9)
    server = RunningServer(wrapped, QuestionFormat("decoder", "{question}"), tmp_path)
    try:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            assert ask(client, f"{make_book()}\n\nw5 w6?").usage.prompt_tokens > 200
            assert ask(client, "w5 w6 w7").usage.prompt_tokens == 5  # with the tokens at its beginning and end
    finally:
        server.stop()


def test_the_command_llm(server, tmp_path):
    """`llm` sends a long fragment and a prompt; a second command continues the conversation."""
    models = [{"model_id": "tiny", "model_name": "tiny", "api_base": f"{server.url}/v1"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    (tmp_path / "book.txt").write_text(make_book(400))
    command = [sys.executable, "-m", "llm"]
    environment = {"LLM_USER_PATH": str(tmp_path), "PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "none"}

    def llm(*arguments):
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    options = ("-m", "tiny", "-o", "max_tokens", "6")
    assert llm(*options, "-f", str(tmp_path / "book.txt"), "What is w5 w6?")
    assert llm("-c", *options, "And what is it then?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Once there was a king.\n\nWho was there?", ("Once there was a king.", "Who was there?")),
        ("Who was there?\n\nOnce there was a king.", ("Once there was a king.", "Who was there?")),
        ("A king.\nA queen.\nWho was there?", ("A king.\nA queen.", "Who was there?")),
        ("Summarise the text:\n\nA king.\n\nA queen.", ("A king.\n\nA queen.", "Summarise the text:")),
        ("A king.\n\nQuestion: his name", ("A king.", "his name")),
        ("A king.\n\nA queen.", ("A king.\n\nA queen.", None)),
    ],
)
def test_document_and_question_of_a_message(text, expected):
    assert split_message(text) == expected


def test_earlier_questions_and_answers():
    long = "word " * 40
    messages = [
        Message("system", long),
        Message("user", "Who?"),
        Message("assistant", "The king."),
        Message("user", f"{long}\n\nAnd where?"),
    ]
    request = read_messages(messages, 100)
    assert [document.text for document in request.documents] == [long.strip(), long.strip()]
    assert request.turns[0].question == "Who?" and request.turns[0].answer == "The king."
    assert request.question == "And where?"


def test_text_that_may_begin_a_stop_string_is_held_back():
    from threading import Event

    sent = []
    strings = StopStrings(("END.",), sent.append, Event())
    for piece in ("one E", "N", "E two EN", "D. three"):
        strings.put(piece)
    strings.end()
    assert "".join(sent) == "one ENE two " and strings.found and strings.stopped.is_set()
    assert sent[0] == "one "


def test_the_example_of_the_documentation(server, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    code = page.split("```python server\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(make_book(400))
    exec(code.replace("http://127.0.0.1:8000", server.url), {})
    assert int(capsys.readouterr().out.split()[-1]) > 400


@pytest.mark.parametrize("data", ["data:text/plain;base64,übel", "abc"])
def test_files_that_are_no_base64_are_refused(client, data):
    part = {"type": "file", "file": {"file_data": data, "filename": "note.txt"}}
    with pytest.raises(openai.BadRequestError, match=r"note.txt is not base64"):
        ask(client, [part, {"type": "text", "text": "w1 w2?"}])


def test_attached_files_have_the_limit_of_documents(client, server, monkeypatch):
    monkeypatch.setattr(server.worker, "limits", replace(server.worker.limits, document_bytes=50))
    data = base64.b64encode(b"w1 w2 w3 w4 " * 4).decode()
    parts = [{"type": "file", "file": {"file_data": data, "filename": f"{n}.txt"}} for n in range(2)]
    with pytest.raises(openai.APIStatusError, match="more than 50 bytes of text") as error:
        ask(client, [*parts, {"type": "text", "text": "w1 w2?"}])
    assert error.value.status_code == 413
