"""Notifications between processes over Postgres LISTEN/NOTIFY: their format, and a subscriber that reconnects."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import psycopg
from psycopg import sql

from atlas_agents.core.store import (
    OPEN,
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJob,
    AnswerApproval,
    ClaimJob,
    ClaimRun,
    DropSession,
    JobRow,
    PutApproval,
    PutSession,
    RetryJob,
    RunRow,
    SetJob,
    SetRun,
    StopRun,
    Write,
)

Kind: TypeAlias = Literal["begun", "ended", "events", "stop", "asked", "answer", "job", "audit", "session"]
_LONGEST = 7900
"""Payload limit in bytes; Postgres accepts less than 8000."""


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


def to_json(notice: Notification) -> str:
    text = msgspec.json.encode(notice)
    if len(text) > _LONGEST:
        text = msgspec.json.encode(msgspec.structs.replace(notice, session=""))
    return text.decode()


def from_json(text: str) -> Notification | None:
    """Decode a notification; None for one of a newer version that is unknown here."""
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def notices_of(tenant: str, writes: Sequence[Write], results: Sequence[Any]) -> list[Notification]:
    """Return the notifications for a commit."""
    pairs = zip(writes, results, strict=True)
    return [notice for write, result in pairs for notice in _notifications(tenant, write, result)]


def _notifications(tenant: str, write: Write, result: Any) -> Iterable[Notification]:
    match write:
        case AcceptRun(id=id) if _is_new(id, result):
            yield Notification("begun", tenant, id, write.session)
        case SetRun(run_id=id, status=status):
            if status not in OPEN:
                yield Notification("ended", tenant, id)
            if result is not None:
                yield Notification("begun", tenant, result)
        case StopRun(run_id=id) if result is not None:
            yield Notification("stop" if result.status in OPEN else "ended", tenant, id, result.session)
        case AnswerApproval(id=id) if result is not None:
            yield Notification("answer", tenant, id, result.session)
        case PutApproval(approval=asked):
            yield Notification("asked", tenant, asked.id, asked.session)
        case AddEvents(run_id=id, events=events) if events:
            yield Notification("events", tenant, id, seq=events[-1][0])
        case AddJob() | ClaimJob() | SetJob() | RetryJob() if isinstance(result, JobRow):
            yield Notification("job", tenant, result.id)
        case _:
            yield from _records(tenant, write)


def _records(tenant: str, write: Write) -> Iterable[Notification]:
    match write:
        case AddAudit():
            yield Notification("audit", tenant, "")
        case DropSession(key=key):
            yield Notification("session", tenant, "", key)
        case PutSession(key=key) if write != PutSession(key):
            yield Notification("session", tenant, "", key)
        case _:
            pass


def submitted_by(writes: Sequence[Write], results: Sequence[Any]) -> list[str]:
    """Return runs that became ready by a commit and that its writer does not start itself."""
    claimed = {write.run_id for write in writes if isinstance(write, ClaimRun)}
    found: list[str] = []
    for write, result in zip(writes, results, strict=True):
        if isinstance(write, AcceptRun) and _is_new(write.id, result) and result.status == "running":
            found.append(write.id)
        elif isinstance(write, SetRun) and result is not None:
            found.append(result)
    return [id for id in found if id not in claimed]


def _is_new(id: str, result: Any) -> bool:
    """Return whether the result is this run, and not one accepted earlier under the same idempotency key."""
    return isinstance(result, RunRow) and result.id == id


logger = logging.getLogger(__name__)
LINE: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "atlas-cluster",
}
"""Connection options for long-lived connections."""
_PING_INTERVAL = 5.0
_RECONNECT_DELAY = 0.5


class PostgresSubscriber:
    """Subscriber: calls `on_notice` for every notification, and `on_renewed` after every reconnect, because
    notifications in between were lost."""

    def __init__(
        self, url: str, channel: str, on_notice: Callable[[Notification], None], on_renewed: Callable[[], None]
    ) -> None:
        self._url = url
        self._channel = channel
        self._on_notification = on_notice
        self._on_reconnected = on_renewed
        self.ready = asyncio.Event()
        """Set once the first subscription is active."""
        self._since: float | None = None

    @property
    def steady(self) -> float:
        """Seconds since the connection was last established."""
        return time.monotonic() - self._since if self._since is not None else 0.0

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, **LINE) as connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    self.ready.set()
                    self._since = time.monotonic()
                    self._on_reconnected()
                    await self._receive(connection)
            except (psycopg.Error, OSError, TimeoutError) as error:
                logger.warning("not receiving notifications: error=%s", _one_line(error))
            finally:
                self._since = None
            await asyncio.sleep(_RECONNECT_DELAY)

    async def _receive(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for told in connection.notifies(timeout=_PING_INTERVAL):
                notice = from_json(told.payload)
                if notice is not None:
                    self._on_notification(notice)
            async with asyncio.timeout(
                _PING_INTERVAL
            ):  # a suspended server keeps its connections open but does not respond
                await connection.execute("SELECT 1")


async def place_of(url: str, schema: str) -> str:
    """Return a name that identifies this database and schema, whichever address they are reached by."""
    async with await psycopg.AsyncConnection.connect(url, **LINE) as connection:
        asked = await connection.execute("SELECT system_identifier, current_database() FROM pg_control_system()")
        system, database = await asked.fetchone() or ("", "")
    return f"{system}\0{database}\0{schema}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
