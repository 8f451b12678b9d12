"""Fetching: an address and the redirects from it, each past the guard anew, under one clock and one limit of bytes."""

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable
from email.message import Message
from importlib.metadata import version
from typing import Any

import aiohttp
import msgspec
from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from atlas_agents.builtin_tools.web.ssrf import (
    CAPS,
    INTERNET,
    Caps,
    FetchTarget,
    Hosts,
    Network,
    UrlRefused,
    onwards,
    target,
)
from atlas_agents.core.addresses import is_private, is_public
from atlas_agents.core.errors import ToolFailed, Transient
from atlas_agents.core.http import open_session

_MOST = 16
"""So many addresses of a name are tried."""


class SsrfGuard(AbstractResolver):
    """Lets one request out, to its target and nowhere else."""

    def __init__(self, aim: FetchTarget, network: Network) -> None:
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
                raise UrlRefused(f"port {port} was not asked for")
            self._vet(address)
        return socket.socket(info[0], info[1], info[2])

    def _vet(self, address: str) -> None:
        if self._aim.trusted and is_private(address):
            return
        if not is_public(address) or self._network.is_ours(address):
            raise UrlRefused(
                f"{self._aim.host} is not on the public internet, but in a private network or on this machine; "
                "pages are not fetched from there"
            )


ACCEPTED = "gzip, deflate"
"""Only what can be unpacked piece by piece under a limit is asked for."""


class BadEncoding(Exception):
    """What came is not packed as it says, or in a way that was not asked for."""


class Body:
    """Bytes as they come off the wire, unpacked up to a limit. `full` when there is more of it than may be taken."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.content = bytearray()
        self.full = False
        self._limit = limit
        self._wire = 0
        self._plain = encoding == ""
        self._first = encoding == "deflate"
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by what it begins with
        if encoding not in ("", "gzip", "deflate"):
            raise BadEncoding(f"it is packed as {encoding[:50]!r}, which was not asked for")

    def add(self, piece: bytes) -> None:
        """Take the next bytes off the wire."""
        self._wire += len(piece)
        self.content += piece[: self._room] if self._plain else self._unpacked(piece)
        self.full = not self._room or self._wire > self._limit

    @property
    def _room(self) -> int:
        return self._limit + 1 - len(self.content)

    def _unpacked(self, piece: bytes) -> bytes:
        if self._first and piece:
            self._first = False
            if piece[0] & 0x0F != 8:  # many servers send what is inside a zlib stream, without its head
                self._decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return self._decoder.decompress(piece, self._room) if self._room else b""
        except zlib.error:
            raise BadEncoding("it is not packed as it says") from None


def encoding_of(header: str) -> str:
    """The one encoding of a body, empty where there is none; several are given back as they are, and refused."""
    found = [each.strip().lower() for each in header.split(",") if each.strip().lower() not in ("", "identity")]
    return ",".join("gzip" if each == "x-gzip" else each for each in found)


_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY = (408, 429, 503)
_PIECE = 1 << 16
_HEADERS = {
    "User-Agent": f"atlas-agents/{version('atlas-agents')}",
    "Accept": "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, application/pdf;q=0.9",
    "Accept-Encoding": ACCEPTED,
}


class Fetched(msgspec.Struct, frozen=True):
    """What stands at an address: `url` is where the redirects have led. `cut` if there is more of it than `size`."""

    url: str
    media_type: str
    charset: str
    body: bytes
    size: int
    cut: bool


async def download(
    address: str,
    *,
    hosts: Hosts,
    wanted: Callable[[str, str], None],
    caps: Caps = CAPS,
    network: Network = INTERNET,
) -> Fetched:
    """Fetch a page; ToolFailed says in a sentence why it could not be had.

    `wanted` is told the address and the media type before the body is read, and raises if it is not worth reading.
    """
    aim = target(address, hosts)
    try:
        async with asyncio.timeout(caps.total):
            for _ in range(caps.redirects + 1):
                found = await _get(aim, caps, network, wanted)
                if isinstance(found, Fetched):
                    return found
                aim = onwards(aim.url, found, hosts)
    except TimeoutError:
        raise ToolFailed(f"{aim.host} did not send the page within {caps.total:g} s") from None
    raise ToolFailed(f"{address[:200]} redirects more than {caps.redirects} times")


async def _get(aim: FetchTarget, caps: Caps, network: Network, wanted: Callable[[str, str], None]) -> Fetched | str:
    """What stands there, or where it redirects to."""
    session = open_session(
        connect_timeout=caps.connect,
        connector=SsrfGuard(aim, network).connector(),
        headers=_HEADERS,
        auto_decompress=False,
        requote_redirect_url=False,
    )
    try:
        async with session, session.get(aim.url, allow_redirects=False) as answer:
            if answer.status in _REDIRECTS and (location := answer.headers.get("Location")):
                return location
            _well(answer.status, answer.headers.get("Retry-After"), aim)
            media_type, charset = _kind(answer.headers.get("Content-Type", ""))
            wanted(str(aim.url), media_type)
            size = caps.pdf_size if media_type == "application/pdf" else caps.size
            body = Body(encoding_of(answer.headers.get("Content-Encoding", "")), size)
            while not body.full and (piece := await answer.content.read(_PIECE)):
                body.add(piece)
            return Fetched(str(aim.url), media_type, charset, bytes(body.content[:size]), size, body.full)
    except (aiohttp.ClientError, OSError, BadEncoding, ValueError) as error:
        raise _describe_failure(error, aim) from error


def _well(status: int, retry_after: str | None, aim: FetchTarget) -> None:
    """Nothing, if there is a page; else why there is none."""
    if 200 <= status < 300:
        return
    words = _STATUS.get(status, "there was an error at the server" if status >= 500 else "the server refused")
    told = f"{aim.url}: {words} (HTTP {status})"
    if status in _BUSY:
        seconds = retry_after.strip() if retry_after else ""
        raise Transient(told, retry_after=float(seconds) if seconds.isascii() and seconds.isdigit() else None)
    raise ToolFailed(told)


_STATUS = {
    401: "one must log in to read it",
    403: "the server turns away whoever is not logged in, or is a program",
    404: "there is no such page",
    410: "the page was taken away",
    429: "the server wants fewer requests",
    451: "it may not be shown, for legal reasons",
    503: "the server is too busy",
}


def _kind(header: str) -> tuple[str, str]:
    """Media type and charset, both in small letters, both empty where they are not said."""
    if not header:
        return "", ""
    parsed = Message()
    parsed["Content-Type"] = header[:500]
    return parsed.get_content_type() if "/" in header else "", (parsed.get_content_charset() or "")


def _describe_failure(error: Exception, aim: FetchTarget) -> ToolFailed:
    """What went wrong, for a model; the parts of it that may be worth another try as Transient."""
    if isinstance(error, TimeoutError):
        return ToolFailed(f"no connection to {aim.host} could be made in time")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        return ToolFailed(f"{aim.host} could not prove that it is {aim.host}: {_reason(error)}")
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return ToolFailed(f"there is no host {aim.host}, or its name cannot be looked up now")
    if isinstance(error, aiohttp.ClientConnectorError):
        return ToolFailed(f"no connection to {aim.host}: {error.os_error.strerror or error.os_error}")
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | ConnectionError):
        return Transient(f"the connection to {aim.host} broke off")
    return ToolFailed(f"{aim.host} sent something that cannot be read: {str(error)[:200]}")


def _reason(error: Exception) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    return str(getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or inner)[:200]
