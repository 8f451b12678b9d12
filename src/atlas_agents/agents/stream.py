"""AtlasStream: the handle of a running turn. Iterate it for events, await its reply, or cancel it."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from atlas_agents.agents.run import Accepted, Run
from atlas_agents.core.aio import Closable, run_sync
from atlas_agents.core.errors import Cancelled, ConfigError
from atlas_agents.core.events import (
    Event,
    MessageSent,
    MessageStored,
    StreamChunk,
    StreamEnd,
    StreamReset,
    ToolCalled,
    Usage,
)
from atlas_agents.core.messages import Message

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner", bound=Closable)


class EventLog:
    """Event buffer of a turn, with the consumers that wait for more.

    The turn writes to the buffer and has no reference to its stream, which refers to the turn. Without a reference
    cycle, both are freed as soon as the stream is unused.
    """

    __slots__ = ("events", "followers", "publish", "waiters")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.followers: tuple[Callable[[Event], None], ...] = ()
        self.publish: Callable[[Event], None] = _ignore

    def push(self, event: Event) -> None:
        """Add an event and wake the consumers."""
        self.events.append(event)
        for follower in self.followers:
            follower(event)
        if self.waiters:
            self.wake()

    def emit(self, event: Event) -> None:
        """Add an event of a turn in this process, which `publish` gets as well. It is called for each delta."""
        self.events.append(event)
        if self.followers:
            for follower in self.followers:
                follower(event)
        if self.waiters:
            self.wake()
        self.publish(event)

    def wake(self, _: object = None) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


def _ignore(event: Event) -> None:
    pass


class AtlasStream:
    """A turn that runs whether or not it is iterated; every iteration yields all events from the first one.

    `atlas.send` and `agent.send` return it.
    """

    def __init__(self, stream_id: str) -> None:
        self.stream_id = stream_id
        """Id of the turn."""
        self.log = EventLog()
        """Internal: the events of the turn."""
        self._ended = False
        self._reply: Message | None = None
        self._failure: BaseException | None = None
        self._run: Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._accepted: asyncio.Future[Accepted] | None = None
        self._mirrored: AtlasStream | None = None
        self._cancels_mirrored = True

    def start(self, run: Run, turn: Coroutine[Any, Any, Message]) -> "asyncio.Task[None]":
        """Internal: start the turn in a task; its events arrive through `push`."""
        self._run = run
        self._accepted = run.accepted = asyncio.get_running_loop().create_future()
        if self.log.waiters:  # else `accepted` adds it, if it is called
            self._accepted.add_done_callback(self.log.wake)
        if run.resumed:
            self._accepted.set_result(Accepted(run.id, "in_flight"))
        self._task = asyncio.create_task(self._follow_turn(turn))
        return self._task

    def attach(self, turn: Coroutine[Any, Any, Message]) -> "asyncio.Task[None]":
        """Internal: follow a turn that was accepted earlier and runs in another process."""
        self._accepted = asyncio.get_running_loop().create_future()
        self._accepted.set_result(Accepted(self.stream_id, "in_flight"))
        self._task = asyncio.create_task(self._follow_turn(turn))
        return self._task

    def push(self, event: Event) -> None:
        """Internal: add an event and wake the consumers."""
        self.log.push(event)

    def follow(self, follower: Callable[[Event], None]) -> None:
        """Call a plain function with every event, starting with past ones, without a task of its own.

        The function must neither raise nor block.
        """
        for event in self.log.events:
            follower(event)
        self.log.followers = (*self.log.followers, follower)

    @property
    def failure(self) -> BaseException | None:
        """Internal: the exception that the turn raised here, even if no event reported it."""
        return self._failure

    def on_end(self, callback: Callable[[BaseException | None], object]) -> None:
        """Internal: call a function with `failure` when the turn has ended here."""
        if self._task is not None:
            self._task.add_done_callback(lambda _: callback(self._failure))

    async def accepted(self) -> Accepted:
        """Wait until the message is accepted; with a store, it is durable then. Raises the error that prevented it."""
        if self._accepted is not None and not self._accepted.done():
            self._accepted.add_done_callback(self.log.wake)
        while not self._ended and not (self._accepted is not None and self._accepted.done()):
            await self._wait()
        if self._accepted is not None and self._accepted.done():
            return self._accepted.result()
        raise self._failure or Cancelled("the turn was cancelled")

    @property
    def session(self) -> str:
        """The session that the turn belongs to."""
        return self._run.conversation.id if self._run else ""

    def resolve_duplicate(self, accepted: Accepted) -> None:
        """Internal: take the id of the earlier run that the idempotency key belongs to."""
        self.stream_id = accepted.run_id
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(accepted)

    def interrupt(self, others: "Sequence[AtlasStream]") -> None:
        """Internal: cancel other turns once this message is accepted; a duplicate message cancels nothing."""

        def cancel(accepted: "asyncio.Future[Accepted]") -> None:
            if not accepted.cancelled() and accepted.result().status in ("started", "queued"):
                for other in others:
                    other.cancel()

        if self._accepted is not None:
            self._accepted.add_done_callback(cancel)

    async def mirror(self, other: "AtlasStream", since: str = "", *, cancels: bool = True) -> Message:
        """Internal: repeat the past and future events of another stream.

        If it `cancels`, cancelling this one cancels that turn.

        With `since`, the events before the message with this id are left out.
        """
        self._run, self._mirrored, self._cancels_mirrored = other._run, other, cancels
        push = events_since(since, self.push) if since else self.push
        async for event in other:
            push(event)
        return await other.reply()

    @property
    def text(self) -> str:
        """All text of the turn so far, in order; also after it was cancelled."""
        return (self._run.text if self._run else "") or _join_text(self.log.events)

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the turn so far, including those of agents that it used as tools."""
        ended = next((event for event in self.log.events[-2:] if isinstance(event, StreamEnd)), None)
        return ended.usage if ended else self._run.usage if self._run else Usage()

    @property
    def output(self) -> Any:
        """The value of an answer that was requested with `output=`."""
        return self._run.output_value if self._run else None

    async def texts(self) -> AsyncGenerator[str, None]:
        """Yield the text of the turn as it arrives, in pieces; raises the exception of a failed turn.

        Text that the model withdraws, as after a failover in the middle of an answer, was yielded before; iterate the
        events to handle `stream:reset`.
        """
        async for event in self:
            if isinstance(event, StreamChunk):
                yield event.text
        await self.reply()

    async def partials(self) -> AsyncGenerator[Any, None]:
        """Yield the value of an answer requested with `output=` as it grows, and finally the complete, checked value.

        For a type with fields, a partial value is a dict of the fields received so far, each of its own type. Text
        that the model withdraws is replaced.
        """
        last: Any = None
        text = ""
        async for event in self:
            match event:
                case StreamChunk(_, chunk):
                    text += chunk
                case StreamReset() | ToolCalled():
                    text = ""
                    continue
                case _:
                    continue
            output = self._run.output if self._run else None
            value = output.parse_partial(text) if output else None
            if value is not None and value != last:
                last = value
                yield value
        await self.reply()
        if self.output is not None:
            yield self.output

    def cancel(self) -> None:
        """Cancel the turn, in the next iteration of the event loop, so that it can emit how it ended."""
        if self._mirrored is not None and self._cancels_mirrored:
            self._mirrored.cancel()
            return
        over = self._ended or any(event.type == "stream:end" for event in self.log.events[-2:])
        if self._task is not None and not over:
            asyncio.get_running_loop().call_soon(self._task.cancel)

    async def begun(self) -> None:
        """Internal: wait until this process owns the turn, or the turn has ended."""
        owner = self._mirrored or self
        while not owner._ended and not self._ended and owner.epoch is None:
            await self._wait()
            owner = self._mirrored or self

    async def wait_ended(self) -> None:
        """Wait until the turn has ended, however it ends."""
        while not self._ended:
            await self._wait()

    @property
    def epoch(self) -> int | None:
        """Internal: fencing token under which this process owns the turn; None without a journal or before it
        started.
        """
        journal = self._run.journal if self._run and self._mirrored is None else None
        return (journal.epoch or None) if journal is not None else None

    @property
    def restored_messages(self) -> frozenset[str]:
        """Internal: ids of the messages that earlier processes had stored when this one took over the turn."""
        journal = self._run.journal if self._run else None
        return journal.restored_messages if journal is not None else frozenset()

    async def reply(self) -> Message:
        """Return the answer; raises the exception of a failed turn, or `Cancelled` after `cancel`.

        Cancelling the wait does not cancel the turn.
        """
        await self.wait_ended()
        if self._failure is not None:
            raise self._failure
        return cast(Message, self._reply)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        index, events, waiters = 0, self.log.events, self.log.waiters
        while True:
            while index < len(events):
                yield events[index]
                index += 1
            if self._ended:
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # as `_wait`, for each delta
            waiters.append(waiter)
            await waiter

    async def _follow_turn(self, turn: Coroutine[Any, Any, Message]) -> None:
        try:
            self._reply = await turn
        except asyncio.CancelledError:
            self._failure = Cancelled("the turn was cancelled")
        except Exception as failure:  # noqa: BLE001 - raised again in `reply`
            self._failure = failure
        finally:
            self._ended = True
            self.log.wake()

    async def _wait(self) -> None:
        """Wait for a change. Each waiter has its own future, so that a cancelled one does not affect the others."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log.waiters.append(waiter)
        await waiter


def events_since(message_id: str, push: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a filter that forwards events from the first one about this message on."""
    found = False

    def push_later(event: Event) -> None:
        nonlocal found
        found = found or (isinstance(event, MessageStored | MessageSent) and event.message.id == message_id)
        if found:
            push(event)

    return push_later


