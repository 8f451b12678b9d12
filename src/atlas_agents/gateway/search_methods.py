"""`sessions.search` and `sessions.fork`: find what was said, and go on from there."""

import time

from atlas_agents.core.errors import NotStored
from atlas_agents.core.ids import new_id
from atlas_agents.core.messages import Message
from atlas_agents.core.store import Session
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol.faults import Fault, not_found
from atlas_agents.gateway.protocol.sessions import Created, Hit, Hits, SessionsFork, SessionsSearch
from atlas_agents.gateway.session_methods import shape

_PAGE = 100
_SECONDS = 2.0
_AROUND = 60


def add_search_methods(methods: Methods) -> None:
    methods.add("sessions.search")(search)
    methods.add("sessions.fork")(fork)


async def search(caller: Connection, params: SessionsSearch) -> Hits:
    """Names first, then messages; for two seconds at most, the latest changed first."""
    words = params.query.casefold()
    hits: list[Hit] = []
    end, before = time.monotonic() + _SECONDS, None
    while page := await caller.hub.atlas.sessions.list(limit=_PAGE, before=before):
        before = page[-1].updated_at
        for session in page:
            if not session.key.startswith(caller.who.prefix):
                continue
            if hit := await _look(caller, session, words):
                hits.append(hit)
            if len(hits) == params.limit or time.monotonic() > end:
                return Hits(tuple(hits), complete=False)
    return Hits(tuple(hits))


async def _look(caller: Connection, session: Session, words: str) -> Hit | None:
    if words in session.label.casefold():
        return Hit(shape(caller, session))
    rows = await caller.hub.store.messages(caller.hub.atlas.tenant, session.key)
    for row in reversed(rows):
        message = Message.from_json(row.body)
        if message.role in ("user", "assistant") and (place := message.text.casefold().find(words)) >= 0:
            return Hit(shape(caller, session), _around(message.text, place, len(words)), row.id)
    return None


def _around(text: str, place: int, length: int) -> str:
    first, last = max(0, place - _AROUND), place + length + _AROUND
    words = " ".join(text[first:last].split())
    return f"{'…' if first else ''}{words}{'…' if last < len(text) else ''}"


async def fork(caller: Connection, params: SessionsFork) -> Created:
    hub, prefix = caller.hub, caller.who.prefix
    if params.agent_id and hub.agent(params.agent_id) is None:
        raise Fault("AGENT_NOT_FOUND", f"there is no agent {params.agent_id!r}")
    key = new_id()
    try:
        await hub.atlas.sessions.fork(prefix + params.session_key, params.message_id, to=prefix + key)
    except NotStored:
        raise not_found("SESSION") from None
    made = await hub.atlas.sessions.put(prefix + key, label=params.label, agent_id=params.agent_id)
    hub.news.tell(made)
    return Created(key)
