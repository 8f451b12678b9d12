"""Shared history cache in Valkey or Redis. Entries expire an hour after the last turn.

Entries are authenticated, never trusted: each holds the messages that a process read together, with a MAC that covers
their position and the message before them. The key of the MAC is stored in the database. Entries that are damaged,
missing, or of another session or an earlier session with the same key are ignored, and the database is read instead.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import quote

import msgspec
from valkey.asyncio import Valkey
from valkey.exceptions import ValkeyError

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.store import StoredMessage
from atlas_agents.storage.history_cache import Rows

logger = logging.getLogger(__name__)
EXPIRY = 3600
"""Seconds after which an unused entry expires."""
_MAX_SIZE = 16 << 20
_TIMEOUT = 1.0
_RETRY_AFTER = 5.0
_MAX_TASKS = 64
_MAC_SIZE = 16


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
        except (ValkeyError, OSError, TimeoutError) as error:
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


def _field_name(created_at: int, seq: int) -> bytes:
    return b"%d.%d" % (created_at, seq)
