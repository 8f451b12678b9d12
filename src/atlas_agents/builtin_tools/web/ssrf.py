"""How much of the web is let in."""

import asyncio
import re
import socket
from collections.abc import Iterable
from typing import Protocol

import msgspec
from yarl import URL

from atlas_agents.core.errors import ConfigError, ToolFailed

_WEB = (80, 443)
_HOST = re.compile(r"\[([0-9a-f:.]+)\](?::([0-9]{1,5}))?|([a-z0-9_][a-z0-9_.-]*)(?::([0-9]{1,5}))?")


class Hosts:
    """`wiki.intern` is that host on the ports of the web, `wiki.intern:8080` on this one."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._places = {place for name in names for place in _places(name)}

    def include(self, host: str, port: int) -> bool:
        return (host.rstrip("."), port) in self._places


def _places(name: str) -> list[tuple[str, int]]:
    found = _HOST.fullmatch(name.strip().lower())
    if found is None:
        raise ConfigError(f"{name!r} is no host; write one like wiki.intern or wiki.intern:8080, without https://")
    host, port = (found[1] or found[3]).rstrip("."), found[2] or found[4]
    return [(host, int(port))] if port else [(host, each) for each in _WEB]


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


LONGEST = 4000
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
_AUTHORITY = re.compile(r"[/?#]")
"""Where the host ends."""
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ADDRESS = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_OTHER_SERVICES = frozenset(
    (
        *(1719, 1720, 1723, 2049, 2375, 2376, 3306, 3659, 4045, 4190, 5060, 5061, 5432, 6000, 6379, 6566),
        *(6665, 6666, 6667, 6668, 6669, 6679, 6697, 9100, 10080, 11211, 27017),
    )
)
"""Ports of services that are no web servers and might take a request for an order of theirs."""


class UrlRefused(ToolFailed):
    """The guard says no; the model reads why."""


class FetchTarget(msgspec.Struct, frozen=True):
    """A page to be fetched. `trusted` if its host may be in a private network."""

    url: URL
    host: str
    port: int
    trusted: bool


def target(text: str, hosts: Hosts) -> FetchTarget:
    """The address of a page, or Refused. What is dialled later is what this parser has found, and no other."""
    if len(text) > LONGEST:
        raise UrlRefused(f"the address is {len(text):,} characters long; at most {LONGEST:,} can be taken")
    if "\\" in text or any(char.isspace() or not char.isprintable() for char in text):
        raise UrlRefused("there is a space, a backslash or a character that cannot be seen in the address")
    if "@" in _AUTHORITY.split(text.partition("://")[2], maxsplit=1)[0]:
        raise UrlRefused("there is a name or a password in the address; they are not sent")
    try:
        return _checked(URL(text), hosts)
    except (ValueError, TypeError) as error:
        raise UrlRefused(f"{text[:200]} is no address of a page: {str(error)[:200]}") from None


def onwards(here: URL, location: str, hosts: Hosts) -> FetchTarget:
    """Where a redirect leads, looked at as strictly as the first address."""
    if "\\" in location or any(char.isspace() or not char.isprintable() for char in location.strip()):
        raise UrlRefused(f"{here} redirects to something that is no address")
    try:
        there = here.join(URL(location.strip()))
    except (ValueError, TypeError):
        raise UrlRefused(f"{here} redirects to something that is no address") from None
    return target(str(there), hosts)


def _checked(url: URL, hosts: Hosts) -> FetchTarget:
    if url.scheme not in ("http", "https"):
        raise UrlRefused(f"only http and https can be fetched, not {url.scheme or 'an address without either'}")
    if url.raw_user is not None or url.raw_password is not None:
        raise UrlRefused("there is a name or a password in the address; they are not sent")
    host, port = (url.raw_host or "").lower(), url.port
    if port is None or not _is_host(host):
        raise UrlRefused(f"{host[:200] or 'nothing'!r} is no name of a host")
    trusted = hosts.include(host, port)
    if not trusted and (port in _OTHER_SERVICES or (port < 1024 and port not in (80, 443))):
        raise UrlRefused(f"port {port} is not one that pages are fetched from")
    return FetchTarget(url.with_fragment(None), host, port, trusted)


def _is_host(host: str) -> bool:
    """A name, or an address in its one usual form: `0177.1` and `2130706433` are ways to hide one."""
    if ":" in host:
        return "%" not in host
    if not _NAME.fullmatch(host) or len(host) > 253:
        return False
    last = host.rstrip(".").rpartition(".")[2]
    return not _NUMBER.fullmatch(last) or bool(_ADDRESS.fullmatch(host))


def absolute(base: str, links: Iterable[str]) -> list[str]:
    """Links of a page as whole addresses, those that lead to pages alone."""
    found: list[str] = []
    for link in links:
        try:
            url = URL(base).join(URL(link.strip()))
        except (ValueError, TypeError):
            continue
        if url.scheme in ("http", "https") and url.raw_host:
            found.append(str(url))
    return found


class Caps(msgspec.Struct, frozen=True):
    """Bytes of a page (unpacked), seconds, redirects. `reading` are the seconds to make text of what came."""

    size: int = 5_000_000
    pdf_size: int = 15_000_000
    connect: float = 10.0
    total: float = 25.0
    redirects: int = 5
    reading: float = 15.0


CAPS = Caps()
