"""Decorated functions stay callable, methods are tools of their object, and a tool can have a definition as a dict."""

import asyncio
from typing import Any

from atlas_agents import tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Shop:
    def __init__(self) -> None:
        self.sold = 0

    @tool
    def sell(self, count: int) -> str:
        """Sell some books."""
        self.sold += count
        return f"{self.sold} sold so far"


definition: dict[str, Any] = {  # as an MCP server lists it
    "name": "weather",
    "description": "Tell the weather in a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@tool(definition)
async def weather(city: str) -> str:
    return f"sunny in {city}"


async def main() -> None:
    shop = Shop()
    print(add(1, 2), "|", shop.sell(3))
    model = Scripted(calls("add", a=3, b=4), calls("sell", count=2), calls("weather", city="Lima"), says("Done."))
    async with in_memory_atlas(model, [add, shop.sell, weather]) as atlas:
        atlas.on("tool:result", lambda event: print(event.name, "|", event.result))
        await atlas.ask("Go")
    print(shop.sold)


if __name__ == "__main__":
    asyncio.run(main())
