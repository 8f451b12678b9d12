"""Subscribe, replay and live delivery in every order: a subscriber receives each event of a run once, in order."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.events import MessageReceived, MessageStored, StreamChunk, StreamEnd, ToolCalled, Usage
from atlas_agents.core.messages import Message, Text
from atlas_agents.core.store import AddEvents, EventRow, ReserveEvents, RunRow, Store, StoredMessage, Write
from atlas_agents.gateway import events
from atlas_agents.gateway.auth import Grant, Principal
from atlas_agents.gateway.runs import RunRegistry, read_stored_run
from atlas_agents.gateway.telemetry import Metrics

RUN, SESSION = "r", "s"
METRICS = Metrics()
GRANT = Grant(Principal("main", "owner", ()), b"")
PUMPS = 12
"""Event loop iterations after which nothing moves without the store or a client."""


class StepStore:
    """A store whose reads and writes finish when the test says so. It survives the crash of a process."""

    def __init__(self) -> None:
        self.row = RunRow(RUN, SESSION, "a", "running", 1)
        self.stored: list[StoredMessage] = []
        self.log: dict[int, bytes] = {}
        self.reads: list[asyncio.Future[None]] = []
        self.writes: list[asyncio.Future[None]] = []
        self.gated = True

    async def events(self, tenant: str, run_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        await self._wait(self.reads)
        found = [EventRow(RUN, seq, body) for seq, body in sorted(self.log.items()) if seq > after][:limit]
        await self._wait(self.reads)
        return found

    async def commit(self, tenant: str, writes: list[Write]) -> list[Any]:
        await self._wait(self.writes)
        results: list[Any] = []
        for write in writes:
            if isinstance(write, ReserveEvents):
                self.row = msgspec.structs.replace(self.row, events=self.row.events + write.count)
                results.append(self.row.events)
            elif isinstance(write, AddEvents):
                self.log |= dict(write.events)
                results.append(None)
        await self._wait(self.writes)
        return results

    async def run(self, tenant: str, run_id: str) -> RunRow:
        return self.row

    async def messages(self, tenant: str, session: str) -> list[StoredMessage]:
        return self.stored

    async def _wait(self, waiting: list[asyncio.Future[None]]) -> None:
        if self.gated:
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]

    def release(self, waiting: list[asyncio.Future[None]]) -> None:
        """Let the oldest of these operations take its next step."""
        while waiting:
            oldest = waiting.pop(0)
            if not oldest.done():
                oldest.set_result(None)
                return

    def release_all(self) -> None:
        self.gated = False
        for waiting in (self.reads, self.writes):
            while waiting:
                self.release(waiting)


class Socket:
    """A socket of a client. It takes frames while it is open, and replays wait while it is `slow`."""

    full, grant = True, GRANT

    def __init__(self, client: "FrameClient") -> None:
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._ready.set()
        self.open = True

    def send(self, frame: bytes) -> bool:
        if self.open:
            self._client.frames.append(msgspec.json.decode(frame))
        return self.open

    async def drain(self) -> bool:
        await self._ready.wait()
        return self.open

    def set_slow(self, slow: bool) -> None:
        (self._ready.clear if slow else self._ready.set)()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def close(self) -> None:
        self.open = False
        for task in self._tasks:
            task.cancel()


class FrameClient:
    """A client: all frames it has received, over all its sockets."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.socket: Socket | None = None

    @property
    def last(self) -> int:
        return self.frames[-1]["data"]["seq"] if self.frames else 0

    def cut(self, runs: RunRegistry) -> None:
        if self.socket is not None:
            self.socket.close()
            runs.unsubscribe(SESSION, self.socket)
            self.socket = None

    def subscribe(self, runs: RunRegistry) -> None:
        """Subscribe with the last number, on a new socket or again on the open one."""
        self.socket = self.socket or Socket(self)
        runs.replay(runs.subscribe(SESSION, self.socket), self.socket, RUN, self.last)

    def repeat_key(self, runs: RunRegistry) -> None:
        """Repeat the idempotency key. A client that has nothing yet receives the run from its first event."""
        if self.socket is None and not self.frames:
            self.socket = Socket(self)
            self.socket.spawn(runs.send_run(SESSION, self.socket, RUN, new=False))


