"""A gateway that follows a run of another process misses no event, whenever it is notified."""

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
