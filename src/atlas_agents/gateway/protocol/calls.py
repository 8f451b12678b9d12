"""Params and result of a tool call without a model."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from atlas_agents.gateway.protocol.shapes import Wire


class ToolsInvoke(Wire, frozen=True):
    """Which tool of which agent, with what; the same key again gives the result of the first time."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: dict[str, Any] = {}
    agent_id: str | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class Called(Wire, frozen=True):
    """What came of it; `unknown` if it may have happened."""

    run_id: str
    status: Literal["ok", "error", "unknown"]
    result: Any
    error: str | None = None
