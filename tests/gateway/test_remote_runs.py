"""A gateway that reads what runs say elsewhere misses nothing of it, whenever it is told."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from atlas_agents.core.store import EventRow
from atlas_agents.dispatch.notifications import Notification
from atlas_agents.gateway.cluster import RemoteRuns
from atlas_agents.gateway.protocol.events import ChatDelta, encode_event
from atlas_agents.gateway.runs import RunRegistry
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.storage.memory import MemoryStore
from checks import wait_until

_EVENTS = [EventRow("r", seq, encode_event(ChatDelta("r", word))) for seq, word in enumerate(("One.", "Two."), 1)]


class LateStore(MemoryStore):
    """Has the second word just after the first one was read, and tells so at once."""

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


async def test_what_is_told_in_the_moment_in_which_reading_ends_is_read() -> None:
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
