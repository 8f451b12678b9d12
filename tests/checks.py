"""What several tests ask: is a history whole, what did a stream say, does the loop still beat."""

import asyncio
import inspect
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from atlas_agents import AtlasStream, Event, Message, Provider, Request
from atlas_agents.core.aio import SystemClock

PATIENCE = 10.0
"""Seconds after which a wait has failed; reached only by what is broken."""
_TICK = 0.01


def is_paired(messages: Sequence[Message]) -> bool:
    """Whether every call is answered once by the very next message, and nothing else is answered."""
    awaited: list[str] = []
    for message in messages:
        given = [result.call_id for result in message.tool_results]
        if (given and message.role != "tool") or sorted(given) != sorted(awaited):
            return False
        if message.tool_calls and message.role != "assistant":
            return False
        awaited = [call.id for call in message.tool_calls]
    return not awaited


async def until(condition: Callable[[], Any], pause: float = 0.01, patience: float = PATIENCE) -> Any:
    """Poll a sync or async condition until it returns something true, and return that; fail after `patience` seconds.

    Only for states that no event announces, such as those of another process.
    """
    async with asyncio.timeout(patience):
        while True:
            found = condition()
            if found := await found if inspect.isawaitable(found) else found:
                return found
            await asyncio.sleep(pause)


async def rounds(count: int = 50) -> None:
    """Let the event loop run everything that is ready, and what that makes ready, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


class ShiftedClock(SystemClock):
    """Real time plus `ahead` seconds, which a test may add to at any moment."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def roles(messages: Sequence[Message]) -> list[str]:
    return [message.role for message in messages]


async def events_of(stream: AtlasStream) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in stream]


def told(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """What the events say, without ids and times."""
    return [(event.type, *_words(event)) for event in events]


def _words(event: Any) -> tuple[Any, ...]:
    match event.type:
        case "message:sent" | "message:received":
            return (event.message.text,)
        case "stream:start":
            return (event.agent_id,)
        case "stream:chunk" | "stream:thinking":
            return (event.text,)
        case "tool:called":
            return event.name, event.arguments
        case "tool:progress":
            return event.name, event.message
        case "tool:result":
            return event.name, event.status, event.error, event.result
        case "stream:end":
            return ("cancelled",) if event.cancelled else ((event.error,) if event.error else ())
        case "error":
            return event.kind, event.message
        case _:
            return ()


class Wrapped:
    """Another provider, with a place to wait at: after so many chunks it says `reached` and waits for `go`."""

    def __init__(self, provider: Provider, after: int = 0) -> None:
        self._provider = provider
        self._after = after
        self.id = provider.id
        self.capabilities = provider.capabilities
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.closed = 0

    async def stream(self, request: Request) -> AsyncGenerator[Any, None]:
        count = 0
        try:
            async for chunk in self._provider.stream(request):
                if count == self._after:
                    self.reached.set()
                    await self.go.wait()
                count += 1
                yield chunk
        finally:
            self.closed += 1


async def ignoring_cancellation(release: asyncio.Event, seconds: float = 5.0) -> None:
    """Wait for `release`, whoever says stop meanwhile; but not for ever, or a failing test would never end."""
    end = time.monotonic() + seconds
    while not release.is_set() and time.monotonic() < end:
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(release.wait(), 0.1)


class Heart:
    """Counts how often the event loop came round."""

    def __init__(self) -> None:
        self.beats = 0

    def goes_on(self, seconds: float = 5.0) -> bool:
        """Block this thread until the loop has beaten three times more: never, if this thread is the loop's."""
        wanted, end = self.beats + 3, time.monotonic() + seconds
        while self.beats < wanted:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True


@asynccontextmanager
async def beating() -> AsyncGenerator[Heart, None]:
    heart = Heart()

    async def beat() -> None:
        while True:
            heart.beats += 1
            await asyncio.sleep(0.001)

    task = asyncio.create_task(beat())
    try:
        yield heart
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class LoopTime:
    """Seconds in which the event loop was able to run; time in which the machine gave it nothing does not count."""

    def __init__(self) -> None:
        self.seconds = 0.0


@asynccontextmanager
async def loop_time() -> AsyncGenerator[LoopTime, None]:
    """Measure how long something takes, for bounds that hold on a busy machine as well."""
    spent = LoopTime()

    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK)
            spent.seconds += _TICK

    task = asyncio.create_task(tick())
    try:
        yield spent
    finally:
        task.cancel()


@contextmanager
def as_nobody(folder: Path) -> Generator[None]:
    """Go on as a user whom file modes hold back; root is held back by nothing. The folder itself can be entered."""
    if os.geteuid() != 0:
        yield
        return
    for each in (folder, *folder.parents[:-2]):
        each.chmod(each.stat().st_mode | 0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
