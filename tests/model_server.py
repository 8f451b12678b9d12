"""A small server on loopback that speaks both vendors' wires and answers by rule, for commands and examples under test.

It runs in threads, so that a test can wait for a subprocess meanwhile.
"""

import json
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from sse_words import AnthropicWords, OpenAIWords


@dataclass(frozen=True)
class Asked:
    """One request, the same for both wires."""

    path: str
    headers: dict[str, str]
    model: str
    text: str
    """The last words of the user."""
    results: list[str]
    """What the tools answered, if that came last."""
    tools: dict[str, dict[str, Any]]
    """The schema of each tool by its name."""
    output: dict[str, Any] | None
    """The schema that the answer must fit."""
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What the model answers: words or calls; or, with a status, an HTTP error."""

    words: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    status: int = 200
    pause: float = 0
    """Seconds between two words."""
    breaks: bool = False
    """The line breaks after the words."""
    holds: bool = False
    """After the words nothing more comes, until the client leaves."""


_HOLD = 60.0
Mind = Callable[[Asked], Reply]


@dataclass
class ModelServer:
    """`url` is the OpenAI-compatible address, `root` the Anthropic one."""

    mind: Mind
    asked: list[Asked] = field(default_factory=list[Asked])
    port: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a process that is to talk to this server, whichever vendor it names."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": "key-for-tests",
            "ANTHROPIC_BASE_URL": self.root,
            "ANTHROPIC_API_KEY": "key-for-tests",
        }


@contextmanager
def serving(mind: Mind) -> Generator[ModelServer]:
    """A server that answers while the `with` lasts."""
    model = ModelServer(mind)

    class Answerer(_Answerer):
        server_model = model

    with ThreadingHTTPServer(("127.0.0.1", 0), Answerer) as server:
        server.daemon_threads = True
        model.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield model
        finally:
            model.stop.set()
            server.shutdown()
            thread.join(5)


class _Answerer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_model: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""

    def do_GET(self) -> None:
        if self.path.endswith("/models"):
            self._whole(200, {"object": "list", "data": [{"id": "rules-1"}, {"id": "rules-2"}]})
        else:
            self._whole(404, {"error": {"message": f"nothing at {self.path}"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        model = self.server_model
        asked = _read(self.path, dict(self.headers.items()), body)
        model.asked.append(asked)
        reply = model.mind(asked)
        if reply.status != 200:
            self._whole(reply.status, {"error": {"message": reply.words, "type": "invalid_request_error"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in _events(asked, reply):
                self.wfile.write(event)
                if reply.pause and model.stop.wait(reply.pause):
                    return
            if reply.holds:
                model.stop.wait(_HOLD)
        except OSError:
            pass  # the client has left

    def _whole(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _events(asked: Asked, reply: Reply) -> list[bytes]:
    words = AnthropicWords() if asked.path.endswith("/messages") else OpenAIWords()
    if reply.calls:
        number = len(asked.body["messages"])
        calls = [(f"call_{number}_{n}", name, json.dumps(values)) for n, (name, values) in enumerate(reply.calls)]
        return words.calls(*calls, says=reply.words)
    events = words.says(*re.findall(r"\s*\S+|\s+$", reply.words))
    return events[:-3] if reply.breaks or reply.holds else events


def _read(path: str, headers: dict[str, str], body: dict[str, Any]) -> Asked:
    messages = cast(list[dict[str, Any]], body["messages"])
    users = [text for message in messages if message["role"] == "user" and (text := _text(message))]
    tools = [cast(dict[str, Any], tool.get("function", tool)) for tool in body.get("tools", [])]
    return Asked(
        path=path,
        headers={name.lower(): value for name, value in headers.items()},
        model=body["model"],
        text=users[-1] if users else "",
        results=_results(messages),
        tools={tool["name"]: tool.get("parameters") or tool.get("input_schema") or {} for tool in tools},
        output=_wanted(body),
        body=body,
    )


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _results(messages: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for message in reversed(messages):
        if message["role"] == "tool":
            found.insert(0, message["content"])
        elif message["role"] == "user" and isinstance(message["content"], list):
            parts = cast(list[dict[str, Any]], message["content"])
            found = [str(_plain(part["content"])) for part in parts if part["type"] == "tool_result"] + found
            break
        else:
            break
    return found


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _wanted(body: dict[str, Any]) -> dict[str, Any] | None:
    if "response_format" in body:
        return body["response_format"]["json_schema"]["schema"]
    formatted = body.get("output_config", {}).get("format") or body.get("output_format")
    return formatted["schema"] if formatted else None
