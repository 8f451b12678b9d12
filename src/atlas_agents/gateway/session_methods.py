"""`sessions.*`: make, list, read, change and remove sessions, and hear what happens in them."""

from collections.abc import Sequence

import msgspec

from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.ids import new_id
from atlas_agents.core.messages import Message
from atlas_agents.core.store import RunRow, Session, StoredMessage
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.outcomes import outcomes_of
from atlas_agents.gateway.protocol.faults import Fault, not_found
from atlas_agents.gateway.protocol.sessions import (
    Created,
    OneSession,
    RunPosition,
    SessionChanged,
    SessionFound,
    SessionPage,
    SessionsCreate,
    SessionsList,
    SessionsSubscribe,
    SessionsUpdate,
    Subscribed,
)
from atlas_agents.gateway.protocol.shapes import ApprovalShape, Done, MessageShape, SessionShape
from atlas_agents.gateway.runlog import RunLog
from atlas_agents.gateway.translate import message_shape, newest, session_shape, stored_shape

_SHOWN = 200
_PAGE = 200


class _Request(msgspec.Struct, frozen=True):
    """What a turn was accepted with, as far as it is read here."""

    messages: list[msgspec.Raw] = []


def add_session_methods(methods: Methods) -> None:
    methods.add("sessions.create")(create)
    methods.add("sessions.list")(list_sessions)
    methods.add("sessions.get")(get)
    methods.add("sessions.update")(update)
    methods.add("sessions.delete")(delete)
    methods.add("sessions.subscribe")(subscribe)
    methods.add("sessions.unsubscribe")(unsubscribe)


async def create(caller: Connection, params: SessionsCreate) -> Created:
    _known_agent(caller, params.agent_id)
    key = new_id()
    session = await caller.hub.atlas.sessions.put(
        caller.who.prefix + key, agent_id=params.agent_id, label=params.label, metadata=params.metadata
    )
    caller.hub.news.tell(session)
    return Created(key)


async def list_sessions(caller: Connection, params: SessionsList) -> SessionPage:
    """The latest changed first; others' sessions are passed over. From now on the caller hears what changes."""
    caller.lists = True
    before = _cursor(params.cursor)
    found: list[Session] = []
    while len(found) <= params.limit:
        page = await caller.hub.atlas.sessions.list(limit=_PAGE, before=before)
        found += [each for each in page if each.key.startswith(caller.who.prefix) and each.archived == params.archived]
        if len(page) < _PAGE:
            break
        before = page[-1].updated_at
    shown = found[: params.limit]
    more = str(shown[-1].updated_at) if len(found) > params.limit else None
    return SessionPage(tuple([shape(caller, each) for each in shown]), more)


async def get(caller: Connection, params: OneSession) -> SessionFound:
    session = await existing(caller, params.session_key)
    rows = await caller.hub.atlas.sessions.messages(session.key, limit=_SHOWN, last=True)
    return SessionFound(shape(caller, session), tuple(map(stored_shape, newest(rows, _SHOWN))))


async def update(caller: Connection, params: SessionsUpdate) -> SessionChanged:
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


async def delete(caller: Connection, params: OneSession) -> Done:
    session = await existing(caller, params.session_key)
    try:
        await caller.hub.atlas.sessions.delete(session.key)
    except Conflict:
        raise Fault("BUSY", "a turn of this session is under way: stop it first") from None
    caller.hub.assignments.forget(session.key)
    caller.hub.news.tell(session, deleted=True)
    return Done(True)


async def subscribe(caller: Connection, params: SessionsSubscribe) -> Subscribed:
    """Hear a session. What is read takes time; from the moment it is all there to the answer, nothing is awaited, so
    that the first event after the answer is the next one."""
    with caller.hub.runs.expecting(caller.who.prefix + params.session_key):
        return await _subscribe(caller, params)


async def _subscribe(caller: Connection, params: SessionsSubscribe) -> Subscribed:
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


async def unsubscribe(caller: Connection, params: OneSession) -> Done:
    caller.hear_no_more(caller.who.prefix + params.session_key)
    return Done(True)


async def existing(caller: Connection, session_key: str) -> Session:
    """A session of the caller's; what belongs to others is not there."""
    try:
        return await caller.hub.atlas.sessions.get(caller.who.prefix + session_key)
    except NotStored:
        raise not_found("SESSION") from None


def shape(caller: Connection, session: Session) -> SessionShape:
    key = session.key.removeprefix(caller.who.prefix)
    return session_shape(session, key, running=caller.hub.runs.running(session.key))


async def _messages(caller: Connection, key: str, after: str | None) -> Sequence[StoredMessage]:
    hub = caller.hub
    rows = await hub.store.messages(hub.atlas.tenant, key, limit=_SHOWN, last=True)
    known = next((place for place, row in enumerate(rows) if row.id == after), -1)
    return newest(rows[known + 1 :], _SHOWN)


def _is_told(row: StoredMessage, here: dict[str, RunLog]) -> bool:
    """A message of a run under way belongs to the answer only if its event is past; else the event brings it."""
    log = here.get(row.run_id)
    return log is None or row.id in log.messages


def _waiting(row: RunRow) -> list[MessageShape]:
    """What a turn that has not begun is to be told."""
    said = msgspec.json.decode(row.request, type=_Request).messages if row.request else []
    return [message_shape(Message.from_json(bytes(each)), row.id) for each in said]


def _snapshot(caller: Connection, log: RunLog) -> RunPosition:
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


def _known_agent(caller: Connection, agent_id: str | None) -> None:
    if agent_id and caller.hub.agent(agent_id) is None:
        raise Fault("AGENT_NOT_FOUND", f"there is no agent {agent_id!r}")


def _cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 20:
        raise Fault("INVALID_PARAMS", "this cursor is not from here")
    return int(cursor)
