"""Copies of conversations that processes share in Valkey or Redis, for an hour after their last turn.

They are copies only, and never believed as they are: the messages that a process has read together are sealed with a
secret that the database keeps, and bound to their place and to the message before them. Whoever reads compares the last
one with the store's. What is garbled, missing, of another session or of another life of the same one is left out, and
read from the store.
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

from atlas_agents.core.store import StoredMessage
from atlas_agents.stores.histories import Rows

logger = logging.getLogger(__name__)
EXPIRY = 3600
"""Seconds."""
_LARGEST = 16 << 20
_PATIENCE = 1.0
_REST = 5.0
_AT_ONCE = 64
_MAC = 16


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    """Messages that follow each other, (id, run, body) each, and the id of the one before them."""

    previous: str
    messages: tuple[tuple[str, str, bytes], ...]


_decoder = msgspec.msgpack.Decoder(_Piece)
_encoder = msgspec.msgpack.Encoder()


class ValkeyCopies:
    """Where it is away, there are no copies: nobody waits for it, and it is asked again a little later."""

    def __init__(self, client: Valkey) -> None:
        self._client: Any = client
        self._seal = b""
        self._place = ""
        self._rests_until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, seal: Callable[[], Awaitable[bytes]]) -> None:
        self._seal = await seal()
        self._place = hashlib.sha256(b"place" + self._seal).hexdigest()[:16]

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_PATIENCE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def get(self, tenant: str, session: str, created_at: int) -> Rows:
        key, found = self._key(tenant, session), dict[bytes, bytes]()

        async def ask() -> None:
            found.update(await self._client.hgetall(key))

        await self._try(ask())
        rows: list[StoredMessage] = []
        while (piece := self._piece(key, _field(created_at, len(rows) + 1), found)) is not None:
            if not piece.messages or piece.previous != (rows[-1].id if rows else ""):
                break
            rows += [StoredMessage(session, seq, *each) for seq, each in enumerate(piece.messages, len(rows) + 1)]
        return tuple(rows)

    def put(self, tenant: str, session: str, created_at: int, rows: Rows, known: int) -> None:
        if sum(len(row.body) for row in rows) > _LARGEST or rows[-1].seq != len(rows):
            return
        key, field = self._key(tenant, session), _field(created_at, known + 1)
        messages = tuple((row.id, row.run_id, row.body) for row in rows[known:])
        payload = _encoder.encode(_Piece(rows[known - 1].id if known else "", messages))
        value = self._mac(key, field, payload) + payload

        async def share() -> None:
            async with self._client.pipeline(transaction=True) as together:
                together.hset(key, field, value)
                together.expire(key, EXPIRY)
                await together.execute()

        self._soon(share())

    def drop(self, tenant: str, session: str) -> None:
        async def drop() -> None:
            await self._client.unlink(self._key(tenant, session))

        self._soon(drop())

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= _AT_ONCE:
            work.close()
            return
        task = asyncio.create_task(self._try(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        if time.monotonic() < self._rests_until:
            work.close()
            return
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(_PATIENCE):
                await work
        except (ValkeyError, OSError, TimeoutError) as trouble:
            self._rests_until = time.monotonic() + _REST
            logger.warning(
                "the shared copies of sessions cannot be used at the moment, the database is read instead: %s",
                " ".join(str(trouble).split())[:200] or type(trouble).__name__,
            )
        if task is not None and task.cancelling() > cancelled:  # before Python 3.12 the client may lose it
            raise asyncio.CancelledError

    def _key(self, tenant: str, session: str) -> str:
        return f"atlas:{self._place}:session:{quote(tenant, safe='')}:{quote(session, safe='')}"

    def _mac(self, key: str, field: bytes, payload: bytes) -> bytes:
        bound = b"%s\0%s\0%s" % (key.encode(), field, payload)
        return hashlib.blake2b(bound, key=self._seal, digest_size=_MAC).digest()

    def _piece(self, key: str, field: bytes, found: dict[bytes, bytes]) -> _Piece | None:
        """None for what is not there, or was not sealed by one of us, in this place."""
        value = found.get(field, b"")
        if not hmac.compare_digest(value[:_MAC], self._mac(key, field, value[_MAC:])):
            return None
        try:
            return _decoder.decode(value[_MAC:])
        except msgspec.MsgspecError:  # another version of us
            return None


def _field(created_at: int, seq: int) -> bytes:
    return b"%d.%d" % (created_at, seq)
