"""Download of a URL: the SSRF guard checks every address, and redirects, time and size are limited."""

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable
from email.message import Message
from typing import Any

import aiohttp
import msgspec
from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from atlas_agents.builtin_tools.web import ssrf
from atlas_agents.core import package_version
from atlas_agents.core.errors import ToolFailed, Transient
from atlas_agents.core.http import is_private, is_public, open_session

_MAX_ADDRESSES = 16
"""Maximum number of addresses of a host that are tried."""
ACCEPT_ENCODING = "gzip, deflate"
"""Only encodings that can be decompressed incrementally under a size limit."""
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_BUSY_STATUSES = (408, 429, 503)
_CHUNK = 1 << 16
_HEADERS = {
    "User-Agent": f"atlas-agents/{package_version()}",
    "Accept": "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, application/pdf;q=0.9",
    "Accept-Encoding": ACCEPT_ENCODING,
}
_STATUS_REASONS = {
    401: "login required",
    403: "access denied; the server may require a login or block programs",
    404: "page not found",
    410: "the page was removed",
    429: "too many requests",
    451: "unavailable for legal reasons",
    503: "the server is overloaded",
}


class SsrfGuard(AbstractResolver):
    """Resolver and socket factory that let one request connect to its target only."""

    def __init__(self, target: ssrf.FetchTarget, network: ssrf.Network) -> None:
        self._target = target
        self._network = network
        self._checked: set[tuple[str, int]] = set()

    def connector(self) -> TCPConnector:
        """Create a connector behind this guard, for one request."""
        return TCPConnector(
            resolver=self,
            socket_factory=self._socket,
            use_dns_cache=False,
            force_close=True,
            limit=1,
        )

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Resolve a name. The request is refused if any of its addresses is not allowed."""
        found = await self._network.lookup(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        for address in found:
            self._check_address(address)
        return [self._resolve_result(host, address, port) for address in found[:_MAX_ADDRESSES]]

    async def close(self) -> None:
        """Do nothing: the resolver holds no resources."""

    def _resolve_result(self, host: str, address: str, port: int) -> ResolveResult:
        endpoint = self._network.route(address, port)
        self._checked.add(endpoint)
        family = socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
        return {"hostname": host, "host": endpoint[0], "port": endpoint[1], "family": family, "proto": 0, "flags": 0}

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Create the socket after checking the address that it will connect to."""
        address, port = str(info[4][0]), int(info[4][1])
        if (address, port) not in self._checked:
            if port != self._target.port:
                raise ssrf.UrlRefused(f"port {port} does not belong to this request")
            self._check_address(address)
        return socket.socket(info[0], info[1], info[2])

    def _check_address(self, address: str) -> None:
        if self._target.trusted and is_private(address):
            return
        if not is_public(address) or self._network.is_own(address):
            raise ssrf.UrlRefused(
                f"{self._target.host} is not on the public internet but on a private network or this machine; "
                "such pages are not fetched"
            )


class BadEncoding(Exception):
    """The body is not encoded as its header says, or the encoding was not requested."""


