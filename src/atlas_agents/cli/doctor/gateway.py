"""The gateway: one that runs and is well, or a port that is free for it."""

import socket
from collections.abc import AsyncIterator
from importlib.metadata import version

from atlas_agents.app.home_lock import RunningGateway, find_running
from atlas_agents.cli.doctor.finding import Finding, broken, notice, ok
from atlas_agents.cli.options import token_of
from atlas_agents.client.client import GatewayClient
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError, GatewayError
from atlas_agents.gateway.settings import LOOPBACK


async def look_at_gateway(settings: Settings) -> AsyncIterator[Finding]:
    here = find_running(settings.home)
    if here is not None and here.url:
        yield await _healthy(settings, here)
    elif here is not None:
        yield notice("gateway", f"process {here.pid} holds {settings.home} and has no address yet", "look again soon")
    else:
        yield _port(settings)
    if settings.host not in LOOPBACK:
        words = f"it listens on {settings.host}: others can reach it, and its words are not encrypted"
        yield notice("gateway", words, "put a proxy with TLS before it, and name it in allowed_hosts")


async def _healthy(settings: Settings, here: RunningGateway) -> Finding:
    try:
        async with GatewayClient(here.url, token_of(settings), patience=2.0, name="atlas doctor") as client:
            info = await client.call("system.info")
    except (GatewayError, ConfigError) as error:
        remedy = f"look at the log of process {here.pid}; end it and start it again"
        return broken("gateway", f"process {here.pid} says it is at {here.url}: {error}", remedy)
    there, ours = info["server"]["version"], version("atlas-agents")
    words = f"it runs at {here.url}, process {here.pid}, for {info['uptime']:.0f} s"
    if there != ours:
        return notice("gateway", f"{words}, version {there}; this is {ours}", "start it again")
    return ok("gateway", words)


def _port(settings: Settings) -> Finding:
    if settings.port == 0:
        return ok("gateway", "it does not run; any free port will do")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            words = f"it cannot listen on {settings.host} port {settings.port}: {error.strerror}"
            remedy = "another program is there: end it, or say atlas serve --port 0, or set ATLAS_PORT"
            return broken("gateway", words, remedy)
    return ok("gateway", f"it does not run; port {settings.port} is free for it")
