"""Hub: state shared by all connections of a gateway (tokens, methods, metrics, subscriptions, audit feed)."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.core.aio import SYSTEM_CLOCK, BackgroundTasks, Clock, day_of
from atlas_agents.core.errors import ConfigError, StoreError
from atlas_agents.core.store import AuditRow, Session, Store
from atlas_agents.gateway.auth import Authenticator, Grant
from atlas_agents.gateway.dispatch import Dispatch, Methods
from atlas_agents.gateway.events import Listener
from atlas_agents.gateway.protocol.admin import AuditList, AuditPage, AuditShape, AuditVerified, ForeignServers, ToolUse
from atlas_agents.gateway.protocol.events import RUN_EVENTS, SERVER_EVENTS, AuditAdded, ServerEvent, body_of
from atlas_agents.gateway.protocol.frames import BAD_TOKEN, ProtocolError
from atlas_agents.gateway.protocol.types import Features, PolicyShape, ServerShape
from atlas_agents.gateway.runs import RunRegistry
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.storage.hash_chain import START, audit_row

_MOST = 4096


class Assignments:
    """Cache of the agent assigned to each session. Changes must be reported to it."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._agents: OrderedDict[str, str] = OrderedDict()

    async def agent_of(self, session: str) -> str:
        """Return the id of the assigned agent, or an empty string if there is none."""
        found = self._agents.get(session)
        if found is None:
            row = await self._store.session(self._tenant, session)
            found = row.agent_id if row else ""
            self.put(session, found)
        return found

    def put(self, session: str, agent_id: str) -> None:
        self._agents[session] = agent_id
        self._agents.move_to_end(session)
        if len(self._agents) > _MOST:
            self._agents.popitem(last=False)

    def forget_all(self) -> None:
        """Clear the cache, because other processes may have changed assignments."""
        self._agents.clear()

    def forget(self, session: str) -> None:
        self._agents.pop(session, None)


logger = logging.getLogger(__name__)
_STEP = 500


class _Meta(msgspec.Struct, frozen=True):
    duration_ms: float | None = None


class _AuditedCall(msgspec.Struct, frozen=True):
    """The fields of an audit row that are counted, under the names of the log."""

    timestamp: int
    entityId: str = ""
    success: bool = True
    meta: _Meta = _Meta()


