"""How a turn ended, as the last step of its journal keeps it."""

import msgspec

from atlas_agents.core.messages import Text, Thinking
from atlas_agents.core.store import RunRow, RunStatus, Store


class Ended(msgspec.Struct, frozen=True, omit_defaults=True):
    """`said` are the words of a message that was never completed, and `kind` says what sort of error it was."""

    status: RunStatus
    error: str | None
    said: tuple[Text | Thinking, ...] = ()
    kind: str = ""


async def ended_as(store: Store, row: RunRow) -> Ended | None:
    """None if it has not ended, or its journal is kept no longer."""
    steps = await store.journal(row.tenant, row.id)
    if not steps or steps[-1].kind != "ended":
        return None
    return msgspec.json.decode(steps[-1].payload, type=Ended)
