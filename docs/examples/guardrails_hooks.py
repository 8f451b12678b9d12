"""Hooks around tool calls: one adds the tenant, one refuses, one shortens the result."""

import asyncio

from msgspec.structs import replace

from atlas_agents import Interceptor, Refused, ToolCall, ToolResult, TurnContext, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool(effect="pure")
async def find_orders(customer: str, tenant: str = "") -> str:
    """Find the orders of a customer."""
    return f"Orders of {customer} at {tenant}: 17, 18, 19"


def add_tenant(call: ToolCall, context: TurnContext[dict[str, str]]) -> ToolCall:
    """Set an argument that the model must not choose."""
    return replace(call, arguments={**call.arguments, "tenant": context.deps["tenant"]})


def protect(call: ToolCall) -> None:
    """Refuse a call; the model reads why."""
    if call.arguments["customer"] == "Eve":
        raise Refused("Eve's orders are confidential")


def shorten(call: ToolCall, result: ToolResult) -> ToolResult:
    """Change what the model reads."""
    return replace(result, result=str(result.result)[:30])


async def main() -> None:
    model = Scripted(calls("find_orders", customer="Ana") + calls("find_orders", customer="Eve"), says("Done."))
    hooks = [Interceptor(tool_call=add_tenant), Interceptor(tool_call=protect, tool_result=shorten, name="orders")]
    async with in_memory_atlas(model, [find_orders], interceptors=hooks) as atlas:
        await atlas.ask("Orders of Ana and Eve?", deps={"tenant": "north"})
        for result in model.requests[1].messages[-1].tool_results:
            print(result.result)
        rows = [row.entry.meta for row in await atlas.audit.records("default")]
        for meta in sorted(rows, key=lambda meta: meta["arguments"]["customer"]):
            print([f"{each['hook']} {each['did']}" for each in meta["hooks"]])


asyncio.run(main())
