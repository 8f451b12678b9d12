"""AG-UI requests over plain HTTP; each event is validated against AG-UI's own types."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from ag_ui.core import Event, RunAgentInput
from gateway_client import HasPort, main_token
from pydantic import BaseModel, TypeAdapter

from atlas_agents import ToolContext
from atlas_agents.gateway.server import Gateway
from atlas_agents.tools.tool import tool
from checks import TIMEOUT

_events: TypeAdapter[Any] = TypeAdapter(Event)


@tool(in_process=True)
def change(values: dict[str, Any], context: ToolContext) -> str:
    """Change the state that the agent shares with the frontend; null removes a value."""
    state = context.metadata.get("shared_state", {}) | values
    context.metadata.set("shared_state", {key: value for key, value in state.items() if value is not None})
    return "changed"


class Page:
    """One thread of an AG-UI client."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url
        self._token = token
        self.messages: list[dict[str, Any]] = []
        self.runs = 0

    async def request(
        self, text: str = "", thread: str = "main", headers: dict[str, str] | None = None, **more: Any
    ) -> "Answer":
        """Start a run and return the response, whatever its status."""
        if text:
            self.messages.append({"id": f"m{len(self.messages)}", "role": "user", "content": text})
        self.runs += 1
        body: dict[str, Any] = {"threadId": thread, "runId": f"r{self.runs}", "messages": self.messages}
        body |= {"protocolVersion": "1.0", "state": {}, "tools": [], "context": [], "forwardedProps": {}} | more
        RunAgentInput.model_validate(body)
        sent = {"Authorization": f"Bearer {self._token}", "Accept": "text/event-stream", **(headers or {})}
        return Answer(await self._session.post(self._url, json=body, headers=sent))

    async def run(self, text: str = "", **more: Any) -> list[dict[str, Any]]:
        """Return all events of a run."""
        return [event async for event in (await self.request(text, **more)).events()]


class Answer:
    """Response to a run request."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        assert self.response.status == 200, await self.response.text()
        async for line in self.response.content:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                _check_known(_events.validate_python(event))
                yield event


def _check_known(value: Any) -> None:
    """Fail on fields that the protocol does not define; its models would accept them silently."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, value
        for name in type(value).model_fields:
            _check_known(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            _check_known(each)


@asynccontextmanager
async def open_page(gateway: HasPort, token: str | None = None, agent: str = "assistant") -> AsyncGenerator[Page, None]:
    """Open a client of this gateway."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        url = f"http://127.0.0.1:{gateway.port}/ag-ui/{agent}"
        if token is None:
            assert isinstance(gateway, Gateway)
            token = main_token(gateway)
        yield Page(session, url, token)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join([event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"])
