"""Several dishonesties in one engine: the verdict must name each."""

from __future__ import annotations

from tests.engines.cheats.answers import EarlyEos
from tests.engines.cheats.timing import BufferThenBurst, InflatedUsage
from tests.engines.stream import Engine, Request, Stream

AND = " + "


class ThreeAtOnce(Engine):
    name = "three-at-once"
    does = "ends early, claims more tokens than it made, and sends the whole answer at once"
    rows = (3, 11, 13)
    parts = (EarlyEos, InflatedUsage, BufferThenBurst)
    check = AND.join(part.check for part in parts)

    async def respond(self, request: Request, honest: Stream) -> Stream:
        for part in self.parts:
            honest = part().respond(request, honest)
        async for event in honest:
            yield event
