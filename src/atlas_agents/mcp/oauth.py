"""Logging in to a server that wants it: the person opens the address, and the tokens stay in the home folder.

Nothing here opens an address by itself, and one that is no web page is not even shown.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, BaseModel, ValidationError

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.places import make_private
from atlas_agents.mcp.pins import write_private

logger = logging.getLogger(__name__)
_NEAR = ("127.0.0.1", "localhost", "::1")
_PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nYou may close this page now.\n"
_PATIENCE = 300.0


class Kept(BaseModel):
    """What is known of a login."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None


class Purse:
    """The tokens for one server, in a file of their own."""

    def __init__(self, folder: Path, server: str) -> None:
        self.path = folder / f"login-{server}.json"

    async def get_tokens(self) -> OAuthToken | None:
        return self._read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._write(self._read().model_copy(update={"tokens": tokens}))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._read().client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write(self._read().model_copy(update={"client": client_info}))

    def empty(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> Kept:
        try:
            return Kept.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return Kept()
        except (OSError, ValidationError):
            logger.warning("%s cannot be read: log in again", self.path)
            return Kept()

    def _write(self, kept: Kept) -> None:
        make_private(self.path.parent)
        write_private(self.path, kept.model_dump_json(exclude_none=True).encode())


def checked_address(url: str) -> str:
    """An address that a person may be asked to open: of a web page, over TLS or on this machine."""
    parts = urlsplit(url)
    near = parts.scheme == "http" and parts.hostname in _NEAR
    if not (parts.scheme == "https" or near) or not parts.hostname or not url.isprintable() or " " in url:
        raise ConfigError(f"the server wants {url[:80]!r} to be opened to log in, which is no web page; refused")
    return url


def remembered(server: str, url: str, folder: Path) -> OAuthClientProvider:
    """Uses the tokens of an earlier login, and renews them; where a person is needed, says so."""

    async def refuse(address: str) -> None:
        raise ConfigError(f"the MCP server {server} wants a login: say atlas mcp login {server}")

    async def never() -> AuthorizationCodeResult:
        raise ConfigError("nobody is there to log in")

    return OAuthClientProvider(url, _about("http://127.0.0.1/callback"), Purse(folder, server), refuse, never)


@asynccontextmanager
async def asking(
    server: str, url: str, folder: Path, show: Callable[[str], object]
) -> AsyncGenerator[OAuthClientProvider, None]:
    """Has a person log in: `show` is given the address to open, and the answer comes to a port of this machine."""
    answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(_Callback(answer).serve, "127.0.0.1", 0) as listening:
        port: int = listening.sockets[0].getsockname()[1]
        purse = Purse(folder, server)
        purse.empty()

        async def redirect(address: str) -> None:
            show(checked_address(address))

        async def callback() -> AuthorizationCodeResult:
            return await asyncio.wait_for(asyncio.shield(answer), _PATIENCE)

        try:
            yield OAuthClientProvider(url, _about(f"http://127.0.0.1:{port}/callback"), purse, redirect, callback)
        finally:
            answer.cancel()


class _Callback:
    """The one page that the browser comes back to."""

    def __init__(self, answer: "asyncio.Future[AuthorizationCodeResult]") -> None:
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await asyncio.wait_for(reader.readline(), 10)).decode("latin-1").split(" ")
            parts = urlsplit(line[1] if len(line) > 2 else "")
            told = {key: values[0] for key, values in parse_qs(parts.query).items()}
            if parts.path == "/callback" and "code" in told and not self._answer.done():
                given = AuthorizationCodeResult(code=told["code"], state=told.get("state"), iss=told.get("iss"))
                self._answer.set_result(given)
            writer.write(_PAGE)
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass
        finally:
            writer.close()


def _about(redirect: str) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name="Atlas Agents",
        redirect_uris=[AnyUrl(redirect)],
        token_endpoint_auth_method="none",  # noqa: S106
    )
