"""The audit log from its end: pages, and new lines as they are written."""

import asyncio
import logging
from typing import Any

import msgspec

from atlas_agents.core.clock import day_of
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import AuditRow, Store
from atlas_agents.gateway.channel import Listener
from atlas_agents.gateway.protocol.events import AuditAdded, body_of
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.protocol.records import AuditList, AuditPage, AuditShape, AuditVerified, ToolUse
from atlas_agents.stores.chain import START, audit_row

logger = logging.getLogger(__name__)
_STEP = 500


class _Meta(msgspec.Struct, frozen=True):
    duration_ms: float | None = None


class _Call(msgspec.Struct, frozen=True):
    """What is counted of a line; its names are the log's."""

    timestamp: int
    entityId: str = ""
    success: bool = True
    meta: _Meta = _Meta()


class AuditTail:
    """Lines are numbered without gaps; the store reads forward, so the last number is found first."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._last = 0
        self._listeners: set[Listener] = set()
        self._told = 0
        self._telling: asyncio.Task[None] | None = None
        self._again = False

    async def page(self, params: AuditList) -> AuditPage:
        """The latest lines that fit the filters, or those before a cursor."""
        before = await self._newest() + 1 if params.cursor is None else _number(params.cursor)
        found: list[AuditShape] = []
        while before > 1 and len(found) < params.limit:
            first = max(0, before - 1 - _STEP)
            rows = await self._store.audit(self._tenant, after=first, limit=before - 1 - first)
            for row in reversed(rows):
                before = row.seq
                shape = _shape(row)
                if _fits(shape.entry, params):
                    found.append(shape)
                    if len(found) == params.limit:
                        break
            if not rows:
                break
        return AuditPage(tuple(found), str(before) if before > 1 else None)

    async def verify(self) -> AuditVerified:
        """Read the whole chain, page by page; the first line that does not follow ends it."""
        seq, previous = 0, START
        while rows := await self._store.audit(self._tenant, after=seq, limit=_STEP):
            for row in rows:
                seq += 1
                if row != audit_row(seq, previous, row.entry):
                    return AuditVerified(await self._newest(), seq, _problem(row, seq, previous))
                previous = row.hash
        return AuditVerified(seq)

    async def used(self, since: str, until: str) -> tuple[ToolUse, ...]:
        """Calls by tool and day, up to and with the last one."""
        sums: dict[tuple[str, str], list[float]] = {}
        seq = 0
        while rows := await self._store.audit(self._tenant, after=seq, limit=_STEP):
            seq = rows[-1].seq
            for entry in [msgspec.json.decode(row.entry, type=_Call) for row in rows]:
                day = day_of(entry.timestamp / 1000)
                if since <= day <= until:
                    sum = sums.setdefault((entry.entityId, day), [0, 0, 0.0])
                    sum[0] += 1
                    sum[1] += not entry.success
                    sum[2] += entry.meta.duration_ms or 0.0
        return tuple([ToolUse(name, day, int(n), int(bad), round(ms, 3)) for (name, day), (n, bad, ms) in sums.items()])

    async def listen(self, listener: Listener) -> None:
        """Hear new lines from now on."""
        if not self._listeners:
            self._told = await self._newest()
        self._listeners.add(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def look(self) -> None:
        """There may be new lines: tell them, if somebody listens."""
        self._again = True
        if self._listeners and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._again and self._listeners:
            self._again = False
            try:
                rows = await self._store.audit(self._tenant, after=self._told)
            except StoreError as error:
                logger.warning("the audit log could not be read: %s", error)
                return
            for row in rows:
                self._told = row.seq
                frame = body_of(AuditAdded(_shape(row)))
                for listener in list(self._listeners):
                    listener.put(frame)

    async def _newest(self) -> int:
        """The last number, in ever larger steps from the last one known, then in ever smaller ones."""
        step = 1
        while await self._store.audit(self._tenant, after=self._last + step - 1, limit=1):
            self._last, step = self._last + step, step * 2
        while step > 1:
            step //= 2
            if await self._store.audit(self._tenant, after=self._last + step - 1, limit=1):
                self._last += step
        return self._last


def _problem(row: AuditRow, seq: int, previous: str) -> str:
    if row.seq != seq:
        return f"row {seq} is missing: row {row.seq} stands in its place"
    if row.previous != previous:
        return f"row {seq} does not follow the row before it: one of them was replaced"
    return f"row {seq} was changed after it was written"


def _shape(row: AuditRow) -> AuditShape:
    return AuditShape(row.seq, msgspec.json.decode(row.entry), row.previous, row.hash)


def _fits(entry: dict[str, Any], params: AuditList) -> bool:
    wanted = (
        (params.agent_id, entry.get("actorExternalId")),
        (params.tool, entry.get("entityId")),
        (params.level, entry.get("level")),
        (params.run_id, entry.get("meta", {}).get("run_id")),
    )
    return all(wish is None or wish == value for wish, value in wanted)


def _number(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 20:
        raise Fault("INVALID_PARAMS", "this cursor is not from here")
    return int(cursor)
