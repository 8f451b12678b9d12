"""Client for conformance tests: when its gateway fails, it continues at another one where it was interrupted."""

import asyncio
from contextlib import suppress
from typing import Any

from conformance_processes import ProcessGroup
from crash.evidence_log import LogEntry
from crash.scripts import Script, Send
from processes import connect_process
from websockets.exceptions import WebSocketException

TERMINAL_EVENTS = ("chat.final", "chat.error")
_RETRIABLE = (OSError, WebSocketException, TimeoutError, AssertionError)
_RETRY_DELAY = 0.1
_MAX_SILENCE = 1.5
_MAX_ANSWER = 20.0


class ReconnectingClient:
    """Sends messages until they are acknowledged, and receives each turn to its end."""

    def __init__(self, start_processes: ProcessGroup) -> None:
        self._processes = start_processes
        self.sends: list[Send] = []
        self.entries: list[LogEntry] = []
        self.runs: dict[str, str] = {}
        """The session of each acknowledged run."""
        self.received: dict[str, list[dict[str, Any]]] = {}
        self._followers: list[asyncio.Task[None]] = []

    async def send(self, scenario: str, session: str) -> str:
        """Send a message until it is acknowledged, follow its run, and return the run id."""
        message = Send(scenario, str(len(self.sends) + 1), session)
        self.sends.append(message)
        run = ""
        while not run:
            with suppress(*_RETRIABLE):
                gateway = connect_process(self._processes.any_gateway())
                async with asyncio.timeout(_MAX_ANSWER), gateway as client:  # the gateway may be suspended
                    params = {"sessionKey": session, "message": message.text, "idempotencyKey": message.key}
                    run = (await client.get("chat.send", **params))["runId"]
            await asyncio.sleep(0 if run else _RETRY_DELAY)
        self.entries.append(LogEntry("client", "ack", run=run, key=message.key))
        self.runs[run] = session
        self._followers.append(asyncio.create_task(self._follow(run)))
        return run

    async def wait_all(self) -> None:
        """Wait until every run has sent its terminal event."""
        await asyncio.gather(*self._followers)

    async def _follow(self, run: str) -> None:
        self.received[run] = frames = list[dict[str, Any]]()
        while not has_ended(frames):
            with suppress(*_RETRIABLE):
                await self._receive(run, frames)
            await asyncio.sleep(0 if has_ended(frames) else _RETRY_DELAY)

    async def _receive(self, run: str, frames: list[dict[str, Any]]) -> None:
        """Append the further frames of a run over one connection; they are kept if it is lost."""
        async with connect_process(self._processes.any_gateway(), close_timeout=_MAX_SILENCE) as client:
            count = len(frames)
            try:
                since = frames[-1]["data"]["seq"] if frames else 0
                await client.get("sessions.subscribe", sessionKey=self.runs[run], runs={run: since})
                while not has_ended(client.events(run)):
                    frames[count:] = client.events(run)
                    async with asyncio.timeout(_MAX_SILENCE):  # the gateway may be suspended
                        await client.next()
            finally:
                frames[count:] = client.events(run)

    async def has_event(self, run: str, event: str) -> bool:
        """Return whether this event of a run was received."""
        return any(frame["event"] == event for frame in self.received.get(run, ()))

    async def abort(self, run: str) -> None:
        async with connect_process(self._processes.any_gateway()) as client:
            self.entries.append(LogEntry("client", "cancel", run=run))
            assert (await client.get("chat.abort", runId=run))["aborted"] == [run]

    def expect_cancel(self, run: str) -> None:
        """Record that this run's work is cancelled by others and may be incomplete."""
        self.entries.append(LogEntry("client", "cancel", run=run))

    async def replay(self) -> dict[str, list[dict[str, Any]]]:
        """Return all frames of all runs, as a client receives them that subscribes after their end."""
        replayed: dict[str, list[dict[str, Any]]] = {run: [] for run in self.runs}
        for run, frames in replayed.items():
            await self._receive(run, frames)
        return replayed

    async def close(self) -> None:
        for task in self._followers:
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    def script(self) -> Script:
        """Return what was sent, in the format of the crash tests' checker."""
        sessions = dict.fromkeys(message.session for message in self.sends)
        return Script("conformance", tuple(tuple(s for s in self.sends if s.session == each) for each in sessions))


def has_ended(frames: list[dict[str, Any]]) -> bool:
    return bool(frames) and frames[-1]["event"] in TERMINAL_EVENTS
