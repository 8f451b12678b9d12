"""Writes down what the runs say that this process runs for a cluster; who listens, wherever, reads it there."""

import asyncio
from typing import cast

from atlas_agents.core.store import OPEN, RunRow, Store
from atlas_agents.dispatch.port import Turn
from atlas_agents.engine.atlas import Atlas
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.gateway.leaving import close_within
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.models import model_of
from atlas_agents.gateway.runs import Runs

_PAUSE = 0.04
"""Seconds that words wait for others: whoever listens hears them when they are written."""
_LAST_WORDS = 2.0


class Scribe:
    """One per process that runs runs."""

    def __init__(self, atlas: Atlas, metrics: Metrics, grace: float, hurry: asyncio.Event | None = None) -> None:
        self._atlas = atlas
        self._store = cast(Store, atlas.store)
        self._grace = grace
        self._hurry = hurry or asyncio.Event()
        self.runs = Runs(self._store, atlas.tenant, metrics, pause=_PAUSE, joins=True)
        self.runs.hide = atlas.hide
        self._writing = asyncio.create_task(self.runs.writer.run())

    async def taken(self, turn: Turn, row: RunRow) -> None:
        """Write down what a run says that was taken on here. Its numbers go on where the last owner's end; that can be
        said once nobody else can use any."""
        stream = cast(AtlasStream, turn)
        await stream.begun()
        row = await self._store.run(self._atlas.tenant, row.id) or row
        if row.status in OPEN or stream.epoch is not None:
            await follow_on(self.runs, self._atlas, stream, row)

    async def stop(self) -> None:
        """Runs end, or are left to others; what they said is written."""
        self.runs.stopping = True
        await close_within(self._atlas, self._grace, self._hurry)
        await self.runs.settle(_LAST_WORDS)
        self._writing.cancel()


async def follow_on(runs: Runs, atlas: Atlas, stream: AtlasStream, row: RunRow) -> None:
    """Follow a run that goes on: what it was saying is withdrawn, and what joined its session before is known."""
    store = cast(Store, atlas.store)
    kept = await store.messages(atlas.tenant, row.session) if row.events else []
    agent = next((agent for agent in atlas.agents if agent.id == row.agent_id), None)
    log = runs.follow(stream, model_of(agent, atlas.registry) if agent else "", row)
    log.messages |= {each.id for each in kept if each.run_id == row.id}
