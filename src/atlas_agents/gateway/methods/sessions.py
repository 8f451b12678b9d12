"""Methods `sessions.*`: create, list, subscribe, search, fork, export and import sessions."""

import time
from collections.abc import Sequence

import msgspec

from atlas_agents.agents.sessions import SessionHeader
from atlas_agents.core.errors import BrokenHistory, Conflict, NotFound
from atlas_agents.core.messages import Message, new_id
from atlas_agents.core.store import RunRow, Session, StoredMessage
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.convert import message_shape, newest, session_shape, stored_shape
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.events import RunLog
from atlas_agents.gateway.protocol.chat import Key
from atlas_agents.gateway.protocol.frames import ProtocolError, not_found
from atlas_agents.gateway.protocol.sessions import (
    Created,
    Exported,
    Hits,
    Imported,
    OneSession,
    RunPosition,
    SessionChanged,
    SessionFound,
    SessionHit,
    SessionPage,
    SessionsCreate,
    SessionsExport,
    SessionsFork,
    SessionsImport,
    SessionsList,
    SessionsSearch,
    SessionsSubscribe,
    SessionsUpdate,
    Subscribed,
)
from atlas_agents.gateway.protocol.types import ApprovalShape, Done, MessageShape, SessionShape
from atlas_agents.gateway.runs import outcomes_of

_SHOWN = 200
_SESSION_PAGE = 200


class _Request(msgspec.Struct, frozen=True):
    """The fields of a stored run request that are read here."""

    messages: list[msgspec.Raw] = []


def add_session_methods(methods: Methods) -> None:
    methods.add("sessions.create")(create)
    methods.add("sessions.list")(list_sessions)
    methods.add("sessions.get")(get)
    methods.add("sessions.update")(update)
    methods.add("sessions.delete")(delete)
    methods.add("sessions.subscribe")(subscribe)
    methods.add("sessions.unsubscribe")(unsubscribe)


async def create(caller: ClientConnection, params: SessionsCreate) -> Created:
    _known_agent(caller, params.agent_id)
    key = new_id()
    session = await caller.hub.atlas.sessions.put(
        caller.who.prefix + key, agent_id=params.agent_id, label=params.label, metadata=params.metadata
    )
    caller.hub.news.tell(session)
    return Created(key)


async def list_sessions(caller: ClientConnection, params: SessionsList) -> SessionPage:
    """List the caller's sessions, latest change first, and subscribe the caller to changes."""
    caller.lists = True
    before = _cursor(params.cursor)
    found: list[Session] = []
    while len(found) <= params.limit:
        page = await caller.hub.atlas.sessions.list(limit=_SESSION_PAGE, before=before)
        found += [each for each in page if each.key.startswith(caller.who.prefix) and each.archived == params.archived]
        if len(page) < _SESSION_PAGE:
            break
        before = page[-1].updated_at
    shown = found[: params.limit]
    more = str(shown[-1].updated_at) if len(found) > params.limit else None
    return SessionPage(tuple([shape(caller, each) for each in shown]), more)


async def get(caller: ClientConnection, params: OneSession) -> SessionFound:
    session = await existing(caller, params.session_key)
    rows = await caller.hub.atlas.sessions.messages(session.key, limit=_SHOWN, last=True)
    return SessionFound(shape(caller, session), tuple(map(stored_shape, newest(rows, _SHOWN))))


async def update(caller: ClientConnection, params: SessionsUpdate) -> SessionChanged:
    _known_agent(caller, params.agent_id)
    session = await existing(caller, params.session_key)
    changed = await caller.hub.atlas.sessions.put(
        session.key,
        agent_id=params.agent_id,
        label=params.label,
        archived=params.archived,
        metadata=params.metadata,
    )
    caller.hub.assignments.put(changed.key, changed.agent_id)
    caller.hub.news.tell(changed)
    return SessionChanged(shape(caller, changed))


async def delete(caller: ClientConnection, params: OneSession) -> Done:
    session = await existing(caller, params.session_key)
    try:
        await caller.hub.atlas.sessions.delete(session.key)
    except Conflict:
        raise ProtocolError("BUSY", "a turn is running in this session: cancel it first") from None
    caller.hub.assignments.forget(session.key)
    caller.hub.news.tell(session, deleted=True)
    return Done(True)


async def subscribe(caller: ClientConnection, params: SessionsSubscribe) -> Subscribed:
    """Subscribe to a session and return its state.

    Everything is read before the subscription starts; from there to the response nothing is awaited, so the first
    event after the response is the next one.
    """
    with caller.hub.runs.expecting(caller.who.prefix + params.session_key):
        return await _subscribe(caller, params)


