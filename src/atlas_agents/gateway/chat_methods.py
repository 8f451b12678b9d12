"""`chat.*`: say something, stop it, read what was said, wait for the end."""

import asyncio
from functools import partial

from atlas_agents.core.errors import ConfigError, NotStored
from atlas_agents.core.messages import Message, Text, user
from atlas_agents.core.store import RunRow, StoredMessage
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.outcomes import outcomes_of
from atlas_agents.gateway.protocol.chat import (
    Aborted,
    ChatAbort,
    ChatHistory,
    ChatSend,
    ChatWait,
    History,
    Sent,
    Waited,
)
from atlas_agents.gateway.protocol.faults import Fault, not_found
from atlas_agents.gateway.translate import core_part, message_shape, newest, stored_shape
from atlas_agents.gateway.turns import agent_for, take_in

_PAGE = 500


def add_chat_methods(methods: Methods) -> None:
    methods.add("chat.send")(send)
    methods.add("chat.abort")(abort)
    methods.add("chat.history")(history)
    methods.add("chat.wait")(wait)


async def send(caller: Connection, params: ChatSend) -> Sent:
    """Start a turn; acknowledged when it is on the disk. The words follow as events, to all who hear the session."""
    hub, session = caller.hub, caller.who.prefix + params.session_key
    agent = await agent_for(hub, session, params.agent_id)
    _check(hub, params)
    accepted, _ = await take_in(
        hub,
        agent,
        _message(params),
        session=session,
        user=caller.who.principal.id,
        model=params.model or "",
        mode=params.mode,
        when_busy=params.when_busy or "queue",
        idempotency_key=params.idempotency_key or "",
    )
    if caller.who.may("read"):
        caller.hear(session)
    if params.on_disconnect == "cancel":
        caller.on_close.add(partial(_stop, hub, accepted.run_id))
    return Sent(accepted.run_id, accepted.status if caller.full else None)


def _stop(hub: Hub, run_id: str) -> None:
    stream = hub.atlas.stream(run_id)
    if stream is not None:
        stream.cancel()


async def abort(caller: Connection, params: ChatAbort) -> Aborted:
    """Stop a run, or all that are under way or wait in a session."""
    atlas = caller.hub.atlas
    if params.run_id is not None:
        ids = [(await visible_run(caller, params.run_id)).id]
    elif params.session_key is not None:
        session = caller.who.prefix + params.session_key
        ids = [row.id for row in await caller.hub.store.runs(atlas.tenant, session, open_only=True)]
    else:
        raise Fault("INVALID_PARAMS", "chat.abort: name a run or a session")
    return Aborted(tuple([id for id in ids if await atlas.cancel(id)]))


async def history(caller: Connection, params: ChatHistory) -> History:
    """The last messages, or those before one of them."""
    sessions, key = caller.hub.atlas.sessions, caller.who.prefix + params.session_key
    try:
        before = params.before
        if isinstance(before, str):
            before = await _place(caller.hub, key, before)
        rows = await sessions.messages(key, before=before, limit=params.limit + 1, last=True)
    except NotStored:
        raise not_found("SESSION") from None
    shown = newest(rows, params.limit)
    hub, ids = caller.hub, {row.run_id for row in shown} - {""}
    turns = await hub.store.runs(hub.atlas.tenant, key) if ids else ()
    told = await outcomes_of(hub.store, turns, ids, hub.atlas.hide)
    return History(tuple(map(stored_shape, shown)), len(rows) > len(shown), told)


async def wait(caller: Connection, params: ChatWait) -> Waited:
    """How a run stands, once it has ended or the time is over."""
    row = await visible_run(caller, params.run_id)
    try:
        async with asyncio.timeout(params.timeout_ms / 1000):
            await caller.hub.runs.attend([row])
            await caller.hub.runs.ended(params.run_id)
    except TimeoutError:
        pass
    row = await visible_run(caller, params.run_id)
    if row.status != "done":
        return Waited(row.status, error=caller.hub.atlas.hide(row.error) if row.error else None)
    rows = await caller.hub.store.messages(caller.hub.atlas.tenant, row.session)
    mine = [each for each in rows if each.run_id == row.id]
    replies = [message for message in map(_read, mine) if message.role == "assistant"]
    return Waited(row.status, message_shape(replies[-1], row.id) if replies else None)


async def visible_run(caller: Connection, run_id: str) -> RunRow:
    """A run that the caller may know of; to others it is not there."""
    row = await caller.hub.store.run(caller.hub.atlas.tenant, run_id)
    if row is None or not row.session.startswith(caller.who.prefix):
        raise not_found("RUN")
    return row


def _check(hub: Hub, params: ChatSend) -> None:
    """A model must be one that can be had here."""
    if params.model is not None:
        try:
            hub.atlas.registry.route(params.model)
        except ConfigError as error:
            raise Fault("INVALID_PARAMS", f"chat.send: model: {hub.atlas.hide(str(error))}") from error


def _message(params: ChatSend) -> Message:
    said = params.message
    parts = [Text(said)] if isinstance(said, str) else [core_part(part) for part in said]
    message = user(*parts, *(core_part(part) for part in params.attachments or ()))
    if not message.parts:
        raise Fault("INVALID_PARAMS", "chat.send: the message is empty")
    return message


async def _place(hub: Hub, key: str, message_id: str) -> int:
    """Where a message stands in its session, looked for from the end."""
    before: int | None = None
    while rows := await hub.atlas.sessions.messages(key, before=before, limit=_PAGE, last=True):
        for row in rows:
            if row.id == message_id:
                return row.seq
        before = rows[0].seq
    raise Fault("INVALID_PARAMS", "chat.history: there is no such message")


def _read(row: StoredMessage) -> Message:
    return Message.from_json(row.body)
