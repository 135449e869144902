"""Time to the first word: of eight people who ask at once, and of the second question about a long message.

`python bench/first_words.py TEXT` starts a server with the default model, asks eight questions about a text at the same
moment, three times, and then sends the text as one long message of OpenAI's protocol, followed by a second question.
Writes bench/results/first_words.json. Run it on an idle machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import openai

RESULTS = Path(__file__).with_name("results") / "first_words.json"
QUESTIONS = (
    *("Who is the king?", "Where did they live?", "What was the name of the girl?", "Who came to the house?"),
    *("What did the mother say?", "When did they leave?", "Who was the friend?", "What was lost?"),
)


def main() -> None:
    """Measure both."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "unlimiformer", "serve", "--folder", folder, "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            url = next(match[0] for line in server.stderr if (match := re.search(r"http://\S+:\d+", line)))
            results = {"askers": ask_at_once(url, text), "long message": ask_twice(url, text + "\n\nThe end.")}
        finally:
            server.kill()
    print(json.dumps(results, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def ask_at_once(url: str, text: str) -> dict:
    """Seconds until the first word of each answer, sorted, in three rounds."""
    document = httpx.post(f"{url}/api/documents", json={"name": "text", "text": text}, timeout=60).json()["id"]
    while httpx.get(f"{url}/api/documents/{document}").json()["state"] != "ready":
        time.sleep(0.5)
    rounds = []
    for _ in range(3):
        seconds: list[float] = []
        asked = time.perf_counter()

        def ask(question: str, asked: float = asked, seconds: list[float] = seconds) -> None:
            with httpx.stream(
                "POST", f"{url}/api/documents/{document}/answers", json={"question": question}, timeout=300
            ) as response:
                for line in response.iter_lines():
                    if line.startswith("event: text"):
                        seconds.append(time.perf_counter() - asked)
                        return

        threads = [threading.Thread(target=ask, args=(question,)) for question in QUESTIONS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rounds.append(sorted(round(second, 2) for second in seconds))
    return {"rounds": rounds, "last to first": [round(row[-1] / row[0], 2) for row in rounds]}


def ask_twice(url: str, text: str) -> dict:
    """Seconds until the first word of the first and of the second question about a message."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=1200)
    model = client.models.list().data[0].id
    messages: list[dict] = [{"role": "user", "content": f"{text}\n\nWho is the friend of Mary?"}]
    seconds, tokens = [], 0
    for question in (None, "And where did she live?"):
        if question is not None:
            messages.append({"role": "user", "content": question})
        started = time.perf_counter()
        first, answer = None, ""
        stream = client.chat.completions.create(
            model=model, messages=messages, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece and first is None:
                first = time.perf_counter() - started
            answer += piece or ""
            tokens = chunk.usage.prompt_tokens if chunk.usage else tokens
        seconds.append(round(first or time.perf_counter() - started, 2))
        messages.append({"role": "assistant", "content": answer})
    return {"prompt tokens": tokens, "first question": seconds[0], "second question": seconds[1]}


if __name__ == "__main__":
    main()
