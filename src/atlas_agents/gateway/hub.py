"""What all connections of a gateway share: tokens, methods, counters, and who is connected."""

import asyncio
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.store import Session, Store
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.assignments import Assignments
from atlas_agents.gateway.audit import AuditTail
from atlas_agents.gateway.dispatch import Dispatch, Methods
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.porch import Porch
from atlas_agents.gateway.protocol.calls import ForeignServers
from atlas_agents.gateway.protocol.events import HOUSE_EVENTS, RUN_EVENTS, HouseEvent, body_of
from atlas_agents.gateway.protocol.faults import BAD_TOKEN
from atlas_agents.gateway.protocol.shapes import Features, PolicyShape, ServerShape
from atlas_agents.gateway.runs import Runs
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.tokens import Grant
from atlas_agents.knowledge.study import Study

LOOK_AGAIN = 0.5
"""Seconds between two looks at the token files, for the sockets that are open."""


class Peer(Protocol):
    """A connection, as far as the hub knows one."""

    grant: Grant | None
    full: bool
    lists: bool
    """It has asked for the list of sessions, and wants to hear what changes in it."""
    jobs: bool
    """The same of jobs."""
    sessions: set[str]
    """The sessions that it hears."""

    def put(self, frame: bytes) -> bool: ...

    def close(self, code: int, reason: str) -> None: ...


class News(Protocol):
    """Tells who may know that a session has changed."""

    def changed(self, session: str) -> None: ...

    def asked(self, session: str) -> None: ...

    def tell(self, session: Session, *, deleted: bool = False) -> None: ...


class Hub:
    """One per gateway."""

    study: Study | None = None
    """What agents know and remember, where they do."""
    stopping = False
    hurry: asyncio.Event
    """Set when turns are not to be waited for any more."""

    def __init__(self, atlas: Atlas, settings: GatewaySettings, methods: Methods, clock: Clock = SYSTEM_CLOCK) -> None:
        if atlas.store is None:
            raise ConfigError("a gateway keeps what it is told: give its Atlas a store, Atlas(store=…)")
        self.atlas = atlas
        self.store: Store = atlas.store
        self.settings = settings
        self.hurry = asyncio.Event()
        self.porch = Porch(settings, clock)
        self.tokens = self.porch.tokens
        self.metrics = Metrics()
        self.dispatch = Dispatch(methods, self.metrics)
        self.runs = Runs(self.store, atlas.tenant, self.metrics, clock)
        self.runs.hide = atlas.hide
        self.assignments = Assignments(self.store, atlas.tenant)
        self.audit = AuditTail(self.store, atlas.tenant)
        self.news: News
        self.more_settings: dict[str, Any] = {}
        """What else `config.get` shows."""
        self.foreign: Callable[[], ForeignServers] = ForeignServers
        """Which MCP servers there are."""
        self.connections: set[Peer] = set()
        self.server = ServerShape("atlas", version("atlas-agents"))
        self.features = Features(methods.names, (*RUN_EVENTS, *HOUSE_EVENTS))
        self.policy = PolicyShape(settings.max_frame, int(settings.ping * 1000))
        self._begun = time.monotonic()
        self.began_at = int(time.time())

    @property
    def uptime(self) -> float:
        return round(time.monotonic() - self._begun, 3)

    def agent(self, agent_id: str) -> Agent | None:
        return next((agent for agent in self.atlas.agents if agent.id == agent_id), None)

    @property
    def retry_after_ms(self) -> int:
        """When a client may come back that was sent away because the gateway stops."""
        return int((self.settings.restart_expected or 1.0) * 1000)

    def tell(self, event: HouseEvent) -> None:
        """Tell all who may read, in the full profile."""
        frame = body_of(event)
        for peer in self.readers():
            peer.put(frame)

    def readers(self) -> list[Peer]:
        """Those who may hear what happens without having asked for it."""
        return [peer for peer in self.connections if peer.full and peer.grant is not None and peer.grant.may("read")]

    async def watch_tokens(self) -> None:
        """Close the sockets of tokens that are no longer valid, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            self.close_strangers()

    def close_strangers(self) -> None:
        """Close every socket whose token is not valid any more, or has other rights now."""
        self.tokens.refresh()
        for peer in list(self.connections):
            held = peer.grant is not None and self.tokens.holds(peer.grant)
            if not held or (peer.grant is not None and peer.grant.principal.id in self.porch.suspended):
                peer.close(BAD_TOKEN, "the token has changed")
