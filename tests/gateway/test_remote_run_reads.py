"""A gateway that follows a run of another process misses no event, whenever it is notified."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from atlas_agents.core.errors import StoreLost
from atlas_agents.core.events import Event
from atlas_agents.core.store import AcceptRun, ClaimRun, DropSession, EventRow, PutSession, RunRow, RunStatus, SetRun
from atlas_agents.dispatch.notifications import Notification
from atlas_agents.gateway.auth import Grant, Principal
from atlas_agents.gateway.cluster import RemoteRuns
from atlas_agents.gateway.protocol.events import ChatDelta, ChatFinal, encode_event
from atlas_agents.gateway.protocol.types import UsageShape
from atlas_agents.gateway.runs import RunHooks, RunRegistry
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.storage.sqlite import MemoryStore
from checks import TIMEOUT, scaled, wait_until

_EVENTS = [EventRow("r", seq, encode_event(ChatDelta("r", word))) for seq, word in enumerate(("One.", "Two."), 1)]


class LateStore(MemoryStore):
    """Writes the second event right after the first was read, and notifies at once."""

    notify: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self.written = 1

    async def events(self, tenant: str, run_id: str, *, after: int = 0, **more: Any) -> list[EventRow]:
        found: Sequence[EventRow] = _EVENTS[after : self.written]
        if self.written == 1:
            self.written = 2
            asyncio.get_running_loop().call_soon(self.notify)
        return list(found)


async def test_event_reported_at_the_end_of_a_read_is_not_missed() -> None:
    store = LateStore()
    runs = RunRegistry(store, "default", Metrics())
    remote = runs.remote = RemoteRuns(runs, store, "default")
    store.notify = lambda: remote.handle(Notification("events", "default", "r", seq=2))
    log = remote.follow("r", "s")

    async def read() -> bool:
        return log.seq == 2

    try:
        await wait_until(read)
    finally:
        await remote.close()


class FailingStore(MemoryStore):
    """Fails the first read of events."""

    failed = False

    async def events(self, tenant: str, run_id: str, *, after: int = 0, **more: Any) -> list[EventRow]:
        if not self.failed:
            self.failed = True
            raise StoreLost("the database restarts")
        return _EVENTS[after:]


@pytest.mark.parametrize("status", ["running", "done"])
async def test_subscriber_does_not_receive_events_again_that_are_still_being_read(status: RunStatus) -> None:
    store = FailingStore()
    runs = RunRegistry(store, "default", Metrics())
    remote = runs.remote = RemoteRuns(runs, store, "default")
    log = remote.follow("r", "s")  # for another subscriber; its first read fails
    try:
        async with asyncio.timeout(TIMEOUT):
            await runs.follow_remote([RunRow("r", "s", "a", status)])
        assert log.delivered == 2, "a subscriber that has both events is up to date"
    finally:
        await remote.close()


class EndedRunStore(MemoryStore):
    """Has the events of a run that has ended, and still lists the run as open, as a read that began earlier does."""

    rows = [*_EVENTS, EventRow("r", 3, encode_event(ChatFinal("r", UsageShape(1, 1))))]

    async def events(self, tenant: str, run_id: str, *, after: int = 0, **more: Any) -> list[EventRow]:
        return self.rows[after:]

    async def open_runs(self) -> list[RunRow]:
        return [RunRow("r", "s", "a", "running")]


class ReconnectingStore(EndedRunStore):
    """Fails the first read of events."""

    failed = False

    async def events(self, tenant: str, run_id: str, *, after: int = 0, **more: Any) -> list[EventRow]:
        if not self.failed:
            self.failed = True
            raise StoreLost("the database restarts")
        return await super().events(tenant, run_id, after=after)


async def test_sender_receives_all_events_of_its_run_although_a_read_fails() -> None:
    store, received = ReconnectingStore(), list[Event]()
    runs = RunRegistry(store, "default", Metrics())
    remote = runs.remote = RemoteRuns(runs, store, "default")
    try:
        async with asyncio.timeout(TIMEOUT):
            await remote.stream_events(RunRow("r", "s", "a", "running"), received.append)
        assert [event.type for event in received] == ["stream:chunk", "stream:chunk", "stream:end"]
    finally:
        await remote.close()


class Frames:
    """A subscriber that keeps the frames it was sent."""

    full, grant = True, Grant(Principal("main", "owner", ()), b"")

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, frame: bytes) -> bool:
        self.frames.append(frame)
        return True

    async def drain(self) -> bool:
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()


@pytest.mark.parametrize("how", ["resync", "begun", "subscribe", "follow"])
async def test_run_that_has_ended_is_not_delivered_again(how: str) -> None:
    store = EndedRunStore()
    runs = RunRegistry(store, "default", Metrics())
    remote = runs.remote = RemoteRuns(runs, store, "default")
    first, late = Frames(), Frames()
    runs.subscribe("s", first)
    try:
        async with asyncio.timeout(TIMEOUT):
            await runs.follow_remote([RunRow("r", "s", "a", "running")])
            assert len(first.frames) == 3 and runs.get("r") is None
            runs.subscribe("s", late)
            match how:
                case "resync":
                    remote.resync()
                case "begun":
                    remote.handle(Notification("begun", "default", "r", "s"))
                case "subscribe":
                    await runs.follow_remote([RunRow("r", "s", "a", "running")])
                case _:
                    remote.follow("r", "s")
            for _ in range(20):
                await asyncio.sleep(0)
        assert (len(first.frames), late.frames, remote.is_running("s")) == (3, [], False)
    finally:
        await remote.close()


@pytest.mark.parametrize("notified", [False, True])
async def test_lists_show_the_end_of_a_run_whose_notification_was_lost(notified: bool) -> None:
    store, changed = MemoryStore(), list[tuple[str, bool]]()
    await store.open()
    hooks = RunHooks(lambda session: changed.append((session, runs.is_running(session))), ignore, lambda: None)
    runs = RunRegistry(store, "default", Metrics(), hooks=hooks)
    remote = runs.remote = RemoteRuns(runs, store, "default")
    await store.commit("default", [PutSession("s"), AcceptRun("r", "s", "a"), ClaimRun("r")])
    if notified:
        remote.handle(Notification("begun", "default", "r", "s"))
    else:
        remote.resync()

    async def is_known() -> bool:
        return runs.is_running("s")

    async def is_reported() -> bool:
        return changed != []

    try:
        await wait_until(is_known)
        await store.commit("default", [SetRun("r", 1, "done")])
        remote.resync()
        await wait_until(is_reported)
        assert changed == [("s", False)]
    finally:
        await remote.close()
        await store.close()


class SlowStore(MemoryStore):
    """Returns the open runs after `go_on`, as they were before."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.go_on = asyncio.Event(), asyncio.Event()

    async def open_runs(self) -> list[RunRow]:
        found = await super().open_runs()
        self.read.set()
        await self.go_on.wait()
        return found


