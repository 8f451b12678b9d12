"""MCP transports: a child process over stdio, streamable HTTP, and OAuth logins whose tokens stay in the home folder.

A login URL is shown to the person, never opened, and only if it is a web page.
"""

import asyncio
import logging
import re
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, union_scopes
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.message import SessionMessage
from pydantic import AnyUrl, BaseModel, ValidationError

from atlas_agents.builtin_tools.sandbox.process import ProcessIO, Sandbox, SandboxCommand, SandboxProcess
from atlas_agents.core.errors import ConfigError, SandboxUnavailable
from atlas_agents.core.paths import make_private_folder, write_file
from atlas_agents.core.telemetry import read_trace_context, split_trace_context
from atlas_agents.mcp.config import OAuthClient, ServerEntry

logger = logging.getLogger(__name__)
NOT_SENT = secrets.token_hex(16)
"""Error data of a call that was not sent because there is no connection. Random, so that a server cannot forge it."""
LOGIN_REQUIRED = secrets.token_hex(16)
"""Error data of a request that the server refuses until a person logs in. Random, so that a server cannot forge it."""
_UNREACHABLE, _UNAUTHORIZED = -32050, -32051
MAX_LINE = 8 * 1024 * 1024
MAX_GARBAGE = 16 * 1024 * 1024
_CHUNK_SIZE = 64 * 1024
_STOP_GRACE = 1.0
_KEPT_EDGE = 512
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_FIRST_ID = re.compile(rb'^\s*\{(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]+|"[^"\\]{1,100}")')
_LAST_ID = re.compile(rb'"id"\s*:\s*([0-9]+|"[^"\\]{1,100}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_CALLS = ("tools/call", "resources/read", "prompts/get")
"""Requests that may have effects."""
_CONNECT_TIMEOUT, _READ_TIMEOUT = 15.0, 900.0
_KEEPALIVE = 2.0
"""Seconds that an idle connection is reused. Many servers close theirs after five, and a call sent then is lost."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CALLBACK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
_SIGNED_IN = b"You are signed in. You may close this page now.\n"
_NOT_SIGNED_IN = b"You are not signed in. You may close this page and try again.\n"
LOGIN_TIMEOUT = 300.0
"""Seconds that a person has to log in."""
MAX_REDIRECTS = 3
"""Maximum number of redirects to a login page in one login."""
MAX_STEP_UPS = 3
"""Maximum number of logins for the same scopes."""
_MAX_SCOPE_LENGTH = 500


class StdioTransport:
    """Stdio transport: a server's process and its message streams. `ended` is set when its output ends."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended = asyncio.Event()
        self.stderr_tail: deque[str] = deque(maxlen=20)
        """The last lines of its standard error."""
        self._name = name
        self._reader = reader
        self._writer = writer
        self._garbage = 0
        self._incoming, self.incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outgoing, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def read_stdout(self) -> None:
        """Decode its output lines as messages until it ends or sends too much garbage."""
        buffer, skipped = bytearray(), False
        try:
            while chunk := await self._reader.read(_CHUNK_SIZE):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    buffer += line
                    await self._handle_line(buffer, skipped)
                    buffer, skipped = bytearray(), False
                buffer += rest
                if len(buffer) > MAX_LINE:  # keep both ends, which identify the request it answers
                    skipped = True
                    del buffer[_KEPT_EDGE : len(buffer) - _KEPT_EDGE]
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            pass
        finally:
            self._incoming.close()
            self.ended.set()

    async def write_stdin(self) -> None:
        try:
            async for message in self._outgoing:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._writer.write(line.encode() + b"\n")
                await self._writer.drain()
        except (anyio.ClosedResourceError, OSError):
            pass
        finally:
            self.ended.set()

    def add_stderr(self, stream: str, chunk: bytes) -> None:
        """Keep the last lines of standard error for diagnosis."""
        for line in chunk.decode("utf-8", "replace").splitlines()[-20:]:
            self.stderr_tail.append(line[:500])
            logger.debug("%s: %s", self._name, line[:500])

    async def _handle_line(self, line: bytearray, skipped: bool) -> None:
        if not line.strip():
            return
        if skipped:
            await self._incoming.send(self._oversized_response(line))
            return
        try:
            message = types.jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
        except ValueError:
            self._discard(len(line), bytes(line[:80]))
            return
        self._garbage = 0
        await self._incoming.send(SessionMessage(message))

    def _oversized_response(self, line: bytearray) -> SessionMessage | Exception:
        """Convert an oversized response to an error, so that its call ends."""
        found = _FIRST_ID.search(line) or _LAST_ID.search(line)
        message = f"the server's response exceeds {MAX_LINE:,} bytes"
        logger.warning("MCP line dropped: server=%s limit=%d bytes", self._name, MAX_LINE)
        if found is None:
            return ValueError(message)
        id = found[1].decode()
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=message)
        return SessionMessage(
            types.JSONRPCError(jsonrpc="2.0", id=id.strip('"') if id.startswith('"') else int(id), error=error)
        )

    def _discard(self, size: int, start: bytes) -> None:
        if self._garbage == 0:
            logger.warning("MCP server wrote non-protocol output: server=%s output=%r", self._name, start)
        self._garbage += size + 1
        if self._garbage > MAX_GARBAGE:
            self.stderr_tail.append(f"it wrote {self._garbage:,} bytes of non-protocol output")
            raise anyio.BrokenResourceError

    async def stop(self, process: SandboxProcess, exited: asyncio.Task[None]) -> None:
        """End the process: close its input, and after a short time kill it with everything that it started."""
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_GRACE):
                await asyncio.shield(exited)
        await process.kill()
        self.close()

    def close(self) -> None:
        self._writer.close()
        for stream in (self._incoming, self.incoming, self.outgoing, self._outgoing):
            stream.close()

    async def watch(self, process: SandboxProcess) -> None:
        """Wait until the process has ended; keep the reason if it could not be started."""
        try:
            await process.wait()
        except SandboxUnavailable as error:
            self.stderr_tail.append(f"{error.reason}; {error.remedy}")
        finally:
            self.ended.set()