async def _subscribe(caller: ClientConnection, params: SessionsSubscribe) -> Subscribed:
    hub, key = caller.hub, caller.who.prefix + params.session_key
    session = await hub.store.session(hub.atlas.tenant, key)
    asked = params.runs or {}
    rows = [row for id in asked if (row := await hub.store.run(hub.atlas.tenant, id)) and row.session == key]
    messages = await _messages(caller, key, params.after_message_id)
    numbers: dict[str, int] = {}
    while ended := [row for row in rows if row.id not in numbers and hub.runs.get(row.id) is None]:
        numbers |= {row.id: await hub.runs.last_number(row) for row in ended}
    turns = await hub.store.runs(hub.atlas.tenant, key)
    waiting = tuple([said for row in turns if row.status == "queued" for said in _waiting(row)])
    told = await outcomes_of(hub.store, turns, {row.run_id for row in messages}, hub.atlas.hide)
    await hub.runs.attend(turns)
    channel = caller.hear(key)
    live = hub.runs.live(key)
    here = {log.run_id: log for log in live}
    positions = [_snapshot(caller, log) for log in live if log.run_id not in asked and not log.ended]
    for row in rows:
        log = here.get(row.id)
        positions.append(RunPosition(row.id, "replay", log.told if log else numbers.get(row.id, 0)))
        hub.runs.replay(channel, caller, row.id, asked[row.id])
    shown = tuple([stored_shape(row) for row in messages if _is_told(row, here)])
    return Subscribed(shape(caller, session or Session(key)), shown, tuple(positions), told, waiting)


async def unsubscribe(caller: ClientConnection, params: OneSession) -> Done:
    caller.hear_no_more(caller.who.prefix + params.session_key)
    return Done(True)


async def existing(caller: ClientConnection, session_key: str) -> Session:
    """Return a session that the caller may access; raise 'not found' otherwise."""
    try:
        return await caller.hub.atlas.sessions.get(caller.who.prefix + session_key)
    except NotFound:
        raise not_found("SESSION") from None


def shape(caller: ClientConnection, session: Session) -> SessionShape:
    key = session.key.removeprefix(caller.who.prefix)
    return session_shape(session, key, running=caller.hub.runs.running(session.key))


async def _messages(caller: ClientConnection, key: str, after: str | None) -> Sequence[StoredMessage]:
    hub = caller.hub
    rows = await hub.store.messages(hub.atlas.tenant, key, limit=_SHOWN, last=True)
    known = next((place for place, row in enumerate(rows) if row.id == after), -1)
    return newest(rows[known + 1 :], _SHOWN)


def _is_told(row: StoredMessage, here: dict[str, RunLog]) -> bool:
    """Return whether a message belongs in the snapshot. A message of an open run does only after its event was sent."""
    log = here.get(row.run_id)
    return log is None or row.id in log.messages


def _waiting(row: RunRow) -> list[MessageShape]:
    """Return the input messages of a queued turn."""
    said = msgspec.json.decode(row.request, type=_Request).messages if row.request else []
    return [message_shape(Message.from_json(bytes(each)), row.id) for each in said]


def _snapshot(caller: ClientConnection, log: RunLog) -> RunPosition:
    asked = log.draft.approval
    pending = None
    if asked is not None:
        pending = ApprovalShape(
            approval_id=asked.approval_id,
            run_id=asked.run_id,
            session_key=log.session.removeprefix(caller.who.prefix),
            tool_call_id=asked.tool_call_id,
            tool_name=asked.tool_name,
            summary=asked.summary,
            details=asked.details,
            command=asked.command,
            working_dir=asked.working_dir,
            risk=asked.risk,
            options=asked.options,
            expires_at=asked.expires_at,
            preview=asked.preview,
            form=asked.form,
        )
    return RunPosition(log.run_id, "snapshot", log.told, log.draft.parts, pending, log.draft.progress, log.draft.plan)


def _known_agent(caller: ClientConnection, agent_id: str | None) -> None:
    if agent_id and caller.hub.agent(agent_id) is None:
        raise ProtocolError("AGENT_NOT_FOUND", f"unknown agent {agent_id!r}")


def _cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 20:
        raise ProtocolError("INVALID_PARAMS", "invalid cursor: expected a cursor returned by this method")
    return int(cursor)


_SEARCH_PAGE = 100
_SECONDS = 2.0
_AROUND = 60


def add_search_methods(methods: Methods) -> None:
    methods.add("sessions.search")(search)
    methods.add("sessions.fork")(fork)


