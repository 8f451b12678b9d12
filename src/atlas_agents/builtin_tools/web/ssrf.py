"""SSRF protection: which URLs may be fetched, from which hosts, and within which limits."""

import asyncio
import re
import socket
from collections.abc import Iterable
from typing import Protocol

import msgspec
from yarl import URL

from atlas_agents.core.errors import ConfigError, ToolFailed

MAX_URL_LENGTH = 4000
_WEB_PORTS = (80, 443)
_HOST = re.compile(r"\[([0-9a-f:.]+)\](?::([0-9]{1,5}))?|([a-z0-9_][a-z0-9_.-]*)(?::([0-9]{1,5}))?")
_HOSTNAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
_AUTHORITY = re.compile(r"[/?#]")
"""End of the authority part of a URL."""
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IPV4 = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_BLOCKED_PORTS = frozenset(
    (
        *(1719, 1720, 1723, 2049, 2375, 2376, 3306, 3659, 4045, 4190, 5060, 5061, 5432, 6000, 6379, 6566),
        *(6665, 6666, 6667, 6668, 6669, 6679, 6697, 9100, 10080, 11211, 27017),
    )
)
"""Ports of services other than web servers, which might take an HTTP request for a command."""


class Caps(msgspec.Struct, frozen=True):
    """Limits of a download: bytes after decompression, seconds and redirects. `reading` is the extraction timeout."""

    size: int = 5_000_000
    pdf_size: int = 15_000_000
    connect: float = 10.0
    total: float = 25.0
    redirects: int = 5
    reading: float = 15.0


CAPS = Caps()


class Hosts:
    """Allowlist of private hosts. `wiki.intern` means ports 80 and 443, `wiki.intern:8080` only that port."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._endpoints = {endpoint for name in names for endpoint in _parse_host(name)}

    @classmethod
    def of_url(cls, url: URL) -> "Hosts":
        """Return an allowlist of only the host and port of a URL."""
        hosts = cls()
        if url.port is not None:
            hosts._endpoints.add(((url.raw_host or "").lower().rstrip("."), url.port))
        return hosts

    def include(self, host: str, port: int) -> bool:
        return (host.rstrip("."), port) in self._endpoints


def _parse_host(name: str) -> list[tuple[str, int]]:
    found = _HOST.fullmatch(name.strip().lower())
    if found is None:
        raise ConfigError(
            f"invalid host {name!r}: expected a name like wiki.intern or wiki.intern:8080, without https://"
        )
    host, port = (found[1] or found[3]).rstrip("."), found[2] or found[4]
    return [(host, int(port))] if port else [(host, each) for each in _WEB_PORTS]


class Network(Protocol):
    """Name resolution and routing. Every address is checked after `lookup` and before `route`."""

    async def lookup(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name; OSError if it has none."""
        ...

    def route(self, address: str, port: int) -> tuple[str, int]:
        """Return the address to connect to; only tests return another one."""
        ...

    def is_own(self, address: str) -> bool:
        """Return whether the address belongs to this machine."""
        ...


class Internet:
    """The real network."""

    async def lookup(self, host: str, port: int) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    def route(self, address: str, port: int) -> tuple[str, int]:
        return address, port

    def is_own(self, address: str) -> bool:
        """Return whether the address can be bound, which only works for addresses of this machine. Nothing is sent."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
        except OSError:
            return False
        return True


INTERNET: Network = Internet()


class UrlRefused(ToolFailed):
    """The guard rejected a URL before anything was received from it; the model reads why."""

    untrusted = False


class FetchTarget(msgspec.Struct, frozen=True):
    """A checked URL. `trusted` if its host may be on a private network."""

    url: URL
    host: str
    port: int
    trusted: bool


def parse_target(text: str, hosts: Hosts) -> FetchTarget:
    """Parse and check a URL. The request uses exactly the host and port found here."""
    if len(text) > MAX_URL_LENGTH:
        raise UrlRefused(f"the URL is too long: {len(text):,} characters, the maximum is {MAX_URL_LENGTH:,}")
    if "\\" in text or any(char.isspace() or not char.isprintable() for char in text):
        raise UrlRefused("the URL contains a space, a backslash or an invisible character")
    if "@" in _AUTHORITY.split(text.partition("://")[2], maxsplit=1)[0]:
        raise UrlRefused("the URL contains a user name or password; credentials are not sent")
    try:
        return _check_url(URL(text), hosts)
    except (ValueError, TypeError) as error:
        raise UrlRefused(f"invalid URL {text[:200]}: {str(error)[:200]}") from None


def parse_trusted(text: str) -> FetchTarget:
    """Parse a URL that the operator wrote in the settings: it may be in a private network. Errors do not quote it."""
    try:
        hosts = Hosts.of_url(URL(text))
    except (ValueError, TypeError):
        raise UrlRefused("invalid URL") from None
    try:
        return parse_target(text, hosts)
    except UrlRefused as error:
        raise UrlRefused("invalid URL" if text[:200] in str(error) else str(error)) from None


def resolve_redirect(base: URL, location: str, hosts: Hosts) -> FetchTarget:
    """Check the target of a redirect as strictly as the first URL."""
    if "\\" in location or any(char.isspace() or not char.isprintable() for char in location.strip()):
        raise UrlRefused(f"{base} redirects to an invalid URL")
    try:
        joined = base.join(URL(location.strip()))
    except (ValueError, TypeError):
        raise UrlRefused(f"{base} redirects to an invalid URL") from None
    return parse_target(str(joined), hosts)


def _check_url(url: URL, hosts: Hosts) -> FetchTarget:
    if url.scheme not in ("http", "https"):
        raise UrlRefused(f"unsupported URL scheme {url.scheme!r}: expected http or https")
    if url.raw_user is not None or url.raw_password is not None:
        raise UrlRefused("the URL contains a user name or password; credentials are not sent")
    host, port = (url.raw_host or "").lower(), url.port
    if port is None or not _is_hostname(host):
        raise UrlRefused(f"invalid host name {host[:200]!r}")
    trusted = hosts.include(host, port)
    if not trusted and (port in _BLOCKED_PORTS or (port < 1024 and port not in _WEB_PORTS)):
        raise UrlRefused(f"port {port} is blocked")
    return FetchTarget(url.with_fragment(None), host, port, trusted)


def _is_hostname(host: str) -> bool:
    """Return whether it is a name or a canonical IP address, not a disguised one such as `0177.1` or `2130706433`."""
    if ":" in host:
        return "%" not in host
    if not _HOSTNAME.fullmatch(host) or len(host) > 253:
        return False
    last = host.rstrip(".").rpartition(".")[2]
    return not _NUMERIC_LABEL.fullmatch(last) or bool(_IPV4.fullmatch(host))


def absolute_links(base: str, links: Iterable[str]) -> list[str]:
    """Return the http(s) links of a page as absolute URLs."""
    found: list[str] = []
    for link in links:
        try:
            url = URL(base).join(URL(link.strip()))
        except (ValueError, TypeError):
            continue
        if url.scheme in ("http", "https") and url.raw_host:
            found.append(str(url))
    return found
