"""What all connections of a gateway share: tokens, methods, counters, and who is connected."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, day_of
from atlas_agents.core.errors import ConfigError, StoreError
from atlas_agents.core.store import AuditRow, Session, Store
from atlas_agents.core.tasks import BackgroundTasks
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.auth import Authenticator, Grant
from atlas_agents.gateway.dispatch import Dispatch, Methods
from atlas_agents.gateway.events import Listener
from atlas_agents.gateway.protocol.admin import AuditList, AuditPage, AuditShape, AuditVerified, ForeignServers, ToolUse
from atlas_agents.gateway.protocol.events import HOUSE_EVENTS, RUN_EVENTS, AuditAdded, HouseEvent, body_of
from atlas_agents.gateway.protocol.frames import BAD_TOKEN, ProtocolError
from atlas_agents.gateway.protocol.types import Features, PolicyShape, ServerShape
from atlas_agents.gateway.runs import RunRegistry
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.stores.hash_chain import START, audit_row

_MOST = 4096


class Assignments:
    """Read once per session; whoever changes one says so."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._agents: OrderedDict[str, str] = OrderedDict()

    async def agent_of(self, session: str) -> str:
        """The agent's id, or nothing if none was chosen."""
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
        """Others may have changed any of them."""
        self._agents.clear()

    def forget(self, session: str) -> None:
        self._agents.pop(session, None)


logger = logging.getLogger(__name__)
_STEP = 500


class _Meta(msgspec.Struct, frozen=True):
    duration_ms: float | None = None


class _AuditedCall(msgspec.Struct, frozen=True):
    """What is counted of a line; its names are the log's."""

    timestamp: int
    entityId: str = ""
    success: bool = True
    meta: _Meta = _Meta()


class AuditTail:
    """Lines are numbered without gaps; the store reads forward, so the last number is found first."""

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
        """The latest lines that fit the filters, or those before a cursor."""
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
        """Read the whole chain, page by page; the first line that does not follow ends it."""
        seq, previous = 0, START
        while rows := await self._store.audit(self._tenant, after=seq, limit=_STEP):
            for row in rows:
                seq += 1
                if row != audit_row(seq, previous, row.entry):
                    return AuditVerified(await self._newest(), seq, _problem(row, seq, previous))
                previous = row.hash
        return AuditVerified(seq)

    async def used(self, since: str, until: str) -> tuple[ToolUse, ...]:
        """Calls by tool and day, up to and with the last one."""
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
        """Hear new lines from now on."""
        if not self._listeners:
            self._told = await self._newest()
        self._listeners.add(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def look(self) -> None:
        """There may be new lines: tell them, if somebody listens."""
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
        """The last number, in ever larger steps from the last one known, then in ever smaller ones."""
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
        return f"row {seq} is missing: row {row.seq} stands in its place"
    if row.previous != previous:
        return f"row {seq} does not follow the row before it: one of them was replaced"
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
        raise ProtocolError("INVALID_PARAMS", "this cursor is not from here")
    return int(cursor)


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


class UpdateSink(Protocol):
    """Tells who may know that a session has changed."""

    def changed(self, session: str) -> None: ...

    def asked(self, session: str) -> None: ...

    def tell(self, session: Session, *, deleted: bool = False) -> None: ...


class Hub:
    """One per gateway."""

    study: KnowledgeBase | None = None
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
