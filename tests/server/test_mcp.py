"""The Model Context Protocol with the package's own client: the server as a process, over standard input and output."""

from __future__ import annotations

import sys

import anyio
import pytest
from conftest import make_book, make_tokenizer, save
from document_files import make_pdf, set_column
from mcp import Client, MCPError, StdioServerParameters
from tiny_causal_models import tiny_decoder


@pytest.fixture
def files(tmp_path):
    words = make_book(300).split()
    pages = [set_column([" ".join(words[start : start + 100]) + "."], 72, 760, 450) for start in (0, 100, 200)]
    (tmp_path / "book.pdf").write_bytes(make_pdf(pages))
    (tmp_path / "scan.pdf").write_bytes(make_pdf([[], []]))
    return tmp_path


def test_the_tools(files):
    model = save(files / "llama", tiny_decoder("llama"), make_tokenizer())
    command = ["-m", "unlimiformer", "mcp", "--model", model, "--folder", str(files / "library")]
    parameters = StdioServerParameters(command=sys.executable, args=command)

    async def use_tools():
        async with Client(parameters, read_timeout_seconds=120) as client:

            async def call(name, **arguments):
                result = await client.call_tool(name, arguments)
                text = result.content[0].text if result.content else ""
                if result.is_error:
                    raise AssertionError(text)
                content = result.structured_content
                return content["result"] if set(content) == {"result"} else content

            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {"index_document", "list_documents", "ask", "summarize", "quote"}
            assert await call("list_documents") == []
            book = await call("index_document", path=str(files / "book.pdf"))
            assert book["state"] == "ready" and book["name"] == "book.pdf" and book["tokens"] > 300
            again = await call("index_document", path=str(files / "book.pdf"))
            assert again["id"] == book["id"]
            answer = await call("ask", document="book.pdf", question="w5 w6 w7?")
            assert answer["answer"] and answer["passages"][0]["location"] in ("p. 1", "p. 2", "p. 3")
            summary = await call("summarize", document=book["id"], words=30)
            assert set(summary) == {"summary", "sentences"}
            quotes = await call("quote", document="book.pdf", words="w5 w6", count=2)
            assert 1 <= len(quotes) <= 2 and "w5" in quotes[0]["text"] + quotes[-1]["text"]
            for name, arguments, message in (
                ("ask", {"document": "novel", "question": "w1"}, "there is no document 'novel'; there are: book.pdf"),
                ("index_document", {"path": str(files / "scan.pdf")}, "it seems to be scanned"),
                ("index_document", {"path": str(files / "none.txt")}, "does not exist"),
            ):
                with pytest.raises((AssertionError, MCPError), match=message):
                    await call(name, **arguments)

    anyio.run(use_tools)
