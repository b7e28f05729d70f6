"""The relay of the golden PASS is as slow as it is told to be, however many events came before."""

from __future__ import annotations

import asyncio

from tests.engines.stream import Event, Request, Stream
from tests.golden_runs.slow_relay import SlowRelay


def test_every_event_comes_at_twice_its_time_and_none_waits_for_the_sending() -> None:
    read = 0

    async def upstream() -> Stream:
        nonlocal read
        for place in range(8):
            read += 1
            yield Event(10.0 * place, text=str(place))

    async def played() -> tuple[int, list[float]]:
        stream = aiter(SlowRelay(2).respond(Request({}), upstream()))
        times = [(await anext(stream)).at_ms]
        for _ in range(20):  # the first event is being sent, and takes its time
            await asyncio.sleep(0)
        ahead = read
        return ahead, times + [event.at_ms async for event in stream]

    ahead, times = asyncio.run(played())
    assert ahead == 8
    assert times == [20.0 * place for place in range(8)]
