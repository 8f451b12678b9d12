"""Derived tables: search index of sessions, index of the audit log, sums of usage; built from the rows in batches.

They add no work to the commits of a turn. `RefreshIndexes` continues from a stored position, so nothing is lost if the
process is killed.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from atlas_agents.core import store
from atlas_agents.core.aio import utc_day
from atlas_agents.storage.sql import derived_statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.statements import AUDIT as READ_AUDIT
from atlas_agents.storage.sql.tables import Query, Row, Steps, WriteContext, clean_text, split_batches, unpack_value
from atlas_agents.storage.sql.text_search import session_owners

DERIVED_TABLES = (
    *("derived_positions", "search_sessions", "search_texts", "audit_blocks", "audit_values"),
    *("tool_days", "usage_days", "usage_closed", "usage_sessions", "usage_session_days", "last_turns"),
)
"""Names of the tables that can be built again from the others."""
SESSIONS = "sessions"
"""Name of the position in the sessions of a tenant: the `updated_at` up to which they are indexed."""
OVERLAP_MS = 20_000
"""Milliseconds before the position within which changed sessions are checked again, because commits may be out of
order: on Postgres, a commit that has chosen its time may wait for 5 seconds and be idle for 10 until others see it, and
its time may be a second old."""
BATCH = 32
"""Maximum number of sessions of one batch."""
_MAX_MESSAGES = 60
"""Maximum number of messages of one batch, which takes about 10 ms. Each session counts as one more."""
_MAX_BYTES = 256 * 1024
"""Size in bytes of a session's messages after which the next batch continues."""
_MAX_TEXT, _MAX_WORD = 64 * 1024, 64
"""Characters of a message and of a word that are indexed."""
AUDIT = "audit"
"""Name of the position in the audit log: the number of the last row that is indexed, always the end of a block."""
AUDIT_BLOCK = 64
AUDIT_FIELDS = ("run_id", "user", "tool", "agent_id", "level")
"""Fields of `AuditFilter` that are indexed, those with the rarest values first."""
_AUDIT_BATCH = 8 * AUDIT_BLOCK
_SESSION_BATCHES = (16, 4, 1)
"""Sessions per statement. Few sizes, so that each statement stays prepared."""
_MAX_VALUE = 200
USAGE = "usage"
"""Prefix of the name of the position in a day: the number of sessions whose usage is summed."""
_USAGE_SESSIONS = 500
OPEN_DAYS_MS = 2 * 86_400_000
"""Days within this time before now may still change often, and are not summed."""
_MAX_TIME = (1 << 63) - 1
_MAX_DAY = 253_402_300_800_000
"""The year 10,000, which has no day in ISO format."""
_MAX_DURATION = 1e15
_PLAIN = re.compile(r"[A-Za-z0-9_.@:-]+")
TOOL_CALL = "TOOL_CALL"
"""The action of audit entries about tool calls."""
_WORD = re.compile(r"[^\W_]+")
_CJK = re.compile("([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff])")
"""Scripts without spaces between words; each character is indexed as a word."""


class NotShared(Exception):
    """The commit must be repeated while no other commit of the tenant is written."""


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Body(msgspec.Struct):
    role: str = ""
    parts: list[_Part] = []


_decode_body = msgspec.json.Decoder(_Body).decode


class _Pending(NamedTuple):
    """A session to index, and its indexed part so far."""

    key: str
    updated_at: int
    label: str
    last_message: int
    last_run: int
    message: int
    indexed_label: str | None
    run: int


def search_words(text: str) -> list[str]:
    """Split a text into words for searching: without case, accents and punctuation."""
    folded = text.casefold()
    if not folded.isascii():
        plain = "".join([char for char in unicodedata.normalize("NFKD", folded) if not unicodedata.combining(char)])
        folded = _CJK.sub(r" \1 ", unicodedata.normalize("NFC", plain))
    return [word[:_MAX_WORD] for word in _WORD.findall(folded)]


