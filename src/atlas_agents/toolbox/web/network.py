"""How names become addresses, and where these are dialled: the seam at which a test builds its own internet.

No setting reaches it. Whoever fetches takes `INTERNET` unless another one is handed over in code.
"""

import asyncio
import socket
from typing import Protocol


class Network(Protocol):
    """Names and ways. Every address is vetted after `lookup` and before `way`."""

    async def lookup(self, host: str, port: int) -> list[str]:
        """The addresses of a name; OSError if it has none."""
        ...

    def way(self, address: str, port: int) -> tuple[str, int]:
        """Where a vetted address is dialled: there, unless the internet is only played."""
        ...

    def is_ours(self, address: str) -> bool:
        """Whether it is an address of this very machine."""
        ...


class Internet:
    """The real one."""

    async def lookup(self, host: str, port: int) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    def way(self, address: str, port: int) -> tuple[str, int]:
        return address, port

    def is_ours(self, address: str) -> bool:
        """Only an address of this machine can be bound; nothing is sent."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
        except OSError:
            return False
        return True


INTERNET: Network = Internet()