async def test_notifications_during_a_resync_are_newer_than_what_it_reads() -> None:
    store = SlowStore()
    await store.open()
    runs = RunRegistry(store, "default", Metrics())
    remote = runs.remote = RemoteRuns(runs, store, "default")
    await store.commit("default", [PutSession("ending"), AcceptRun("r1", "ending", "a"), PutSession("starting")])
    await store.commit("default", [PutSession("brief"), AcceptRun("r3", "brief", "a")])  # its beginning was missed
    remote.handle(Notification("begun", "default", "r1", "ending"))
    try:
        async with asyncio.timeout(TIMEOUT):
            remote.resync()
            await store.read.wait()
            remote.handle(Notification("ended", "default", "r1"))
            remote.handle(Notification("begun", "default", "r2", "starting"))
            remote.handle(Notification("ended", "default", "r3", "brief"))
            store.go_on.set()
            for _ in range(20):
                await asyncio.sleep(0)
        assert [remote.is_running(each) for each in ("ending", "starting", "brief")] == [False, True, False]
    finally:
        await remote.close()
        await store.close()


@pytest.mark.parametrize("lost", [False, True])
async def test_stream_of_a_run_ends_when_its_session_was_deleted(lost: bool) -> None:
    store, received = MemoryStore(), list[Event]()
    await store.open()
    runs = RunRegistry(store, "default", Metrics())
    remote = runs.remote = RemoteRuns(runs, store, "default")
    client = Frames()
    runs.subscribe("s", client)
    _, row, _ = await store.commit("default", [PutSession("s"), AcceptRun("r", "s", "a"), ClaimRun("r")])
    following = asyncio.create_task(remote.stream_events(row, received.append))

    async def is_followed() -> bool:
        return runs.get("r") is not None

    try:
        async with asyncio.timeout(scaled(20)):
            await wait_until(is_followed)
            await store.commit("default", [SetRun("r", 1, "done")])
            await store.commit("default", [DropSession("s")])
            if lost:
                remote.resync()
            else:
                remote.handle(Notification("ended", "default", "r"))
            await following
        assert [event.type for event in received] == ["stream:end", "error"]
        assert b"the session was deleted" in client.frames[-1] and not remote.is_running("s")
    finally:
        following.cancel()
        await remote.close()
        await store.close()


def ignore(session: str) -> None:
    pass
