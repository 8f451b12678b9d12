"""MCP server on the official SDK that asks the user for input during calls (elicitation).

    python eliciting_server.py new | old | PORT

The newer protocol asks in the response of a call, the older one in a separate request. A port means the older protocol
over HTTP.
"""

import os
import sys
from typing import Annotated, Any, Literal

import anyio
import mcp_types as types
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field

shop = MCPServer("shop")


class Order(BaseModel):
    size: Literal["small", "large"] = Field(description="How large it is")
    count: int = Field(2, ge=1, le=9, description="How many")
    email: str | None = Field(None, json_schema_extra={"format": "email"})
    gift: bool = False


async def which(ctx: Context[Any]) -> Elicit[Order]:
    return Elicit("Which \u202eone <b>shall</b> it be?", Order)


@shop.tool()
async def order(what: Annotated[Order, Resolve(which)]) -> str:
    """Order something; asks what exactly."""
    return f"ordered {what.count} {what.size}, gift: {what.gift}"


@shop.tool()
async def twice(ctx: Context[Any]) -> str:
    """Ask the same twice."""
    answers = [await ctx.elicit("Which?", Order) for _ in range(2)]
    return " ".join(each.action for each in answers)


@shop.tool()
async def pay(ctx: Context[Any]) -> str:
    """Ask the user to open a URL."""
    return (await ctx.elicit_url("Please pay.", "https://pay.example.org/bill?id=7", "e1")).action


@shop.tool()
async def haste(ctx: Context[Any]) -> str:
    """Ask, and do not wait for the answer."""
    with anyio.move_on_after(1):
        await ctx.elicit("Quick!", Order)
    return "too late"


@shop.tool()
async def end(ctx: Context[Any]) -> str:
    """Ask, and exit before the answer."""
    async with anyio.create_task_group() as group:
        group.start_soon(ctx.elicit, "Hello?", Order)
        await anyio.sleep(0.5)
        os._exit(3)
    return ""


@shop.tool()
async def nested(ctx: Context[Any]) -> str:
    """Ask with an unsupported schema."""
    schema: dict[str, Any] = {"type": "object", "properties": {"inner": {"type": "object", "properties": {}}}}
    try:
        await ctx.session.send_request(
            types.ElicitRequest(params=types.ElicitRequestFormParams(message="Deep?", requested_schema=schema)),
            types.ElicitResult,
        )
    except MCPError as error:
        raise ToolError(error.message) from error
    return "asked"


async def unknown(ctx: Any, params: Any) -> Any:
    raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found")


async def serve_old_protocol() -> None:
    """Serve the protocol before 2026: a handshake, and separate requests."""
    server = shop._lowlevel_server
    async with stdio_server() as (read_stream, write_stream), server.lifespan(server) as state:
        await serve_loop(
            server, read_stream, write_stream, lifespan_state=state, init_options=server.create_initialization_options()
        )


if __name__ == "__main__":
    if sys.argv[1] == "new":
        shop.run()
    shop._lowlevel_server.add_request_handler("server/discover", types.RequestParams, unknown)
    if sys.argv[1] == "old":
        anyio.run(serve_old_protocol)
    else:
        shop.run("streamable-http", port=int(sys.argv[1]))