class World:
    """A gateway process with one run, its store and its clients."""

    def __init__(self, clients: int) -> None:
        self.store = StepStore()
        self.clients = [FrameClient() for _ in range(clients)]
        self.crashes = 0
        self._count = 0
        self._text: list[str] = []

    async def start(self) -> None:
        """Start the process; after a crash, the run resumes with what is stored."""
        store = cast(Store, self.store)
        gated, self.store.gated = self.store.gated, False
        stored = await read_stored_run(store, "t", self.store.row) if self.crashes else None
        self.store.gated = gated
        self.runs = RunRegistry(store, "t", METRICS, batch_delay=0)
        self._writing = asyncio.create_task(self.runs.writer.run())
        self.stream = AtlasStream(RUN)
        self._text.clear()
        self.runs.follow(cast(Any, SessionStream(self.stream)), "model", stored)

    def emit(self) -> None:
        """Emit the next event: mostly text, and now and then a tool call, which is written before it is sent."""
        self._count += 1
        if self._count % 4 == 0:
            self.stream.push(ToolCalled(RUN, "note", {}, f"c{self._count}"))
        else:
            self._text.append(f"{self._count} ")
            self.stream.push(StreamChunk(RUN, self._text[-1]))

    def end(self) -> None:
        """Store the reply, announce it and end the run."""
        reply = Message("assistant", (Text("".join(self._text)),), id="reply")
        self.store.stored.append(StoredMessage(SESSION, 1, "reply", RUN, reply.to_json()))
        self.stream.push(MessageStored(RUN, reply))
        self.stream.push(StreamEnd(RUN, Usage()))
        self.stream.push(MessageReceived(RUN, reply))

    async def crash(self) -> None:
        """Kill the process and start it again."""
        self.crashes += 1
        for client in self.clients:
            client.cut(self.runs)
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)

    async def finish(self) -> None:
        """End the run, let every client catch up, and check what it has received."""
        self.end()
        self.store.release_all()
        await pump(3 * PUMPS)
        for client in self.clients:
            if client.socket is None:
                client.subscribe(self.runs)
            else:
                client.socket.set_slow(False)
        await pump(10 * PUMPS)
        for client in self.clients:
            self._check(client)
            client.cut(self.runs)
        await self.stop()

    def _check(self, client: FrameClient) -> None:
        numbers = [frame["data"]["seq"] for frame in client.frames]
        assert numbers == sorted(set(numbers)), "an event was received twice, or too late"
        lost = {frame["event"] for frame in client.frames if frame["data"]["seq"] not in self.store.log}
        assert lost <= {"chat.delta"}, f"{lost} were sent before they were written"
        missing = self.store.log.keys() - set(numbers)
        assert not missing, f"missed {missing}"
        if not self.crashes:
            assert numbers == list(range(1, len(numbers) + 1))
        assert [frame["event"] for frame in client.frames].count("chat.final") == 1
        shown = ""
        for frame in client.frames:
            if frame["event"] == "chat.reset":
                shown = ""
            elif frame["event"] == "chat.delta":
                shown += frame["data"]["text"]
        assert shown == "".join(self._text), "text of a killed process was not withdrawn"


class SessionStream:
    """An AtlasStream with a session, as `RunRegistry.follow` needs it."""

    def __init__(self, stream: AtlasStream) -> None:
        self.stream_id, self.session, self.epoch = RUN, SESSION, None
        self.follow, self.on_end = stream.follow, stream.on_end


async def pump(times: int = PUMPS) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True, scope="module")
def _small_buffers() -> Iterator[None]:
    """Keep few events in memory, and read and reserve few at a time, so that short runs reach every limit."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_MAX_RECENT", 2), ("_PAGE", 2), ("RANGE", 6), ("_LOW_WATER", 2)):
            patch.setattr(events, name, size)
        yield


@asynccontextmanager
async def world(clients: int) -> AsyncGenerator[World, None]:
    world = World(clients)
    await world.start()
    try:
        yield world
    finally:
        world.store.release_all()
        await world.stop()


def interleavings(actions: dict[str, int]) -> Iterator[str]:
    """Yield every order of these actions, each as often as it is given."""
    if not any(actions.values()):
        yield ""
    for action, count in actions.items():
        if count:
            for rest in interleavings({**actions, action: count - 1}):
                yield action + rest


async def take(world: World, action: str, client: FrameClient) -> None:
    match action:
        case "e":
            world.emit()
        case "r":
            world.store.release(world.store.reads)
        case "w":
            world.store.release(world.store.writes)
        case "s":
            client.subscribe(world.runs)
        case "k":
            client.repeat_key(world.runs)
        case "x":
            client.cut(world.runs)
        case "o" if client.socket is not None:
            client.socket.set_slow(True)
        case "d":
            await world.crash()
        case _:
            pass
    await pump()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "crashed"), [("s", False), ("k", False), ("s", True)])
async def test_every_interleaving_of_emit_write_read_and_subscribe_delivers_each_event_once(
    how: str, crashed: bool
) -> None:
    all_orders = [*interleavings({"e": 2, "w": 2, "r": 2, how: 1})]
    orders = all_orders if how == "s" and not crashed else all_orders[::3]
    assert len(all_orders) == 630
    for order in orders:
        async with world(1) as made:
            client = made.clients[0]
            if crashed:  # the client has text that was never written
                for action in ("s", "e", "w", "w", "w", "w", "e", "d"):
                    await take(made, action, client)
                assert client.frames
            for _ in range(3):
                made.emit()
            for action in order:
                await take(made, action, client)
            await made.finish()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("eeeewwwrrrsskxod"), st.integers(0, 2)), max_size=60))
def test_random_interleavings_with_cuts_and_crashes_deliver_each_event_once(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        async with world(3) as made:
            for action, client in steps:
                await take(made, action, made.clients[client])
            await made.finish()

    asyncio.run(run())
