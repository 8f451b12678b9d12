"""Hub: state shared by all connections of a gateway (tokens, methods, metrics, subscriptions, audit feed)."""

import asyncio
import ctypes
import logging
import math
import resource
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.agents.options import DEFAULT_OPTIONS, TurnOptions
from atlas_agents.agents.run import Accepted
from atlas_agents.agents.runner import tool_call_session
from atlas_agents.agents.sessions import make_title
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core import package_version
from atlas_agents.core.aio import SYSTEM_CLOCK, BackgroundTasks, Clock, TimeSlices, run_in_thread
from atlas_agents.core.errors import ConfigError, StoreError
from atlas_agents.core.messages import Message, new_id
from atlas_agents.core.store import AuditFilter, AuditRow, Session, Store
from atlas_agents.core.text import list_known
from atlas_agents.gateway.auth import Authenticator, Grant
from atlas_agents.gateway.convert import agent_model, list_model_users, session_shape
from atlas_agents.gateway.devices import Devices
from atlas_agents.gateway.dispatch import Dispatch, Methods
from atlas_agents.gateway.edits import AgentEditor, Edits, PolicyEditor
from atlas_agents.gateway.events import Subscriber
from atlas_agents.gateway.mcp.resources import DocumentResources
from atlas_agents.gateway.monitor import AlertOptions, Monitor
from atlas_agents.gateway.protocol import admin
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol.frames import BAD_TOKEN, ProtocolError
from atlas_agents.gateway.protocol.types import AuditShape, Features, PolicyShape, Scope, ServerShape
from atlas_agents.gateway.quotas import UserQuotas, WorkLimiter
from atlas_agents.gateway.runs import RunHooks, RunRegistry, no_notice
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import Metrics, RecentLog
from atlas_agents.gateway.uploads import Uploads
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.settings import DEFAULT_SETTINGS, EFFORTS
from atlas_agents.storage.hash_chain import verify_audit
from atlas_agents.tools.audit import TOOL_CALL, AuditEntry
from atlas_agents.workspace.skills import Prompt

if TYPE_CHECKING:
    from atlas_agents.dispatch.members import ClusterStatus

_MAX_ASSIGNMENTS = 4096
_NEW = ("started", "queued")
_MAX_NAMED = 10_000
logger = logging.getLogger(__name__)
_PAGE = 500
_MEMORY_RESERVE = 64 << 20
"""Bytes below the memory limit that are reserved for running turns, or a tenth of the limit, if that is more."""
_MEMORY_RETRY_MS = 5_000
_TRIM_INTERVAL, _MAX_TRIM_INTERVAL = 2.0, 60.0
"""Seconds between attempts to return freed memory to the system; longer while there is none to return."""
_TRIM_GROWTH = 32 << 20
"""Minimum growth of the process since its start at which memory is returned to the system."""
_PROGRESS_INTERVAL = 0.2
"""Seconds between two events about the progress of a verification."""
TOKEN_CHECK_INTERVAL = 0.5
"""Seconds between checks of the token files while sockets are open."""
DEVICE_CHECK_INTERVAL = 10.0
"""Seconds between checks for devices that have expired or that another process of a cluster has signed out."""


class Assignment(NamedTuple):
    """Agent of a session, and the model and effort that a person chose for it; empty where none is set."""

    agent_id: str = ""
    model: str = ""
    effort: str = ""


