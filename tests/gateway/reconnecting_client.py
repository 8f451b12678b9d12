"""Clients that reconnect until their message is answered, and a check of what they received."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gateway_client import Client, text_of
from kill_scripts import SCRIPTS, whole_text
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from checks import TIMEOUT

Profile: TypeAlias = Literal["full", "plain", "repeating"]
"""`full` subscribes with its last number once it knows its run, `repeating` always repeats its idempotency key; so does
`plain`, which has the plain profile."""
_RETRY = 0.002
_TERMINAL = ("chat.final", "chat.error")


class ReconnectingClient:
    """Sends messages with idempotency keys, one after the other, and receives their runs over any number of sockets."""

    def __init__(self, profile: Profile, session: str, home: Path, port: int) -> None:
        self.profile: Profile = profile
        self.session = session
        self.reconnects = 0
        self.answers = 0
        self.received: dict[str, list[dict[str, Any]]] = {}
        """Frames of each run, in the order they were received; a repeating client counts only its last socket."""
        self._home = home
        self._port = port

    async def send(self, text: str) -> str:
        """Send a message and receive its run to the end, whatever happens to the gateway; return the run's id."""
        run_id, approvals = "", set[str]()
        while True:
            try:
                async for socket in self._sockets():
                    client = Client(socket)
                    run_id = await self._resume(client, text, run_id)
                    for approval_id in approvals:
                        await client.send(id="yes", method="exec.approve", params={"approvalId": approval_id})
                    if await self._receive(client, run_id, approvals):
                        return run_id
            except (WebSocketException, OSError, EOFError):
                self.reconnects += 1

    async def _sockets(self) -> AsyncGenerator[Any, None]:
        """Yield one authenticated socket; wait for the gateway if it is not there."""
        while True:
            try:
                async with connect(f"ws://127.0.0.1:{self._port}/", open_timeout=TIMEOUT, ping_interval=None) as socket:
                    token = (self._home / "token").read_text().strip()
                    full = {} if self.profile == "plain" else {"protocol": 1}
                    await socket.send(json.dumps({"type": "auth", "token": token, **full}))
                    assert json.loads(await socket.recv())["ok"] is True
                    yield socket
                    return
            except (OSError, InvalidHandshake, EOFError):
                await asyncio.sleep(_RETRY)

    async def _resume(self, client: Client, text: str, run_id: str) -> str:
        if run_id and self.profile == "full":
            frames = self.received[run_id]
            last = frames[-1]["data"]["seq"] if frames else 0
            await client.get("sessions.subscribe", sessionKey=self.session, runs={run_id: last})
            return run_id
        key = f"{self.session}:{text}"
        sent = await client.get("chat.send", sessionKey=self.session, message=text, idempotencyKey=key)
        assert run_id in ("", sent["runId"]), "the repeated key started another run"
        if self.profile == "full":
            self.received.setdefault(sent["runId"], [])
        else:
            self.received[sent["runId"]] = []
        return sent["runId"]

    async def _receive(self, client: Client, run_id: str, approvals: set[str]) -> bool:
        """Receive events until the run has ended; events that came with a response count."""
        waiting = client.frames
        while True:
            for frame in waiting:
                if frame.get("event") == "exec.approval_request":
                    approvals.add(frame["data"]["approvalId"])
                    await client.send(
                        id="yes", method="exec.approve", params={"approvalId": frame["data"]["approvalId"]}
                    )
                if frame.get("data", {}).get("runId") == run_id:
                    self.received[run_id].append(frame)
                    if frame["event"] in _TERMINAL:
                        return True
            waiting = [json.loads(await client.socket.recv())]


def problems(client: ReconnectingClient, run_id: str, script: str, stored: Callable[[str], list[str]]) -> list[str]:
    """Return what is wrong with the frames of a run. `stored` returns the ids of its stored messages."""
    frames = client.received[run_id]
    names = [frame["event"] for frame in frames]
    found: list[str] = []
    if names[-1] != "chat.final" or sum(name in _TERMINAL for name in names) != 1:
        found.append(f"wrong end: {names[-3:]}")
    if client.profile == "plain":
        return found + _plain_problems(frames, script)
    numbers = [frame["data"]["seq"] for frame in frames]
    if numbers != sorted(set(numbers)):
        found.append(f"duplicate frames: {numbers}")
    announced = [frame["data"]["message"]["id"] for frame in frames if frame["event"] == "chat.message"]
    if announced != stored(run_id):
        found.append(f"missing message: announced {announced}, stored {stored(run_id)}")
    return found + _text_problems(frames, script)


def _plain_problems(frames: list[dict[str, Any]], script: str) -> list[str]:
    shown = text_of(frames)
    return [] if shown == whole_text(script) else [f"lost reset or words: the plain client shows {shown!r}"]


def _text_problems(frames: list[dict[str, Any]], script: str) -> list[str]:
    """Check that the text before each reply is that of the reply."""
    found: list[str] = []
    shown, complete = "", ""
    for frame in frames:
        if frame["event"] == "chat.reset":
            shown = ""
        elif frame["event"] == "chat.delta":
            shown += frame["data"]["text"]
        elif frame["event"] == "chat.message" and frame["data"]["message"]["role"] == "assistant":
            text = _text(frame["data"]["message"])
            if shown != text:
                found.append(f"lost reset or words: shown {shown!r}, stored {text!r}")
            shown, complete = "", complete + text
    if complete != whole_text(script) or shown:
        found.append(f"lost reset or words: announced {complete!r}, then {shown!r}")
    if frames[-1]["event"] == "chat.final" and _text(frames[-1]["data"]["message"]) != SCRIPTS[script][-1]:
        found.append("wrong final message")
    return found


def _text(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
