"""A server that is killed while documents are added: none that it has accepted may be lost."""

import contextlib
import random
import re
import time
from pathlib import Path

import httpx
from chaos_commands import Inputs, Outcome, memory_outcome, serve
from warm_process import WarmProcess, command

_STARTED = _READY = 300  # seconds to wait, at most; longer is a hang
_LONGEST = 3.0  # seconds until a kill


class Server:
    """One library of documents; the server on it is killed again and again."""

    def __init__(self, inputs: Inputs, work: Path) -> None:
        self._inputs, self._work = inputs, work
        self._accepted: dict[str, int] = {}  # the number of the text, by the document's id
        work.mkdir(exist_ok=True)

    def undisturbed(self) -> Outcome:
        """The memory of each text, by its number, from a server that is not killed."""
        process, client = self._start(_STARTED)
        for number in range(len(self._inputs.texts())):
            self._add(client, number)
        self._wait_until_ready(client)
        process.kill()
        return {str(number): self._content(document) for document, number in self._accepted.items()}

    def disturb(self, generator: random.Random) -> None:
        """Start the server, add documents without a pause, and kill it at a random moment."""
        end = time.monotonic() + generator.uniform(0, _LONGEST)
        process, client = self._start(end - time.monotonic())
        with contextlib.suppress(httpx.TransportError):
            while client is not None and time.monotonic() < end:
                client.timeout = max(0.01, end - time.monotonic())
                self._add(client, generator.randrange(len(self._inputs.texts())))
                time.sleep(min(generator.uniform(0, 0.5), max(0, end - time.monotonic())))
        process.kill()

    def compare(self, undisturbed: Outcome) -> tuple[Outcome, Outcome]:
        """What is expected of every document that was accepted, and what a last server has made of it."""
        process, client = self._start(_STARTED)
        expected = {document: undisturbed[str(number)] for document, number in self._accepted.items()}
        outcome = {}
        if client is not None:
            ready = self._wait_until_ready(client)
            outcome = {document: self._content(document) for document in ready & self._accepted.keys()}
        process.kill()
        return expected, outcome

    def _start(self, seconds: float) -> tuple[WarmProcess, httpx.Client | None]:
        """Start a server; there is no client if it does not answer in time."""
        run = command(serve(self._inputs, self._work), self._inputs.folder / "cache")
        process = WarmProcess(run, self._work / "server")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not process.wait(0.01):
            if address := re.search(r"http://\S+:\d+", process.err):
                return process, httpx.Client(base_url=address[0], timeout=_STARTED)
        return process, None

    def _add(self, client: httpx.Client, number: int) -> None:
        body = {"name": f"text {number}", "text": self._inputs.texts()[number]}
        response = client.post("/api/documents", json=body)
        if response.status_code < 300:
            self._accepted[response.json()["id"]] = number

    def _wait_until_ready(self, client: httpx.Client) -> set[str]:
        """The ids of all documents that become ready."""
        end = time.monotonic() + _READY
        while time.monotonic() < end:
            documents = client.get("/api/documents").json()
            if {document["state"] for document in documents} <= {"ready", "failed"}:
                break
            time.sleep(0.02)
        return {document["id"] for document in documents if document["state"] == "ready"}

    def _content(self, document: str) -> str:
        return str(memory_outcome(self._work / "library" / document / "memory"))