class Assignments:
    """Cache of the agent, model and effort of each session. Changes must be reported to it."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._sessions: OrderedDict[str, Assignment] = OrderedDict()

    async def get(self, session: str) -> Assignment:
        """Return the assignment of a session; an empty one if there is no such session."""
        if session not in self._sessions:
            row = await self._store.session(self._tenant, session) or Session(session)
            return self._sessions.get(session) or self.put(row)  # a change that was reported meanwhile counts
        return self._sessions[session]

    def put(self, session: Session) -> Assignment:
        shape = session_shape(session, session.key, running=False)
        found = self._sessions[session.key] = Assignment(shape.agent_id, shape.model, shape.effort)
        self._sessions.move_to_end(session.key)
        if len(self._sessions) > _MAX_ASSIGNMENTS:
            self._sessions.popitem(last=False)
        return found

    def forget_all(self) -> None:
        """Clear the cache, because other processes may have changed assignments."""
        self._sessions.clear()

    def forget(self, session: str) -> None:
        self._sessions.pop(session, None)


_entries = msgspec.json.Decoder(AuditEntry)


class AuditTail:
    """Reads the audit log from its end and follows it."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._subscribers: set[Subscriber] = set()
        self._sent = 0
        self._tasks = BackgroundTasks("audit feed", expected=StoreError)
        self._sending: asyncio.Task[None] | None = None
        self._check_again = False

    async def page(self, params: admin.AuditList) -> admin.AuditPage:
        """Return the latest rows that match the filters, or those before a cursor."""
        before = None if params.cursor is None else _parse_cursor(params.cursor)
        people = {"level": params.level, "run_id": params.run_id, "user": params.user}
        where = AuditFilter(params.agent_id, params.tool, **people, since=params.since, until=params.to)
        found = await self._store.find_audit(self._tenant, where, before=before, limit=params.limit)
        more = None if found.before is None else str(found.before)
        return admin.AuditPage(tuple([_audit_shape(row) for row in found.rows]), more)

    async def verify(self, subscriber: Subscriber) -> admin.AuditVerified:
        """Verify the hash chain, page by page, up to the first broken row, and compare it with the signed head.

        The subscriber gets events about the progress.
        """
        total, sent = await self._find_last_row(), -math.inf

        def send_progress(rows: int) -> None:
            nonlocal sent
            if time.monotonic() - sent > _PROGRESS_INTERVAL:
                sent = time.monotonic()
                subscriber.send(wire.encode_event(wire.AuditProgress(rows, max(rows, total))))

        found = await verify_audit(self._store, self._tenant, send_progress)
        is_row_broken = found.broken is not None and found.broken <= found.rows
        rows = await self._find_last_row() if is_row_broken else found.rows
        return admin.AuditVerified(rows, found.broken, found.problem, found.signed_from, found.head)

    async def count_calls(self, since: str, until: str, limit: int) -> admin.ToolsUsed:
        """Count calls by tool and day, as many whole days as fit: those before `until`, latest first."""
        days = await self._store.tool_days(self._tenant, since=since, until=until, limit=limit + 1)
        more = None
        if len(days) > limit:
            first, last = days[0].day, days[-1].day
            if first == last:  # a page has at least one day
                days = await self._store.tool_days(self._tenant, since=last, until=until)
                more = last
            else:
                days = [each for each in days if each.day > last]
                more = days[-1].day
        rows, slices = list[admin.ToolUse](), TimeSlices()
        for each in days:
            rows.append(admin.ToolUse(each.tool, each.day, each.calls, each.failed, round(each.milliseconds, 3)))
            await slices.pause()
        return admin.ToolsUsed(tuple(rows), more)

    async def calls_since(self, since: int, limit: int) -> AsyncGenerator[tuple[int, AuditEntry], None]:
        """Yield the number and entry of up to `limit` tool calls since a time in milliseconds, latest first."""
        before = await self._find_last_row() + 1
        while before > 1 and limit > 0:
            first = max(0, before - 1 - _PAGE)
            rows = await self._store.audit(self._tenant, after=first, limit=before - 1 - first)
            before = first + 1
            for row in reversed(rows):
                entry = _entries.decode(row.entry)
                if entry.timestamp < since or limit <= 0:
                    return
                if entry.action == TOOL_CALL:
                    limit -= 1
                    yield row.seq, entry

    async def has_edit(self, edit: str, since: int) -> bool:
        """Return whether there is a row of an edit since a time in milliseconds."""
        before = await self._find_last_row() + 1
        while before > 1:
            first = max(0, before - 1 - _PAGE)
            rows = await self._store.audit(self._tenant, after=first, limit=before - 1 - first)
            entries = [_entries.decode(row.entry) for row in rows]
            if any(entry.meta.get("edit") == edit for entry in entries):
                return True
            if entries and entries[0].timestamp < since:
                return False
            before = first + 1
        return False

    async def subscribe(self, subscriber: Subscriber) -> None:
        """Subscribe to new rows."""
        if not self._subscribers:
            self._sent = await self._find_last_row()
        self._subscribers.add(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)

    def check(self) -> None:
        """Send new rows, if there are any, to the subscribers."""
        self._check_again = True
        if self._subscribers and (self._sending is None or self._sending.done()):
            self._sending = self._tasks.spawn(self._send_new())

    async def _send_new(self) -> None:
        while self._check_again and self._subscribers:
            self._check_again = False
            rows = await self._store.audit(self._tenant, after=self._sent)
            for row in rows:
                self._sent = row.seq
                frame = wire.encode_event(wire.AuditAdded(_audit_shape(row)))
                for subscriber in list(self._subscribers):
                    subscriber.send(frame)

    async def _find_last_row(self) -> int:
        rows = await self._store.audit(self._tenant, limit=1, last=True)
        return rows[-1].seq if rows else 0


