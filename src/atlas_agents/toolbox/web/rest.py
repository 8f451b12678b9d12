"""One question to a search service: under a clock, up to a limit, its troubles told in sentences without the key."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from atlas_agents.core.errors import ToolFailed, Transient
from atlas_agents.core.secret import Secret
from atlas_agents.toolbox.web.decoders import ACCEPTED, BadEncoding, Body, encoding_of

_MOST = 4_000_000
_CONNECT = 10.0
_BUSY = (408, 429, 503)


class Question(msgspec.Struct, frozen=True):
    """What is asked, and of whom. The key travels in a header, never in the address."""

    service: str
    url: str
    parameters: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    key_header: str = ""
    key: Secret | None = None
    key_scheme: str = ""
    refused: str = ""
    """What it may mean when the service answers 403."""


async def asked(question: Question, seconds: float) -> Any:
    """The JSON that comes back. ToolFailed says what went wrong; Transient, if it may be tried again."""
    import aiohttp

    service = question.service
    try:
        async with asyncio.timeout(seconds):
            return _json(service, await _answer(question))
    except TimeoutError:
        raise Transient(f"{service} did not answer within {seconds:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise Transient(f"{service} cannot be reached: {error.os_error.strerror or 'no connection'}") from None
    except aiohttp.InvalidURL:
        raise ToolFailed(f"{service}: its address is no address of a server") from None
    except (aiohttp.ClientError, OSError, BadEncoding) as error:
        raise Transient(f"{service} broke off in the middle of its answer ({type(error).__name__})") from None


async def _answer(question: Question) -> bytes:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT)
    session = aiohttp.ClientSession(
        timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
    )
    method = "GET" if question.body is None else "POST"
    async with (
        session,
        session.request(
            method,
            question.url,
            params=question.parameters or None,
            json=question.body,
            headers=_headers(question),
            allow_redirects=False,
        ) as answer,
    ):
        _well(question, answer.status, answer.headers)
        body = Body(encoding_of(answer.headers.get("Content-Encoding", "")), _MOST)
        while not body.full and (piece := await answer.content.read(1 << 16)):
            body.add(piece)
        if body.full:
            raise ToolFailed(f"{question.service} answered with more than {_MOST / 1e6:g} MB")
        return bytes(body.content)


def _headers(question: Question) -> dict[str, str]:
    headers = {"Accept": "application/json", "Accept-Encoding": ACCEPTED, "User-Agent": "atlas-agents"}
    if question.key_header and question.key:
        headers[question.key_header] = f"{question.key_scheme} {question.key.reveal()}".strip()
    return headers


def _well(question: Question, status: int, headers: Mapping[str, str]) -> None:
    """Nothing, if it answered; else what the number means. Its own words are not repeated: they might hold the key."""
    service = question.service
    if status == 200:
        return
    if status in _BUSY:
        seconds = (headers.get("Retry-After") or "").strip()
        wait = float(seconds) if seconds.isascii() and seconds.isdigit() else None
        raise Transient(f"{service} wants fewer questions, or is too busy (HTTP {status})", retry_after=wait)
    if status == 403 and question.refused:
        raise ToolFailed(f"{service} refused (HTTP 403): {question.refused}")
    if status in (401, 403):
        raise ToolFailed(f"{service} does not accept the key (HTTP {status}); a person has to set another one")
    if status in (402, 432, 433):
        raise ToolFailed(f"the account at {service} is used up (HTTP {status}); a person has to look at it")
    if 300 <= status < 400:
        raise ToolFailed(f"{service} is at another address now (HTTP {status}); a person has to set it")
    if status >= 500:
        raise Transient(f"{service} has an error of its own (HTTP {status})")
    raise ToolFailed(f"{service} did not take the question (HTTP {status})")


def _json(service: str, content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ToolFailed(f"{service} answered with something that is no JSON") from None
