"""Methods `sessions.*`: create, list, subscribe, search, fork, export and import sessions."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from atlas_agents.agents.sessions import SessionHeader
from atlas_agents.core.aio import finish_despite_cancel
from atlas_agents.core.errors import BrokenHistory, Conflict, NotFound, UnreadableRow
from atlas_agents.core.messages import new_id
from atlas_agents.core.store import RunRow, Session, SessionMatch, SetSessionMetadata, StoredMessage
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.convert import (
    CHOICES,
    build_cursor,
    fit_in_frame,
    message_shape,
    parse_cursor,
    session_shape,
    stored_message_shape,
)
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.events import RunLog
from atlas_agents.gateway.protocol import sessions as wire
from atlas_agents.gateway.protocol.chat import Key
from atlas_agents.gateway.protocol.frames import ProtocolError, not_found
from atlas_agents.gateway.protocol.types import Ack, ApprovalShape, MessageShape, SessionShape
from atlas_agents.gateway.quotas import Upload
from atlas_agents.gateway.runs import read_outcomes
from atlas_agents.tools.journal import read_first_messages

_MAX_MESSAGES = 200
_MAX_BRANCHES = 10_000
_SEARCH_TIMEOUT = 2.0
_EXCERPT_MARGIN = 60
_PAGE_BYTES = 512 * 1024


def add_methods(methods: Methods) -> None:
    methods.add("sessions.create", create_session)
    methods.add("sessions.list", list_sessions)
    methods.add("sessions.get", get_session)
    methods.add("sessions.update", update_session)
    methods.add("sessions.delete", delete_session)
    methods.add("sessions.subscribe", subscribe)
    methods.add("sessions.unsubscribe", unsubscribe)
    methods.add("sessions.search", search_sessions)
    methods.add("sessions.fork", fork_session)
    methods.add("sessions.branches", list_branches)
    methods.add("sessions.export", export_session)
    methods.add("sessions.import", import_session)


async def create_session(caller: ClientConnection, params: wire.SessionsCreate) -> wire.Created:
    _check_agent(caller, params.agent_id)
    key = params.session_key or new_id()
    if params.session_key and await caller.hub.store.session(caller.hub.atlas.tenant, caller.grant.prefix + key):
        raise ProtocolError("CONFLICT", f"session {key!r} already exists: choose another key")
    metadata = _without_choices(params.metadata)
    await caller.hub.quotas.check(caller.grant.prefix + key, sessions=1, size=_size(metadata))
    session = await caller.hub.atlas.sessions.put(
        caller.grant.prefix + key, agent_id=params.agent_id, label=params.label, metadata=metadata
    )
    caller.hub.session_updates.send(session)
    return wire.Created(key)


async def list_sessions(caller: ClientConnection, params: wire.SessionsList) -> wire.SessionPage:
    """List the caller's sessions, latest change first, and subscribe the caller to changes."""
    caller.hub.session_updates.subscribe_to_list(caller)
    before, before_key = parse_cursor(params.cursor)
    found = await caller.hub.store.sessions(
        caller.hub.atlas.tenant,
        limit=params.limit + 1,
        before=before,
        before_key=before_key,
        prefix=caller.grant.prefix,
        archived=params.archived,
    )
    shown = found[: params.limit]
    more = build_cursor(shown[-1].updated_at, shown[-1].key) if len(found) > params.limit else None
    return wire.SessionPage(tuple([_session_shape(caller, each) for each in shown]), more)


async def get_session(caller: ClientConnection, params: wire.OneSession) -> wire.SessionResult:
    session = await _require_session(caller, params.session_key)
    rows = await caller.hub.atlas.sessions.messages(session.key, limit=_MAX_MESSAGES, last=True)
    return wire.SessionResult(
        _session_shape(caller, session), tuple(map(stored_message_shape, fit_in_frame(rows, _MAX_MESSAGES)))
    )


async def update_session(caller: ClientConnection, params: wire.SessionsUpdate) -> wire.SessionChanged:
    """Update a session. The model and the effort apply to its next turns, whichever client sends them."""
    _check_agent(caller, params.agent_id)
    if params.model:
        caller.hub.check_model(caller.grant, params.model, "sessions.update: model")
    session = await _require_session(caller, params.session_key)
    await caller.hub.quotas.check(session.key, size=_size(params.metadata))
    choices = await _put_choices(caller, session, params)
    metadata = params.metadata if params.metadata is None else {**_without_choices(params.metadata), **choices}
    changed = await caller.hub.atlas.sessions.put(
        session.key,
        agent_id=params.agent_id,
        label=params.label,
        archived=params.archived,
        metadata=metadata,
    )
    caller.hub.assignments.put(changed)
    caller.hub.session_updates.send(changed)
    return wire.SessionChanged(_session_shape(caller, changed))


