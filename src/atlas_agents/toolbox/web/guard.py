"""The guard at the socket: a name is looked up once, every address is vetted, and what was vetted is dialled.

Names are vetted where aiohttp has them resolved, and addresses again where it asks for a socket: an address that stands
in the URL itself never passes the resolver. Between vetting and dialling nothing is looked up anew.
"""

import socket
from typing import Any

from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from atlas_agents.core.addresses import is_private, is_public
from atlas_agents.toolbox.web.network import Network
from atlas_agents.toolbox.web.urls import Refused, Target

_MOST = 16
"""So many addresses of a name are tried."""


class Guard(AbstractResolver):
    """Lets one request out, to its target and nowhere else."""

    def __init__(self, aim: Target, network: Network) -> None:
        self._aim = aim
        self._network = network
        self._vetted: set[tuple[str, int]] = set()

    def connector(self) -> TCPConnector:
        """A connector that is behind this guard, for one request."""
        return TCPConnector(
            resolver=self,
            socket_factory=self._socket,
            use_dns_cache=False,
            force_close=True,
            limit=1,
        )

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Look the name up, and let through what may be dialled: all of its addresses, or it is refused."""
        found = await self._network.lookup(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        for address in found:
            self._vet(address)
        return [self._on(host, address, port) for address in found[:_MOST]]

    async def close(self) -> None:
        """There is nothing to close."""

    def _on(self, host: str, address: str, port: int) -> ResolveResult:
        there = self._network.way(address, port)
        self._vetted.add(there)
        family = socket.AF_INET6 if ":" in there[0] else socket.AF_INET
        return {"hostname": host, "host": there[0], "port": there[1], "family": family, "proto": 0, "flags": 0}

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """The last look, at what is really dialled."""
        address, port = str(info[4][0]), int(info[4][1])
        if (address, port) not in self._vetted:
            if port != self._aim.port:
                raise Refused(f"port {port} was not asked for")
            self._vet(address)
        return socket.socket(info[0], info[1], info[2])

    def _vet(self, address: str) -> None:
        if self._aim.trusted and is_private(address):
            return
        if not is_public(address) or self._network.is_ours(address):
            raise Refused(
                f"{self._aim.host} is not on the public internet, but in a private network or on this machine; "
                "pages are not fetched from there"
            )
