"""Model server on loopback: implements the APIs of OpenAI, Anthropic and Gemini and answers by rule.

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

from sse_events import AnthropicEvents, GeminiEvents, OpenAIEvents, ResponsesEvents


@dataclass(frozen=True)
class ModelRequest:
    """One request, in the same form for all APIs."""

    path: str
    headers: dict[str, str]
    model: str
    text: str
    """The last user message."""
    results: list[str]
    """The tool results, if they come last."""
    tools: dict[str, dict[str, Any]]
    """The schema of each tool by its name."""
    output: dict[str, Any] | None
    """The requested JSON schema of the answer."""
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """A reply of the model: text or tool calls; or an HTTP error, with a status."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    status: int = 200
    delay: float = 0
    """Seconds between two words."""
    filtered: bool = False
    """A content filter stops the reply before its text, on chat completions."""
    disconnects: bool = False
    """The connection is closed after the text, before the end of the message."""
    hangs: bool = False
    """Nothing is sent after the text until the client disconnects."""


_HANG_TIMEOUT = 60.0
Responder = Callable[[ModelRequest], Reply]


@dataclass
class ModelServer:
    """`url` is the OpenAI-compatible address, `root` the one of the other APIs."""

    respond: Responder
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest])
    port: int = 0
    key: str = ""
    """If set, requests for the list of models need this key."""
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a process that uses this server for all vendors."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": "key-for-tests",
            "ANTHROPIC_BASE_URL": self.root,
            "ANTHROPIC_API_KEY": "key-for-tests",
            "GOOGLE_BASE_URL": self.root,
            "GOOGLE_API_KEY": "key-for-tests",
        }


@contextmanager
def run_model_server(respond: Responder) -> Generator[ModelServer]:
    """Run a model server for the duration of the block."""
    model = ModelServer(respond)

    class Handler(_Handler):
        server_model = model

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_model: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        sent = self.headers["authorization"] or self.headers["x-api-key"] or ""
        if self.server_model.key and sent.removeprefix("Bearer ") != self.server_model.key:
            self._send_json(401, {"error": {"message": f"invalid key {sent}"}})
        elif self.path.partition("?")[0].endswith("/models"):
            self._send_json(200, {"object": "list", "data": [{"id": "rules-1"}, {"id": "rules-2"}]})
        else:
            self._send_json(404, {"error": {"message": f"nothing at {self.path}"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        model = self.server_model
        request = _parse_request(self.path, dict(self.headers.items()), body)
        model.requests.append(request)
        reply = model.respond(request)
        if reply.status != 200:
            self._send_json(reply.status, {"error": {"message": reply.text, "type": "invalid_request_error"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in _encode_reply(request, reply):
                self.wfile.write(event)
                if reply.delay and model.stop.wait(reply.delay):
                    return
            if reply.hangs:
                model.stop.wait(_HANG_TIMEOUT)
        except OSError:
            pass  # the client has disconnected

    def _send_json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _encode_reply(request: ModelRequest, reply: Reply) -> list[bytes]:
    last = request.path.partition("?")[0].rpartition("/")[2].rpartition(":")[2]
    kinds = {"streamGenerateContent": GeminiEvents, "messages": AnthropicEvents, "responses": ResponsesEvents}
    wire = kinds.get(last, OpenAIEvents)()
    if reply.calls:
        number = len(request.body["messages"])
        calls = [(f"call_{number}_{n}", name, json.dumps(values)) for n, (name, values) in enumerate(reply.calls)]
        return wire.calls(*calls, says=reply.text)
    if reply.filtered:
        return OpenAIEvents().end_with("content_filter")
    events = wire.says(*re.findall(r"\s*\S+|\s+$", reply.text))
    return events[:-3] if reply.disconnects or reply.hangs else events


def _parse_request(path: str, headers: dict[str, str], body: dict[str, Any]) -> ModelRequest:
    if "contents" in body:
        body = _as_chat(path, body)
    elif "input" in body:
        body = _responses_as_chat(body)
    messages = cast(list[dict[str, Any]], body["messages"])
    users = [text for message in messages if message["role"] == "user" and (text := _text(message))]
    tools = [cast(dict[str, Any], tool.get("function", tool)) for tool in body.get("tools", [])]
    return ModelRequest(
        path=path,
        headers={name.lower(): value for name, value in headers.items()},
        model=body["model"],
        text=users[-1] if users else "",
        results=_tool_results(messages),
        tools={tool["name"]: tool.get("parameters") or tool.get("input_schema") or {} for tool in tools},
        output=_output_schema(body),
        body=body,
    )


def _as_chat(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request to the Gemini API in the form of chat completions."""
    messages: list[dict[str, Any]] = []
    for content in body["contents"]:
        results = [part["functionResponse"]["response"] for part in content["parts"] if "functionResponse" in part]
        messages += [{"role": "tool", "content": str(result.get("output", result))} for result in results]
        if not results:
            role = "assistant" if content["role"] == "model" else "user"
            messages.append({"role": role, "content": "".join(part.get("text", "") for part in content["parts"])})
    declared = [each for tool in body.get("tools", []) for each in tool["functionDeclarations"]]
    tools = [{"name": each["name"], "parameters": each["parametersJsonSchema"]} for each in declared]
    schema = body.get("generationConfig", {}).get("responseJsonSchema")
    output = {"response_format": {"json_schema": {"schema": schema}}} if schema else {}
    model = path.rpartition("/")[2].partition(":")[0]
    return {"model": model, "messages": messages, "tools": tools, **output}


def _responses_as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request to the Responses API in the form of chat completions."""
    messages: list[dict[str, Any]] = []
    for item in body["input"]:
        if item.get("type") == "function_call_output":
            messages.append({"role": "tool", "content": _content_text(item["output"])})
        elif "role" in item:
            messages.append({"role": item["role"], "content": _content_text(item["content"])})
    given = body.get("text", {}).get("format")
    output = {"response_format": {"json_schema": given}} if given else {}
    return {**body, "messages": messages, **output}


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _tool_results(messages: list[dict[str, Any]]) -> list[str]:
    results: list[str] = []
    for message in reversed(messages):
        if message["role"] == "tool":
            results.insert(0, message["content"])
        elif message["role"] == "user" and isinstance(message["content"], list):
            parts = cast(list[dict[str, Any]], message["content"])
            results = [str(_content_text(part["content"])) for part in parts if part["type"] == "tool_result"] + results
            break
        else:
            break
    return results


def _content_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _output_schema(body: dict[str, Any]) -> dict[str, Any] | None:
    if "response_format" in body:
        return body["response_format"]["json_schema"]["schema"]
    formatted = body.get("output_config", {}).get("format") or body.get("output_format")
    return formatted["schema"] if formatted else None
