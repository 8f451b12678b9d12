"""`health.check`, `tokens.rotate`: the server itself."""

import asyncio

from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol.records import Health, TokenMade
from atlas_agents.gateway.protocol.shapes import Nothing


def add_house_methods(methods: Methods) -> None:
    @methods.add("health.check")
    async def _(caller: Connection, _params: Nothing) -> Health:
        return Health("ok", caller.hub.uptime)

    @methods.add("tokens.rotate")
    async def _(caller: Connection, _params: Nothing) -> TokenMade:
        path = caller.hub.tokens.rotate()
        asyncio.get_running_loop().call_soon(caller.hub.close_strangers)  # once the answer is on its way
        return TokenMade(str(path))
