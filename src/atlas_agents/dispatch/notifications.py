"""Notifications between processes over Postgres LISTEN/NOTIFY: their format, and a subscriber that reconnects."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import psycopg
from psycopg import sql

from atlas_agents.core import store

logger = logging.getLogger(__name__)
Kind: TypeAlias = Literal["begun", "ended", "events", "stop", "asked", "answer", "job", "audit", "session"]
FOLLOWED: frozenset[Kind] = frozenset(("events", "asked", "audit", "session"))
"""Notifications that only processes with clients need. They have a channel of their own, so that workers do not receive
them."""
_MAX_PAYLOAD = 7900
"""Payload limit in bytes; Postgres accepts less than 8000."""
CONNECTION_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
    "application_name": "atlas-cluster",
}
"""Connection options for long-lived connections. Without `tcp_user_timeout`, a request whose packets were lost is sent
again after delays that double, and fails after 15 minutes: the heartbeats of a live worker would be missing for longer
than the database was unreachable."""
_PING_INTERVAL = 5.0
_RECONNECT_DELAY = 0.5


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """A notification. `id` names a run, an approval or a job; it is empty for audit records and sessions. For
    events, `seq` is the number of the last event written. A session key that does not fit is omitted; read it from
    the store."""

    kind: Kind
    tenant: str
    id: str
    session: str = ""
    seq: int = 0


_decoder = msgspec.json.Decoder(Notification)


def encode_notification(notification: Notification) -> str:
    text = msgspec.json.encode(notification)
    if len(text) > _MAX_PAYLOAD:
        text = msgspec.json.encode(msgspec.structs.replace(notification, session=""))
    return text.decode()


def join_payloads(payloads: Iterable[str]) -> list[str]:
    """Join encoded notifications to as few payloads as possible, one per line."""
    joined: list[str] = []
    for payload in payloads:
        if joined and len(joined[-1].encode()) + len(payload.encode()) < _MAX_PAYLOAD:
            joined[-1] += "\n" + payload
        else:
            joined.append(payload)
    return joined


def decode_notification(text: str) -> Notification | None:
    """Decode a notification; None for an unknown kind from a newer version."""
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def notifications_for(tenant: str, writes: Sequence[store.Write], results: Sequence[Any]) -> list[Notification]:
    """Return the notifications for a commit."""
    pairs = zip(writes, results, strict=True)
    return [notification for write, result in pairs for notification in _notifications_of_write(tenant, write, result)]


def _notifications_of_write(tenant: str, write: store.Write, result: Any) -> Iterable[Notification]:
    match write:
        case store.AcceptRun(id=id) if _is_new(id, result):
            yield Notification("begun", tenant, id, write.session)
        case store.SetRun(run_id=id, status=status):
            if status not in store.OPEN:
                yield Notification("ended", tenant, id)
            if result is not None:
                yield Notification("begun", tenant, result)
        case store.MergeRun(run_id=id) | store.StopRun(run_id=id) if result is not None:
            yield Notification("stop" if result.status in store.OPEN else "ended", tenant, id, result.session)
        case store.AnswerApproval(id=id) if result is not None:
            yield Notification("answer", tenant, id, result.session)
        case store.PutApproval(approval=approval):
            yield Notification("asked", tenant, approval.id, approval.session)
        case store.AddEvents(run_id=id, events=events) if events:
            yield Notification("events", tenant, id, seq=events[-1][0])
        case store.AddJob() | store.ClaimJob() | store.SetJob() | store.RetryJob() if isinstance(result, store.JobRow):
            yield Notification("job", tenant, result.id)
        case _:
            yield from _record_notifications(tenant, write)


def _record_notifications(tenant: str, write: store.Write) -> Iterable[Notification]:
    match write:
        case store.AddAudit():
            yield Notification("audit", tenant, "")
        case store.DropSession(key=key) | store.NameSession(key=key) | store.SetSessionMetadata(key=key):
            yield Notification("session", tenant, "", key)
        case store.PutSession(key=key) if write != store.PutSession(key):
            yield Notification("session", tenant, "", key)
        case _:
            pass


def find_ready_runs(writes: Sequence[store.Write], results: Sequence[Any]) -> list[str]:
    """Return runs that became ready by a commit and that its writer does not start itself."""
    claimed = {write.run_id for write in writes if isinstance(write, store.ClaimRun)}
    found: list[str] = []
    for write, result in zip(writes, results, strict=True):
        if isinstance(write, store.AcceptRun) and _is_new(write.id, result) and result.status == "running":
            found.append(write.id)
        elif isinstance(write, store.SetRun) and result is not None:
            found.append(result)
    return [id for id in found if id not in claimed]


def _is_new(id: str, result: Any) -> bool:
    """Return whether the result is this run, and not one accepted earlier under the same idempotency key."""
    return isinstance(result, store.RunRow) and result.id == id


class PostgresSubscriber:
    """Subscriber: calls `on_notification` for every notification, and `on_reconnect` after every reconnect, because
    notifications in between were lost."""

    def __init__(
        self,
        url: str,
        channels: Callable[[], Sequence[str]],
        on_notification: Callable[[Notification], None],
        on_reconnect: Callable[[], None],
    ) -> None:
        self._url = url
        self._channels = channels
        self._on_notification = on_notification
        self._on_reconnect = on_reconnect
        self.ready = asyncio.Event()
        """Set once the first subscription is active."""
        self._connected_at: float | None = None

    @property
    def connected_for(self) -> float:
        """Seconds since the connection was last established."""
        return time.monotonic() - self._connected_at if self._connected_at is not None else 0.0

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, **CONNECTION_OPTIONS) as connection:
                    for channel in self._channels():
                        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                    self.ready.set()
                    self._connected_at = time.monotonic()
                    self._on_reconnect()
                    await self._receive(connection)
            except (psycopg.Error, OSError) as error:
                logger.warning("not receiving notifications: error=%s", describe_error(error))
            finally:
                self._connected_at = None
            deliver_cancellation()
            await asyncio.sleep(_RECONNECT_DELAY)

    async def _receive(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for message in connection.notifies(timeout=_PING_INTERVAL):
                for payload in message.payload.split("\n"):
                    if (notification := decode_notification(payload)) is not None:
                        self._on_notification(notification)
            # A suspended server keeps its connections open but does not respond.
            async with asyncio.timeout(_PING_INTERVAL):
                await connection.execute("SELECT 1")


def deliver_cancellation() -> None:
    """Raise a lost cancellation of the current task.

    psycopg replaces one by the error of a connection that breaks at the same time.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def describe_error(error: BaseException) -> str:
    """Return the message of an error on one line, at most 200 characters; its type if the message is empty."""
    return " ".join(str(error).split())[:200] or type(error).__name__
