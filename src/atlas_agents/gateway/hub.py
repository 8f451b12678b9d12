"""What all connections of a gateway share: tokens, methods, counters, and who is connected."""

import asyncio
import time
from importlib.metadata import version
from typing import Protocol

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.gateway.dispatch import Dispatch, Methods
from atlas_agents.gateway.guard import Guard
from atlas_agents.gateway.lockout import Lockout
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.protocol.events import HOUSE_EVENTS, RUN_EVENTS, HouseEvent, body_of
from atlas_agents.gateway.protocol.faults import BAD_TOKEN
from atlas_agents.gateway.protocol.shapes import Features, PolicyShape, ServerShape
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.tokens import Grant, Tokens

LOOK_AGAIN = 0.5
"""Seconds between two looks at the token files, for the sockets that are open."""


class Peer(Protocol):
    """A connection, as far as the hub knows one."""

    grant: Grant | None
    full: bool

    def put(self, frame: bytes) -> bool: ...

    def close(self, code: int, reason: str) -> None: ...


class Hub:
    """One per gateway."""

    def __init__(self, settings: GatewaySettings, methods: Methods, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.tokens = Tokens(settings.home, settings.token, exposed=settings.exposed)
        self.guard = Guard((*settings.hosts, settings.host))
        self.metrics = Metrics()
        self.dispatch = Dispatch(methods, self.metrics)
        self.connections: set[Peer] = set()
        self.stopping = False
        self.server = ServerShape("atlas", version("atlas-agents"))
        self.features = Features(methods.names, (*RUN_EVENTS, *HOUSE_EVENTS))
        self.policy = PolicyShape(settings.max_frame, int(settings.ping * 1000))
        self._lockout = Lockout(clock)
        self._begun = time.monotonic()

    @property
    def uptime(self) -> float:
        return round(time.monotonic() - self._begun, 3)

    def admit(self, address: str, token: str) -> tuple[float, Grant | None]:
        """(seconds to wait, the token's owner): one of them is nothing, or both when the token is wrong."""
        if wait := self._lockout.wait(address):
            return wait, None
        grant = self.tokens.who(token)
        if grant is None:
            self._lockout.wrong(address)
        return 0.0, grant

    def tell(self, event: HouseEvent, session_key: str = "") -> None:
        """Tell all who may read, in the full profile; of a session, only those who may know it."""
        frame = body_of(event)
        for peer in list(self.connections):
            grant = peer.grant
            if peer.full and grant is not None and grant.may("read") and session_key.startswith(grant.prefix):
                peer.put(frame)

    async def watch_tokens(self) -> None:
        """Close the sockets of tokens that are no longer valid, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            self.close_strangers()

    def close_strangers(self) -> None:
        """Close every socket whose token is not valid any more, or has other rights now."""
        self.tokens.refresh()
        for peer in list(self.connections):
            if peer.grant is None or not self.tokens.holds(peer.grant):
                peer.close(BAD_TOKEN, "the token has changed")