async def _put_choices(
    caller: ClientConnection, session: Session, params: wire.SessionsUpdate
) -> dict[str, dict[str, Any]]:
    """Store a person's choices in the metadata of a session, and return them."""
    given = {"model": params.model, "effort": params.effort, "pinned": params.pinned, "folder": params.folder}
    if all(value is None for value in given.values()):
        return {CHOICES: session.metadata[CHOICES]} if CHOICES in session.metadata else {}
    shape = session_shape(session, session.key, running=False)
    choices = {CHOICES: {name: getattr(shape, name) if value is None else value for name, value in given.items()}}
    await caller.hub.store.commit(caller.hub.atlas.tenant, [SetSessionMetadata(session.key, choices)])
    return choices


async def delete_session(caller: ClientConnection, params: wire.OneSession) -> Ack:
    session = await _require_session(caller, params.session_key)
    try:
        async with _large_request(caller):
            await finish_despite_cancel(caller.hub.atlas.sessions.delete(session.key))
    except Conflict:
        raise ProtocolError("BUSY", "a turn is running in this session: cancel it first") from None
    caller.hub.quotas.forget(session.key)
    caller.hub.assignments.forget(session.key)
    caller.hub.session_updates.send(session, deleted=True)
    return Ack(True)


async def subscribe(caller: ClientConnection, params: wire.SessionsSubscribe) -> wire.Subscribed:
    """Subscribe to a session and return its state.

    Everything is read before the subscription starts; from there to the response nothing is awaited, so the first
    event after the response is the next one.
    """
    with caller.hub.runs.expect_subscriber(caller.grant.prefix + params.session_key):
        return await _subscribe(caller, params)


async def _subscribe(caller: ClientConnection, params: wire.SessionsSubscribe) -> wire.Subscribed:
    hub, key = caller.hub, caller.grant.prefix + params.session_key
    session = await hub.store.session(hub.atlas.tenant, key)
    requested = params.runs or {}
    rows = [row for id in requested if (row := await hub.store.run(hub.atlas.tenant, id)) and row.session == key]
    messages = await _read_messages(caller, key, params.after_message_id)
    numbers: dict[str, int] = {}
    while ended := [row for row in rows if row.id not in numbers and hub.runs.get(row.id) is None]:
        numbers |= {row.id: await hub.runs.last_seq(row) for row in ended}
    turns = await hub.store.runs(hub.atlas.tenant, key, open_only=True)
    waiting = tuple([message for row in turns if row.status == "queued" for message in _queued_messages(row)])
    outcomes = await read_outcomes(hub.store, hub.atlas.tenant, messages, hub.atlas.hide)
    await hub.runs.follow_remote(turns)
    channel = caller.subscribe(key)
    session_runs = hub.runs.session_runs(key)
    logs = {log.run_id: log for log in session_runs}
    snapshots = [log for log in session_runs if log.run_id not in requested and not log.ended]
    for log in snapshots:
        channel.set_position(caller, log.run_id, log.delivered)
    positions = [_snapshot(caller, log) for log in snapshots]
    for row in rows:
        log = logs.get(row.id)
        positions.append(wire.RunPosition(row.id, "replay", log.delivered if log else numbers.get(row.id, 0)))
        hub.runs.replay(channel, caller, row.id, requested[row.id])
    shown = tuple([stored_message_shape(row) for row in messages if _is_announced(row, logs)])
    return wire.Subscribed(_session_shape(caller, session or Session(key)), shown, tuple(positions), outcomes, waiting)


async def unsubscribe(caller: ClientConnection, params: wire.OneSession) -> Ack:
    caller.unsubscribe(caller.grant.prefix + params.session_key)
    return Ack(True)


async def _require_session(caller: ClientConnection, session_key: str) -> Session:
    """Return a session that the caller may access; raise 'not found' otherwise."""
    try:
        return await caller.hub.atlas.sessions.get(caller.grant.prefix + session_key)
    except NotFound:
        raise not_found("SESSION") from None


def _session_shape(caller: ClientConnection, session: Session) -> SessionShape:
    key = session.key.removeprefix(caller.grant.prefix)
    return session_shape(session, key, running=caller.hub.runs.is_running(session.key))


async def _read_messages(caller: ClientConnection, key: str, after: str | None) -> Sequence[StoredMessage]:
    hub = caller.hub
    rows = await hub.store.messages(hub.atlas.tenant, key, limit=_MAX_MESSAGES, last=True)
    known = next((index for index, row in enumerate(rows) if row.id == after), -1)
    return fit_in_frame(rows[known + 1 :], _MAX_MESSAGES)


