"""`atlas mcp serve`: lines on standard input and output, carried to the gateway's `/mcp` and back.

It knows nothing of what is said, but who waits for what: so there is one MCP server, with one way in.
"""

import asyncio
import sys
import threading
from typing import Any, cast

import aiohttp
import msgspec

from atlas_agents.cli import options as given
from atlas_agents.cli.border import quiet, run
from atlas_agents.cli.reach import Here
from atlas_agents.client.client import GatewayAddress
from atlas_agents.core.errors import AtlasError
from atlas_agents.core.json import encode
from atlas_agents.providers.http import EventSplitter

_NO_METHOD, _BROKEN = -32601, -32603
_ACCEPT = "application/json, text/event-stream"
_TRIES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


def serve(agent_id: str) -> int:
    """Until standard input ends."""

    async def work() -> None:
        here = Here(given.settings())
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)) as http:
                await Bridge(here, http, agent_id).run()
        finally:
            await here.close()

    quiet()
    return run(work)


class Bridge:
    """Each request is a task, so that one that waits for a person holds up no other."""

    def __init__(self, here: Here, http: aiohttp.ClientSession, agent_id: str) -> None:
        self._here = here
        self._http = http
        self._path = f"/mcp/{agent_id}" if agent_id else "/mcp"
        self._version = ""
        self._waiting: dict[Any, asyncio.Task[None]] = {}
        self._address: GatewayAddress | None = None

    async def run(self) -> None:
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=_read, args=(loop, lines), daemon=True).start()
        self._address = await self._here.address()
        while line := await lines.get():
            if line.strip():
                self._take(line)
        for task in list(self._waiting.values()):
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)

    def _take(self, line: bytes) -> None:
        try:
            message: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError):
            _write({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no JSON"}})
            return
        told = cast(dict[str, Any], message) if isinstance(message, dict) else {}
        method, id = told.get("method"), told.get("id")
        if method == "notifications/cancelled":
            self._give_up(told.get("params"))
        elif method == "server/discover":  # the newer way to begin needs more than lines; the handshake does not
            self._fail(id, _NO_METHOD, "Method not found")
        else:
            key = id if isinstance(id, str | int) and method else object()
            task = self._waiting[key] = asyncio.create_task(self._carry(line, id if method else None, method))
            task.add_done_callback(lambda _: self._waiting.pop(key, None))

    def _give_up(self, params: Any) -> None:
        id = cast(dict[str, Any], params).get("requestId") if isinstance(params, dict) else None
        waiting = self._waiting.get(id) if isinstance(id, str | int) else None
        if waiting is not None:
            waiting.cancel()

    async def _carry(self, line: bytes, id: Any, method: Any) -> None:
        try:
            answered = await self._post(line, method)
        except (aiohttp.ClientError, AtlasError, TimeoutError) as error:
            self._fail(id, _BROKEN, f"the gateway cannot be reached: {error}")
            return
        if not answered:
            self._fail(id, _BROKEN, "the gateway gave no answer")

    async def _post(self, line: bytes, method: Any) -> bool:
        """Carry one message; where no gateway answers, look for one again, as long as nothing was sent."""
        for pause in (*_TRIES, None):
            try:
                address = self._address or await self._here.address()
                return await self._exchange(address, line, method)
            except (aiohttp.ClientConnectorError, AtlasError):
                self._address = None
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        return False

    async def _exchange(self, address: GatewayAddress, line: bytes, method: Any) -> bool:
        headers = {"Authorization": f"Bearer {address.token}", "Accept": _ACCEPT, "Content-Type": "application/json"}
        if self._version and method != "initialize":
            headers["MCP-Protocol-Version"] = self._version
        async with self._http.post(address.url + self._path, data=line, headers=headers) as response:
            if response.status == 202:
                return True
            if response.content_type == "text/event-stream":
                return await self._events(response)
            body = await response.read()
            return self._answer(body) if response.status < 400 or b'"jsonrpc"' in body else self._refused(body)

    async def _events(self, response: aiohttp.ClientResponse) -> bool:
        splitter, answered = EventSplitter(), False
        async for piece in response.content.iter_any():
            for _, data in splitter.feed(piece):
                if data:
                    answered = self._answer(data) or answered
        return answered

    def _answer(self, body: bytes) -> bool:
        message = msgspec.json.decode(body, type=dict[str, Any])
        result: Any = message.get("result")
        if isinstance(result, dict) and "protocolVersion" in result:
            self._version = str(cast(dict[str, Any], result)["protocolVersion"])
        _write(message)
        return "method" not in message

    def _refused(self, body: bytes) -> bool:
        raise AtlasError(body[:300].decode("utf-8", "replace"))

    def _fail(self, id: Any, code: int, words: str) -> None:
        if id is not None:
            _write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": words}})


def _write(message: Any) -> None:
    sys.stdout.buffer.write(encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _read(loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[bytes]") -> None:
    """In a thread of its own: standard input may be a file, a pipe or a terminal, and reading it may never end."""
    while True:
        line = sys.stdin.buffer.readline()
        try:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        except RuntimeError:  # the loop is closed
            return
        if not line:
            return