@asynccontextmanager
async def stdio_transport(name: str, sandbox: Sandbox, command: SandboxCommand) -> AsyncGenerator[StdioTransport, None]:
    """Run a server's process for the duration of the block. One socket is its standard input and output."""
    ours, theirs = socket.socketpair()
    transport = StdioTransport(name, *await asyncio.open_unix_connection(sock=ours))
    try:
        process = await sandbox.start(command, ProcessIO(stdin=theirs, on_output=transport.add_stderr))
    except BaseException as error:
        transport.close()
        if isinstance(error, SandboxUnavailable):
            raise ConfigError(f"cannot start the MCP server {name}: {error.reason}; {error.remedy}") from error
        raise
    finally:
        theirs.close()
    if (watch := getattr(process, "_watch", None)) is not None:  # private: polling would go on for days
        watch.stop()
    exited = asyncio.create_task(transport.watch(process))
    tasks = [asyncio.create_task(loop) for loop in (transport.read_stdout(), transport.write_stdin())]
    try:
        yield transport
    finally:
        await _finish_despite_cancel(_stop(transport, process, exited, tasks))


async def _stop(
    transport: StdioTransport, process: SandboxProcess, exited: asyncio.Task[None], tasks: list[asyncio.Task[None]]
) -> None:
    await transport.stop(process, exited)
    for task in (exited, *tasks):
        task.cancel()
    await asyncio.gather(exited, *tasks, return_exceptions=True)


