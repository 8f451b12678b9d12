"""A run that has ended and never said so, because everything stopped in between: its row says how it ended."""

from collections.abc import Callable

from atlas_agents.core.errors import Fenced
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import Message
from atlas_agents.core.store import OPEN, AddEvents, ReserveEvents, RunRow, Store
from atlas_agents.gateway.outcomes import said_by
from atlas_agents.gateway.protocol.events import (
    LAST_WORDS,
    ChatDelta,
    ChatError,
    ChatFinal,
    ChatReasoning,
    ChatReset,
    RunEvent,
    body_of,
    name_of,
)
from atlas_agents.gateway.protocol.shapes import TextPart
from atlas_agents.gateway.translate import message_shape, usage_shape

_ROOM = 8


async def heal(store: Store, tenant: str, row: RunRow, hide: Callable[[str], str] = str) -> int:
    """The number of the run's last event, which is its last word if it has ended."""
    rows = await store.events(tenant, row.id, after=max(0, row.events - 2 * 512))
    if rows and name_of(rows[-1].body) in LAST_WORDS:
        return rows[-1].seq
    if row.status in OPEN:
        return rows[-1].seq if rows else 0
    try:
        (last,) = await store.commit(tenant, [ReserveEvents(row.id, _ROOM, row.epoch, takes=True)])
        first = last - _ROOM + 1
        words = await _last_words(store, tenant, row, hide)
        said = [(first + place, body_of(event)) for place, event in enumerate(words)]
        await store.commit(tenant, [AddEvents(row.id, tuple(said), row.epoch + 1)])
    except Fenced:  # another process does the same, or the owner was not gone
        found = await store.run(tenant, row.id)
        return await heal(store, tenant, found, hide) if found is not None else 0
    return said[-1][0]


async def _last_words(store: Store, tenant: str, row: RunRow, hide: Callable[[str], str]) -> list[RunEvent]:
    """What it said last is withdrawn and said anew, whole; then how it ended."""
    begun: list[RunEvent] = [ChatReset(row.id, row.epoch)] if row.events else []
    if row.status == "failed":
        error = ChatError(row.id, hide(row.error or "the turn failed"), "failed")
        return [*begun, *await _broken_off(store, row), error]
    kept = await store.messages(tenant, row.session)
    replies = [Message.from_json(each.body) for each in kept if each.run_id == row.id]
    replies = [message for message in replies if message.role == "assistant"]
    usage = usage_shape(sum([_usage(message) for message in replies], Usage()))
    if row.status == "cancelled":
        return [*begun, *await _broken_off(store, row), ChatFinal(row.id, usage, cancelled=True)]
    if not replies:
        return [*begun, ChatFinal(row.id, usage)]
    reply = replies[-1]
    words: list[RunEvent] = [ChatDelta(row.id, reply.text)] if reply.text else []
    return [*begun, *words, ChatFinal(row.id, usage, message_shape(reply, row.id))]


async def _broken_off(store: Store, row: RunRow) -> list[RunEvent]:
    """The words that were said last and never became a message."""
    said = await said_by(store, row)
    return [
        ChatDelta(row.id, part.text) if isinstance(part, TextPart) else ChatReasoning(row.id, part.text)
        for part in said
    ]


def _usage(message: Message) -> Usage:
    counted: dict[str, int] = message.metadata.get("usage") or {}
    return Usage(counted.get("input", 0), counted.get("output", 0), counted.get("cached", 0))
