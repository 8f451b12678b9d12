"""A gateway that follows a run of another process misses no event, whenever it is notified."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from atlas_agents.core.errors import StoreLost
from atlas_agents.core.store import EventRow, RunRow, RunStatus
from atlas_agents.dispatch.notifications import Notification
from atlas_agents.gateway.cluster import RemoteRuns
from atlas_agents.gateway.protocol.events import ChatDelta, encode_event
from atlas_agents.gateway.runs import RunRegistry
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.storage.memory import MemoryStore
from checks import TIMEOUT, wait_until

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
