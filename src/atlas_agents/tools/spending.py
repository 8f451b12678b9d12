"""A model that a tool has speak: its tokens count like all others, to the turn, the session and the tenant's plan."""

from typing import Any

from atlas_agents.core.events import Usage
from atlas_agents.core.whole import whole
from atlas_agents.tools.desk import Desk


class Spending:
    """What was spent for one call."""

    def __init__(self, desk: Desk) -> None:
        self.spent: list[dict[str, Any]] = []
        """Model by model, for the audit log."""
        self._desk = desk

    async def add(self, model: str, usage: Usage) -> None:
        """Count it, whatever becomes of the call."""
        desk = self._desk
        usage = desk.count(model, usage)
        cost = {"cost": round(usage.cost, 8)} if usage.cost is not None else {}
        self.spent.append({"model": model, "input": usage.input_tokens, "output": usage.output_tokens, **cost})
        if desk.journal is not None:
            await whole(desk.journal.spend(desk.actor.agent_id, model, usage))
