"""Copies of the state of sessions in Valkey or Redis, for other programs. They expire an hour after the last turn."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace
from valkey.asyncio import Valkey
from valkey.exceptions import ValkeyError

from atlas_agents.config.settings import scheme
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import ConfigError, StoreError
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked, Event, StreamEnd, StreamStart, ToolAnswered
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import RunRow

logger = logging.getLogger(__name__)
CONNECTION_ERRORS = (ValkeyError, OSError, TimeoutError)
_EXPIRY = 3600
"""Seconds after which the copy of a session without turns expires."""
_TIMEOUT = 1.0
_SOCKET_TIMEOUT = 2.0
_RETRY_AFTER = 5.0
_MAX_STATES = 1000
_MAX_EVENTS = 10_000
_MAX_STEPS = 199
_EXPECTED_URL = "expected redis://:password@host:6379/0 or rediss://:password@host:6379/0?ssl_ca_certs=/path"


def open_valkey(url: Secret) -> Valkey:
    """Return a client that connects on first use. `rediss://` verifies the host name."""
    options: dict[str, Any] = {"socket_timeout": _SOCKET_TIMEOUT, "protocol": 2, "client_name": "atlas"}
    if scheme(url.reveal()) != "unix":
        options["socket_connect_timeout"] = _SOCKET_TIMEOUT
    if scheme(url.reveal()) == "rediss":
        options["ssl_check_hostname"] = True
    try:
        client: Any = Valkey.from_url(url.reveal(), **options)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # validates the options without connecting
    except (ValueError, TypeError, ValkeyError):  # their messages may contain the password
        raise ConfigError(f"redis_url: invalid URL or option: {_EXPECTED_URL}") from None
    return client


class SessionStep(msgspec.Struct, frozen=True):
    """A tool call of a turn that has its result."""

    tool: str
    status: str
    at: int


class SessionState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The latest turn of a session: times in milliseconds since 1970, and its tool calls without their content."""

    session: str
    run_id: str
    agent_id: str
    user: str
    status: str
    started_at: int
    updated_at: int
    ended_at: int | None = None
    steps: tuple[SessionStep, ...] = ()


class SessionCopies:
    """Keeps `agent:session:<key>` up to date: JSON with the state of each session whose turns this process runs.

    It is a copy for other programs; Atlas does not read it. While the server is unavailable, updates are skipped.
    """

    def __init__(self, client: Valkey, read_run: Callable[[str], Awaitable[RunRow | None]]) -> None:
        self._client: Any = client
        self._read_run = read_run
        self._states: dict[str, SessionState] = {}
        self._retry_at = 0.0
        self._events: asyncio.Queue[tuple[Event, int]] = asyncio.Queue(_MAX_EVENTS)
        self._tasks = BackgroundTasks("session copies")
        self._tasks.spawn(self._record_events())

    def receive(self, event: Event) -> None:
        """Record an event of a turn, after those before it."""
        with suppress(asyncio.QueueFull):
            self._events.put_nowait((event, int(time.time() * 1000)))

    async def flushed(self) -> None:
        """Wait until every event that was received is recorded."""
        await self._events.join()

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT):
                await self.flushed()
        await self._tasks.close()
        await self._client.aclose()

    async def _record_events(self) -> None:
        while True:
            event, now = await self._events.get()
            try:
                if (state := await self._next_state(event, now)) is not None:
                    await self._write(state)
            except StoreError as error:
                logger.warning("copy of the session not written: error=%s", error)
            finally:
                self._events.task_done()

    async def _next_state(self, event: Event, now: int) -> SessionState | None:
        """Return the state after an event; None if the turn is unknown."""
        if isinstance(event, StreamStart) and (run := await self._read_run(event.stream_id)) is not None:
            state = SessionState(run.session, run.id, event.agent_id, run.user, "running", run.created_at, now)
            self._states[run.id] = state
            if len(self._states) > _MAX_STATES:  # turns that went on in another process
                del self._states[next(iter(self._states))]
            return state
        state = self._states.pop(event.stream_id, None)
        if state is None:
            return None
        match event:
            case StreamEnd(cancelled=cancelled, error=error):
                status = "cancelled" if cancelled else "failed" if error is not None else "done"
                return replace(state, status=status, updated_at=now, ended_at=now)
            case ToolAnswered(name=name, status=status):
                state = replace(state, steps=(*state.steps[-_MAX_STEPS:], SessionStep(name, status, now)))
            case ApprovalAsked():
                state = replace(state, status="waiting")
            case ApprovalAnswered():
                state = replace(state, status="running")
            case _:
                pass
        self._states[event.stream_id] = state = replace(state, updated_at=now)
        return state

    async def _write(self, state: SessionState) -> None:
        if time.monotonic() < self._retry_at:
            return
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._client.set(f"agent:session:{state.session}", msgspec.json.encode(state), ex=_EXPIRY)
        except CONNECTION_ERRORS as error:
            self._retry_at = time.monotonic() + _RETRY_AFTER
            logger.warning("copies of sessions are not written for now: error=%s", type(error).__name__)
