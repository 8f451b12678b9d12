"""A turn being listened to: iterate for its events, await its reply, cancel it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, cast

from atlas_agents.core.errors import Cancelled
from atlas_agents.core.events import Event, MessageKept, StreamChunk, StreamReset, ToolCalled
from atlas_agents.core.messages import Message
from atlas_agents.engine.run import Accepted, Run


class AtlasStream:
    """Starts at once, iterated or not; every iteration gets all events from the first on."""

    def __init__(self, stream_id: str) -> None:
        self.stream_id = stream_id
        self._events: list[Event] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._ended = False
        self._reply: Message | None = None
        self._failure: BaseException | None = None
        self._run: Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._accepted: asyncio.Future[Accepted] | None = None
        self._echoes: AtlasStream | None = None
        self._followers: list[Callable[[Event], None]] = []

    def start(self, run: Run, turn: Coroutine[Any, Any, Message]) -> "asyncio.Task[None]":
        """Set the turn going; its events come in through `push`."""
        self._run = run
        self._accepted = run.accepted = asyncio.get_running_loop().create_future()
        self._accepted.add_done_callback(lambda _: self._tell())
        if run.goes_on:
            self._accepted.set_result(Accepted(run.id, "in_flight"))
        self._task = asyncio.create_task(self._follow(turn))
        return self._task

    def listen(self, turn: Coroutine[Any, Any, Message]) -> "asyncio.Task[None]":
        """Hear a turn that was taken in before, and elsewhere."""
        self._accepted = asyncio.get_running_loop().create_future()
        self._accepted.set_result(Accepted(self.stream_id, "in_flight"))
        self._task = asyncio.create_task(self._follow(turn))
        return self._task

    def push(self, event: Event) -> None:
        self._events.append(event)
        for follower in self._followers:
            follower(event)
        if self._waiting:
            self._tell()

    def follow(self, follower: Callable[[Event], None]) -> None:
        """Have a plain function called with every event, those of the past first: where a task per listener is too
        much. It must not raise, nor wait for anything."""
        for event in self._events:
            follower(event)
        self._followers.append(follower)

    async def accepted(self) -> Accepted:
        """How the message was taken in, once it was: with a store, it is on the disk then. Raises what kept it out."""
        while not self._ended and not (self._accepted is not None and self._accepted.done()):
            await self._wait()
        if self._accepted is not None and self._accepted.done():
            return self._accepted.result()
        raise self._failure or Cancelled("the turn was cancelled")

    @property
    def session(self) -> str:
        """The session that the turn belongs to."""
        return self._run.conversation.id if self._run else ""

    def known_as(self, accepted: Accepted) -> None:
        """The message was accepted before, as another run."""
        self.stream_id = accepted.run_id
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(accepted)

    def interrupt(self, others: "Sequence[AtlasStream]") -> None:
        """Cancel these once the message is taken in; one that was accepted before interrupts nobody again."""

        def cancel(accepted: "asyncio.Future[Accepted]") -> None:
            if not accepted.cancelled() and accepted.result().status in ("started", "queued"):
                for other in others:
                    other.cancel()

        if self._accepted is not None:
            self._accepted.add_done_callback(cancel)

    async def echo(self, other: "AtlasStream") -> Message:
        """Say what another stream says, and has said; cancelling this one cancels that turn."""
        self._run, self._echoes = other._run, other
        async for event in other:
            self.push(event)
        return await other.reply()

    @property
    def text(self) -> str:
        """All text of the turn so far, in order; also after it was cancelled."""
        return (self._run.text if self._run else "") or _text_of(self._events)

    @property
    def output(self) -> Any:
        """The value of an answer that was asked for with `output=`."""
        return self._run.value if self._run else None

    async def partials(self) -> AsyncGenerator[Any, None]:
        """The value of an answer that was asked for with `output=`, as far as it is written, each time there is more.

        Of a type with fields, a dict of those that are there, each of its type; the last one given is the whole value,
        checked. What is withdrawn is simply replaced.
        """
        told: Any = None
        words = ""
        async for event in self:
            match event:
                case StreamChunk(_, text):
                    words += text
                case StreamReset() | ToolCalled():
                    words = ""
                    continue
                case _:
                    continue
            output = self._run.output if self._run else None
            value = output.partly(words) if output else None
            if value is not None and value != told:
                told = value
                yield value
        await self.reply()
        if self.output is not None:
            yield self.output

    def cancel(self) -> None:
        """Stop the turn. It is let to begin first, so that it can say how it ended."""
        if self._echoes is not None:
            self._echoes.cancel()
            return
        over = self._ended or any(event.type == "stream:end" for event in self._events[-2:])
        if self._task is not None and not over:
            asyncio.get_running_loop().call_soon(self._task.cancel)

    async def begun(self) -> None:
        """Wait until the turn belongs to this process, or is over."""
        while not self._ended and self.epoch is None:
            await self._wait()

    async def over(self) -> None:
        """Wait until the turn is over, however it ends."""
        while not self._ended:
            await self._wait()

    @property
    def epoch(self) -> int | None:
        """Of the owner that writes the turn down, if it is written down."""
        journal = self._run.desk.journal if self._run else None
        return (journal.epoch or None) if journal is not None else None

    async def reply(self) -> Message:
        """The answer, or what the turn raised; `Cancelled` after `cancel`. Giving up waiting does not stop the turn."""
        await self.over()
        if self._failure is not None:
            raise self._failure
        return cast(Message, self._reply)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        place, events = 0, self._events
        while True:
            while place < len(events):
                yield events[place]
                place += 1
            if self._ended:
                return
            await self._wait()

    async def _follow(self, turn: Coroutine[Any, Any, Message]) -> None:
        try:
            self._reply = await turn
        except asyncio.CancelledError:
            self._failure = Cancelled("the turn was cancelled")
        except Exception as failure:  # noqa: BLE001 - kept for whoever awaits the reply
            self._failure = failure
        finally:
            self._ended = True
            self._tell()

    async def _wait(self) -> None:
        """Until something is new. Each waiter has a future of its own: one that gives up takes nothing from others."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(news)
        await news

    def _tell(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)
        self._waiting.clear()


def _text_of(events: Sequence[Event]) -> str:
    """What is said elsewhere, as far as it was heard; what was withdrawn is not in it."""
    kept: list[str] = []
    draft: list[str] = []
    for event in events:
        match event:
            case StreamChunk(_, text):
                draft.append(text)
            case StreamReset():
                draft.clear()
            case MessageKept() | ToolCalled():
                kept, draft = [*kept, *draft], []
            case _:
                pass
    return "".join([*kept, *draft])