def _is_announced(row: StoredMessage, logs: dict[str, RunLog]) -> bool:
    """Return whether a message belongs in the snapshot. A message of an open run does, once its event was sent."""
    log = logs.get(row.run_id)
    return log is None or row.id in log.messages


def _queued_messages(row: RunRow) -> list[MessageShape]:
    """Return the input messages of a queued turn."""
    try:
        return [message_shape(message, row.id) for message in read_first_messages(row)]
    except UnreadableRow:
        return []


def _snapshot(caller: ClientConnection, log: RunLog) -> wire.RunPosition:
    key = log.session.removeprefix(caller.grant.prefix)
    pending = tuple([ApprovalShape(session_key=key, **msgspec.structs.asdict(each)) for each in log.partial.approvals])
    return wire.RunPosition(
        log.run_id,
        "snapshot",
        log.delivered,
        log.partial.parts,
        pending[0] if pending else None,
        log.partial.progress,
        log.partial.plan,
        pending,
        log.partial.client_calls,
    )


def _check_agent(caller: ClientConnection, agent_id: str | None) -> None:
    if agent_id and caller.hub.agent(agent_id) is None:
        raise caller.hub.unknown_agent(agent_id)


def _without_choices(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Return a client's metadata without the choices, which only the fields of `sessions.update` set."""
    return {key: value for key, value in (metadata or {}).items() if key != CHOICES}


def _size(metadata: dict[str, Any] | None) -> int:
    return len(msgspec.json.encode(metadata)) if metadata else 0


async def search_sessions(caller: ClientConnection, params: wire.SessionsSearch) -> wire.Hits:
    """Search session names and messages, latest match first. The search waits for the index at most two seconds."""
    hub, prefix = caller.hub, caller.grant.prefix
    async with _large_request(caller):
        found = await hub.store.search_sessions(
            hub.atlas.tenant, params.query, limit=params.limit, prefix=prefix, wait=_SEARCH_TIMEOUT
        )
        hits = [await _search_hit(caller, match, params.query) for match in found.matches]
    return wire.Hits(tuple([hit for hit in hits if hit is not None]), found.complete)


async def _search_hit(caller: ClientConnection, match: SessionMatch, query: str) -> wire.SessionHit | None:
    """Return a match with the text around it; None if its session was deleted meanwhile."""
    hub = caller.hub
    session = await hub.store.session(hub.atlas.tenant, match.session)
    if session is None:
        return None
    shape = _session_shape(caller, session)
    if match.seq == 0 or query.casefold() in session.label.casefold():
        return wire.SessionHit(shape)
    rows = await hub.store.messages(hub.atlas.tenant, match.session, after=match.seq - 1, limit=1)
    if not rows or rows[0].seq != match.seq:
        return wire.SessionHit(shape)
    text = rows[0].message.text
    index, length = _find_words(text, query)
    return wire.SessionHit(shape, _build_excerpt(text, index, length), rows[0].id)


def _find_words(text: str, query: str) -> tuple[int, int]:
    """Return the position and length of the query in a text, or else of the first of its words that occurs."""
    folded = text.casefold()
    for wanted in (query.casefold(), *query.casefold().split()):
        if (index := folded.find(wanted)) >= 0:
            return index, len(wanted)
    return 0, 0


def _build_excerpt(text: str, index: int, length: int) -> str:
    first, last = max(0, index - _EXCERPT_MARGIN), index + length + _EXCERPT_MARGIN
    excerpt = " ".join(text[first:last].split())
    return f"{'…' if first else ''}{excerpt}{'…' if last < len(text) else ''}"


async def fork_session(caller: ClientConnection, params: wire.SessionsFork) -> wire.Created:
    hub, prefix = caller.hub, caller.grant.prefix
    _check_agent(caller, params.agent_id)
    key, source = new_id(), (await _require_session(caller, params.session_key)).key
    try:
        async with _large_request(caller):
            last = await hub.atlas.sessions.messages(source, limit=1, last=True)
            await hub.quotas.check(prefix + key, sessions=1, messages=last[-1].seq if last else 0)
            forked = await hub.atlas.sessions.fork(source, params.message_id, to=prefix + key)
            hub.quotas.forget(source)
    except NotFound:
        if params.message_id is None:
            raise not_found("SESSION") from None
        message = f"message not found: {params.message_id[:80]!r}; expected the id of a message of this session"
        raise ProtocolError("INVALID_PARAMS", message) from None
    metadata = None if params.metadata is None else {**forked.metadata, **_without_choices(params.metadata)}
    await hub.quotas.check(prefix + key, size=_size(metadata))
    created = await hub.atlas.sessions.put(
        prefix + key, label=params.label, agent_id=params.agent_id, metadata=metadata
    )
    hub.session_updates.send(created)
    return wire.Created(key)


async def list_branches(caller: ClientConnection, params: wire.OneSession) -> wire.Branches:
    """List the sessions that continue from the same one with other versions of a message."""
    store, tenant, prefix = caller.hub.store, caller.hub.atlas.tenant, caller.grant.prefix
    root = _branch_root(await _require_session(caller, params.session_key), prefix)
    sessions = await store.sessions(tenant, limit=_MAX_BRANCHES, prefix=prefix, branches=True)
    if (first := await store.session(tenant, prefix + root)) is not None and first not in sessions:
        sessions.append(first)
    found = sorted([each for each in sessions if _branch_root(each, prefix) == root], key=lambda each: each.created_at)
    return wire.Branches(tuple([_session_shape(caller, each) for each in found]))


def _branch_root(session: Session, prefix: str) -> str:
    """Return the key, as the caller knows it, of the session from which the branches of this one were made."""
    match session.metadata.get("branch"):
        case {"root": str(root)}:
            return root
        case _:
            return session.key.removeprefix(prefix)


async def export_session(caller: ClientConnection, params: wire.SessionsExport) -> wire.Exported:
    """Export as many lines as fit into a frame. The first line describes the session, under the caller's key."""
    key, lines, size, number = caller.grant.prefix + params.session_key, list[str](), 0, params.after
    try:
        async for line in caller.hub.atlas.sessions.export(key, after=number):
            if lines and size + len(line) > _PAGE_BYTES:
                return wire.Exported(tuple(lines), number)
            number += 1
            lines.append(_with_key(line, params.session_key) if number == 1 else line)
            size += len(line)
    except NotFound:
        raise not_found("SESSION") from None
    return wire.Exported(tuple(lines))


async def import_session(caller: ClientConnection, params: wire.SessionsImport) -> wire.Imported:
    """Receive one part of an import; the last part creates the session."""
    upload = caller.upload = caller.upload or Upload(caller.hub.quotas.uploads, caller.grant.principal.id)
    is_complete = True
    try:
        async with upload.lock:
            if params.piece != upload.parts:
                raise ProtocolError(
                    "INVALID_PARAMS", "sessions.import: a part is missing; start again with the first one"
                )
            await upload.add(params.text)
        is_complete = not params.more
        if not is_complete:
            return wire.Imported()
        caller.upload = None
        async with _large_request(caller):
            return wire.Imported(await _create_imported(caller, upload, params.session_key))
    finally:
        if is_complete:
            caller.upload = None if caller.upload is upload else caller.upload
            upload.close()


async def _create_imported(caller: ClientConnection, upload: Upload, key: str | None) -> str:
    hub, prefix = caller.hub, caller.grant.prefix
    key = key or _exported_key(next(upload.lines(), ""))
    await hub.quotas.check(prefix + key, sessions=1, messages=upload.line_count, size=upload.size)
    try:
        created = await hub.atlas.sessions.load(upload.lines(), key=prefix + key, system=caller.grant.allows("admin"))
    except Conflict:
        raise ProtocolError("CONFLICT", f"session {key!r} already exists: choose another key") from None
    except BrokenHistory as error:
        raise ProtocolError("INVALID_PARAMS", str(error)) from None
    hub.assignments.forget(created.key)
    hub.session_updates.send(await _drop_unusable_model(caller, created))
    return key


async def _drop_unusable_model(caller: ClientConnection, session: Session) -> Session:
    """Remove the model of an imported session if the caller may not choose it or this gateway does not have it."""
    hub, shape = caller.hub, session_shape(session, session.key, running=False)
    try:
        if shape.model:
            hub.check_model(caller.grant, shape.model, "sessions.import: model")
        return session
    except ProtocolError:
        choices = {**session.metadata[CHOICES], "model": ""}
        (changed,) = await hub.store.commit(hub.atlas.tenant, [SetSessionMetadata(session.key, {CHOICES: choices})])
        return changed


@asynccontextmanager
async def _large_request(caller: ClientConnection) -> AsyncGenerator[None, None]:
    """Wait for the caller's slot for requests that read or write whole sessions."""
    async with caller.hub.work.slot(caller.grant.principal.id, limited=bool(caller.grant.prefix)):
        yield


def _exported_key(line: str) -> str:
    """Return the key the session had when it was exported, if it is valid here."""
    try:
        return msgspec.convert(msgspec.json.decode(line, type=SessionHeader).key, Key)
    except msgspec.MsgspecError as error:
        raise ProtocolError("INVALID_PARAMS", f"line 1: not an exported session ({error})") from None


def _with_key(line: str, key: str) -> str:
    header = msgspec.json.decode(line, type=SessionHeader)
    return msgspec.json.encode(msgspec.structs.replace(header, key=key)).decode()
