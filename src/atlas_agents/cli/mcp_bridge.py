"""`atlas mcp serve`: forwards JSON-RPC lines between standard input and output and the gateway's `/mcp` endpoint.

The bridge only tracks which request is pending; the gateway implements MCP.
"""

import asyncio
import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import msgspec

from atlas_agents.cli.connect import GatewaySession
from atlas_agents.client import GatewayAddress
from atlas_agents.core.aio import BackgroundTasks, read_stdin_lines
from atlas_agents.core.errors import AtlasError
from atlas_agents.core.http import backoff, open_session
from atlas_agents.core.json import encode
from atlas_agents.providers.http import EventSplitter

if TYPE_CHECKING:
    from atlas_agents.config.settings import Settings

_PARSE_ERROR, _METHOD_NOT_FOUND, _INTERNAL_ERROR = -32700, -32601, -32603
_SESSION_HEADER = "Mcp-Session-Id"
_ACCEPT = "application/json, text/event-stream"
_RETRIES = 6
_FIRST_DELAY, _MAX_DELAY = 0.25, 8.0


async def run_bridge(settings: "Settings", agent_id: str) -> None:
    """Forward until standard input ends."""
    session = GatewaySession(lambda: settings)
    try:
        async with open_session() as http:
            await StdioBridge(session, http, agent_id).run()
    finally:
        await session.close()


class StdioBridge:
    """Forwards each request in its own task, so that one waiting for an approval does not block the others."""

    def __init__(self, session: GatewaySession, http: aiohttp.ClientSession, agent_id: str) -> None:
        self._session = session
        self._http = http
        self._path = f"/mcp/{agent_id}" if agent_id else "/mcp"
        self._protocol_version = ""
        self._session_id = ""
        self._tasks = BackgroundTasks("MCP bridge")
        self._pending: dict[Any, asyncio.Task[None]] = {}
        self._address: GatewayAddress | None = None

    async def run(self) -> None:
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=read_stdin_lines, args=(loop, lines), daemon=True).start()
        self._address = await self._session.find_gateway()
        while line := await lines.get():
            if line.strip():
                self._accept(line)
        await self._tasks.close()

    def _accept(self, line: bytes) -> None:
        try:
            message: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError):
            _write({"jsonrpc": "2.0", "id": None, "error": {"code": _PARSE_ERROR, "message": "Parse error"}})
            return
        request = cast(dict[str, Any], message) if isinstance(message, dict) else {}
        method, id = request.get("method"), request.get("id")
        if method == "notifications/cancelled":
            self._cancel(request.get("params"))
        elif method == "server/discover":  # newer than the stdio handshake; clients fall back to `initialize`
            self._reply_error(id, _METHOD_NOT_FOUND, "Method not found")
        else:
            key = id if isinstance(id, str | int) and method else object()
            task = self._pending[key] = self._tasks.spawn(self._forward(line, id if method else None, method))
            task.add_done_callback(lambda _: self._pending.pop(key, None))

    def _cancel(self, params: Any) -> None:
        id = cast(dict[str, Any], params).get("requestId") if isinstance(params, dict) else None
        pending = self._pending.get(id) if isinstance(id, str | int) else None
        if pending is not None:
            pending.cancel()

    async def _forward(self, line: bytes, id: Any, method: Any) -> None:
        try:
            answered = await self._post(line, method)
        except (aiohttp.ClientError, AtlasError, TimeoutError) as error:
            self._reply_error(id, _INTERNAL_ERROR, f"cannot reach the gateway: {error}")
            return
        if not answered:
            self._reply_error(id, _INTERNAL_ERROR, "the gateway did not answer")

    async def _post(self, line: bytes, method: Any) -> bool:
        """Send one message. If no gateway accepts the connection, look for one again."""
        for attempt in itertools.count():
            try:
                address = self._address or await self._session.find_gateway()
                answered = await self._exchange(address, line, method)
                if answered is not None:
                    return answered
                self._session_id = ""  # the session has expired; requests are served without one as well
            except (aiohttp.ClientConnectorError, AtlasError):
                self._address = None
                if attempt == _RETRIES:
                    raise
                await asyncio.sleep(backoff(attempt, _FIRST_DELAY, _MAX_DELAY))
        return False

    async def _exchange(self, address: GatewayAddress, line: bytes, method: Any) -> bool | None:
        """Send one message and forward the responses. None if the session of the client has expired."""
        headers = {"Authorization": f"Bearer {address.token}", "Accept": _ACCEPT, "Content-Type": "application/json"}
        if self._protocol_version and method != "initialize":
            headers["MCP-Protocol-Version"] = self._protocol_version
        if self._session_id and method != "initialize":
            headers[_SESSION_HEADER] = self._session_id
        async with self._http.post(address.url + self._path, data=line, headers=headers) as response:
            if method == "initialize":
                self._session_id = response.headers.get(_SESSION_HEADER, "")
            if response.status == 202:
                return True
            if response.content_type == "text/event-stream":
                return await self._forward_events(response)
            body = await response.read()
            if response.status == 404 and _SESSION_HEADER in headers:
                return None
            if response.status >= 400 and b'"jsonrpc"' not in body:
                raise AtlasError(body[:300].decode("utf-8", "replace"))
            return self._forward_answer(body)

    async def _forward_events(self, response: aiohttp.ClientResponse) -> bool:
        splitter, answered = EventSplitter(), False
        async for piece in response.content.iter_any():
            for _, data in splitter.feed(piece):
                if data:
                    answered = self._forward_answer(data) or answered
        return answered

    def _forward_answer(self, body: bytes) -> bool:
        """Write a message to standard output; return whether it is a response."""
        message = msgspec.json.decode(body, type=dict[str, Any])
        result: Any = message.get("result")
        if isinstance(result, dict) and "protocolVersion" in result:
            self._protocol_version = str(cast(dict[str, Any], result)["protocolVersion"])
        _write(message)
        return "method" not in message

    def _reply_error(self, id: Any, code: int, message: str) -> None:
        if id is not None:
            _write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def _write(message: Any) -> None:
    sys.stdout.buffer.write(encode(message) + b"\n")
    sys.stdout.buffer.flush()