class SyncStream:
    """A running turn for code without an event loop: iterate it for events, or `texts()` for text.

    `stream_sync` returns it.

    The turn runs while you iterate or wait for the reply. Until it has ended, only the thread that started it can do
    that. Used as a context manager, it cancels a turn that has not ended.
    """

    def __init__(self, owner: Closable, start: Callable[[], AtlasStream]) -> None:
        self._owner = owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stream = self._run(lambda: _call(start))

    def __iter__(self) -> Iterator[Event]:
        return self._iterate(aiter(self._stream))

    def texts(self) -> Iterator[str]:
        """Yield the text of the turn as it arrives; raises the exception of a failed turn. See `AtlasStream.texts`."""
        return self._iterate(self._stream.texts())

    def partials(self) -> Iterator[Any]:
        """Yield the value of an answer requested with `output=` as it grows; see `AtlasStream.partials`."""
        return self._iterate(self._stream.partials())

    def reply(self) -> Message:
        """Wait for the answer; raises the exception of a failed turn."""
        return self._run(self._stream.reply)

    def cancel(self) -> None:
        """Cancel the turn and wait until it has ended."""
        self._run(self._cancel)

    @property
    def text(self) -> str:
        """All text of the turn so far."""
        return self._stream.text

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the turn so far."""
        return self._stream.usage

    @property
    def output(self) -> Any:
        """The value of an answer that was requested with `output=`."""
        return self._stream.output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def _cancel(self) -> None:
        self._stream.cancel()
        await self._stream.wait_ended()

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        instead = f"use `async for event in {type(self._owner).__name__.lower()}.send(…)`"
        return run_sync(self._owner, lambda: self._run_in_own_loop(work), "stream_sync", instead)

    async def _run_in_own_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the event loop of the turn; in another one it would wait forever."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop and not self._stream._ended:
            raise ConfigError(
                f"the sync stream of turn {self._stream.stream_id!r} was started in another thread or process: "
                "call stream_sync in the thread that iterates the stream"
            )
        return await work()

    def _iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        while found := self._run(lambda: _next(items)):
            yield found[0]


async def _next(items: AsyncGenerator[T, None]) -> tuple[T] | None:
    """Return the next item in a tuple; None at the end."""
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _call(function: Callable[[], T]) -> T:
    return function()


def stream_method(
    send: Callable[Concatenate[Owner, P], AtlasStream],
) -> Callable[[Callable[[], None]], Callable[Concatenate[Owner, P], SyncStream]]:
    """Make a method the sync version of one that starts a turn; `sync_method` is the same for other methods."""

    def decorate(named: Callable[[], None]) -> Callable[Concatenate[Owner, P], SyncStream]:
        @functools.wraps(send)
        def call(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> SyncStream:
            return SyncStream(self, lambda: send(self, *args, **kwargs))

        call.__name__, call.__qualname__, call.__doc__ = named.__name__, named.__qualname__, named.__doc__
        return call

    return decorate


def _join_text(events: Sequence[Event]) -> str:
    """Join the text of a remote turn from its events, without withdrawn text."""
    complete: list[str] = []
    draft: list[str] = []
    for event in events:
        match event:
            case StreamChunk(_, text):
                draft.append(text)
            case StreamReset():
                draft.clear()
            case MessageStored() | ToolCalled():
                complete, draft = [*complete, *draft], []
            case _:
                pass
    return "".join([*complete, *draft])