async def search(caller: ClientConnection, params: SessionsSearch) -> Hits:
    """Search session names, then messages, latest change first, for at most two seconds."""
    words = params.query.casefold()
    hits: list[SessionHit] = []
    end, before = time.monotonic() + _SECONDS, None
    while page := await caller.hub.atlas.sessions.list(limit=_SEARCH_PAGE, before=before):
        before = page[-1].updated_at
        for session in page:
            if not session.key.startswith(caller.who.prefix):
                continue
            if hit := await _look(caller, session, words):
                hits.append(hit)
            if len(hits) == params.limit or time.monotonic() > end:
                return Hits(tuple(hits), complete=False)
    return Hits(tuple(hits))


async def _look(caller: ClientConnection, session: Session, words: str) -> SessionHit | None:
    if words in session.label.casefold():
        return SessionHit(shape(caller, session))
    rows = await caller.hub.store.messages(caller.hub.atlas.tenant, session.key)
    for row in reversed(rows):
        message = Message.from_json(row.body)
        if message.role in ("user", "assistant") and (place := message.text.casefold().find(words)) >= 0:
            return SessionHit(shape(caller, session), _around(message.text, place, len(words)), row.id)
    return None


def _around(text: str, place: int, length: int) -> str:
    first, last = max(0, place - _AROUND), place + length + _AROUND
    words = " ".join(text[first:last].split())
    return f"{'…' if first else ''}{words}{'…' if last < len(text) else ''}"


async def fork(caller: ClientConnection, params: SessionsFork) -> Created:
    hub, prefix = caller.hub, caller.who.prefix
    if params.agent_id and hub.agent(params.agent_id) is None:
        raise ProtocolError("AGENT_NOT_FOUND", f"unknown agent {params.agent_id!r}")
    key = new_id()
    try:
        await hub.atlas.sessions.fork(prefix + params.session_key, params.message_id, to=prefix + key)
    except NotFound:
        raise not_found("SESSION") from None
    made = await hub.atlas.sessions.put(prefix + key, label=params.label, agent_id=params.agent_id)
    hub.news.tell(made)
    return Created(key)


_PAGE_BYTES = 512 * 1024
_LARGEST = 64 * 1024 * 1024


def add_carrying_methods(methods: Methods) -> None:
    methods.add("sessions.export")(write_out)
    methods.add("sessions.import")(read_in)


async def write_out(caller: ClientConnection, params: SessionsExport) -> Exported:
    """Export as many lines as fit into a frame. The first line describes the session, under the caller's key."""
    key, lines, size, number = caller.who.prefix + params.session_key, list[str](), 0, 0
    try:
        async for line in caller.hub.atlas.sessions.export(key):
            number += 1
            if number <= params.after:
                continue
            if lines and size + len(line) > _PAGE_BYTES:
                return Exported(tuple(lines), number - 1)
            lines.append(_renamed(line, params.session_key) if number == 1 else line)
            size += len(line)
    except NotFound:
        raise not_found("SESSION") from None
    return Exported(tuple(lines))


async def read_in(caller: ClientConnection, params: SessionsImport) -> Imported:
    """Receive one part of an import; the last part creates the session atomically."""
    held = caller.incoming
    if params.piece != len(held):
        held.clear()
        raise ProtocolError("INVALID_PARAMS", "sessions.import: a part is missing; start again with the first one")
    held.append(params.text)
    if sum(map(len, held)) > _LARGEST:
        held.clear()
        raise ProtocolError("LIMIT_EXCEEDED", f"sessions.import: the session is larger than {_LARGEST:,} characters")
    if params.more:
        return Imported()
    lines = "".join(held).split("\n")
    held.clear()
    return Imported(await _made(caller, lines, params.session_key))


async def _made(caller: ClientConnection, lines: list[str], key: str | None) -> str:
    hub, prefix = caller.hub, caller.who.prefix
    key = key or _own_key(lines[0])
    try:
        made = await hub.atlas.sessions.load(lines, key=prefix + key)
    except Conflict:
        raise ProtocolError("CONFLICT", f"session {key!r} already exists: choose another key") from None
    except BrokenHistory as broken:
        raise ProtocolError("INVALID_PARAMS", str(broken)) from None
    hub.news.tell(made)
    return key


def _own_key(line: str) -> str:
    """Return the key the session had when it was exported, if it is valid here."""
    try:
        return msgspec.convert(msgspec.json.decode(line, type=SessionHeader).key, Key)
    except msgspec.MsgspecError as error:
        raise ProtocolError("INVALID_PARAMS", f"line 1: not an exported session ({error})") from None


def _renamed(line: str, key: str) -> str:
    header = msgspec.json.decode(line, type=SessionHeader)
    return msgspec.json.encode(msgspec.structs.replace(header, key=key)).decode()
