"""A gateway as a fresh home has it, with a scripted model on the wire, a small web on loopback, and a person at a
socket who is asked."""

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
from model_server import Asked, ModelServer, Reply, serving

AGENTS = "# Agents\n\n## analyst\n\nModel: openai/rules-1\nDescription: Looks things up and reckons.\n"
KEY = "sk-canary-0123456789abcdef"
PATIENCE = 40.0
Step = tuple[str, dict[str, Any]]


@contextmanager
def small_web(pages: dict[str, tuple[str, str]]) -> Generator[str]:
    """A server on loopback with these pages, by path: media type and text; gives its host and port."""

    class Answerer(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Tests are quiet."""

        def do_GET(self) -> None:
            found = pages.get(self.path.partition("?")[0])
            data = found[1].encode() if found else b""
            self.send_response(200 if found else 404)
            self.send_header("content-type", found[0] if found else "text/plain")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answerer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(5)


def follows(steps: Sequence[Step], report: Callable[[Asked], str]) -> Callable[[Asked], Reply]:
    """A model that takes the steps one after the other, whatever comes of each, and reports."""

    def mind(asked: Asked) -> Reply:
        done = sum(1 for message in asked.body["messages"] if message["role"] == "tool")
        return Reply(calls=(steps[done],)) if done < len(steps) else Reply(words=report(asked))

    return mind


class Desk:
    """A socket of a person who answers every question as `answer` says, and keeps every frame."""

    def __init__(self, socket: Any, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._socket = socket
        self._answer = answer
        self._last = 0
        self.frames: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []

    async def get(self, method: str, **params: Any) -> Any:
        """The result of a request; an error is an assertion that fails."""
        self._last += 1
        id = self._last
        await self._socket.send(json.dumps({"id": id, "method": method, "params": params}))
        while (frame := await self._next()).get("id") != id:
            pass
        assert "result" in frame, frame
        return frame["result"]

    async def turn(self, message: str, session: str = "work") -> list[dict[str, Any]]:
        """Have a turn run to its end; the results of its calls, in their order."""
        before = len(self.frames)
        await self.get("sessions.subscribe", sessionKey=session)
        await self.get("chat.send", sessionKey=session, message=message)
        place = before
        while True:
            while place == len(self.frames):
                await self._next()
            frame, place = self.frames[place], place + 1
            if frame.get("event") == "exec.approval_request":
                self.questions.append(frame["data"])
                answer = self._answer(frame["data"])
                await self.get("approvals.resolve", approvalId=frame["data"]["approvalId"], **answer)
            elif frame.get("event") in ("chat.final", "chat.error"):
                break
        return [each["data"] for each in self.frames[before:] if each.get("event") == "tool.result"]

    async def rows(self) -> list[dict[str, Any]]:
        """The audit log, the oldest line first."""
        page = await self.get("audit.list", limit=100)
        return [each["entry"] for each in reversed(page["entries"])]

    async def _next(self) -> dict[str, Any]:
        frame = json.loads(await asyncio.wait_for(self._socket.recv(), PATIENCE))
        self.frames.append(frame)
        return frame


def yes(question: dict[str, Any]) -> dict[str, Any]:
    return {"decision": "allow-once"}


class House:
    """All of it."""

    def __init__(self, serving: ServedGateway, desk: Desk, model: ModelServer, home: Path) -> None:
        self.serving = serving
        self.desk = desk
        self.model = model
        self.home = home
        self.workspace = home / "workspace"


@asynccontextmanager
async def house_of(
    home: Path,
    mind: Callable[[Asked], Reply],
    answer: Callable[[dict[str, Any]], dict[str, Any]] = yes,
    **flags: Any,
) -> AsyncGenerator[House]:
    """A gateway on a home that was not there before; settings as flags."""
    (home / "workspace").mkdir(parents=True)
    (home / "workspace" / "AGENTS.md").write_text(AGENTS)
    with serving(mind) as model:
        variables = {**model.settings, "OPENAI_API_KEY": KEY, "ATLAS_HOME": str(home), "HOME": str(home)}
        environment = Environment(variables, dotenv=None)
        settings = load(flags, environment, home.parent)
        async with (
            asyncio.timeout(2 * PATIENCE),
            private_gateway(settings, environment=environment) as here,
            websockets.connect(here.url.replace("http", "ws"), max_size=None) as socket,
        ):
            await socket.send(json.dumps({"type": "auth", "token": here.token.reveal(), "protocol": 1}))
            assert json.loads(await socket.recv())["ok"] is True
            yield House(here, Desk(socket, answer), model, home)


def picture_of(result: Any) -> bytes:
    """The bytes of the first picture in a result, as a page draws it."""
    (picture, *_) = result["images"]
    assert picture["type"] == "image"
    return base64.b64decode(picture["data"])
