"""How turns ended that gave no answer, and what they had said until then."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from atlas_agents.core.messages import Text, Thinking
from atlas_agents.core.store import RunRow, Store
from atlas_agents.gateway.protocol.chat import RunOutcome
from atlas_agents.gateway.protocol.shapes import TextPart, ThinkingPart


class _Ended(msgspec.Struct, frozen=True):
    """The last step of a turn's journal, as far as it is read here."""

    said: tuple[Text | Thinking, ...] = ()


async def outcomes_of(
    store: Store, turns: Sequence[RunRow], shown: Collection[str], hide: Callable[[str], str]
) -> tuple[RunOutcome, ...]:
    """Those of the turns that are `shown`, by their ids."""
    return tuple(
        [
            RunOutcome(row.id, row.status, hide(row.error) if row.error else None, await said_by(store, row))
            for row in turns
            if row.id in shown and (row.status == "failed" or row.status == "cancelled")
        ]
    )


async def said_by(store: Store, row: RunRow) -> tuple[TextPart | ThinkingPart, ...]:
    """The words of a message that was never completed."""
    steps = await store.journal(row.tenant, row.id)
    if not steps or steps[-1].kind != "ended":
        return ()
    said = msgspec.json.decode(steps[-1].payload, type=_Ended).said
    return tuple([TextPart(part.text) if isinstance(part, Text) else ThinkingPart(part.text) for part in said])
