"""How turns ended that gave no answer, and what they had said until then."""

from collections.abc import Callable, Collection, Sequence

from atlas_agents.core.messages import Text
from atlas_agents.core.store import RunRow, Store
from atlas_agents.gateway.protocol.chat import RunOutcome
from atlas_agents.gateway.protocol.shapes import TextPart, ThinkingPart
from atlas_agents.tools.ending import ended_as


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
    ended = await ended_as(store, row)
    said = ended.said if ended is not None else ()
    return tuple([TextPart(part.text) if isinstance(part, Text) else ThinkingPart(part.text) for part in said])
