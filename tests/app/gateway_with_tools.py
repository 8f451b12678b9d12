"""A gateway on a new home folder with a scripted model server, a local web server and a client that approves calls."""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import websockets

from atlas_agents.app.serve import ServedGateway, private_gateway
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from checks import TIMEOUT
from model_server import ModelRequest, ModelServer, Reply, run_model_server

AGENTS = "# Agents\n\n## analyst\n\nModel: openai/rules-1\nDescription: Looks things up and calculates.\n"
KEY = "sk-canary-0123456789abcdef"
Step = tuple[str, dict[str, Any]]


@contextmanager
def static_web(pages: dict[str, tuple[str, str]]) -> Generator[str]:
    """Serve pages, path to media type and text, on loopback; yield host and port."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Do not log."""

        def do_GET(self) -> None:
            found = pages.get(self.path.partition("?")[0])
            data = found[1].encode() if found else b""
            self.send_response(200 if found else 404)
            self.send_header("content-type", found[0] if found else "text/plain")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(5)


def scripted_model(steps: Sequence[Step], report: Callable[[ModelRequest], str]) -> Callable[[ModelRequest], Reply]:
    """Return a model that makes the calls in order, whatever their results, and then reports."""

    def model_script(request: ModelRequest) -> Reply:
        done = sum(1 for message in request.body["messages"] if message["role"] == "tool")
        return Reply(calls=(steps[done],)) if done < len(steps) else Reply(report(request))

    return model_script


class ApprovingClient:
    """Client that answers every approval request with `answer` and records every frame."""

    def __init__(self, socket: Any, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._socket = socket
        self._answer = answer
        self._last = 0
        self.frames: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []

    async def get(self, method: str, **params: Any) -> Any:
        """Return the result of a request; fail on an error."""
        self._last += 1
        id = self._last
        await self._socket.send(json.dumps({"id": id, "method": method, "params": params}))
        while (frame := await self._next()).get("id") != id:
            pass
        assert "result" in frame, frame
        return frame["result"]

    async def turn(self, message: str, session: str = "work") -> list[dict[str, Any]]:
        """Run a turn to its end and return the results of its tool calls."""
        before = len(self.frames)
        await self.get("sessions.subscribe", sessionKey=session)
        await self.get("chat.send", sessionKey=session, message=message)
        index = before
        while True:
            while index == len(self.frames):
                await self._next()
            frame, index = self.frames[index], index + 1
            if frame.get("event") == "exec.approval_request":
                self.questions.append(frame["data"])
                answer = self._answer(frame["data"])
                await self.get("approvals.resolve", approvalId=frame["data"]["approvalId"], **answer)
            elif frame.get("event") in ("chat.final", "chat.error"):
                break
        return [each["data"] for each in self.frames[before:] if each.get("event") == "tool.result"]

    async def rows(self) -> list[dict[str, Any]]:
        """Return the audit log, oldest entry first."""
        page = await self.get("audit.list", limit=100)
        return [each["entry"] for each in reversed(page["entries"])]

    async def _next(self) -> dict[str, Any]:
        frame = json.loads(await asyncio.wait_for(self._socket.recv(), TIMEOUT))
        self.frames.append(frame)
        return frame


def approve(question: dict[str, Any]) -> dict[str, Any]:
    return {"decision": "allow-once"}


class GatewayWithTools:
    """The gateway, its client, model server and folders."""

    def __init__(self, serving: ServedGateway, client: ApprovingClient, model: ModelServer, home: Path) -> None:
        self.serving = serving
        self.client = client
        self.model = model
        self.home = home
        self.workspace = home / "workspace"


@asynccontextmanager
async def gateway_with_tools(
    home: Path,
    model_script: Callable[[ModelRequest], Reply],
    answer: Callable[[dict[str, Any]], dict[str, Any]] = approve,
    **flags: Any,
) -> AsyncGenerator[GatewayWithTools]:
    """Run a gateway on a new home folder with these settings."""
    (home / "workspace").mkdir(parents=True)
    (home / "workspace" / "AGENTS.md").write_text(AGENTS)
    with run_model_server(model_script) as model:
        variables = {**model.settings, "OPENAI_API_KEY": KEY, "ATLAS_HOME": str(home), "HOME": str(home)}
        environment = Environment(variables, dotenv=None)
        settings = load(flags, environment, home.parent)
        async with (
            asyncio.timeout(TIMEOUT),
            private_gateway(settings, environment=environment) as served,
            websockets.connect(served.url.replace("http", "ws"), max_size=None) as socket,
        ):
            await socket.send(json.dumps({"type": "auth", "token": served.token.reveal(), "protocol": 1}))
            assert json.loads(await socket.recv())["ok"] is True
            yield GatewayWithTools(served, ApprovingClient(socket, answer), model, home)


def decode_image(result: Any) -> bytes:
    """Return the bytes of the first image in a result."""
    (picture, *_) = result["images"]
    assert picture["type"] == "image"
    return base64.b64decode(picture["data"])