async def _finish_despite_cancel(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work before a cancellation takes effect; otherwise the child process would be left behind."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


@asynccontextmanager
async def http_transport(entry: ServerEntry, auth: httpx2.Auth | None) -> AsyncGenerator[tuple[object, object], None]:
    """Open the message streams over HTTP for the duration of the block. Redirects to other hosts are not followed."""
    timeout = httpx2.Timeout(_CONNECT_TIMEOUT, read=_READ_TIMEOUT)
    own = any(name.lower() == "authorization" for name in entry.headers)
    explain = auth.explain_refusal if isinstance(auth, StoredAuth) and not own else None
    transport = _LimitedTransport(httpx2.URL(entry.url), explain)
    async with (
        httpx2.AsyncClient(
            headers=entry.headers, timeout=timeout, auth=None if own else auth, transport=transport
        ) as client,
        streamable_http_client(entry.url, http_client=client, max_sse_event_size=MAX_LINE) as streams,
    ):
        yield streams


@cache
def _tls_context() -> ssl.SSLContext:
    """Return one TLS context for all servers: reading the certificates takes tens of milliseconds."""
    return httpx2.create_ssl_context()


class _LimitedTransport(httpx2.AsyncHTTPTransport):
    """HTTP transport with a size limit per response, or per event of a stream.

    A call for which no connection can be made is answered with an error whose data is `NOT_SENT`, and a request that
    the server refuses until a person logs in with one whose data is `LOGIN_REQUIRED`. Otherwise the session would end,
    and the caller could not tell it from a call that was executed.
    """

    def __init__(self, url: httpx2.URL, explain_refusal: Callable[[httpx2.Response], str] | None) -> None:
        super().__init__(verify=_tls_context(), limits=httpx2.Limits(keepalive_expiry=_KEEPALIVE))
        self._url = url
        self._explain_refusal = explain_refusal

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            await _add_trace_context(request)
        try:
            response = await super().handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            sent = _decode_sent(await request.aread())
            if sent.id is None or sent.method not in _CALLS:  # the failure of others ends the session
                raise
            return _error_response(request, sent.id, _UNREACHABLE, str(error) or type(error).__name__, NOT_SENT)
        explain = self._explain_refusal if request.url == self._url else None
        if explain is not None and (reason := explain(response)):
            await response.aclose()
            id = _decode_sent(await request.aread()).id
            return _error_response(request, id, _UNAUTHORIZED, reason, LOGIN_REQUIRED)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _LimitedStream(cast(httpx2.AsyncByteStream, response.stream))
        return response


class _SentParams(msgspec.Struct):
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


class _SentMessage(msgspec.Struct):
    method: str = ""
    id: int | str | None = None
    params: _SentParams = msgspec.field(default_factory=_SentParams)


async def _add_trace_context(request: httpx2.Request) -> None:
    """Send the trace context of a message as headers, too, for proxies and servers that only read those.

    It is taken from the message: the request is made by a task that all calls of the session share.
    """
    body = await request.aread()
    if b'"traceparent"' in body and "traceparent" not in request.headers:
        meta = _decode_sent(body).params.meta
        found = read_trace_context(meta.get("traceparent"), meta.get("tracestate"))
        request.headers.update(split_trace_context(found))


def _decode_sent(body: bytes) -> _SentMessage:
    try:
        return msgspec.json.decode(body, type=_SentMessage)
    except msgspec.MsgspecError:
        return _SentMessage()


def _error_response(
    request: httpx2.Request, id: int | str | None, code: int, message: str, data: str
) -> httpx2.Response:
    """Answer a request with a JSON-RPC error; other messages get a status that the client ignores."""
    if id is None:
        return httpx2.Response(405, request=request)
    error = {"code": code, "message": message, "data": data}
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": id, "error": error}, request=request)


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_LINE:
                raise httpx2.ReadError(f"the response exceeds {MAX_LINE:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class StoredLogin(BaseModel):
    """Stored state of a login."""

    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    issuer: OAuthMetadata | None = None
    """Address at which the tokens are renewed."""
    resource: ProtectedResourceMetadata | None = None
    bound_issuer: str | None = None
    """Authorization server of the registered client. No other server gets the client's secret."""
    wanted_scope: str | None = None
    """Scopes that the next login asks for, because a call was refused without them."""
    step_ups: int = 0
    """Logins that asked for these scopes."""


class TokenStore:
    """OAuth tokens of one server, in their own file. A new login replaces them when it succeeds."""

    def __init__(self, folder: Path, server: str) -> None:
        self.path = folder / f"login-{server}.json"
        self._begun: StoredLogin | None = None

    def begin_login(self) -> None:
        """Start without tokens and client; the stored ones are kept until new tokens arrive."""
        old = self.read()
        step_ups = old.step_ups + 1 if old.wanted_scope else 0
        self._begun = StoredLogin(wanted_scope=old.wanted_scope, bound_issuer=old.bound_issuer, step_ups=step_ups)

    async def get_tokens(self) -> OAuthToken | None:
        return self.read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self.update(tokens=tokens, expires_at=expires_at)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.read().client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.update(client=client_info)

    def read(self) -> StoredLogin:
        if self._begun is not None:
            return self._begun
        try:
            return StoredLogin.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return StoredLogin()
        except (OSError, ValidationError):
            logger.warning("unreadable token file, log in again: path=%s", self.path)
            return StoredLogin()

    def update(self, **changes: object) -> None:
        login = self.read().model_copy(update=changes)
        if self._begun is not None and login.tokens is None:
            self._begun = login
            return
        self._begun = None
        make_private_folder(self.path.parent)
        write_file(self.path, login.model_dump_json(exclude_none=True).encode())


def check_login_url(url: str) -> str:
    """Validate a login URL: a web page over TLS or on this machine."""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.scheme == "https" or is_local) or not parts.hostname or not url.isprintable() or " " in url:
        raise ConfigError(f"refused login URL {url[:80]!r}: expected a web page over https, or http on this machine")
    return url


class StoredAuth(OAuthClientProvider):
    """Uses and renews the tokens of an earlier login, also after a restart; raises an error if a person must log in."""

    def __init__(self, server: str, entry: ServerEntry, store: TokenStore) -> None:
        super().__init__(entry.url, _client_metadata("http://127.0.0.1/callback"), store, self._refuse)
        self._server = server
        self._client = entry.oauth or None
        self._store = store

    def explain_refusal(self, response: httpx2.Response) -> str:
        """Return the login error if the server refused for lack of a login; remember the scope that it requires."""
        login = f"run: atlas mcp login {self._server}"
        if response.status_code == 401:
            return f"the MCP server {self._server} requires a login; {login}"
        if response.status_code != 403 or extract_field_from_www_auth(response, "error") != "insufficient_scope":
            return ""
        scope = _clean_scope(extract_scope_from_www_auth(response))
        stored = self._store.read()
        wanted = union_scopes(stored.wanted_scope, scope)
        if wanted != stored.wanted_scope:
            granted = stored.tokens.scope if stored.tokens is not None else None
            self._store.update(wanted_scope=union_scopes(granted, wanted), step_ups=0)
        elif stored.step_ups >= MAX_STEP_UPS:
            return (
                f"the MCP server {self._server} still refuses the call after {stored.step_ups} logins with the scope "
                f"{scope!r}; ask the operator of the server for access"
            )
        further = f"the scope {scope!r}" if scope else "further access"
        return f"the MCP server {self._server} requires a login with {further}; {login}"

    async def _initialize(self) -> None:
        """Restore the state that the library does not: the expiry of the token, and the address of its renewal."""
        await super()._initialize()
        stored = self._store.read()
        self.context.token_expiry_time = stored.expires_at
        self.context.oauth_metadata, self.context.protected_resource_metadata = stored.issuer, stored.resource
        self.context.client_info = _registered_client(self._client, stored.issuer) or stored.client

    async def _refuse(self, address: str) -> None:
        raise ConfigError(f"the MCP server {self._server} requires a login; run: atlas mcp login {self._server}")


class InteractiveAuth(OAuthClientProvider):
    """Interactive login of a person, repeated when the server requires further scopes."""

    def __init__(self, entry: ServerEntry, redirect_uri: str, store: TokenStore, callbacks: "_Callbacks") -> None:
        self._client = entry.oauth or None
        document = self._client.client_id if self._client and _is_document(self._client) else None
        metadata = _client_metadata(redirect_uri)
        super().__init__(entry.url, metadata, store, callbacks.redirect, callbacks.wait, client_metadata_url=document)
        self._store = store

    async def _initialize(self) -> None:
        await super()._initialize()
        self.context.client_info = _registered_client(self._client, None)

    async def _perform_authorization(self) -> httpx2.Request:
        context, login = self.context, self._store.read()
        issuer = str(context.oauth_metadata.issuer) if context.oauth_metadata is not None else None
        if registered := _registered_client(self._client, context.oauth_metadata):
            if login.bound_issuer not in (None, issuer):
                raise ConfigError(
                    f"the server now sends logins to {issuer}, but its client is registered with {login.bound_issuer}; "
                    "if that is right, log out first"
                )
            context.client_info = registered
        context.client_metadata.scope = union_scopes(context.client_metadata.scope, login.wanted_scope)
        request = await super()._perform_authorization()
        bound = issuer if registered else None
        self._store.update(
            issuer=context.oauth_metadata, resource=context.protected_resource_metadata, bound_issuer=bound
        )
        return request


def _is_document(client: OAuthClient) -> bool:
    """Return whether a client is identified by a metadata document instead of a registration."""
    return client.client_id.startswith("https://")


def _registered_client(client: OAuthClient | None, issuer: OAuthMetadata | None) -> OAuthClientInformationFull | None:
    """Return the client that the owner registered, with the authentication that the authorization server supports."""
    if client is None or _is_document(client):
        return None
    methods = issuer.token_endpoint_auth_methods_supported if issuer is not None else None
    method = "none"
    if client.client_secret:
        only_post = "client_secret_post" in (methods or ()) and "client_secret_basic" not in (methods or ())
        method = "client_secret_post" if only_post else "client_secret_basic"
    return OAuthClientInformationFull(
        client_id=client.client_id,
        client_secret=client.client_secret or None,
        redirect_uris=None,
        token_endpoint_auth_method=method,
    )


@asynccontextmanager
async def interactive_login(
    server: str, entry: ServerEntry, folder: Path, show: Callable[[str], object]
) -> AsyncGenerator[InteractiveAuth, None]:
    """Log in: pass each URL that the person must open to `show`, and receive the callbacks on a local port."""
    callbacks = _Callbacks(show)
    port = entry.oauth.callback_port if entry.oauth else 0
    try:
        opened = await asyncio.start_server(callbacks.serve, "127.0.0.1", port)
    except OSError as error:
        raise ConfigError(f"cannot receive the callback of the login on port {port}: {error.strerror}") from error
    async with opened as listening:
        port = listening.sockets[0].getsockname()[1]
        store = TokenStore(folder, server)
        store.begin_login()
        try:
            yield InteractiveAuth(entry, f"http://127.0.0.1:{port}/callback", store, callbacks)
        finally:
            callbacks.close()


class _Callbacks:
    """The callback page that the browser is redirected to. A callback belongs to the redirect with its state."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show
        self._answers: dict[str, asyncio.Future[AuthorizationCodeResult]] = {}

    async def redirect(self, address: str) -> None:
        """Show the login page to the person."""
        if len(self._answers) >= MAX_REDIRECTS:
            raise ConfigError(f"the server asked for more than {MAX_REDIRECTS} logins in a row")
        (state,) = parse_qs(urlsplit(check_login_url(address)).query)["state"]
        self._answers[state] = asyncio.get_running_loop().create_future()
        self._show(address)

    async def wait(self) -> AuthorizationCodeResult:
        """Wait for the callback of the last redirect."""
        return await asyncio.wait_for(asyncio.shield([*self._answers.values()][-1]), LOGIN_TIMEOUT)

    def close(self) -> None:
        for answer in self._answers.values():
            answer.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await asyncio.wait_for(reader.readline(), 10)).decode("latin-1").split(" ")
            parts = urlsplit(line[1] if len(line) > 2 else "")
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            answer = self._answers.get(query.get("state", "")) if parts.path == "/callback" else None
            if answer is not None and not answer.done():
                _set_answer(answer, query)
            writer.write(_CALLBACK + (_SIGNED_IN if answer is not None and "code" in query else _NOT_SIGNED_IN))
            await writer.drain()
        except (OSError, ValueError):
            pass
        finally:
            writer.close()


def _set_answer(answer: "asyncio.Future[AuthorizationCodeResult]", query: dict[str, str]) -> None:
    if "code" in query:
        answer.set_result(AuthorizationCodeResult(code=query["code"], state=query["state"], iss=query.get("iss")))
    elif "error" in query:
        answer.set_exception(ConfigError(_describe_refusal(query)))


def _describe_refusal(query: dict[str, str]) -> str:
    """Describe why an authorization server refused a login, in printable characters."""
    reason = query.get("error_description") or query["error"]
    return f"the login was refused: {''.join(filter(str.isprintable, reason))[:200]}"


def _clean_scope(scope: str | None) -> str:
    """Return the scopes of a challenge without characters that no scope has."""
    return " ".join(_SCOPE.findall((scope or "")[:_MAX_SCOPE_LENGTH]))


def _client_metadata(redirect: str) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name="Atlas Agents",
        redirect_uris=[AnyUrl(redirect)],
        token_endpoint_auth_method="none",  # noqa: S106
    )