def refresh_indexes(context: WriteContext, write: store.RefreshIndexes) -> Steps[int]:
    """Index one batch of sessions; if none remain, also a batch of audit rows; if few of those remain, sum the usage of
    a day.

    The result is less than `BATCH` once only sessions that change all the time remain.
    """
    count = yield from _index_sessions(context)
    if count < BATCH:
        count += yield from _index_audit(context)
    if count < BATCH and (yield from _sum_usage_day(context)):
        return BATCH
    return count


def _index_sessions(context: WriteContext) -> Steps[int]:
    """Index the names and the next messages of one batch of sessions, in the order of their last change."""
    position = yield from _lock_position(context, SESSIONS)
    ((newest,),) = yield context.bind(sql.NEWEST_SESSION)
    position = min(position, newest)
    rows = yield context.bind(sql.UNINDEXED_SESSIONS, position=position - OVERLAP_MS, limit=BATCH)
    if not rows:
        return 0
    sessions, limits = list[_Pending](), list[int]()
    remaining = _MAX_MESSAGES
    for session in map(_Pending._make, rows):
        if remaining > 0:
            sessions.append(session)
            limits.append(min(max(0, session.last_message - session.message), remaining))
            remaining -= limits[-1] + 1
    indexed = yield from _index_messages(context, sessions, limits)
    is_complete = len(sessions) == len(rows)
    for session, last in zip(sessions, indexed, strict=True):
        if last < session.last_message:
            is_complete = False
            break
        position = max(position, session.updated_at)
    if is_complete and len(rows) < BATCH:
        position = newest
    yield context.bind(sql.SET_POSITION, name=SESSIONS, position=position)
    return len(rows) if is_complete else BATCH


def _index_messages(context: WriteContext, sessions: Sequence[_Pending], limits: Sequence[int]) -> Steps[list[int]]:
    """Index a limited number of messages of each session. Returns the last message of each that is indexed."""
    wanted = [
        {"session": session.key, "after": session.message, "limit": limit, "size": _MAX_BYTES}
        for session, limit in zip(sessions, limits, strict=True)
        if limit
    ]
    found: dict[str, list[tuple[int, bytes]]] = {}
    for batch in split_batches(wanted, _SESSION_BATCHES):
        for key, seq, body in (yield _bind_rows(context, sql.read_bodies, batch)):
            found.setdefault(key, []).append((seq, body))
    renamed = [session for session in sessions if session.indexed_label != session.label]
    texts = list[dict[str, Any]]()
    for session in sessions:
        owners = session_owners(context.tenant, session.key)
        words = [(0, " ".join(search_words(session.label)))] if session in renamed else []
        words += [(seq, _message_words(body)) for seq, body in found.get(session.key, ())]
        texts += [{"session": session.key, "owners": owners, "seq": seq, "text": text} for seq, text in words if text]
    yield from _insert(context, sql.drop_search_labels, [{"session": session.key} for session in renamed])
    yield from _insert(context, context.dialect.add_search_texts, texts)
    runs = [{"session": each.key, "run": each.run} for each in sessions if each.run < each.last_run]
    yield from _insert(context, sql.note_last_turns, runs)
    indexed = list[int]()
    for session, limit in zip(sessions, limits, strict=True):
        rows = found.get(session.key, [])
        is_cut = len(rows) == limit or sum(len(body) for _, body in rows) >= _MAX_BYTES
        indexed.append(rows[-1][0] if rows and is_cut else max(session.last_message, session.message))
    states = [
        {"session": session.key, "label": session.label, "message": last, "run": session.last_run}
        for session, last in zip(sessions, indexed, strict=True)
    ]
    known = {session.key for session in sessions if session.indexed_label is not None}
    yield from _insert(context, sql.put_search_sessions, [each for each in states if each["session"] not in known])
    yield from _insert(
        context, context.dialect.update_search_sessions, [each for each in states if each["session"] in known]
    )
    return indexed


