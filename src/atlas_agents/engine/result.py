"""What a turn comes to."""

from typing import Any, Literal, NamedTuple

import msgspec

from atlas_agents.core.events import PlanStep, Usage
from atlas_agents.core.messages import Message, Status


class Step(msgspec.Struct, frozen=True):
    """One tool call and what came of it; `timestamp` is in milliseconds since 1970."""

    tool: str
    input: dict[str, Any]
    output: Any
    status: Status
    timestamp: int
    type: Literal["tool_call"] = "tool_call"


class RunResult(msgspec.Struct, frozen=True):
    """The whole of a turn. At the round limit `success` is False and the rest is what there is."""

    success: bool
    answer: str
    error: str | None
    steps: tuple[Step, ...]
    usage: Usage
    message: Message
    intermediate: tuple[Message, ...]
    output: Any = None
    plan: tuple[PlanStep, ...] = ()


class CallResult(NamedTuple):
    """What `Agent.call` gives back: `messages, success, error = await agent.call(…)`."""

    messages: list[Message]
    success: bool
    error: str | None = None