class LimitedBody:
    """Response body, decompressed up to a limit. `full` if the body exceeds the limit."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.content = bytearray()
        self.full = False
        self._limit = limit
        self._received = 0
        self._is_identity = encoding == ""
        self._check_deflate = encoding == "deflate"
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects gzip and zlib by the header
        if encoding not in ("", "gzip", "deflate"):
            raise BadEncoding(f"unexpected content encoding {encoding[:50]!r}")

    def add(self, chunk: bytes) -> None:
        """Add the next bytes of the response."""
        self._received += len(chunk)
        self.content += chunk[: self._remaining] if self._is_identity else self._decompress(chunk)
        self.full = not self._remaining or self._received > self._limit

    @property
    def _remaining(self) -> int:
        return self._limit + 1 - len(self.content)

    def _decompress(self, chunk: bytes) -> bytes:
        if self._check_deflate and chunk:
            self._check_deflate = False
            if chunk[0] & 0x0F != 8:  # many servers send raw deflate data without the zlib header
                self._decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return self._decoder.decompress(chunk, self._remaining) if self._remaining else b""
        except zlib.error:
            raise BadEncoding("invalid compressed data") from None


def parse_content_encoding(header: str) -> str:
    """Return the content encoding, empty for none; several encodings give a name that is not supported."""
    found = [each.strip().lower() for each in header.split(",") if each.strip().lower() not in ("", "identity")]
    return ",".join("gzip" if each == "x-gzip" else each for each in found)


class Fetched(msgspec.Struct, frozen=True):
    """A downloaded page. `url` is the final URL after redirects; `cut` if the body exceeds `size`."""

    url: str
    media_type: str
    charset: str
    body: bytes
    size: int
    cut: bool


async def download(
    url: str,
    *,
    hosts: ssrf.Hosts,
    check_type: Callable[[str, str], None],
    caps: ssrf.Caps = ssrf.CAPS,
    network: ssrf.Network = ssrf.INTERNET,
) -> Fetched:
    """Download a page; raise ToolFailed with a reason for the model if that fails.

    `check_type` receives the URL and the media type before the body is read, and raises to reject them.
    """
    target, redirected = ssrf.parse_target(url, hosts), False
    try:
        async with asyncio.timeout(caps.total):
            for _ in range(caps.redirects + 1):
                found = await _get(target, caps, network, check_type)
                if isinstance(found, Fetched):
                    return found
                redirected = True
                target = ssrf.resolve_redirect(target.url, found, hosts)
    except ssrf.UrlRefused as refused:
        refused.untrusted = redirected  # the message then names an address that a page chose
        raise
    except TimeoutError:
        raise ToolFailed(f"{target.host} did not send the page within {caps.total:g} s") from None
    raise ToolFailed(f"{url[:200]} redirects more than {caps.redirects} times")


async def _get(
    target: ssrf.FetchTarget, caps: ssrf.Caps, network: ssrf.Network, check_type: Callable[[str, str], None]
) -> Fetched | str:
    """Return the page, or the location that it redirects to."""
    session = open_session(
        connect_timeout=caps.connect,
        connector=SsrfGuard(target, network).connector(),
        headers=_HEADERS,
        auto_decompress=False,
        requote_redirect_url=False,
    )
    try:
        async with session, session.get(target.url, allow_redirects=False) as response:
            if response.status in _REDIRECT_STATUSES and (location := response.headers.get("Location")):
                return location
            _check_status(response.status, response.headers.get("Retry-After"), target)
            media_type, charset = _parse_content_type(response.headers.get("Content-Type", ""))
            check_type(str(target.url), media_type)
            size = caps.pdf_size if media_type == "application/pdf" else caps.size
            body = LimitedBody(parse_content_encoding(response.headers.get("Content-Encoding", "")), size)
            while not body.full and (chunk := await response.content.read(_CHUNK)):
                body.add(chunk)
            return Fetched(str(target.url), media_type, charset, bytes(body.content[:size]), size, body.full)
    except (aiohttp.ClientError, OSError, BadEncoding, ValueError) as error:
        raise _describe_failure(error, target) from error


async def post_json(
    url: str, body: bytes, *, caps: ssrf.Caps = ssrf.CAPS, network: ssrf.Network = ssrf.INTERNET
) -> None:
    """Post JSON to a URL of the settings. Redirects are not followed; ToolFailed unless the status is a success.

    Errors name the host and not the URL, which may contain a secret.
    """
    target = ssrf.parse_trusted(url)
    session = open_session(connect_timeout=caps.connect, connector=SsrfGuard(target, network).connector())
    headers = {"User-Agent": _HEADERS["User-Agent"], "Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(caps.total),
            session,
            session.post(target.url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            if not 200 <= response.status < 300:
                raise ToolFailed(f"{target.host} answered HTTP {response.status}")
    except TimeoutError:
        raise ToolFailed(f"{target.host} did not answer within {caps.total:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = str(_describe_failure(error, target)).replace(url, target.host)
        raise ToolFailed(reason.replace(str(target.url), target.host)) from None


def _check_status(status: int, retry_after: str | None, target: ssrf.FetchTarget) -> None:
    """Raise an error for the model unless the status is a success."""
    if 200 <= status < 300:
        return
    reason = _STATUS_REASONS.get(status, "server error" if status >= 500 else "the server rejected the request")
    message = f"{target.url}: {reason} (HTTP {status})"
    if status in _BUSY_STATUSES:
        seconds = retry_after.strip() if retry_after else ""
        raise Transient(message, retry_after=float(seconds) if seconds.isascii() and seconds.isdigit() else None)
    raise ToolFailed(message)


def _parse_content_type(header: str) -> tuple[str, str]:
    """Return media type and charset in lower case, empty if missing."""
    if not header:
        return "", ""
    parsed = Message()
    parsed["Content-Type"] = header[:500]
    return parsed.get_content_type() if "/" in header else "", (parsed.get_content_charset() or "")


def _describe_failure(error: Exception, target: ssrf.FetchTarget) -> ToolFailed:
    """Return the error for the model; Transient if a retry may help."""
    if isinstance(error, TimeoutError):
        return ToolFailed(f"connecting to {target.host} timed out")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        return ToolFailed(f"the TLS connection to {target.host} failed: {_reason(error)}")
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return ToolFailed(f"cannot resolve the host name {target.host}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return ToolFailed(f"cannot connect to {target.host}: {error.os_error.strerror or error.os_error}")
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | ConnectionError):
        return Transient(f"the connection to {target.host} was lost")
    return ToolFailed(f"invalid response from {target.host}: {str(error)[:200]}")


def _reason(error: Exception) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    return str(getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or inner)[:200]
