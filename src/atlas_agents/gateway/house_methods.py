"""`health.check`, `system.info`, `config.get`, `tokens.rotate`: the server itself."""

import asyncio

from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol.records import ConfigFound, Health, SystemInfo, TokenMade
from atlas_agents.gateway.protocol.shapes import Nothing
from atlas_agents.gateway.record_methods import limits_of


def add_house_methods(methods: Methods) -> None:
    methods.add("health.check")(health)
    methods.add("system.info")(system)
    methods.add("config.get")(config)
    methods.add("tokens.rotate")(rotate)


async def health(caller: Connection, _: Nothing) -> Health:
    return Health("ok", caller.hub.uptime)


async def system(caller: Connection, _: Nothing) -> SystemInfo:
    hub = caller.hub
    who = caller.who.principal
    return SystemInfo(hub.server, who, hub.features, hub.policy, await limits_of(hub), hub.uptime)


async def config(caller: Connection, _: Nothing) -> ConfigFound:
    """The settings in force, without secrets, and who may speak here."""
    hub = caller.hub
    return ConfigFound({**hub.settings.shown(), **hub.more_settings, "principals": list(hub.tokens.principals)})


async def rotate(caller: Connection, _: Nothing) -> TokenMade:
    path = caller.hub.tokens.rotate()
    asyncio.get_running_loop().call_soon(caller.hub.close_strangers)  # once the answer is on its way
    return TokenMade(str(path))
