"""A stretch of a turn in which the model is offered other tools than its agent has."""

from collections.abc import Callable, Sequence

import msgspec

from atlas_agents.core.specs import ToolSpec
from atlas_agents.tools.tool import Tool


def _never() -> bool:
    return False


class Stage(msgspec.Struct, frozen=True):
    """`only` names the tools that are offered, None for all; `enough` ends its rounds once tools have answered."""

    only: tuple[str, ...] | None = None
    tool_choice: str | None = None
    last: bool = False
    """What is said here is the answer, and has the shape that the answer must have."""
    enough: Callable[[], bool] = _never

    def offered(self, tools: Sequence[Tool]) -> tuple[ToolSpec, ...]:
        return tuple([tool.spec for tool in tools if self.only is None or tool.name in self.only])


WHOLE_TURN = Stage(last=True)
