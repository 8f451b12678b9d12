"""HTTP to X: one request, its answer, and whether it may have arrived when there is none."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from atlas_agents.core.errors import ConfigError

_LARGEST = 4 * 1024 * 1024
_WITHIN = 30.0


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Lost(Exception):
    """No answer came. `sent` if the request may have arrived."""

    def __init__(self, words: str, *, sent: bool) -> None:
        super().__init__(words)
        self.sent = sent


class Wire:
    """Requests to one place."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError("x_url: it must begin with https:// (or http:// for a server of your own)")
        self._base = url.rstrip("/")
        self._http: aiohttp.ClientSession | None = None

    async def form(self, path: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        return await self.ask("POST", path, headers, data=dict(form))

    async def ask(self, method: str, path: str, headers: Mapping[str, str], **content: Any) -> Answer:
        """Send it; `json`, `data` and `params` as aiohttp takes them."""
        try:
            async with (
                asyncio.timeout(_WITHIN),
                self._session().request(
                    method, URL(f"{self._base}{path}"), headers=dict(headers), allow_redirects=False, **content
                ) as response,
            ):
                body = bytearray()
                while len(body) < _LARGEST and (piece := await response.content.readany()):
                    body += piece
                headers_back = {name.lower(): value for name, value in response.headers.items()}
                return Answer(response.status, headers_back, bytes(body))
        except aiohttp.ClientConnectorError as error:
            raise Lost(f"X cannot be reached: {error.strerror or type(error).__name__}", sent=False) from None
        except TimeoutError:
            raise Lost(f"X did not answer in {_WITHIN:g} s", sent=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(f"the line to X broke ({type(error).__name__})", sent=True) from None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None or self._http.closed:
            self._http = aiohttp.ClientSession(trust_env=True)
        return self._http
