"""Three harmless tools, so that a conversation has something to call."""

import random
from typing import Annotated

from pydantic import Field

from atlas_agents.app.tools import current_time
from atlas_agents.tools.tool import tool


@tool(effect="pure")
async def roll_dice(sides: Annotated[int, Field(ge=2, le=1_000_000)] = 6) -> int:
    """Roll one die.

    Args:
        sides: How many sides it has.
    """
    return random.randint(1, sides)


@tool(effect="pure")
async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


TOYS = (current_time.named("now"), roll_dice, add)
