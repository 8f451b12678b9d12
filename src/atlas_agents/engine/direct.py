"""A tool call without a model: a person or a program makes it, and it goes the way of every call."""

import hashlib
from typing import Any, cast

from atlas_agents.core.errors import BadArguments
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolCall, ToolResult, user
from atlas_agents.core.names import wire_name
from atlas_agents.engine.run import Run

_SESSIONS = "calls/"


async def direct(run: Run) -> Message:
    """The mode of a turn that is one call: the call is made, and its result is the reply."""
    call = cast(ToolCall, run.terms.call)
    run.add_own(Message("assistant", (call,)))
    await run.answer((call,))
    return run.added[-1]


def call_of(run_id: str, tool: str, arguments: dict[str, Any]) -> ToolCall:
    """The call as a model would have made it. `tool` is its own name, or the one under which models know it."""
    return ToolCall(f"call_{run_id}", wire_name(tool), arguments)


def request_of(tool: str, arguments: dict[str, Any]) -> Message:
    """What stands in the session as asked for."""
    try:
        written = encode(arguments).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArguments(f"The arguments of {tool} are no plain JSON: {error}") from error
    return user(f"{tool} {written}")


def session_of(user: str, run_id: str, idempotency_key: str) -> str:
    """A session of its own, so that no call waits for another; the same key finds the same one again."""
    key = hashlib.sha256(encode([user, idempotency_key])).hexdigest()[:32] if idempotency_key else run_id
    return f"{_SESSIONS}{key}"


def result_of(reply: Message) -> ToolResult:
    """What came of the call."""
    return next(part for part in reply.parts if isinstance(part, ToolResult))