def _audit_shape(row: AuditRow) -> AuditShape:
    return AuditShape(row.seq, msgspec.json.decode(row.entry), row.previous, row.hash)


def _parse_cursor(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 20:
        raise ProtocolError("INVALID_PARAMS", "invalid cursor: expected a cursor returned by this method")
    return int(cursor)


class Peer(Protocol):
    """A connection of a client, as the hub sees it."""

    grant: Grant
    full: bool
    jobs: bool
    """Whether it subscribes to changes of jobs."""
    device: str
    """The signed-in browser that it belongs to; empty if it sent a token."""

    def send(self, frame: bytes) -> bool: ...

    def close(self, code: int, reason: str) -> None: ...


def _is_reader(peer: Peer) -> bool:
    """Return whether a connection receives unsolicited events."""
    return peer.full and peer.grant.allows("read")


class SessionUpdates:
    """Notifies clients of changed sessions, reading each session once per batch of changes."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._scheduled: set[str] = set()
        self._subscribers: dict[str, set[Peer]] = {}
        self._list_subscribers: set[Peer] = set()
        self._named: OrderedDict[str, None] = OrderedDict()
        self._tasks = BackgroundTasks("session updates", expected=StoreError)
        hub.atlas.sessions.on_named(self.report_change)

    def subscribe(self, peer: Peer, session: str) -> None:
        """Notify a connection of changes of a session."""
        self._subscribers.setdefault(session, set()).add(peer)

    def unsubscribe(self, peer: Peer, session: str) -> None:
        peers = self._subscribers.get(session, set())
        peers.discard(peer)
        if not peers:
            self._subscribers.pop(session, None)

    def subscribe_to_list(self, peer: Peer) -> None:
        """Notify a connection of changes of all its sessions."""
        self._list_subscribers.add(peer)

    def unsubscribe_from_list(self, peer: Peer) -> None:
        self._list_subscribers.discard(peer)

    @property
    def subscriber_count(self) -> int:
        """Return the number of subscriptions to sessions and to lists."""
        return len(self._list_subscribers) + sum(map(len, self._subscribers.values()))

    def report_change(self, session: str) -> None:
        """Report that a session has changed."""
        if session not in self._scheduled and (session not in self._named or self._find_subscribers(session)):
            self._scheduled.add(session)
            self._tasks.spawn(self._read_and_send(session))

    def report_approval_change(self, session: str) -> None:
        """Report that an approval was requested or resolved in a session."""
        for peer in self._find_subscribers(session):
            peer.send(wire.encode_event(wire.ApprovalsUpdated(session.removeprefix(peer.grant.prefix))))

    def send(self, session: Session, *, deleted: bool = False) -> None:
        """Send the session to the clients that subscribe to it or to the list it is on."""
        if deleted:
            self._named.pop(session.key, None)
        running = self._hub.runs.is_running(session.key)
        frames: dict[str, bytes] = {}
        for peer in self._find_subscribers(session.key):
            prefix = peer.grant.prefix
            if prefix not in frames:
                shape = session_shape(session, session.key.removeprefix(prefix), running=running)
                frames[prefix] = wire.encode_event(wire.SessionUpdated(shape, deleted))
            peer.send(frames[prefix])

    def _find_subscribers(self, key: str) -> list[Peer]:
        """Return the connections that subscribe to the session or to a list it is on."""
        listing = [peer for peer in self._list_subscribers if key.startswith(peer.grant.prefix)]
        return [peer for peer in self._subscribers.get(key, set()).union(listing) if _is_reader(peer)]

    async def _read_and_send(self, key: str) -> None:
        await asyncio.sleep(0)  # changes in the same tick are one update
        self._scheduled.discard(key)
        hub = self._hub
        session = await hub.store.session(hub.atlas.tenant, key)
        if session is None:
            self.send(Session(key), deleted=True)  # deleted by another gateway
        elif not await self._name_session(session):
            self.send(session)

    async def _name_session(self, session: Session) -> bool:
        """Name an unnamed session after its first message. Returns whether it did, which is a change of its own."""
        key = session.key
        if not session.label and key not in self._named:
            text = await self._hub.atlas.sessions.first_text(key)
            if not text:
                return False
            self._remember_named(key)
            label = make_title(text)
            return bool(label) and await self._hub.atlas.sessions.name(key, label) is not None
        self._remember_named(key)
        return False

    def _remember_named(self, key: str) -> None:
        self._named[key] = None
        if len(self._named) > _MAX_NAMED:
            self._named.popitem(last=False)


class MemoryGuard:
    """Refuses new turns before the process reaches its memory limit, and gives freed memory back to the system.

    Limits are those of `ulimit -v` and of the control group (a container). Running turns keep a reserve.
    """

    def __init__(self) -> None:
        address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
        self._limits = [
            (name, limit, read)
            for name, limit, read in (
                ("address space", 0 if address_space == resource.RLIM_INFINITY else address_space, _address_space),
                ("container", *_find_container_limit()),
            )
            if limit
        ]

    def problem(self) -> str:
        """Return the error if there is not enough memory for another turn; empty if there is."""
        for name, limit, read in self._limits:
            used = read()
            if used > limit - max(_MEMORY_RESERVE, limit // 10):
                return f"memory is nearly exhausted: {used >> 20} of {limit >> 20} MB ({name}) are in use"
        return ""

    async def run(self) -> None:
        """Return freed memory to the system after it was used for large answers, until cancelled."""
        trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        idle, pause = _resident(), _TRIM_INTERVAL
        while trim is not None:
            await asyncio.sleep(pause)
            before = _resident()
            if before <= idle + _TRIM_GROWTH:
                continue
            try:
                await run_in_thread(trim, 0)
            except (MemoryError, RuntimeError):  # not enough memory to start a thread
                trim(0)
            freed = before - _resident()
            pause = _TRIM_INTERVAL if freed > _TRIM_GROWTH // 4 else min(2 * pause, _MAX_TRIM_INTERVAL)


def _read_pages(field: int) -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _address_space() -> int:
    return _read_pages(0)


def _resident() -> int:
    return _read_pages(1)


def _find_container_limit() -> tuple[int, Callable[[], int]]:
    """Return the memory limit of the control group, 0 if there is none, and a function that measures its use."""
    try:
        path = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0].lstrip("/")
        folders = [Path("/sys/fs/cgroup", path), *Path("/sys/fs/cgroup", path).parents]
        for folder in folders[: len(Path(path).parts) + 1]:
            text = (folder / "memory.max").read_text().strip()
            if text != "max":
                return int(text), partial(_container_use, folder)
    except (OSError, ValueError, IndexError):
        pass
    return 0, _resident


def _container_use(folder: Path) -> int:
    """Return the memory of a control group without file pages that the kernel can drop."""
    try:
        used = int((folder / "memory.current").read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        return used - sum([int(line.split()[1]) for line in lines if line.startswith("inactive_file ")])
    except (OSError, ValueError, IndexError):
        return _resident()


class ModelSetupPort(Protocol):
    """Sets up models for `setup.status`, `providers.*`, `secrets.*` and `models.*`; changes are audited as edits."""

    async def status(self) -> admin.SetupStatus: ...

    async def providers(self) -> admin.ProvidersResult: ...

    async def test(self, params: admin.ProvidersTest) -> admin.ProviderTested: ...

    async def put_key(self, params: admin.SecretsPut, by: str, edits: Edits) -> admin.ProviderResult: ...

    async def remove_key(self, params: admin.SecretsRemove, by: str, edits: Edits) -> admin.ProviderResult: ...

    def usable_ref(self, model: str) -> str:
        """Return the reference of a model that can be used now; ConfigError if it cannot."""
        ...

    @property
    def offered(self) -> tuple[str, ...]:
        """Models that chats can choose in addition to those that agents use."""
        ...

    async def offer(self, params: admin.ModelsOffer, by: str, edits: Edits) -> admin.ModelsOffered: ...

    async def select(self, params: admin.ModelsSelect, by: str, edits: Edits) -> admin.ModelSelected: ...

    async def download(self, params: admin.ModelsDownload, by: str, edits: Edits) -> admin.LocalModelResult: ...

    async def pause(self, params: admin.OneLocalModel) -> admin.LocalModelResult: ...


def _needs_no_key(_: str) -> bool:
    return False


class ChannelPort(Protocol):
    """Port for a channel that people use to reach the agents."""

    async def status(self) -> admin.ChannelShape: ...

    async def test(self, token: str | None) -> admin.ChannelTested: ...

    async def set_token(self, token: str) -> None:
        """Store a bot token, or remove it if it is empty, and restart the channel."""
        ...

    async def pair(self, code: str) -> admin.PairedPerson: ...

    async def unpair(self, person: str) -> None: ...


class OperationsPort(Protocol):
    """Port for the installation that a gateway is part of, for `ops.*`."""

    async def storage(self) -> admin.StorageStatus: ...

    async def cluster(self) -> "ClusterStatus | None":
        """Return the status of the cluster; None if there is none."""
        ...

    async def check(self) -> tuple[admin.CheckShape, ...]:
        """Run the checks of `atlas doctor`."""
        ...

    def new_backup(self) -> Path:
        """Return the file for a new backup; ConfigError if the database cannot be backed up here."""
        ...

    async def back_up(self, target: Path) -> admin.BackupShape: ...


async def no_reload() -> None:
    """Default of `reload_servers` and `refresh_servers`: there is nothing to reload."""


class GatewayServices(msgspec.Struct, frozen=True):
    """Optional services of a gateway besides its Atlas."""

    knowledge_base: KnowledgeBase | None = None
    settings: dict[str, Any] = {}
    """Further settings shown by `config.get`."""
    servers: Servers | None = None
    """The MCP servers of the workspace."""
    telegram: ChannelPort | None = None
    """The Telegram channel."""
    reload_servers: Callable[[], Awaitable[None]] = no_reload
    """Applies changes of the MCP servers to the agents at once."""
    refresh_servers: Callable[[], Awaitable[None]] = no_reload
    """Applies changes of the MCP servers' files, if there are any."""
    model_notice: Callable[[str], str] = no_notice
    """Returns the reason why an agent uses another model than its own; empty if it does not."""
    agent_editor: AgentEditor | None = None
    """Edits the agents; without it they can only be read."""
    policy_editor: PolicyEditor | None = None
    """Edits the permissions; without it they can only be read."""
    needs_key: Callable[[str], bool] = _needs_no_key
    """Returns whether the model that an agent names has no API key."""
    prompts: Callable[[], Sequence[Prompt]] = tuple
    """Returns the prompts that MCP clients may get."""
    resources: DocumentResources | None = None
    """The resources that MCP clients may read."""
    setup: ModelSetupPort | None = None
    """Sets up models; None for a gateway whose agents are defined in code."""
    operations: OperationsPort | None = None
    """Checks the installation and backs it up."""
    alerts: AlertOptions = AlertOptions()
    """Alert rules, and where alerts are sent."""


class Hub:
    """Shared state of a gateway, and the submission of turns and tool calls; one per process."""

    stopping = False

    def __init__(
        self,
        atlas: Atlas,
        settings: GatewaySettings,
        methods: Methods,
        services: GatewayServices,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if atlas.store is None:
            raise ConfigError("a gateway requires an Atlas with a store: pass Atlas(store=...)")
        self.atlas = atlas
        self.store: Store = atlas.store
        self.settings = settings
        self.services = services
        self.force_stop = asyncio.Event()
        """Event that is set when shutdown must not wait for running turns."""
        self.quotas = UserQuotas(self.store, atlas.tenant, settings, clock)
        self.work, self.memory = WorkLimiter(), MemoryGuard()
        self.authenticator = Authenticator(settings, clock)
        self.tokens = self.authenticator.tokens
        self.devices = Devices(self.store, atlas.tenant, self.authenticator)
        self.metrics, self.log = Metrics(), RecentLog()
        self.metrics.follow(atlas)
        self.dispatch = Dispatch(methods, self.metrics)
        self.assignments = Assignments(self.store, atlas.tenant)
        self.audit = AuditTail(self.store, atlas.tenant)
        self.edits = Edits(atlas, settings.home, self._report_edit)
        self.session_updates = SessionUpdates(self)
        self.runs = RunRegistry(
            self.store,
            atlas.tenant,
            self.metrics,
            clock,
            hooks=RunHooks(
                self.session_updates.report_change, self.session_updates.report_approval_change, self.audit.check
            ),
            hide=atlas.hide,
            model_notice=services.model_notice,
        )
        self.monitor = Monitor(atlas, self.metrics, services.alerts, services.operations)
        self.uploads = Uploads(settings.home)
        self.connections: set[Peer] = set()
        self.server = ServerShape("atlas", package_version())
        self.features = Features(methods.names, (*wire.RUN_EVENTS, *wire.SERVER_EVENTS))
        self.policy = PolicyShape(settings.max_frame, int(settings.ping * 1000))
        self._started = time.monotonic()
        self.started_at = int(time.time())

    @property
    def uptime(self) -> float:
        return round(time.monotonic() - self._started, 3)

    def agent(self, agent_id: str) -> Agent | None:
        return next((agent for agent in self.atlas.agents if agent.id == agent_id), None)

    @property
    def offered_models(self) -> tuple[str, ...]:
        """Models that chats can choose besides those of the agents: from the settings, and chosen by a person."""
        setup = self.services.setup
        return (*self.settings.allowed_models, *(setup.offered if setup is not None else ()))

    @property
    def retry_after_ms(self) -> int:
        """Milliseconds after which a client that was refused during shutdown may retry."""
        return int((self.settings.restart_expected or 1.0) * 1000)

    def check_accepting(self) -> None:
        """Raise ProtocolError if the gateway is shutting down, or has not enough memory for another turn."""
        if self.stopping:
            raise ProtocolError("UNAVAILABLE", "the gateway is shutting down", retry_after_ms=self.retry_after_ms)
        if problem := self.memory.problem():
            self.metrics.refused.labels("memory").inc()
            raise ProtocolError("UNAVAILABLE", f"{problem}; try again later", retry_after_ms=_MEMORY_RETRY_MS)

    async def resolve_agent(self, session: str, agent_id: str | None = None) -> Agent:
        """Return the named agent, else the session's, else the default; raise ProtocolError if there is none."""
        name = agent_id or (await self.assignments.get(session)).agent_id
        agent = self.agent(name) if name else self.atlas.get_agent()
        if agent is None:
            raise self.unknown_agent(name)
        return agent

    def unknown_agent(self, name: str) -> ProtocolError:
        """Return the error for an unknown agent, which lists the known ones."""
        if not self.atlas.agents:
            return ProtocolError("AGENT_NOT_FOUND", "no agents are configured")
        return ProtocolError(
            "AGENT_NOT_FOUND",
            f"unknown agent {name!r}; {list_known('agents', [agent.id for agent in self.atlas.agents])}",
        )

    async def submit_turn(
        self, agent: Agent, message: Message, *, session: str, user: str, options: TurnOptions = DEFAULT_OPTIONS
    ) -> tuple[Accepted, AtlasStream]:
        """Start a turn and return when it is stored. Its events are logged and delivered to the session's subscribers.

        The model and the effort of the session apply unless the options name others. For a repeated idempotency key,
        the stream replays the turn that was started with it.
        """
        self.check_accepting()
        options = await self._with_session_model(session, options)
        if session.startswith("@"):
            await self.quotas.check(session, messages=1, size=len(message.to_json()))
        stream = self.atlas.start_turn(message, options, session=session, agent_id=agent.id, user=user)
        accepted = await stream.accepted()
        if accepted.status in _NEW:
            self.runs.follow(stream, options.model or agent_model(agent, self.atlas.registry))
        return accepted, stream

    async def _with_session_model(self, session: str, options: TurnOptions) -> TurnOptions:
        """Add the model and the effort that were chosen for a session to options that name none."""
        assigned, requested = await self.assignments.get(session), options.requested or DEFAULT_SETTINGS
        if assigned.model and not options.model:
            try:
                self.atlas.registry.route(assigned.model)
            except ConfigError as error:
                problem = f"the model of this session cannot be used, choose another one for it: {error}"
                raise ProtocolError("INVALID_PARAMS", self.atlas.hide(problem)) from error
            options = msgspec.structs.replace(options, model=assigned.model)
        effort = next((each for each in EFFORTS if each == assigned.effort), None)
        if effort is not None and requested.effort is None:
            options = msgspec.structs.replace(options, requested=msgspec.structs.replace(requested, effort=effort))
        return options

    def check_model(self, grant: Grant, model: str, where: str) -> None:
        """Check that a client may choose a model, and that it is available; `where` names the parameter.

        A model costs money, and a reference can name a file of this machine. So without the scope `admin`, only models
        of the agents, offered ones and those of the setting `allowed_models` can be chosen; other references are not
        even resolved.
        """
        if not grant.allows("admin"):
            known = {*list_model_users(self.atlas.agents, self.atlas.registry), *self.offered_models}
            if model not in known:
                names = ", ".join(sorted(known)) or "none"
                raise ProtocolError("FORBIDDEN", f"{where}: this token may choose only these models: {names}")
        try:
            self.atlas.registry.route(model)
        except ConfigError as error:
            raise ProtocolError("INVALID_PARAMS", f"{where}: {self.atlas.hide(str(error))}") from error

    async def call_tool(
        self,
        grant: Grant,
        agent: Agent,
        tool: str,
        arguments: dict[str, Any],
        *,
        idempotency_key: str = "",
        trace_context: str = "",
    ) -> AtlasStream:
        """Start a tool call and return when it is stored, in a session of its own that is archived from the start."""
        self.check_accepting()
        user, (traceparent, _, tracestate) = grant.principal.id, trace_context.partition(" ")
        session = grant.prefix + tool_call_session(user, new_id(), idempotency_key)
        await self.quotas.check(session, sessions=1, messages=1, archived=True)
        await self.atlas.sessions.put(session, label=tool[:80], archived=True)
        stream = await self.atlas.begin_call(
            tool,
            arguments,
            agent_id=agent.id,
            user=user,
            session=session,
            idempotency_key=idempotency_key,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        if (await stream.accepted()).status in _NEW:
            self.runs.follow(stream, "")
        return stream

    def broadcast(self, event: wire.ServerEvent) -> None:
        """Send an event to all connections with the scope `read` and the full profile."""
        frame = wire.encode_event(event)
        for peer in self.readers():
            peer.send(frame)

    def _report_edit(self, event: wire.ResourceUpdated, scope: Scope) -> None:
        """Notify the connections that may read the edited resource; guests do not learn who edited it."""
        named = wire.encode_event(event)
        anonymous = wire.encode_event(msgspec.structs.replace(event, by=""))
        for peer in self.readers():
            if peer.grant.allows(scope):
                peer.send(anonymous if peer.grant.prefix else named)
        self.audit.check()

    def readers(self) -> list[Peer]:
        """Return the connections that receive unsolicited events."""
        return [peer for peer in self.connections if _is_reader(peer)]

    async def watch_tokens(self) -> None:
        """Close the sockets of tokens that become invalid and of devices that are signed out, until cancelled."""
        checked_at = time.monotonic()
        while True:
            await asyncio.sleep(TOKEN_CHECK_INTERVAL)
            self.close_unauthorized()
            if time.monotonic() - checked_at >= DEVICE_CHECK_INTERVAL:
                checked_at = time.monotonic()
                with suppress(StoreError):
                    await self.close_signed_out()

    def close_device(self, id: str) -> None:
        """Close the sockets of a device that was signed out."""
        for peer in list(self.connections):
            if peer.device == id:
                peer.close(BAD_TOKEN, "this device was signed out")

    async def close_signed_out(self) -> None:
        """Close every socket whose device has expired or was signed out, also by another process of a cluster."""
        if not any(peer.device for peer in self.connections):
            return
        known = {device.id for device in await self.devices.list()}
        for id in {peer.device for peer in self.connections if peer.device} - known:
            self.close_device(id)

    def is_authorized(self, grant: Grant) -> bool:
        """Return whether the token of a grant is still valid, and its user not suspended."""
        return self.tokens.is_valid(grant) and grant.principal.id not in self.authenticator.suspended

    def close_unauthorized(self) -> None:
        """Close every socket whose token is no longer valid or has different scopes."""
        self.tokens.refresh()
        for peer in list(self.connections):
            if not self.is_authorized(peer.grant):
                peer.close(BAD_TOKEN, "the token was revoked or changed")