class AuditTail:
    """Reads the audit log backwards and follows it. Rows are numbered without gaps, but the store only reads
    forward."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._last = 0
        self._listeners: set[Listener] = set()
        self._told = 0
        self._tasks = BackgroundTasks("audit feed", expected=StoreError)
        self._telling: asyncio.Task[None] | None = None
        self._again = False

    async def page(self, params: AuditList) -> AuditPage:
        """Return the latest rows that match the filters, or those before a cursor."""
        before = await self._newest() + 1 if params.cursor is None else _number(params.cursor)
        found: list[AuditShape] = []
        while before > 1 and len(found) < params.limit:
            first = max(0, before - 1 - _STEP)
            rows = await self._store.audit(self._tenant, after=first, limit=before - 1 - first)
            for row in reversed(rows):
                before = row.seq
                shape = _shape(row)
                if _fits(shape.entry, params):
                    found.append(shape)
                    if len(found) == params.limit:
                        break
            if not rows:
                break
        return AuditPage(tuple(found), str(before) if before > 1 else None)

    async def verify(self) -> AuditVerified:
        """Verify the hash chain, page by page, up to the first broken row."""
        seq, previous = 0, START
        while rows := await self._store.audit(self._tenant, after=seq, limit=_STEP):
            for row in rows:
                seq += 1
                if row != audit_row(seq, previous, row.entry):
                    return AuditVerified(await self._newest(), seq, _problem(row, seq, previous))
                previous = row.hash
        return AuditVerified(seq)

    async def used(self, since: str, until: str) -> tuple[ToolUse, ...]:
        """Count calls by tool and day between two days, both included."""
        sums: dict[tuple[str, str], list[float]] = {}
        seq = 0
        while rows := await self._store.audit(self._tenant, after=seq, limit=_STEP):
            seq = rows[-1].seq
            for entry in [msgspec.json.decode(row.entry, type=_AuditedCall) for row in rows]:
                day = day_of(entry.timestamp / 1000)
                if since <= day <= until:
                    sum = sums.setdefault((entry.entityId, day), [0, 0, 0.0])
                    sum[0] += 1
                    sum[1] += not entry.success
                    sum[2] += entry.meta.duration_ms or 0.0
        return tuple([ToolUse(name, day, int(n), int(bad), round(ms, 3)) for (name, day), (n, bad, ms) in sums.items()])

    async def listen(self, listener: Listener) -> None:
        """Subscribe to new rows."""
        if not self._listeners:
            self._told = await self._newest()
        self._listeners.add(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def look(self) -> None:
        """Send new rows, if there are any, to the subscribers."""
        self._again = True
        if self._listeners and (self._telling is None or self._telling.done()):
            self._telling = self._tasks.spawn(self._tell())

    async def _tell(self) -> None:
        while self._again and self._listeners:
            self._again = False
            rows = await self._store.audit(self._tenant, after=self._told)
            for row in rows:
                self._told = row.seq
                frame = body_of(AuditAdded(_shape(row)))
                for listener in list(self._listeners):
                    listener.put(frame)

    async def _newest(self) -> int:
        """Find the last row number: exponential search from the last known one, then bisection."""
        step = 1
        while await self._store.audit(self._tenant, after=self._last + step - 1, limit=1):
            self._last, step = self._last + step, step * 2
        while step > 1:
            step //= 2
            if await self._store.audit(self._tenant, after=self._last + step - 1, limit=1):
                self._last += step
        return self._last


def _problem(row: AuditRow, seq: int, previous: str) -> str:
    if row.seq != seq:
        return f"row {seq} is missing: found row {row.seq} instead"
    if row.previous != previous:
        return f"row {seq} does not match the hash of the row before it: one of them was replaced"
    return f"row {seq} was changed after it was written"


def _shape(row: AuditRow) -> AuditShape:
    return AuditShape(row.seq, msgspec.json.decode(row.entry), row.previous, row.hash)


def _fits(entry: dict[str, Any], params: AuditList) -> bool:
    wanted = (
        (params.agent_id, entry.get("actorExternalId")),
        (params.tool, entry.get("entityId")),
        (params.level, entry.get("level")),
        (params.run_id, entry.get("meta", {}).get("run_id")),
    )
    return all(wish is None or wish == value for wish, value in wanted)


def _number(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 20:
        raise ProtocolError("INVALID_PARAMS", "invalid cursor: expected a cursor returned by this method")
    return int(cursor)


LOOK_AGAIN = 0.5
"""Seconds between checks of the token files while sockets are open."""


class Peer(Protocol):
    """A connection, as the hub sees it."""

    grant: Grant | None
    full: bool
    lists: bool
    """Whether it subscribes to changes of the session list."""
    jobs: bool
    """Whether it subscribes to changes of jobs."""
    sessions: set[str]
    """Keys of the sessions it subscribes to."""

    def put(self, frame: bytes) -> bool: ...

    def close(self, code: int, reason: str) -> None: ...


class UpdateSink(Protocol):
    """Notifies clients that a session has changed."""

    def changed(self, session: str) -> None: ...

    def asked(self, session: str) -> None: ...

    def tell(self, session: Session, *, deleted: bool = False) -> None: ...


class Hub:
    """Shared state of a gateway; one per process."""

    study: KnowledgeBase | None = None
    """Knowledge base and memories of the agents, if configured."""
    stopping = False
    hurry: asyncio.Event
    """Set when shutdown must not wait for running turns."""

    def __init__(self, atlas: Atlas, settings: GatewaySettings, methods: Methods, clock: Clock = SYSTEM_CLOCK) -> None:
        if atlas.store is None:
            raise ConfigError("a gateway requires an Atlas with a store: pass Atlas(store=...)")
        self.atlas = atlas
        self.store: Store = atlas.store
        self.settings = settings
        self.hurry = asyncio.Event()
        self.porch = Authenticator(settings, clock)
        self.tokens = self.porch.tokens
        self.metrics = Metrics()
        self.dispatch = Dispatch(methods, self.metrics)
        self.runs = RunRegistry(self.store, atlas.tenant, self.metrics, clock)
        self.runs.hide = atlas.hide
        self.assignments = Assignments(self.store, atlas.tenant)
        self.audit = AuditTail(self.store, atlas.tenant)
        self.news: UpdateSink
        self.more_settings: dict[str, Any] = {}
        """Further settings shown by `config.get`."""
        self.foreign: Callable[[], ForeignServers] = ForeignServers
        """Returns the configured MCP servers."""
        self.connections: set[Peer] = set()
        self.server = ServerShape("atlas", version("atlas-agents"))
        self.features = Features(methods.names, (*RUN_EVENTS, *SERVER_EVENTS))
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
        """Milliseconds after which a client that was refused during shutdown may retry."""
        return int((self.settings.restart_expected or 1.0) * 1000)

    def tell(self, event: ServerEvent) -> None:
        """Send an event to all connections with the scope `read` and the full profile."""
        frame = body_of(event)
        for peer in self.readers():
            peer.put(frame)

    def readers(self) -> list[Peer]:
        """Return the connections that receive unsolicited events."""
        return [peer for peer in self.connections if peer.full and peer.grant is not None and peer.grant.may("read")]

    async def watch_tokens(self) -> None:
        """Close the sockets of tokens that become invalid, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            self.close_strangers()

    def close_strangers(self) -> None:
        """Close every socket whose token is no longer valid or has different scopes."""
        self.tokens.refresh()
        for peer in list(self.connections):
            held = peer.grant is not None and self.tokens.holds(peer.grant)
            if not held or (peer.grant is not None and peer.grant.principal.id in self.porch.suspended):
                peer.close(BAD_TOKEN, "the token was revoked or changed")
