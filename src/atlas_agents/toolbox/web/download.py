"""Fetching: an address and the redirects from it, each past the guard anew, under one clock and one limit of bytes."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from email.message import Message
from importlib.metadata import version

import aiohttp
import msgspec

from atlas_agents.core.errors import ToolFailed, Transient
from atlas_agents.toolbox.web.caps import CAPS, Caps
from atlas_agents.toolbox.web.decoders import ACCEPTED, BadEncoding, Body, encoding_of
from atlas_agents.toolbox.web.guard import Guard
from atlas_agents.toolbox.web.hosts import Hosts
from atlas_agents.toolbox.web.network import INTERNET, Network
from atlas_agents.toolbox.web.urls import Target, onwards, target

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


async def _get(aim: Target, caps: Caps, network: Network, wanted: Callable[[str, str], None]) -> Fetched | str:
    """What stands there, or where it redirects to."""
    session = aiohttp.ClientSession(
        connector=Guard(aim, network).connector(),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=caps.connect),
        headers=_HEADERS,
        auto_decompress=False,
        trust_env=False,
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
        raise _told(error, aim) from error


def _well(status: int, retry_after: str | None, aim: Target) -> None:
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


def _told(error: Exception, aim: Target) -> ToolFailed:
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
