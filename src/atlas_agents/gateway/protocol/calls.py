"""A tool call without a model, and the MCP servers whose tools there are."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from atlas_agents.gateway.protocol.shapes import Wire


class ToolsInvoke(Wire, frozen=True):
    """Which tool of which agent, with what; the same key again gives the result of the first time."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: dict[str, Any] = {}
    agent_id: str | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ForeignServer(Wire, frozen=True):
    """An MCP server: whether it may be used, the tools that were approved, and why it cannot be reached."""

    name: str
    state: str
    tools: tuple[str, ...] = ()
    trouble: str = ""


class ForeignServers(Wire, frozen=True):
    """All that the workspace names; with `trouble`, why none of them is used."""

    servers: tuple[ForeignServer, ...] = ()
    trouble: str = ""


class Called(Wire, frozen=True):
    """What came of it; `unknown` if it may have happened."""

    run_id: str
    status: Literal["ok", "error", "unknown"]
    result: Any
    error: str | None = None