def _message_words(body: bytes) -> str:
    """Return the words of a message of a person or a model; none if it cannot be decoded."""
    try:
        message = _decode_body(unpack_value(body))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    if message.role not in ("user", "assistant"):
        return ""
    text = "".join([part.text for part in message.parts if part.type == "text"])
    return " ".join(dict.fromkeys(search_words(text[:_MAX_TEXT])))


def _lock_position(context: WriteContext, name: str) -> Steps[int]:
    return first_number((yield context.bind(sql.LOCK_POSITION, name=name)))


def first_number(rows: Sequence[Row]) -> int:
    """Return the number in the first row; 0 if there is none."""
    return int(rows[0][0]) if rows and rows[0][0] is not None else 0


# Audit log


def indexed_value(value: object) -> str | None:
    """Return a value as it is indexed; None if it cannot be searched for."""
    return (clean_text(value) or "")[:_MAX_VALUE] if isinstance(value, str) else None


def read_entry(entry: bytes) -> dict[str, Any]:
    """Decode an audit entry; an empty dict if it is not a JSON object."""
    try:
        return msgspec.json.decode(entry, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def entry_time(entry: dict[str, Any]) -> int:
    """Return the time of an entry in milliseconds since 1970; 0 if it has none."""
    at = entry.get("timestamp")
    return at if isinstance(at, int) and 0 <= at <= _MAX_TIME else 0


def entry_values(entry: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the values of an entry that can be searched for, by the field of `AuditFilter`."""
    meta = _as_dict(entry.get("meta"))
    return [
        ("agent_id", entry.get("actorExternalId")),
        ("tool", entry.get("entityId")),
        ("level", entry.get("level")),
        ("run_id", meta.get("run_id")),
        ("user", meta.get("user")),
        ("user", meta.get("approved_by")),
        ("user", _as_dict(meta.get("denied")).get("by")),
    ]


def matches_entry(entry: dict[str, Any], where: store.AuditFilter) -> bool:
    """Return whether an entry fulfils all conditions of a filter."""
    at, values = entry_time(entry), entry_values(entry)
    if (where.since is not None and at < where.since) or (where.until is not None and at >= where.until):
        return False
    wanted = [(name, value) for name in AUDIT_FIELDS if (value := getattr(where, name)) is not None]
    return all(each in values for each in wanted)


def entry_needles(where: store.AuditFilter) -> list[bytes]:
    """Return texts that each matching entry contains, to skip most others without decoding them.

    Only values that JSON never escapes are used.
    """
    values = [value for name in AUDIT_FIELDS if (value := getattr(where, name)) is not None]
    return [f'"{value}"'.encode() for value in values if _PLAIN.fullmatch(value)]


def add_tool_call(entry: dict[str, Any], sums: dict[tuple[str, str], list[float]]) -> None:
    """Add an entry, if it is about a tool call, to sums by day and tool: calls, failures and milliseconds."""
    at, tool = entry_time(entry), entry.get("entityId", "")
    if entry.get("action", TOOL_CALL) != TOOL_CALL or not isinstance(tool, str) or not 0 < at < _MAX_DAY:
        return
    sums_of_day = sums.setdefault((utc_day(at / 1000), indexed_value(tool) or ""), [0, 0, 0.0])
    duration = _as_dict(entry.get("meta")).get("duration_ms")
    sums_of_day[0] += 1
    sums_of_day[1] += not entry.get("success", True)
    sums_of_day[2] += duration if isinstance(duration, int | float) and abs(duration) < _MAX_DURATION else 0.0


def _as_dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _index_audit(context: WriteContext) -> Steps[int]:
    """Index the next complete blocks."""
    position = yield from _lock_position(context, AUDIT)
    rows = tables.AUDIT.all((yield context.bind(READ_AUDIT, after=position, limit=_AUDIT_BATCH)))
    end = rows[-1].seq // AUDIT_BLOCK * AUDIT_BLOCK if rows else 0
    if end <= position:
        return 0
    yield context.bind(sql.SET_POSITION, name=AUDIT, position=end)
    times: dict[int, tuple[int, int]] = {}
    values: set[tuple[str, str, int]] = set()
    sums: dict[tuple[str, str], list[float]] = {}
    indexed = [row for row in rows if row.seq <= end]
    for row in indexed:
        entry, block = read_entry(row.entry), (row.seq - 1) // AUDIT_BLOCK
        at = entry_time(entry)
        first, last = times.get(block, (at, at))
        times[block] = min(first, at), max(last, at)
        for field, each in entry_values(entry):
            if (value := indexed_value(each)) is not None:
                values.add((field, tables.run_key(value) if field == "run_id" else value, block))
        add_tool_call(entry, sums)
    blocks = [{"block": block, "first_at": first, "last_at": last} for block, (first, last) in times.items()]
    yield from _insert(context, sql.add_audit_blocks, blocks)
    fields = [{"field": field, "value": value, "block": block} for field, value, block in sorted(values)]
    yield from _insert(context, context.dialect.add_audit_values, fields)
    days = [
        {"day": day, "tool": tool, "calls": int(calls), "failed": int(failed), "milliseconds": milliseconds}
        for (day, tool), (calls, failed, milliseconds) in sorted(sums.items())
    ]
    yield from _insert(context, sql.add_tool_days, days)
    return len(indexed)


def _insert(context: WriteContext, statement: Callable[[int], str], rows: Sequence[dict[str, Any]]) -> Steps[None]:
    for batch in split_batches(rows, tables.VALUE_BATCHES):
        yield _bind_rows(context, statement, batch)


def _bind_rows(context: WriteContext, statement: Callable[[int], str], rows: Sequence[dict[str, Any]]) -> Query:
    """Bind the form of a statement for this number of rows."""
    values = {f"{name}{n}": value for n, row in enumerate(rows) for name, value in row.items()}
    return context.bind(statement(len(rows)), **values)


# Usage


def _sum_usage_day(context: WriteContext) -> Steps[int]:
    """Sum the usage of the next day that is over: the first commit announces the day, each further one sums some
    sessions.

    A change of the day in between, even by another process, revokes the announcement, and the day is summed again.
    Without the announcement, a change that is not visible yet would be missed.
    """
    until = utc_day((context.now - OPEN_DAYS_MS) / 1000)
    found = yield context.bind(sql.NEXT_OPEN_DAY, since="", until=until)
    if not found:
        return 0
    if context.is_shared:
        raise NotShared
    ((day, is_announced),) = found
    name = f"{USAGE} {day}"
    rows = yield context.bind(sql.POSITION, name=name)
    if not is_announced or not rows:
        yield context.bind(sql.START_CLOSING_DAY, day=day)
        yield context.bind(sql.DROP_USAGE_DAY, day=day)
        yield from _lock_position(context, name)
        yield context.bind(sql.SET_POSITION, name=name, position=0)
    elif (yield context.bind(sql.CONTINUE_CLOSING_DAY, day=day)):
        yield from _sum_usage_sessions(context, day, name, first_number(rows))
    return 1


def _sum_usage_sessions(context: WriteContext, day: str, name: str, position: int) -> Steps[None]:
    """Sum the usage of the sessions from a position on, and close the day after the last one."""
    paged = {"limit": _USAGE_SESSIONS, "position": position}
    ((first, last, count),) = yield context.bind(sql.NEXT_USAGE_SESSIONS, day=day, **paged)
    if count:
        for statement in (sql.ADD_TO_USAGE_DAY, sql.SUM_SESSION_DAY, sql.SUM_SESSIONS):
            yield context.bind(statement, day=day, first=first, last=last)
    if count < _USAGE_SESSIONS:
        yield context.bind(sql.CLOSE_DAY, day=day)
        yield context.bind(sql.DROP_POSITION, name=name)
    else:
        yield context.bind(sql.SET_POSITION, name=name, position=position + count)
