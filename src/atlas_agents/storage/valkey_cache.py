"""Shared history cache in Valkey or Redis, and copies of the state of sessions that other programs can read.

Both expire an hour after the last turn. Entries of the cache are authenticated, never trusted: each holds the messages
that a process read together, with a MAC that covers their position and the message before them. The key of the MAC is
stored in the database. Entries that are damaged, missing, or of another session or an earlier session with the same key
are ignored, and the database is read instead.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from valkey.asyncio import Valkey
from valkey.exceptions import ValkeyError

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import StoreError
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked, Event, StreamEnd, StreamStart, ToolAnswered
from atlas_agents.core.store import RunRow, StoredMessage
from atlas_agents.storage.history_cache import Rows

logger = logging.getLogger(__name__)
EXPIRY = 3600
"""Seconds after which an unused entry expires."""
_MAX_SIZE = 16 << 20
_TIMEOUT = 1.0
_RETRY_AFTER = 5.0
_MAX_TASKS = 64
_MAC_SIZE = 16
_MAX_STATES = 1000
_MAX_EVENTS = 10_000
_MAX_STEPS = 199


class _Segment(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive messages as (id, run, body), and the id of the message before them."""

    previous: str
    messages: tuple[tuple[str, str, bytes], ...]


_decoder = msgspec.msgpack.Decoder(_Segment)
_encoder = msgspec.msgpack.Encoder()


class ValkeyCache:
    """Shared history cache. While the server is unavailable it is empty: calls return at once, and it retries later."""

    def __init__(self, client: Valkey) -> None:
        self._client: Any = client
        self._secret = b""
        self._prefix = ""
        self._retry_at = 0.0
        self._tasks = BackgroundTasks("history cache")

    async def open(self, secret: Callable[[], Awaitable[bytes]]) -> None:
        self._secret = await secret()
        self._prefix = hashlib.sha256(b"place" + self._secret).hexdigest()[:16]

    async def close(self) -> None:
        await self._tasks.wait(_TIMEOUT)
        await self._tasks.close()
        await self._client.aclose()

    async def get(self, tenant: str, session: str, created_at: int) -> Rows:
        key, found = self._key(tenant, session), dict[bytes, bytes]()

        async def fetch() -> None:
            found.update(await self._client.hgetall(key))

        await self._try(fetch())
        rows: list[StoredMessage] = []
        while (segment := self._decode_segment(key, _field_name(created_at, len(rows) + 1), found)) is not None:
            if not segment.messages or segment.previous != (rows[-1].id if rows else ""):
                break
            rows += [StoredMessage(session, seq, *each) for seq, each in enumerate(segment.messages, len(rows) + 1)]
        return tuple(rows)

    def put(self, tenant: str, session: str, created_at: int, rows: Rows, cached: int) -> None:
        if sum(len(row.body) for row in rows) > _MAX_SIZE or rows[-1].seq != len(rows):
            return
        key, field = self._key(tenant, session), _field_name(created_at, cached + 1)
        messages = tuple((row.id, row.run_id, row.body) for row in rows[cached:])
        payload = _encoder.encode(_Segment(rows[cached - 1].id if cached else "", messages))
        value = self._mac(key, field, payload) + payload

        async def share() -> None:
            async with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hset(key, field, value)
                pipeline.expire(key, EXPIRY)
                await pipeline.execute()

        self._run_in_background(share())

    def drop(self, tenant: str, session: str) -> None:
        async def drop() -> None:
            await self._client.unlink(self._key(tenant, session))

        self._run_in_background(drop())

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= _MAX_TASKS:
            work.close()
            return
        self._tasks.spawn(self._try(work))

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        if time.monotonic() < self._retry_at:
            work.close()
            return
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(_TIMEOUT):
                await work
        except (ValkeyError, OSError) as error:
            self._retry_at = time.monotonic() + _RETRY_AFTER
            logger.warning(
                "shared history cache unavailable, reading from the database: %s",
                " ".join(str(error).split())[:200] or type(error).__name__,
            )
        if task is not None and task.cancelling() > cancelled:  # before Python 3.12 the client may swallow it
            raise asyncio.CancelledError

    def _key(self, tenant: str, session: str) -> str:
        return f"atlas:{self._prefix}:session:{quote(tenant, safe='')}:{quote(session, safe='')}"

    def _mac(self, key: str, field: bytes, payload: bytes) -> bytes:
        bound = b"%s\0%s\0%s" % (key.encode(), field, payload)
        return hashlib.blake2b(bound, key=self._secret, digest_size=_MAC_SIZE).digest()

    def _decode_segment(self, key: str, field: bytes, found: dict[bytes, bytes]) -> _Segment | None:
        """Return the entry under a field; None if it is missing, or its MAC is not valid for this key and field."""
        value = found.get(field, b"")
        if not hmac.compare_digest(value[:_MAC_SIZE], self._mac(key, field, value[_MAC_SIZE:])):
            return None
        try:
            return _decoder.decode(value[_MAC_SIZE:])
        except msgspec.MsgspecError:  # written by another version
            return None


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
                await self._client.set(f"agent:session:{state.session}", msgspec.json.encode(state), ex=EXPIRY)
        except (ValkeyError, OSError) as error:
            self._retry_at = time.monotonic() + _RETRY_AFTER
            logger.warning("copies of sessions are not written for now: error=%s", type(error).__name__)


def _field_name(created_at: int, seq: int) -> bytes:
    return b"%d.%d" % (created_at, seq)
