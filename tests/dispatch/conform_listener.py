"""A client that comes back: whatever happens to the gateway it talks to, it goes on at another where it was cut off."""

import asyncio
from contextlib import suppress
from typing import Any

from conform_troupe import Troupe
from crash.scripts import Script, Send
from crash.world import Note
from websockets.exceptions import WebSocketException

from gateway.processes import connect_process

LAST = ("chat.final", "chat.error")
_TROUBLE = (OSError, WebSocketException, TimeoutError, AssertionError)
_PAUSE = 0.1
_SILENCE = 1.5


class Listener:
    """Says things until they are acknowledged, and hears each turn to its end."""

    def __init__(self, troupe: Troupe) -> None:
        self._troupe = troupe
        self.sends: list[Send] = []
        self.notes: list[Note] = []
        self.runs: dict[str, str] = {}
        """The session of each run that was acknowledged."""
        self.heard: dict[str, list[dict[str, Any]]] = {}
        self._following: list[asyncio.Task[None]] = []

    async def say(self, play: str, session: str) -> str:
        """The run of a message, once it is acknowledged; it is followed from then on."""
        send = Send(play, str(len(self.sends) + 1), session)
        self.sends.append(send)
        run = ""
        while not run:
            with suppress(*_TROUBLE):
                async with connect_process(self._troupe.front()) as client:
                    asked = {"sessionKey": session, "message": send.text, "idempotencyKey": send.key}
                    run = (await client.get("chat.send", **asked))["runId"]
            await asyncio.sleep(0 if run else _PAUSE)
        self.notes.append(Note("client", "ack", run=run, key=send.key))
        self.runs[run] = session
        self._following.append(asyncio.create_task(self._follow(run)))
        return run

    async def all(self) -> None:
        """Every run has said its last word."""
        await asyncio.gather(*self._following)

    async def _follow(self, run: str) -> None:
        self.heard[run] = frames = list[dict[str, Any]]()
        while not is_over(frames):
            with suppress(*_TROUBLE):
                await self._listen(run, frames)
            await asyncio.sleep(0 if is_over(frames) else _PAUSE)

    async def _listen(self, run: str, frames: list[dict[str, Any]]) -> None:
        """What a run says after these frames, on one line; they are kept also if that breaks."""
        async with connect_process(self._troupe.front(), close_timeout=_SILENCE) as client:
            known = len(frames)
            try:
                since = frames[-1]["data"]["seq"] if frames else 0
                await client.get("sessions.subscribe", sessionKey=self.runs[run], runs={run: since})
                while not is_over(client.events(run)):
                    frames[known:] = client.events(run)
                    async with asyncio.timeout(_SILENCE):  # it may be stopped, and not gone
                        await client.next()
            finally:
                frames[known:] = client.events(run)

    async def said(self, run: str, event: str) -> bool:
        """It was heard of a run."""
        return any(frame["event"] == event for frame in self.heard.get(run, ()))

    async def abort(self, run: str) -> None:
        async with connect_process(self._troupe.front()) as client:
            self.notes.append(Note("client", "cancel", run=run))
            assert (await client.get("chat.abort", runId=run))["aborted"] == [run]

    def will_be_stopped(self, run: str) -> None:
        """What was begun for this run was stopped by others, and may end before its end."""
        self.notes.append(Note("client", "cancel", run=run))

    async def replayed(self) -> dict[str, list[dict[str, Any]]]:
        """What is told of all runs to somebody who comes when they are over."""
        told: dict[str, list[dict[str, Any]]] = {run: [] for run in self.runs}
        for run, frames in told.items():
            await self._listen(run, frames)
        return told

    async def close(self) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    def script(self) -> Script:
        """What was sent, as the checker of the crash cases reads it."""
        sessions = dict.fromkeys(send.session for send in self.sends)
        return Script("conformance", tuple(tuple(s for s in self.sends if s.session == each) for each in sessions))


def is_over(frames: list[dict[str, Any]]) -> bool:
    return bool(frames) and frames[-1]["event"] in LAST
