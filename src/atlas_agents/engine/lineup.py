"""Who takes a turn, and the tool with which it changes hands."""

from collections.abc import Sequence
from typing import Any

import msgspec

from atlas_agents.engine.settings import Settings
from atlas_agents.tools.tool import Tool

HAND_OFF = "hand_off"
MOST_HAND_OFFS = 8
"""So often a turn may change hands; then whoever has it must answer."""


class Lineup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who takes a turn: `agent_id` begins, or with `stays` whoever spoke last in the session; it may hand over to those
    in `hands_to`; those in `then` follow, each with the answer of the one before."""

    agent_id: str = ""
    hands_to: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    stays: bool = False


def hand_off_tool(colleagues: Sequence[Settings]) -> Tool:
    """What an agent hands over with; it names those who may take over, and what they are for."""
    lines = "\n".join(f"- {each.id}: {each.description or each.name}" for each in colleagues)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": [each.id for each in colleagues]},
            "note": {"type": "string", "maxLength": 2000, "description": "What the colleague should know."},
        },
        "required": ["agent"],
        "additionalProperties": False,
    }
    words = f"Hand the conversation over to a colleague, who answers in your place:\n{lines}"
    return Tool(HAND_OFF, _hand_off, description=words, parameters=schema, effect="pure")


async def _hand_off(agent: str, note: str = "") -> dict[str, str]:
    return {"handed_to": agent, "note": note} if note else {"handed_to": agent}
