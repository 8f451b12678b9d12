"""A shop on the protocol's own library that asks its customer back in the middle of a call.

    python asking_server.py new | old | PORT

The newer protocol asks with the answer of a call, the older one with a request of its own; with a port it is the older
one over HTTP.
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
    """Order something; what exactly is asked."""
    return f"ordered {what.count} {what.size}, gift: {what.gift}"


@shop.tool()
async def twice(ctx: Context[Any]) -> str:
    """Ask the same twice."""
    said = [await ctx.elicit("Which?", Order) for _ in range(2)]
    return " ".join(each.action for each in said)


@shop.tool()
async def pay(ctx: Context[Any]) -> str:
    """Have the customer go somewhere."""
    return (await ctx.elicit_url("Please pay.", "https://pay.example.org/bill?id=7", "e1")).action


@shop.tool()
async def haste(ctx: Context[Any]) -> str:
    """Ask, and not wait for the answer."""
    with anyio.move_on_after(1):
        await ctx.elicit("Quick!", Order)
    return "too late"


@shop.tool()
async def end(ctx: Context[Any]) -> str:
    """Ask, and end before the answer."""
    async with anyio.create_task_group() as group:
        group.start_soon(ctx.elicit, "Hello?", Order)
        await anyio.sleep(0.5)
        os._exit(3)
    return ""


@shop.tool()
async def nested(ctx: Context[Any]) -> str:
    """Ask for what cannot be asked for."""
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


async def old() -> None:
    """As servers were before 2026: a handshake, and requests of its own afterwards."""
    server = shop._lowlevel_server  # type: ignore
    async with stdio_server() as (heard, said), server.lifespan(server) as state:
        await serve_loop(server, heard, said, lifespan_state=state, init_options=server.create_initialization_options())


if __name__ == "__main__":
    if sys.argv[1] == "new":
        shop.run()
    shop._lowlevel_server.add_request_handler("server/discover", types.RequestParams, unknown)  # type: ignore
    if sys.argv[1] == "old":
        anyio.run(old)
    else:
        shop.run("streamable-http", port=int(sys.argv[1]))
