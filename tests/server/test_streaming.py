"""Event streams: they see every change, and take no time while nothing changes."""

from __future__ import annotations

import asyncio
import threading

from unlimiformer.server import streaming
from unlimiformer.server.changes import Changes
from unlimiformer.server.streaming import iter_events


def test_streams_without_news_do_nothing(monkeypatch):
    monkeypatch.setattr(streaming, "_PAUSE_SECONDS", 0.001)
    changes, looks, state = Changes(), [], [0]

    def get_state():
        looks.append(1)
        return state[0]

    async def watch(count):
        streams = [iter_events("state", get_state, changes) for _ in range(count)]
        first = [await anext(stream) for stream in streams]
        assert set(first) == {"event: state\ndata: 0\n\n"} and len(looks) == count
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.6)
        assert len(looks) == count, "nobody looks again"
        state[0] = 1
        threading.Thread(target=changes.notify).start()
        assert set(await asyncio.gather(*waiting)) == {"event: state\ndata: 1\n\n"}
        assert len(looks) == 2 * count
        for stream in streams:
            await stream.aclose()
        assert not changes._waiting

    asyncio.run(watch(50))


def test_no_change_is_missed(monkeypatch):
    """Whatever changes between a look and the wait for news is seen."""
    monkeypatch.setattr(streaming, "_PAUSE_SECONDS", 0.0)
    changes, state = Changes(), [0]

    def count():
        for _ in range(3000):
            state[0] += 1
            changes.notify()

    async def watch():
        thread = threading.Thread(target=count)
        seen = []
        async for event in iter_events("state", lambda: state[0], changes, lambda state: state == 3000):
            if not seen:
                thread.start()
            seen.append(event)
        thread.join()
        return seen

    seen = asyncio.run(asyncio.wait_for(watch(), 60))
    assert seen[-1] == "event: state\ndata: 3000\n\n" and len(seen) == len(set(seen)) > 1


def test_a_silent_stream_shows_that_it_is_there(monkeypatch):
    monkeypatch.setattr(streaming, "_SILENCE_SECONDS", 0.01)
    monkeypatch.setattr(streaming, "_PAUSE_SECONDS", 0.0)

    async def watch():
        stream = iter_events("state", lambda: 1, Changes())
        return [await anext(stream) for _ in range(3)]

    assert asyncio.run(watch())[1:] == [": still here\n\n"] * 2
