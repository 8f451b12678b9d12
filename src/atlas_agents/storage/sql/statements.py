"""SQL statements that SQLite and Postgres both execute, with `:name` for each parameter.

Column lists come from `tables`. Every statement filters by `:tenant`, except `OPEN_RUNS` and `TENANTS`.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from atlas_agents.core.store import PRIORITIES, AcceptRun, Passage, PutSession, Session
from atlas_agents.storage import hash_chain
from atlas_agents.storage.sql import tables as t

_OPEN = "status IN ('queued', 'running', 'waiting')"
_ACTIVE = "status IN ('running', 'waiting')"

# Sessions. `updated_at` increases even if the clock goes back. It is unique per tenant on SQLite; on Postgres, commits
# that run at the same time may choose the same value, so pages are ordered by the key as well.

_NEXT_UPDATED_AT = (
    "(SELECT CASE WHEN :now > coalesce(max(updated_at), 0) THEN :now ELSE max(updated_at) + 1 END"
    " FROM sessions WHERE tenant = :tenant)"
)
_CHANGES = ", ".join(
    f"{name} = coalesce(:new_{name}, sessions.{name})" for name in PutSession.__struct_fields__ if name != "key"
)
PUT_SESSION = f"""
{t.SESSIONS.insert(updated_at=_NEXT_UPDATED_AT, last_run=":runs")}
ON CONFLICT (tenant, key) DO UPDATE SET {_CHANGES}, updated_at = {_NEXT_UPDATED_AT},
    last_run = sessions.last_run + :runs
RETURNING {t.SESSIONS.columns}, last_run"""
SET_SESSION_METADATA = f"""UPDATE sessions SET metadata = :metadata, updated_at = {_NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :key RETURNING {t.SESSIONS.columns}"""
NAME_SESSION = f"""UPDATE sessions SET label = :label, updated_at = {_NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :key AND label IN ('', :replaces) RETURNING {t.SESSIONS.columns}"""
DROP_SESSION = "DELETE FROM sessions WHERE tenant = :tenant AND key = :session RETURNING key"
_RUNS_OF_SESSION = f"""run_id IN (SELECT id FROM runs WHERE tenant = :tenant AND session = :session
    UNION ALL SELECT {t.sql_run_key("id")} FROM runs WHERE tenant = :tenant AND session = :session)"""
DROP_ROWS = (
    f"DELETE FROM journal WHERE tenant = :tenant AND {_RUNS_OF_SESSION}",
    f"DELETE FROM events WHERE tenant = :tenant AND {_RUNS_OF_SESSION}",
    "DELETE FROM approvals WHERE tenant = :tenant AND session = :session",
    "DELETE FROM messages WHERE tenant = :tenant AND session = :session",
    "DELETE FROM runs WHERE tenant = :tenant AND session = :session",
    "DELETE FROM budgets WHERE tenant = :tenant AND key = 'session/' || :session",
)
HAS_OPEN_RUN = f"SELECT id FROM runs WHERE tenant = :tenant AND session = :session AND {_OPEN} LIMIT 1"
SESSION = f"SELECT {t.SESSIONS.columns} FROM sessions WHERE tenant = :tenant AND key = :key"
SESSION_TOTALS = """
SELECT count(CASE WHEN NOT archived THEN 1 END), coalesce(sum(last_message), 0),
    coalesce(sum(1000 + length(metadata)), 0)
    + (SELECT coalesce(sum(length(body)), 0) FROM messages
        WHERE tenant = :tenant AND session >= :first AND session < :end)
FROM sessions WHERE tenant = :tenant AND key >= :first AND key < :end"""


@cache
def list_sessions(*conditions: str) -> str:
    """Return sessions that fulfil the conditions, latest change first, after the one of `:before` and `:before_key`."""
    wanted = " AND ".join(("(updated_at, key) < (:before, :before_key)", *conditions))
    return f"""
SELECT {t.SESSIONS.columns} FROM sessions WHERE tenant = :tenant AND {wanted}
ORDER BY updated_at DESC, key DESC LIMIT :limit"""


OF_OWNER = "owner = :owner AND owner <> ''"
WITH_PREFIX = "key >= :first AND key < :end"

# Messages

_OF_NUMBER = "tenant || '' = :tenant AND session || '' = :session AND id_number"
"""Condition that keeps the planner from reading the whole session."""
_OF_OLDER = "tenant = :tenant AND session = :session AND id_number IS NULL AND id"
"""Messages of older versions, which have no number on Postgres."""
_MESSAGE_OF_NUMBER = f"SELECT {t.MESSAGES.columns} FROM messages WHERE {_OF_NUMBER} = :id_number AND id = :id"
MESSAGE_OF_ID = f"""
{_MESSAGE_OF_NUMBER} UNION ALL SELECT {t.MESSAGES.columns} FROM messages WHERE {_OF_OLDER} = :id"""
_IS_NO_OLDER = f" AND NOT EXISTS (SELECT 1 FROM messages WHERE {_OF_OLDER} = :id)"
ADD_MESSAGE = f"""
INSERT INTO messages (tenant, session, seq, id, run_id, body, id_number)
SELECT :tenant, key, last_message + :place, :id, :run_id, :body, :id_number FROM sessions
WHERE tenant = :tenant AND key = :session
    AND NOT EXISTS (SELECT 1 FROM messages WHERE {_OF_NUMBER} = :id_number AND id = :id){_IS_NO_OLDER} RETURNING seq"""
_UPDATED_AT_STEP = 1000
"""Milliseconds for which messages of a running turn do not change `updated_at` of its session. The value is
indexed: an update of other columns writes no entry of an index, and on Postgres stays within its page. The indexer of
sessions reads more than this again (`derived.OVERLAP_MS`)."""
SET_LAST_MESSAGE = f"""
UPDATE sessions SET last_message = :seq WHERE tenant = :tenant AND key = :session
RETURNING updated_at > {_NEXT_UPDATED_AT} - {_UPDATED_AT_STEP}"""
SET_UPDATED_AT = f"""
UPDATE sessions SET updated_at = {_NEXT_UPDATED_AT} WHERE tenant = :tenant AND key = :session"""
NEXT_MESSAGES = f"""
UPDATE sessions SET last_message = last_message + :count, updated_at = {_NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :session RETURNING last_message - :count"""
DROP_MESSAGES = "DELETE FROM messages WHERE tenant = :tenant AND session = :session AND seq > :after"
REPLACE_MESSAGE = f"""
UPDATE messages SET body = :body WHERE tenant = :tenant AND session = :session AND seq = :seq
RETURNING {t.MESSAGES.columns}"""
_MESSAGES = f"""
SELECT {t.MESSAGES.columns} FROM messages
WHERE tenant = :tenant AND session = :session AND seq > :after AND seq < :before"""
MESSAGES = f"{_MESSAGES} ORDER BY seq LIMIT :limit"
LAST_MESSAGES = f"{_MESSAGES} ORDER BY seq DESC LIMIT :limit"
HISTORY = f"""
SELECT s.created_at, {t.MESSAGES.select("m")} FROM sessions s
LEFT JOIN messages m ON m.tenant = :tenant AND m.session = :session AND m.seq >= :since
WHERE s.tenant = :tenant AND s.key = :session ORDER BY m.seq"""

# Runs

RUN_BY_KEY = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND idempotency_key = :idempotency_key
AND idempotency_key <> ''"""
NEXT_RUN = f"""
UPDATE sessions SET last_run = last_run + 1, updated_at = {_NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :session RETURNING last_run"""
_FIRST_STATUS = f"""
    CASE WHEN EXISTS (SELECT 1 FROM runs WHERE tenant = :tenant AND session = :session AND {_OPEN})
    THEN 'queued' ELSE 'running' END"""
ADD_RUN = f"""
{t.RUNS.insert(status=_FIRST_STATUS, place=":place")}
ON CONFLICT (tenant, id) DO NOTHING RETURNING status"""
CLAIM_RUN = f"""
UPDATE runs SET epoch = epoch + 1 WHERE tenant = :tenant AND id = :run_id AND {_OPEN} RETURNING epoch"""
RUN = f"SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND id = :run_id"
SET_RUN = f"""
UPDATE runs SET status = :status, error = coalesce(:error, error), ended_at = :ended_at
WHERE tenant = :tenant AND id = :run_id AND epoch = :epoch AND {_OPEN} AND (status <> 'queued' OR :ends OR NOT EXISTS (
    SELECT 1 FROM runs a WHERE a.tenant = :tenant AND a.session = runs.session AND a.{_ACTIVE}))
RETURNING session, EXISTS (
    SELECT 1 FROM runs q WHERE q.tenant = :tenant AND q.session = runs.session AND q.status = 'queued')"""
START_NEXT = f"""
UPDATE runs SET status = 'running' WHERE tenant = :tenant AND session = :session AND status = 'queued'
AND place = (SELECT min(place) FROM runs WHERE tenant = :tenant AND session = :session AND status = 'queued')
AND NOT EXISTS (SELECT 1 FROM runs WHERE tenant = :tenant AND session = :session AND {_ACTIVE})
RETURNING id"""
MERGE_RUN = f"""
UPDATE runs SET status = 'done', ended_at = :now WHERE tenant = :tenant AND id = :run_id AND status = 'queued'
RETURNING {t.RUNS.columns}"""
STOP_RUN = f"""
UPDATE runs SET stop = TRUE, ended_at = CASE WHEN status = 'queued' THEN :now END,
    status = CASE WHEN status = 'queued' THEN 'cancelled' ELSE status END
WHERE tenant = :tenant AND id = :run_id AND {_OPEN} RETURNING {t.RUNS.columns}"""
_OPEN_REQUEST = f"substr(request, 1, CASE WHEN {_OPEN} THEN length(request) ELSE 0 END)"
LAST_RUNS = f"""
SELECT {t.RUNS.select(request=_OPEN_REQUEST)} FROM runs WHERE tenant = :tenant AND session = :session
ORDER BY place DESC LIMIT :limit"""
FAILED_RUNS = f"""
SELECT {t.RUNS.select(request=_OPEN_REQUEST)} FROM runs WHERE tenant = :tenant AND status IN ('failed', 'cancelled')
AND id IN (SELECT run_id FROM messages WHERE tenant = :tenant AND session = :session AND seq >= :first AND seq <= :last)
ORDER BY place"""
LAST_OPEN_RUNS = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND {_OPEN}
ORDER BY place DESC LIMIT :limit"""
QUEUED_RUNS_OF = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND status = 'queued' ORDER BY place"""
OPEN_RUNS = f"SELECT {t.RUNS.columns} FROM runs WHERE {_OPEN} ORDER BY tenant, session, place"

# Journal and audit log. On Postgres, rows of the journal and the events have the key of their run (`tables.run_key`),
# or its id if an older version has written them.

_KEYED = "run_id IN (:run_id, :run_key)"
JOURNAL_END = f"""
SELECT r.status, r.epoch, j.seq, j.hash FROM runs r LEFT JOIN LATERAL (
    SELECT seq, hash FROM journal WHERE tenant = :tenant AND {_KEYED} ORDER BY seq DESC LIMIT 1) j ON TRUE
WHERE r.tenant = :tenant AND r.id = :run_id"""
_STORED_STEP = [name for name in t.JOURNAL.names if name != "previous"]
"""The hash of the step before is not stored twice."""
ADD_JOURNAL = f"""
INSERT INTO journal (tenant, {", ".join(_STORED_STEP)})
SELECT CAST(:tenant AS TEXT), CAST(:run_key AS TEXT), CAST(:seq AS BIGINT), CAST(:kind AS TEXT), CAST(:key AS TEXT),
    CAST(:payload AS BYTEA), CAST(:at AS BIGINT), rtrim(encode(decode(CAST(:hash AS TEXT), 'hex'), 'base64'), '=')
WHERE NOT EXISTS (SELECT 1 FROM journal WHERE tenant = :tenant AND {_KEYED} AND kind = :kind AND key = :key)
RETURNING seq"""
_OF_RUN_ID = "CAST(:run_id AS TEXT)"
_STEPS = "CASE WHEN substr(payload, 1, 1) = '\\x02' THEN 2 ELSE 1 END"
"""Steps in a row of a journal."""
_PREVIOUS_HASH = (
    f"CASE WHEN lag(seq) OVER (ORDER BY seq) = seq - {_STEPS} THEN lag(hash) OVER (ORDER BY seq) ELSE '' END"
)
JOURNAL = f"""
SELECT {t.JOURNAL.select(run_id=_OF_RUN_ID, previous=_PREVIOUS_HASH)} FROM journal
WHERE tenant = :tenant AND {_KEYED} ORDER BY seq"""
AUDIT_END = "SELECT seq, hash FROM audit WHERE tenant = :tenant ORDER BY seq DESC LIMIT 1"
NEXT_AUDIT_TENANT = "SELECT tenant FROM audit WHERE tenant > :after ORDER BY tenant LIMIT 1"
ADD_AUDIT = f"{t.AUDIT.insert()} RETURNING seq"
_AUDIT = f"SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq > :after"
AUDIT = f"{_AUDIT} ORDER BY seq LIMIT :limit"
LAST_AUDIT = f"{_AUDIT} ORDER BY seq DESC LIMIT :limit"
AUDIT_BYTES = f"SELECT {t.AUDIT.select(entry='CAST(entry AS BLOB)')} FROM audit WHERE tenant = :tenant ORDER BY seq"

# Events

RESERVE_EVENTS = """
UPDATE runs SET events = events + :count, said_at = :now, epoch = epoch + :taken
WHERE tenant = :tenant AND id = :run_id RETURNING events, epoch - :taken"""
RESERVED_EVENTS = "SELECT events, epoch FROM runs WHERE tenant = :tenant AND id = :run_id"
_EVENTS = f"SELECT {t.EVENTS.columns}, first FROM events WHERE tenant = :tenant AND run_id = {{0}} AND seq > {{1}}"
EVENTS = f"""
SELECT {t.EVENTS.select("e", run_id=_OF_RUN_ID)}, e.first FROM ({_EVENTS.format(":run_key", ":after")}
    UNION ALL {_EVENTS.format(":run_id", ":after")} AND :run_id <> :run_key) e ORDER BY e.seq LIMIT :limit"""
"""On Postgres, a row has all events from `first` to `seq`."""


@cache
def add_messages(count: int) -> str:
    """Return the INSERT of several messages, with the parameters `:seq0`, `:id0`, `:id_number0`, `:body0` and so on."""
    rows = ", ".join(f"(:tenant, :session, :seq{n}, :id{n}, '', :body{n}, :id_number{n})" for n in range(count))
    return f"INSERT INTO messages (tenant, session, seq, id, run_id, body, id_number) VALUES {rows}"


@cache
def known_messages(count: int) -> str:
    """Return the ids of messages of a session that may be among several: `:id0`, `:id_number0` and so on."""
    ids = ", ".join(f":id{n}" for n in range(count))
    return f"{_sqlite_known_messages(count)} UNION ALL SELECT id FROM messages WHERE {_OF_OLDER} IN ({ids})"


def _sqlite_known_messages(count: int) -> str:
    numbers = ", ".join(f":id_number{n}" for n in range(count))
    return f"SELECT id FROM messages WHERE {_OF_NUMBER} IN ({numbers})"


@cache
def add_events(count: int) -> str:
    """Return the INSERT of several events, with the parameters `:seq0`, `:body0` and so on."""
    rows = ", ".join(f"(CAST(:seq{n} AS BIGINT), CAST(:body{n} AS BYTEA))" for n in range(count))
    return f"""INSERT INTO events (tenant, run_id, seq, body)
SELECT CAST(:tenant AS TEXT), CAST(:run_key AS TEXT), w.seq, w.body FROM (VALUES {rows}) AS w (seq, body)
WHERE NOT EXISTS (
    SELECT 1 FROM events e WHERE e.tenant = :tenant AND e.{_KEYED} AND e.seq >= w.seq
        AND coalesce(e.first, e.seq) <= w.seq)
ON CONFLICT (tenant, run_id, seq) DO NOTHING"""


# Several reads in one statement, for Postgres only: each parameter is an array. Each row begins with the number of its
# read.

_OF_PAGE = """unnest(CAST(:session AS TEXT[]), CAST(:after AS BIGINT[]), CAST(:before AS BIGINT[]),
    CAST(:limit AS BIGINT[])) WITH ORDINALITY AS w (session, after, before, count, n)"""
POSTGRES_GROUPED = {
    SESSION: f"""
SELECT w.n, {t.SESSIONS.select("s")} FROM unnest(CAST(:key AS TEXT[])) WITH ORDINALITY AS w (key, n)
JOIN sessions s ON s.tenant = :tenant AND s.key = w.key""",
    RUN: f"""
SELECT w.n, {t.RUNS.select("r")} FROM unnest(CAST(:run_id AS TEXT[])) WITH ORDINALITY AS w (id, n)
JOIN runs r ON r.tenant = :tenant AND r.id = w.id""",
    QUEUED_RUNS_OF: f"""
SELECT w.n, {t.RUNS.select("r")} FROM unnest(CAST(:session AS TEXT[])) WITH ORDINALITY AS w (session, n)
JOIN runs r ON r.tenant = :tenant AND r.session = w.session AND r.status = 'queued' ORDER BY w.n, r.place""",
    EVENTS: f"""
SELECT w.n, {t.EVENTS.select("e", run_id="w.run_id")}, e.first FROM unnest(CAST(:run_id AS TEXT[]),
    CAST(:run_key AS TEXT[]), CAST(:after AS BIGINT[]), CAST(:limit AS BIGINT[]))
    WITH ORDINALITY AS w (run_id, run_key, after, count, n)
CROSS JOIN LATERAL (SELECT * FROM ({_EVENTS.format("w.run_key", "w.after")}
    UNION ALL {_EVENTS.format("w.run_id", "w.after")} AND w.run_id <> w.run_key) found ORDER BY seq LIMIT w.count) e
ORDER BY w.n, e.seq""",
    LAST_MESSAGES: f"""
SELECT w.n, {t.MESSAGES.select("m")} FROM {_OF_PAGE}
CROSS JOIN LATERAL (SELECT {t.MESSAGES.columns} FROM messages
    WHERE tenant = :tenant AND session = w.session AND seq > w.after AND seq < w.before
    ORDER BY seq DESC LIMIT w.count) m
ORDER BY w.n, m.seq DESC""",
    HISTORY: f"""
SELECT w.n, s.created_at, {t.MESSAGES.select("m")}
FROM unnest(CAST(:session AS TEXT[]), CAST(:since AS BIGINT[])) WITH ORDINALITY AS w (session, since, n)
JOIN sessions s ON s.tenant = :tenant AND s.key = w.session
LEFT JOIN messages m ON m.tenant = :tenant AND m.session = w.session AND m.seq >= w.since ORDER BY w.n, m.seq""",
}
"""Statement for several reads by the statement for one."""

# Statements of `pipelined`, for Postgres only.

POSTGRES_JOURNAL_ENDS = """
SELECT w.id, j.seq, j.hash FROM unnest(CAST(:run_ids AS TEXT[]), CAST(:run_keys AS TEXT[])) AS w (id, key)
LEFT JOIN LATERAL (SELECT seq, hash FROM journal WHERE tenant = :tenant AND run_id IN (w.id, w.key)
    ORDER BY seq DESC LIMIT 1) j ON TRUE"""
POSTGRES_ADD_AUDIT = f"""
INSERT INTO audit (tenant, {t.AUDIT.columns})
SELECT CAST(:tenant AS TEXT), {t.AUDIT.select("w", entry="decode(w.entry, 'base64')")}
FROM {t.AUDIT.recordset("CAST(:rows AS JSONB)")} ORDER BY w.seq"""
_POSTGRES_BEGIN = """
INSERT INTO commit_tokens AS t
SELECT CAST({0} AS UUID), CAST({1} AS BIGINT), now() FROM pg_advisory_xact_lock{3}(CAST({2} AS BIGINT))
ON CONFLICT (id) DO UPDATE SET written_at = now(), token = CASE WHEN t.token < excluded.token THEN excluded.token END"""
"""Takes the tenant's lock and writes the token. If the token was fenced, the write fails because NULL is not allowed:
then the transaction arrived after its writer had given up on it."""
POSTGRES_BEGIN_STEPWISE = _POSTGRES_BEGIN.format(":id", ":token", ":lock", "")
POSTGRES_BEGIN_SHARED = _POSTGRES_BEGIN.format(":id", ":token", ":lock", "_shared")
_NEW_SESSION = t.SESSIONS.values(Session(""))
_INSERTED_SESSION = t.SESSIONS.select(
    "w",
    agent_id=f"coalesce(w.agent_id, '{_NEW_SESSION['agent_id']}')",
    label=f"coalesce(w.label, '{_NEW_SESSION['label']}')",
    archived=f"coalesce(w.archived, {_NEW_SESSION['archived']})",
    metadata=f"decode(coalesce(w.metadata, '{b64encode(_NEW_SESSION['metadata']).decode()}'), 'base64')",
    created_at="at_time",
    updated_at="newest",
)
_DECODED = {name: f"decode(w.{name}, 'base64')" for name in ("metadata", "request", "payload")}
_CHANGED_SESSION = ", ".join(
    f"{name} = coalesce({_DECODED.get(name, f'w.{name}')}, s.{name})"
    for name in PutSession.__struct_fields__
    if name != "key"
)
_ACCEPTED = [name for name in t.RUNS.names if name in map(t.RUNS.column, AcceptRun.__struct_fields__)]
_ACCEPTED_VALUES = ", ".join(_DECODED.get(name, f"w.{name}") for name in _ACCEPTED)
_NEW_MESSAGE = t.MESSAGES.select("w", seq="s.last_message - c.messages + w.number", body="decode(w.body, 'base64')")
_ADDED_USAGE = ", ".join(f"{name} = u.{name} + w.{name}" for name in t.USAGE.names if name not in t.USAGE_KEY)
_SAME_USAGE = " AND ".join(("u.tenant = of_tenant", *(f"u.{name} = w.{name}" for name in t.USAGE_KEY)))
_NEW_STEP = ", ".join((_DECODED | {"run_id": "w.run_key"}).get(name, f"w.{name}") for name in _STORED_STEP)
_ADDED_TO_STEP = {"run_key": "TEXT", "after": "BIGINT", "other_kind": "TEXT", "other_key": "TEXT"}
_WRITE_TURNS = f"""
#variable_conflict use_column
DECLARE
    of_tenant CONSTANT TEXT := given->>'tenant';
    at_time CONSTANT BIGINT := given->>'now';
    of_lock CONSTANT BIGINT := given->>'lock';
    newest BIGINT;
    part JSONB;
    answer JSONB := '{{}}';
    changed BIGINT;
BEGIN
PERFORM pg_advisory_xact_lock_shared(of_lock);
UPDATE commit_tokens SET written_at = now(), token = CASE
    WHEN token < CAST(given->>'token' AS BIGINT) THEN CAST(given->>'token' AS BIGINT) END
WHERE id = CAST(given->>'id' AS UUID);
IF NOT FOUND THEN {_POSTGRES_BEGIN.format("given->>'id'", "given->>'token'", "of_lock", "_shared")}; END IF;
IF given ? 'sessions' OR given ? 'runs' THEN
    PERFORM pg_advisory_xact_lock(CAST(of_lock >> 32 AS INTEGER), of_session) FROM (
        SELECT hashtext(key) AS of_session FROM jsonb_array_elements_text(given->'sessions') AS w (key) UNION
        SELECT hashtext(session) FROM runs WHERE tenant = of_tenant AND id = ANY (ARRAY(
            SELECT jsonb_array_elements_text(given->'runs'))) ORDER BY of_session) AS locks;
END IF;
IF given ? 'changed_sessions' THEN
    SELECT coalesce(max(updated_at), 0) INTO newest FROM sessions WHERE tenant = of_tenant;
    newest := CASE WHEN at_time > newest THEN at_time ELSE newest + 1 END;
    INSERT INTO sessions (tenant, {t.SESSIONS.columns})
    SELECT of_tenant, {_INSERTED_SESSION}
    FROM {t.SESSIONS.recordset("given->'changed_sessions'", put="BOOLEAN")}
    WHERE w.put AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.tenant = of_tenant AND s.key = w.key)
    ORDER BY w.key ON CONFLICT (tenant, key) DO NOTHING;
    WITH done AS (
        UPDATE sessions s SET last_run = s.last_run + w.runs, last_message = s.last_message + w.messages,
            {_CHANGED_SESSION}, updated_at = CASE
                WHEN w.moves OR s.updated_at <= newest - {_UPDATED_AT_STEP} THEN newest ELSE s.updated_at END
        FROM {t.SESSIONS.recordset("given->'changed_sessions'", runs="BIGINT", messages="BIGINT", moves="BOOLEAN")}
        WHERE s.tenant = of_tenant AND s.key = w.key RETURNING s.key, s.last_message)
    SELECT count(*), jsonb_object_agg(key, last_message) INTO changed, part FROM done;
    IF changed <> jsonb_array_length(given->'changed_sessions') THEN RAISE EXCEPTION 'session not found'; END IF;
    answer := jsonb_build_object('sessions', part);
END IF;
IF given ? 'accepted' THEN
    WITH done AS (
        INSERT INTO runs (tenant, {", ".join(_ACCEPTED)}, status, place, epoch, created_at, said_at)
        SELECT of_tenant, {_ACCEPTED_VALUES},
            CASE WHEN w.queued OR EXISTS (SELECT 1 FROM runs r WHERE r.tenant = of_tenant AND r.session = w.session
                AND r.{_OPEN}) THEN 'queued' ELSE 'running' END, s.last_run - w.later, 0, at_time, at_time
        FROM {t.RUNS.recordset("given->'accepted'", queued="BOOLEAN", later="BIGINT")}
        JOIN sessions s ON s.tenant = of_tenant AND s.key = w.session RETURNING id, status)
    SELECT count(*), jsonb_object_agg(id, status) INTO changed, part FROM done;
    IF changed <> jsonb_array_length(given->'accepted') THEN RAISE EXCEPTION 'run not accepted'; END IF;
    answer := answer || jsonb_build_object('accepted', part);
END IF;
IF given ? 'changed_runs' THEN
    WITH done AS (
        UPDATE runs r SET epoch = r.epoch + w.claims, status = coalesce(w.status, r.status),
            error = coalesce(w.error, r.error), events = r.events + w.reserves, said_at = CASE
                WHEN w.says AND (r.said_at IS NULL OR r.ended_at IS NOT NULL) THEN at_time ELSE r.said_at END
        FROM jsonb_to_recordset(given->'changed_runs') AS w (id TEXT, claims BIGINT, epoch BIGINT, status TEXT,
            error TEXT, reserves BIGINT, says BOOLEAN, is_open BOOLEAN)
        WHERE r.tenant = of_tenant AND r.id = w.id AND (w.epoch IS NULL OR r.epoch + w.claims = w.epoch)
            AND (NOT w.is_open OR r.{_OPEN}) AND (w.status IS NULL OR r.status <> 'queued')
        RETURNING r.id, r.epoch, r.events)
    SELECT count(*), jsonb_object_agg(id, jsonb_build_array(epoch, events)) INTO changed, part FROM done;
    IF changed <> jsonb_array_length(given->'changed_runs') THEN RAISE EXCEPTION 'run not as expected'; END IF;
    answer := answer || jsonb_build_object('runs', part);
END IF;
IF given ? 'released' THEN
    DELETE FROM budgets WHERE tenant = of_tenant AND run_id <> '' AND run_id = ANY (ARRAY(
        SELECT jsonb_array_elements_text(given->'released')));
END IF;
IF given ? 'dropped_budgets' THEN
    DELETE FROM budgets b USING jsonb_array_elements_text(given->'dropped_budgets') AS w (run_id)
    WHERE b.tenant = of_tenant AND b.key = 'turn/' || w.run_id AND NOT EXISTS (
        SELECT 1 FROM jobs j WHERE j.tenant = of_tenant AND j.root = w.run_id AND j.root <> '');
END IF;
IF given ? 'messages' THEN
    INSERT INTO messages (tenant, {t.MESSAGES.columns}, id_number)
    SELECT of_tenant, {_NEW_MESSAGE}, w.id_number
    FROM {t.MESSAGES.recordset("given->'messages'", number="BIGINT", id_number="BIGINT")}
    JOIN jsonb_to_recordset(given->'changed_sessions') AS c (key TEXT, messages BIGINT) ON c.key = w.session
    JOIN sessions s ON s.tenant = of_tenant AND s.key = w.session
    WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.id_number = w.id_number AND m.id = w.id
            AND m.session || '' = w.session AND m.tenant || '' = of_tenant)
        AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.tenant = of_tenant AND m.session = w.session
            AND m.id_number IS NULL AND m.id = w.id);
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> jsonb_array_length(given->'messages') THEN RAISE EXCEPTION 'message exists'; END IF;
END IF;
IF given ? 'usage' THEN
    UPDATE usage_sums u SET {_ADDED_USAGE} FROM {t.USAGE.recordset("given->'usage'")} WHERE {_SAME_USAGE};
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> jsonb_array_length(given->'usage') THEN
        INSERT INTO usage_sums (tenant, {t.USAGE.columns}) SELECT of_tenant, {t.USAGE.select("w")}
        FROM {t.USAGE.recordset("given->'usage'")} WHERE NOT EXISTS (SELECT 1 FROM usage_sums u WHERE {_SAME_USAGE});
    END IF;
END IF;
IF given ? 'steps' THEN
    INSERT INTO journal (tenant, {", ".join(_STORED_STEP)})
    SELECT of_tenant, {_NEW_STEP}
    FROM {t.JOURNAL.recordset("given->'steps'", epoch="BIGINT", is_first="BOOLEAN", **_ADDED_TO_STEP)}
    JOIN runs r ON r.tenant = of_tenant AND r.id = w.run_id AND r.epoch = w.epoch AND r.{_OPEN}
    WHERE (NOT w.is_first OR w.after = 0 OR EXISTS (SELECT 1 FROM journal p
        WHERE p.tenant = of_tenant AND p.run_id = w.run_key AND p.seq = w.after AND p.hash = w.previous))
        AND NOT EXISTS (SELECT 1 FROM journal s WHERE s.tenant = of_tenant AND s.run_id IN (w.run_id, w.run_key)
            AND (s.kind = w.kind AND s.key = w.key OR s.kind = w.other_kind AND s.key = w.other_key));
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> jsonb_array_length(given->'steps') THEN RAISE EXCEPTION 'journal not as expected'; END IF;
END IF;
IF given ? 'ended' THEN
    WITH done AS (
        UPDATE runs r SET status = w.status, error = coalesce(w.error, r.error), ended_at = at_time
        FROM jsonb_to_recordset(given->'ended') AS w (id TEXT, epoch BIGINT, status TEXT, error TEXT)
        WHERE r.tenant = of_tenant AND r.id = w.id AND r.epoch = w.epoch AND r.{_OPEN} RETURNING r.session)
    SELECT count(DISTINCT session) INTO changed FROM done;
    IF changed <> jsonb_array_length(given->'ended') THEN RAISE EXCEPTION 'run not as expected'; END IF;
    WITH done AS (
        UPDATE runs n SET status = 'running'
        FROM jsonb_to_recordset(given->'ended') AS w (id TEXT) JOIN runs e ON e.tenant = of_tenant AND e.id = w.id
        WHERE n.tenant = of_tenant AND n.session = e.session AND n.status = 'queued'
            AND n.place = (SELECT min(place) FROM runs q
                WHERE q.tenant = of_tenant AND q.session = e.session AND q.status = 'queued')
            AND NOT EXISTS (SELECT 1 FROM runs a WHERE a.tenant = of_tenant AND a.session = e.session AND a.{_ACTIVE})
        RETURNING e.id AS ended, n.id AS started)
    SELECT jsonb_object_agg(ended, started) INTO part FROM done;
    answer := answer || jsonb_build_object('started', coalesce(part, '{{}}'));
END IF;
IF given ? 'event_owners' THEN
    IF EXISTS (
        SELECT 1 FROM jsonb_to_recordset(given->'event_owners') AS w (
            run_id TEXT, epoch BIGINT, first BIGINT, last BIGINT)
        LEFT JOIN runs r ON r.tenant = of_tenant AND r.id = w.run_id
        WHERE r.id IS NULL OR (w.epoch IS NOT NULL AND w.epoch <> r.epoch) OR w.first < 1 OR w.last > r.events)
    THEN RAISE EXCEPTION 'events not reserved'; END IF;
    IF EXISTS (
        SELECT 1 FROM jsonb_to_recordset(given->'events') AS w (run_id TEXT, run_key TEXT, first BIGINT, seq BIGINT)
        CROSS JOIN LATERAL (SELECT 1 FROM events e WHERE e.tenant = of_tenant AND e.run_id IN (w.run_id, w.run_key)
            AND e.seq >= coalesce(w.first, w.seq) AND coalesce(e.first, e.seq) <= w.seq LIMIT 1) found)
    THEN RAISE EXCEPTION 'events exist'; END IF;
    INSERT INTO events (tenant, {t.EVENTS.columns}, first)
    SELECT of_tenant, {t.EVENTS.select("w", run_id="w.run_key", body="decode(w.body, 'base64')")}, w.first
    FROM {t.EVENTS.recordset("given->'events'", run_key="TEXT", first="BIGINT")};
END IF;
IF given ? 'chain' THEN
    PERFORM pg_advisory_xact_lock(CAST(given->>'chain' AS BIGINT));
    SELECT jsonb_build_array(seq, hash) INTO part FROM audit WHERE tenant = of_tenant ORDER BY seq DESC LIMIT 1;
    answer := answer || jsonb_build_object('chain', part);
END IF;
RETURN answer;
END"""
_CHAIN_AUDIT = f"""
#variable_conflict use_column
DECLARE
    place BIGINT;
    link TEXT;
    start JSONB;
    content BYTEA;
BEGIN
PERFORM pg_advisory_xact_lock(chain);
SELECT seq, hash INTO place, link FROM audit WHERE tenant = of_tenant ORDER BY seq DESC LIMIT 1;
place := coalesce(place, 0);
link := coalesce(link, '{hash_chain.START}');
IF starts_with(link, 'hmac:') THEN RAISE EXCEPTION 'the audit log is signed'; END IF;
start := jsonb_build_array(place, link);
FOR content IN
    SELECT decode(value, 'base64') FROM jsonb_array_elements_text(entries) WITH ORDINALITY ORDER BY ordinality
LOOP
    place := place + 1;
    INSERT INTO audit (tenant, seq, entry, previous, hash)
    SELECT of_tenant, place, content, link, encode(
        sha256(convert_to(link || chr(10) || place || chr(10), 'UTF8') || content), 'hex') RETURNING hash INTO link;
END LOOP;
RETURN start;
END"""
_VERSION = sha256((_WRITE_TURNS + _CHAIN_AUDIT).encode()).hexdigest()[:8]
POSTGRES_FUNCTION = f"write_turns_{_VERSION}"
"""Name of the function that writes a group of commits; see `pipelined`. Each version of the function has its own name,
so that processes of different versions can use one database."""
POSTGRES_CREATE_FUNCTION = f"""
CREATE OR REPLACE FUNCTION {POSTGRES_FUNCTION} (given JSONB) RETURNS TEXT LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $${_WRITE_TURNS}$$;
CREATE OR REPLACE FUNCTION chain_audit_{_VERSION} (of_tenant TEXT, chain BIGINT, entries JSONB) RETURNS TEXT
LANGUAGE plpgsql SET enable_seqscan = off AS $${_CHAIN_AUDIT}$$"""
"""All rows are found through indexes. The planner is not asked: it plans once, when the tables may be almost empty."""
POSTGRES_WRITE_TURNS = f"SELECT {POSTGRES_FUNCTION}(CAST(:given AS JSONB))"
POSTGRES_CHAIN_AUDIT = f"SELECT chain_audit_{_VERSION}(:tenant, CAST(:chain AS BIGINT), CAST(:entries AS JSONB))"
"""Appends entries to an unsigned audit log and returns its end before. Other processes wait until the COMMIT."""


# Daily limits. If the clock is set back by a day or two, counting continues on the latest day that was counted.

_DAY = (
    "coalesce((SELECT max(day) FROM counters WHERE tenant = :tenant AND agent_id = :agent_id AND day > :day"
    " AND day <= :latest), :day)"
)
RESERVE = f"""
INSERT INTO counters (tenant, agent_id, day, used) VALUES (:tenant, :agent_id, {_DAY}, 1)
ON CONFLICT (tenant, agent_id, day) DO UPDATE SET used = counters.used + 1 WHERE counters.used < :limit
RETURNING used"""
RELEASE = f"""
UPDATE counters SET used = used - 1 WHERE tenant = :tenant AND agent_id = :agent_id AND day = {_DAY} AND used > 0
RETURNING used"""
CALL_COUNT = "SELECT used FROM counters WHERE tenant = :tenant AND agent_id = :agent_id AND day = :day"

# Budgets: one row for what was used, and one per run for what it has reserved.

_AMOUNTS = ("tokens", "requests", "tool_calls", "cost_microcents", "milliseconds")
_BUDGET = "tenant = :tenant AND key = :key AND period = :period"
BUDGET_ROWS = f"""
SELECT {t.BUDGETS.columns} FROM budgets WHERE {_BUDGET} ORDER BY run_id"""
DROP_EXPIRED = f"DELETE FROM budgets WHERE {_BUDGET} AND expires_at <= :now"
ADD_TO_BUDGET = f"""
{t.BUDGETS.insert()} ON CONFLICT (tenant, key, period, run_id) DO UPDATE SET
    {", ".join(f"{name} = budgets.{name} + :{name}" for name in _AMOUNTS)}, expires_at = :expires_at"""
RETURN_TO_BUDGET = f"""
UPDATE budgets SET
    {", ".join(f"{name} = CASE WHEN {name} > :{name} THEN {name} - :{name} ELSE 0 END" for name in _AMOUNTS)}
WHERE {_BUDGET} AND run_id = :run_id"""
RELEASE_BUDGETS = "DELETE FROM budgets WHERE tenant = :tenant AND run_id = :run_id AND run_id <> ''"
DROP_TURN_BUDGET = """
DELETE FROM budgets WHERE tenant = :tenant AND key = :key AND NOT EXISTS (
    SELECT 1 FROM jobs WHERE tenant = :tenant AND root = :run_id AND root <> '')"""
DROP_BUDGET = "DELETE FROM budgets WHERE tenant = :tenant AND key = :key"
USAGE_SO_FAR = """
SELECT coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(cost_microcents), 0) FROM usage_sums
WHERE tenant = :tenant AND day >= :since AND day < :until"""

# Approvals. The pending ones are found through the open runs, which are few, while unanswered requests accumulate;
# those of one millisecond are listed as they were asked.

PUT_APPROVAL = f"{t.APPROVALS.insert()} ON CONFLICT (tenant, id) DO NOTHING RETURNING {t.APPROVALS.columns}"
ANSWER_APPROVAL = f"""
UPDATE approvals SET answer = :answer, answered_at = :now, grants = :grants
WHERE tenant = :tenant AND id = :id AND answer IS NULL RETURNING {t.APPROVALS.columns}"""
APPROVAL = f"SELECT {t.APPROVALS.columns} FROM approvals WHERE tenant = :tenant AND id = :id"
PENDING_APPROVALS = f"""
SELECT {t.APPROVALS.select("a")} FROM runs r CROSS JOIN approvals a
LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id IN (a.run_id, {t.sql_run_key("a.run_id")}) AND j.kind = 'asked'
    AND j.key = a.id
WHERE r.tenant = :tenant AND r.{_OPEN} AND a.tenant = :tenant AND a.run_id = r.id AND a.answer IS NULL
ORDER BY a.created_at, j.seq, a.id"""
GRANTS = f"""
SELECT {t.APPROVALS.columns} FROM approvals
WHERE tenant = :tenant AND grants = :binding AND grants <> '' AND answer IS NOT NULL ORDER BY answered_at, id"""

# Usage

_SUMS = ", ".join(f"{name} = usage_sums.{name} + :{name}" for name in t.USAGE.names if name not in t.USAGE_KEY)
ADD_USAGE = f"{t.USAGE.insert()} ON CONFLICT (tenant, {', '.join(t.USAGE_KEY)}) DO UPDATE SET {_SUMS}"
USAGE = f"""
SELECT {t.USAGE.columns} FROM usage_sums WHERE tenant = :tenant AND day >= :since AND day < :until
ORDER BY {", ".join(t.USAGE_KEY)}"""
LAST_TURNS = "SELECT agent_id, user_id, at FROM last_turns WHERE tenant = :tenant ORDER BY agent_id, user_id"
TOKENS = """
SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_sums
WHERE tenant = :tenant AND day >= :since AND day < :until"""
STORAGE_BYTES = """
SELECT (SELECT coalesce(sum(length(body)), 0) FROM messages WHERE tenant = :tenant)
    + (SELECT coalesce(sum(length(payload)), 0) FROM journal WHERE tenant = :tenant)
    + (SELECT coalesce(sum(length(body)), 0) FROM events WHERE tenant = :tenant)"""

# Jobs

_OPEN_JOB = "state IN ('queued', 'running')"
ADD_JOB = f"""
{t.JOBS.insert(seq="(SELECT coalesce(max(seq), 0) + 1 FROM jobs WHERE tenant = :tenant)")}
RETURNING {t.JOBS.columns}"""
COUNT_JOBS = "SELECT count(*) FROM jobs WHERE tenant = :tenant AND root = :root AND root <> ''"
JOB = f"SELECT {t.JOBS.columns} FROM jobs WHERE tenant = :tenant AND id = :id"
CLAIM_JOB = f"""
UPDATE jobs SET epoch = epoch + 1, attempts = attempts + CASE WHEN state = 'queued' THEN 1 ELSE 0 END, state = 'running'
WHERE tenant = :tenant AND id = :id AND {_OPEN_JOB} RETURNING {t.JOBS.columns}"""
SET_JOB = f"""
UPDATE jobs SET state = :state, epoch = :epoch, result = coalesce(:result, result), error = coalesce(:error, error),
    due_at = coalesce(:due_at, due_at), ended_at = :ended_at
WHERE tenant = :tenant AND id = :id RETURNING {t.JOBS.columns}"""
RETRY_JOB = f"""
UPDATE jobs SET state = 'queued', allowed = attempts + :more, due_at = :now, result = NULL, ended_at = NULL,
    deadline = CASE WHEN deadline <= :now THEN NULL ELSE deadline END, told = :notified
WHERE tenant = :tenant AND id = :id RETURNING {t.JOBS.columns}"""
MARK_JOB_NOTIFIED = f"""
UPDATE jobs SET told = TRUE WHERE tenant = :tenant AND id = :id AND attempts = :attempts AND NOT {_OPEN_JOB}
RETURNING id"""
CHILD_JOBS = f"""
SELECT {t.JOBS.columns} FROM jobs WHERE tenant = :tenant AND parent = :parent AND parent <> '' ORDER BY seq"""


def _first_jobs(conditions: Sequence[str], order: str, others: Sequence[str] = ()) -> str:
    """Return the first jobs that fulfil one of several conditions.

    Each condition finds its first ones in the order of an index; those of `others` are all read, and should be few.
    """
    one = f"SELECT {t.JOBS.columns} FROM jobs WHERE tenant = :tenant AND "
    first = f" ORDER BY {order} LIMIT :limit"
    if len(conditions) == 1 and not others:
        return f"{one}{conditions[0]}{first}"
    found = [f"SELECT * FROM ({one}{condition}{first}) w{n}" for n, condition in enumerate(conditions)]
    return " UNION ALL ".join([*found, *[one + condition for condition in others]]) + first


_DUE = "state = 'queued' AND due_at <= :until"
PENDING_JOBS = _first_jobs(
    [f"{_DUE} AND priority = {number}" for number in range(len(PRIORITIES))],
    "priority DESC, due_at, seq",
    (
        "state = 'running'",
        f"{_DUE} AND priority < 0",
        f"{_DUE} AND priority >= {len(PRIORITIES)}",
        "state = 'queued' AND due_at > :until AND deadline <= :until",
        "told = FALSE AND state NOT IN ('queued', 'running')",
    ),
)


@cache
def list_jobs(states: int, *conditions: str) -> str:
    """Return jobs that fulfil the conditions, in any state or in several, with the parameters `:state0` and so on."""
    wanted = " AND ".join(("seq < :before", *conditions))
    of_states = [f"{wanted} AND state = :state{n}" for n in range(states)]
    return _first_jobs(of_states or (wanted,), "seq DESC")


# Records

RECORD = f"SELECT {t.RECORDS.columns} FROM records WHERE tenant = :tenant AND kind = :kind AND key = :key"
_RECORDS = f"SELECT {t.RECORDS.columns} FROM records WHERE tenant = :tenant AND kind = :kind"
RECORDS = f"{_RECORDS} ORDER BY key"
RECORDS_WITH_PREFIX = f"{_RECORDS} AND {WITH_PREFIX} ORDER BY key"
PUT_RECORD = f"""
{t.RECORDS.insert(version="1")}
ON CONFLICT (tenant, kind, key) DO UPDATE SET body = :body, version = records.version + 1
RETURNING {t.RECORDS.columns}"""
DROP_RECORD = "DELETE FROM records WHERE tenant = :tenant AND kind = :kind AND key = :key RETURNING key"
TENANTS = "SELECT tenant FROM records WHERE kind = 'tenant' ORDER BY tenant"

# Documents and passages

_IN_SCOPE = "tenant = :tenant AND kind = :kind AND (:any OR shelf = :collection)"
PUT_DOCUMENT = t.DOCUMENTS.insert()
GROW_DOCUMENT = f"""
UPDATE documents SET passages = passages + :added, hash = :hash WHERE tenant = :tenant AND kind = :kind AND id = :id
RETURNING {t.DOCUMENTS.columns}"""
DROP_DOCUMENT = f"DELETE FROM documents WHERE {_IN_SCOPE} AND id = :id RETURNING model"
COUNT_VECTORS = """
SELECT count(*) FROM passages WHERE tenant = :tenant AND kind = :kind AND document = :id AND vector IS NOT NULL"""
DROP_PASSAGES = "DELETE FROM passages WHERE tenant = :tenant AND kind = :kind AND document = :id"
LIBRARY_CHANGED = """
INSERT INTO libraries (tenant, kind, model, version, vectors) VALUES (:tenant, :kind, :model, 1, :vectors)
ON CONFLICT (tenant, kind, model) DO UPDATE SET version = libraries.version + 1,
    vectors = libraries.vectors + :vectors"""
DOCUMENT = f"SELECT {t.DOCUMENTS.columns} FROM documents WHERE tenant = :tenant AND kind = :kind AND id = :id"
_DOCUMENTS = f"SELECT {t.DOCUMENTS.columns} FROM documents WHERE tenant = :tenant AND kind = :kind"
DOCUMENTS = f"{_DOCUMENTS} AND id > :after ORDER BY id LIMIT :limit"
DOCUMENTS_OF = f"{_DOCUMENTS} AND shelf = :collection AND id > :after ORDER BY id LIMIT :limit"
_LATEST = "(created_at, id) < (:before, :before_id) ORDER BY created_at DESC, id DESC LIMIT :limit"
LATEST_DOCUMENTS = f"{_DOCUMENTS} AND {_LATEST}"
LATEST_DOCUMENTS_OF = f"{_DOCUMENTS} AND shelf = :collection AND {_LATEST}"
COLLECTIONS = "SELECT DISTINCT shelf FROM documents WHERE tenant = :tenant AND kind = :kind ORDER BY shelf"
PASSAGES_OF = f"""
SELECT {t.PASSAGES.columns} FROM passages WHERE tenant = :tenant AND kind = :kind AND document = :id AND place > :after
ORDER BY place LIMIT :limit"""
LIBRARY = "SELECT version, vectors FROM libraries WHERE tenant = :tenant AND kind = :kind AND model = :model"
_WITH_VECTORS = "tenant = :tenant AND kind = :kind AND model = :model AND vector IS NOT NULL"
VECTORS = f"SELECT id, shelf, vector FROM passages WHERE {_WITH_VECTORS} AND id > :after ORDER BY id LIMIT :limit"
VECTOR_IDS = f"SELECT id FROM passages WHERE {_WITH_VECTORS} ORDER BY id"

# The full-text index of SQLite contains the owners of a passage as words, so it skips passages of other tenants.
SQLITE_MATCHING = """
SELECT p.id, -w.score FROM (SELECT id, score FROM (
        SELECT rowid AS id, bm25(passage_words, 0.0, 2.0, 1.0) AS score FROM passage_words
        WHERE passage_words MATCH :match LIMIT :max_rows)
    ORDER BY score LIMIT :limit) w
JOIN passages p ON p.id = w.id WHERE p.tenant = :tenant AND p.kind = :kind ORDER BY w.score, p.id"""
POSTGRES_MATCHING = f"""
SELECT id, ts_rank(words, to_tsquery('english', :match), 1) AS score FROM (
    SELECT id, words FROM passages WHERE {_IN_SCOPE} AND words @@ to_tsquery('english', :match) LIMIT :max_rows) found
ORDER BY score DESC, id LIMIT :limit"""


@cache
def add_passages(count: int) -> str:
    """Return the INSERT of several passages of a document, with the parameters `:place0`, `:heading0` and so on."""
    own = ("place", *Passage.__struct_fields__)
    columns = ", ".join(("tenant, kind, document, shelf, owners, model", *own))
    shared = ":tenant, :kind, :document, :collection, :owners, :model"
    rows = ", ".join(f"({', '.join((shared, *(f':{name}{n}' for name in own)))})" for n in range(count))
    return f"INSERT INTO passages ({columns}) VALUES {rows}"


@cache
def postgres_counts(count: int) -> str:
    """Return a count of the passages with each word (`:match0` and so on), up to `:max_rows`."""
    one = "SELECT 1 FROM passages WHERE {} AND words @@ to_tsquery('english', :match{}) LIMIT :max_rows"
    return " UNION ALL ".join(f"SELECT count(*) FROM ({one.format(_IN_SCOPE, n)}) found" for n in range(count))


@cache
def sqlite_counts(count: int) -> str:
    """Return `postgres_counts` for SQLite, where the match expression includes the owner."""
    one = "SELECT count(*) FROM (SELECT 1 FROM passage_words WHERE passage_words MATCH :match{} LIMIT :max_rows)"
    return " UNION ALL ".join(one.format(n) for n in range(count))


@cache
def passages_by_id(count: int) -> str:
    """Select passages by id (`:id0` and so on). `tenant || ''` keeps the planner from using an index on the tenant."""
    ids = ", ".join(f":id{n}" for n in range(count))
    return f"SELECT {t.PASSAGES.columns} FROM passages WHERE tenant || '' = :tenant AND id IN ({ids})"


@cache
def postgres_nearest(dimensions: int) -> str:
    """Return a vector search with the pgvector index of one model."""
    distance = f"CAST(vector AS vector({dimensions})) <=> CAST(:vector AS vector({dimensions}))"
    return f"""
SELECT id, 1 - ({distance}) FROM passages WHERE {_IN_SCOPE} AND model = :model AND vector IS NOT NULL
ORDER BY {distance} LIMIT :limit"""


# Derived tables. `search_sessions` tells what is indexed of each session; `search_texts` has a row for each message and
# one with the number 0 for the name. Ids increase, so later messages come later.

POSITION = "SELECT position FROM derived_positions WHERE tenant = :tenant AND name = :name"
LOCK_POSITION = """
INSERT INTO derived_positions (tenant, name, position) VALUES (:tenant, :name, 0)
ON CONFLICT (tenant, name) DO UPDATE SET position = derived_positions.position RETURNING position"""
"""Reads a position and locks its row until the end of the transaction, so that one process at a time continues it."""
SET_POSITION = "UPDATE derived_positions SET position = :position WHERE tenant = :tenant AND name = :name"
DROP_POSITION = "DELETE FROM derived_positions WHERE tenant = :tenant AND name = :name"
NEXT_SESSION_TENANT = "SELECT tenant FROM sessions WHERE tenant > :after ORDER BY tenant LIMIT 1"
NEWEST_SESSION = "SELECT coalesce(max(updated_at), 0) FROM sessions WHERE tenant = :tenant"
UNINDEXED_SESSIONS = """
SELECT s.key, s.updated_at, s.label, s.last_message, s.last_run, coalesce(i.message, 0), i.label, coalesce(i.run, 0)
FROM sessions s LEFT JOIN search_sessions i ON i.tenant = :tenant AND i.session = s.key
WHERE s.tenant = :tenant AND s.updated_at >= :position
    AND (i.session IS NULL OR i.message < s.last_message OR i.run < s.last_run OR i.label <> s.label)
ORDER BY s.updated_at LIMIT :limit"""
SQLITE_SESSION_MATCHES = """
SELECT t.id, t.session, t.seq FROM (
    SELECT rowid AS id FROM session_words WHERE session_words MATCH :match AND rowid < :before
    ORDER BY rowid DESC LIMIT :limit) w
CROSS JOIN search_texts t WHERE t.id = w.id AND t.tenant = :tenant ORDER BY t.id DESC"""
POSTGRES_SESSION_MATCHES = """
SELECT id, session, seq FROM search_texts WHERE tenant = :tenant AND id < :before
    AND (:all OR (session >= :first AND session < :end)) AND words @@ CAST(:match AS tsquery)
ORDER BY id DESC LIMIT :limit"""


INDEX_PROGRESS = """
SELECT (SELECT count(*) FROM search_sessions WHERE tenant = :tenant),
    (SELECT count(*) FROM sessions WHERE tenant = :tenant),
    coalesce((SELECT position FROM derived_positions WHERE tenant = :tenant AND name = :name), 0),
    coalesce((SELECT max(seq) FROM audit WHERE tenant = :tenant), 0)"""
AUDIT_BEFORE = f"""
SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq < :before AND seq > :after
ORDER BY seq DESC LIMIT :limit"""
TOOL_DAYS = """
SELECT day, tool, calls, failed, milliseconds FROM tool_days WHERE tenant = :tenant AND day >= :since AND day < :until
ORDER BY day DESC, tool LIMIT :limit"""
_DAYS = """
WITH RECURSIVE days(day) AS (
    SELECT min(day) FROM usage_sums WHERE tenant = :tenant AND day >= :since AND day < :until
    UNION ALL SELECT (SELECT min(u.day) FROM usage_sums u WHERE u.tenant = :tenant AND u.day > d.day AND u.day < :until)
    FROM days d WHERE d.day IS NOT NULL),
open_days AS (
    SELECT day FROM days WHERE day IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM usage_closed c WHERE c.tenant = :tenant AND c.day = days.day AND c.complete))"""
"""Finds each day with one search in the index instead of reading all rows."""
NEXT_OPEN_DAY = f"""{_DAYS}
SELECT day, (SELECT count(*) FROM usage_closed c WHERE c.tenant = :tenant AND c.day = open_days.day) FROM open_days
LIMIT 1"""
START_CLOSING_DAY = """
INSERT INTO usage_closed (tenant, day, complete) VALUES (:tenant, :day, FALSE) ON CONFLICT (tenant, day) DO NOTHING"""
CONTINUE_CLOSING_DAY = "UPDATE usage_closed SET complete = FALSE WHERE tenant = :tenant AND day = :day RETURNING day"
CLOSE_DAY = "UPDATE usage_closed SET complete = TRUE WHERE tenant = :tenant AND day = :day RETURNING day"
DROP_USAGE_DAY = "DELETE FROM usage_days WHERE tenant = :tenant AND day = :day"
_USAGE_AMOUNTS = tuple(name for name in t.USAGE.names if name not in t.USAGE_KEY)
_ADDED_AMOUNTS = ", ".join(f"CAST(sum({name}) AS BIGINT)" for name in _USAGE_AMOUNTS)
NEXT_USAGE_SESSIONS = """
SELECT min(session), max(session), count(*) FROM (
    SELECT DISTINCT session FROM usage_sums WHERE tenant = :tenant AND day = :day
    ORDER BY session LIMIT :limit OFFSET :position) found"""
_OF_SESSIONS = "tenant = :tenant AND day = :day AND session >= :first AND session <= :last"
ADD_TO_USAGE_DAY = f"""
INSERT INTO usage_days (tenant, day, owner, agent_id, model, {", ".join(_USAGE_AMOUNTS)})
SELECT CAST(:tenant AS TEXT), day, owner, agent_id, model, {_ADDED_AMOUNTS} FROM usage_sums
WHERE {_OF_SESSIONS} GROUP BY day, owner, agent_id, model
ON CONFLICT (tenant, day, owner, agent_id, model) DO UPDATE SET
    {", ".join(f"{name} = usage_days.{name} + excluded.{name}" for name in _USAGE_AMOUNTS)}"""


@cache
def usage_by(keys: tuple[str, ...]) -> str:
    """Return the sums of usage by some of day, agent and model: from the sums of days that are over, and the rest."""
    groups, columns = ", ".join(keys), ", ".join(f"u.{key} AS {key}" for key in keys)
    sums = ", ".join(f"sum(u.{name}) AS {name}" for name in _USAGE_AMOUNTS)
    of_owner, by_key = "(:all OR u.owner = :owner)", ", ".join(f"u.{key}" for key in keys)
    return f"""{_DAYS}
SELECT {groups}, {_ADDED_AMOUNTS} FROM (
    SELECT {columns}, {sums} FROM usage_days u WHERE u.tenant = :tenant AND u.day >= :since AND u.day < :until
        AND {of_owner} AND u.day IN (SELECT c.day FROM usage_closed c WHERE c.tenant = :tenant AND c.complete)
    GROUP BY {by_key}
    UNION ALL
    SELECT {columns}, {sums} FROM open_days CROSS JOIN usage_sums u
    WHERE u.tenant = :tenant AND u.day = open_days.day AND {of_owner} GROUP BY {by_key}) found
GROUP BY {groups} ORDER BY {groups} LIMIT :limit"""


SUM_SESSION_DAY = f"""
INSERT INTO usage_session_days (tenant, session, day, tokens)
SELECT CAST(:tenant AS TEXT), session, day, sum(input_tokens + output_tokens) FROM usage_sums
WHERE {_OF_SESSIONS} GROUP BY session, day
ON CONFLICT (tenant, session, day) DO UPDATE SET tokens = excluded.tokens"""
SUM_SESSIONS = f"""
INSERT INTO usage_sessions (tenant, session, first_day, last_day, tokens)
SELECT CAST(:tenant AS TEXT), session, min(day), max(day), sum(tokens) FROM usage_session_days
WHERE tenant = :tenant AND session IN (SELECT session FROM usage_sums WHERE {_OF_SESSIONS})
GROUP BY session
ON CONFLICT (tenant, session) DO UPDATE SET first_day = excluded.first_day, last_day = excluded.last_day,
    tokens = excluded.tokens"""
_HEAVIEST_SESSIONS = """
FROM usage_sessions WHERE tenant = :tenant AND last_day >= :since AND first_day < :until{owned}
ORDER BY tokens DESC, session"""


@cache
def usage_by_session(keys: tuple[str, ...], *, owned: bool = False) -> str:
    """Return the sums of usage of the sessions with the most tokens; those that were used in open days are included.

    At most `:sessions` are examined. Any other session has at most as many tokens as the last examined one, which
    `usage_bound` returns.
    """
    condition = f" AND {OF_OWNER}" if owned else ""
    examined = f"SELECT session {_HEAVIEST_SESSIONS.format(owned=condition)} LIMIT :sessions"
    return _usage_of(keys, examined, condition)


@cache
def usage_bound(*, owned: bool = False) -> str:
    """Return the tokens of the last session that `usage_by_session` examines; no row if there are fewer."""
    condition = f" AND {OF_OWNER}" if owned else ""
    return f"SELECT tokens {_HEAVIEST_SESSIONS.format(owned=condition)} LIMIT 1 OFFSET :sessions - 1"


@cache
def usage_of_session(keys: tuple[str, ...]) -> str:
    """Return the sums of usage of `:session`."""
    return _usage_of(keys, "SELECT CAST(:session AS TEXT) AS session", " AND session = :session")


def _usage_of(keys: tuple[str, ...], sessions: str, condition: str) -> str:
    groups = ", ".join([f"u.{key}" for key in keys])
    return f"""{_DAYS},
recent AS (
    SELECT session, u.day FROM open_days o CROSS JOIN usage_sums u
    WHERE u.tenant = :tenant AND u.day = o.day{condition}),
examined AS (SELECT session FROM ({sessions}) heaviest UNION SELECT session FROM recent),
used AS (
    SELECT d.session, d.day FROM examined e CROSS JOIN usage_session_days d
    WHERE d.tenant = :tenant AND d.session = e.session AND d.day >= :since AND d.day < :until
    UNION SELECT session, day FROM recent)
SELECT {groups}, {_ADDED_AMOUNTS} FROM used CROSS JOIN usage_sums u
WHERE u.tenant = :tenant AND u.day = used.day AND u.session = used.session
GROUP BY {groups}
ORDER BY sum(input_tokens + output_tokens) DESC, {groups} LIMIT :limit"""


@cache
def add_audit_blocks(count: int) -> str:
    """Return the INSERT of several blocks, with the parameters `:block0`, `:first_at0`, `:last_at0` and so on."""
    rows = ", ".join(f"(:tenant, :block{n}, :first_at{n}, :last_at{n})" for n in range(count))
    return f"""INSERT INTO audit_blocks (tenant, block, first_at, last_at) VALUES {rows}
ON CONFLICT (tenant, block) DO NOTHING"""


@cache
def add_audit_values(count: int) -> str:
    """Return the INSERT of several values, with the parameters `:field0`, `:value0`, `:block0` and so on.

    On Postgres, ON CONFLICT would log a second record for each row. One process at a time indexes a tenant. The
    subquery keeps the order of the rows; a join might read the whole table.
    """
    rows = ", ".join(
        f"(CAST(:field{n} AS TEXT), CAST(:value{n} AS TEXT), CAST(:block{n} AS BIGINT))" for n in range(count)
    )
    return f"""INSERT INTO audit_values (tenant, field, value, block)
SELECT CAST(:tenant AS TEXT), w.field, w.value, w.block FROM (VALUES {rows}) AS w (field, value, block)
WHERE (SELECT v.block FROM audit_values v
    WHERE v.tenant = :tenant AND v.field = w.field AND v.value = w.value AND v.block = w.block) IS NULL"""


def _sqlite_add_audit_values(count: int) -> str:
    rows = ", ".join(f"(:tenant, :field{n}, :value{n}, :block{n})" for n in range(count))
    return f"""INSERT INTO audit_values (tenant, field, value, block) VALUES {rows}
ON CONFLICT (tenant, field, value, block) DO NOTHING"""


@cache
def add_tool_days(count: int) -> str:
    """Return the statement that adds calls of several tools and days: `:day0`, `:tool0`, `:calls0` and so on."""
    rows = ", ".join(f"(:tenant, :day{n}, :tool{n}, :calls{n}, :failed{n}, :milliseconds{n})" for n in range(count))
    return f"""INSERT INTO tool_days (tenant, day, tool, calls, failed, milliseconds) VALUES {rows}
ON CONFLICT (tenant, day, tool) DO UPDATE SET calls = tool_days.calls + excluded.calls,
    failed = tool_days.failed + excluded.failed, milliseconds = tool_days.milliseconds + excluded.milliseconds"""


@cache
def find_audit_blocks(fields: tuple[str, ...]) -> str:
    """Return the latest blocks of audit rows that contain a value of each field, given as `:<field>`."""
    blocks, order, conditions = "audit_blocks b", "b.block", ""
    for name in fields[:1]:
        blocks, order = f"audit_values f CROSS JOIN {blocks}", "f.block"
        conditions += f" AND f.tenant = :tenant AND f.field = '{name}' AND f.{_of_value(name)} AND b.block = f.block"
    for name in fields[1:]:
        conditions += f""" AND EXISTS (SELECT 1 FROM audit_values v
            WHERE v.tenant = :tenant AND v.field = '{name}' AND v.{_of_value(name)} AND v.block = b.block)"""
    return f"""
SELECT {order} FROM {blocks} WHERE b.tenant = :tenant AND {order} <= :block AND b.last_at >= :since
    AND b.first_at < :until{conditions}
ORDER BY {order} DESC LIMIT :blocks"""


def _of_value(field: str) -> str:
    """Return the condition for a value of a field: a run has a key there, or its id in blocks of older versions."""
    return "value IN (:run_id, :run_key)" if field == "run_id" else f"value = :{field}"


@cache
def audit_in_ranges(count: int) -> str:
    """Return the audit rows of several ranges, with the parameters `:after0`, `:last0` and so on.

    Postgres reads whole tables if the ranges come from a join: it cannot tell how small they are.
    """
    one = f"SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq > :after{{0}} AND seq <= :last{{0}}"
    return " UNION ALL ".join(one.format(n) for n in range(count))


@cache
def read_bodies(count: int) -> str:
    """Return the next messages of several sessions, with the parameters `:session0`, `:after0`, `:limit0` and so on.

    Those of a session end with the one that makes them `:size0` bytes long, or longer.
    """
    one = """SELECT session, seq, body FROM (
    SELECT session, seq, body, sum(length(body)) OVER (ORDER BY seq) - length(body) AS size_before FROM (
        SELECT session, seq, body FROM messages
        WHERE tenant = :tenant AND session = :session{0} AND seq > :after{0} ORDER BY seq LIMIT :limit{0}) w{0}) m{0}
WHERE size_before < :size{0}"""
    return " UNION ALL ".join(one.format(n) for n in range(count))


@cache
def note_last_turns(count: int) -> str:
    """Return the statement that notes the new runs of several sessions: `:session0`, `:run0` and so on."""
    one = """SELECT agent_id, user_id, created_at FROM runs
    WHERE tenant = :tenant AND session = :session{0} AND place > :run{0}"""
    return f"""INSERT INTO last_turns (tenant, agent_id, user_id, at)
SELECT CAST(:tenant AS TEXT), agent_id, user_id, max(created_at)
FROM ({" UNION ALL ".join(one.format(n) for n in range(count))}) found WHERE TRUE GROUP BY agent_id, user_id
ON CONFLICT (tenant, agent_id, user_id) DO UPDATE SET
    at = CASE WHEN excluded.at > last_turns.at THEN excluded.at ELSE last_turns.at END"""


@cache
def drop_search_labels(count: int) -> str:
    """Return the statement that deletes the names of several sessions, with the parameters `:session0` and so on."""
    sessions = ", ".join(f":session{n}" for n in range(count))
    return f"DELETE FROM search_texts WHERE tenant = :tenant AND session IN ({sessions}) AND seq = 0"


@cache
def put_search_sessions(count: int) -> str:
    """Return the statement that records the indexed part of several sessions: `:session0`, `:label0` and so on.

    For sessions that were indexed before, `update_search_sessions` writes less to the WAL of Postgres.
    """
    rows = ", ".join(f"(:tenant, :session{n}, :label{n}, :message{n}, :run{n})" for n in range(count))
    return f"""INSERT INTO search_sessions (tenant, session, label, message, run) VALUES {rows}
ON CONFLICT (tenant, session) DO UPDATE SET label = excluded.label, message = excluded.message, run = excluded.run"""


@cache
def update_search_sessions(count: int) -> str:
    """Return the statement that updates the indexed part of several sessions."""
    types = {"session": "TEXT", "label": "TEXT", "message": "BIGINT", "run": "BIGINT"}
    rows = [", ".join(f"CAST(:{name}{n} AS {kind})" for name, kind in types.items()) for n in range(count)]
    return f"""UPDATE search_sessions s SET label = w.label, message = w.message, run = w.run
FROM (VALUES {", ".join(f"({row})" for row in rows)}) AS w ({", ".join(types)})
WHERE s.tenant = :tenant AND s.session = w.session"""


@cache
def add_search_texts(count: int) -> str:
    """Return the INSERT of several texts, with the parameters `:session0`, `:owners0`, `:seq0`, `:text0` and so on.

    On Postgres, only the words are stored. Their owners are needed by the full-text index of SQLite.
    """
    rows = ", ".join(
        f"(CAST(:session{n} AS TEXT), CAST(:seq{n} AS BIGINT), CAST(:text{n} AS TEXT))" for n in range(count)
    )
    return f"""INSERT INTO search_texts (tenant, session, owners, seq, text, words)
SELECT CAST(:tenant AS TEXT), w.session, '', w.seq, '', array_to_tsvector(string_to_array(w.text, ' '))
FROM (VALUES {rows}) AS w (session, seq, text)
WHERE (SELECT f.seq FROM search_texts f
    WHERE f.tenant = :tenant AND f.session = w.session AND f.seq = w.seq) IS NULL"""


def _sqlite_add_search_texts(count: int) -> str:
    rows = ", ".join(f"(:tenant, :session{n}, :owners{n}, :seq{n}, :text{n})" for n in range(count))
    return f"""INSERT INTO search_texts (tenant, session, owners, seq, text) VALUES {rows}
ON CONFLICT (tenant, session, seq) DO NOTHING"""


# Pruning, by what is pruned

_EXPIRED_EVENTS = "r.tenant = :tenant AND r.said_at < :before AND r.ended_at < :before"
_EXPIRED_JOURNAL = "r.tenant = :tenant AND r.journaled AND r.ended_at < :before"
PRUNABLE_RUNS = {
    "events": f"SELECT r.id FROM runs r WHERE {_EXPIRED_EVENTS} ORDER BY r.said_at LIMIT :runs",
    "journal": f"SELECT r.id FROM runs r WHERE {_EXPIRED_JOURNAL} ORDER BY r.ended_at LIMIT :runs",
}
PRUNE_ROWS = {
    "events": f"""
DELETE FROM events WHERE tenant = :tenant AND {_KEYED} AND seq IN
    (SELECT seq FROM events WHERE tenant = :tenant AND {_KEYED} ORDER BY seq DESC LIMIT :limit)
RETURNING length(body), seq - coalesce(first, seq) + 1""",
    "journal": f"""
DELETE FROM journal WHERE tenant = :tenant AND {_KEYED} AND seq IN
    (SELECT seq FROM journal WHERE tenant = :tenant AND {_KEYED} ORDER BY seq DESC LIMIT :limit)
RETURNING length(payload), {_STEPS}""",
}
MARK_PRUNED = {
    "events": "UPDATE runs SET said_at = NULL WHERE tenant = :tenant AND id = :run_id",
    "journal": "UPDATE runs SET journaled = FALSE WHERE tenant = :tenant AND id = :run_id",
}
_EXPIRED_BUDGETS = "FROM budgets WHERE tenant = :tenant AND period <> '' AND period < :day"
_EXPIRED_COUNTERS = "FROM counters WHERE tenant = :tenant AND day < :day"
PRUNE_COUNTERS = (
    f"""
DELETE FROM budgets WHERE tenant = :tenant AND (key, period, run_id) IN
    (SELECT key, period, run_id {_EXPIRED_BUDGETS} LIMIT :limit) RETURNING 1""",
    f"""
DELETE FROM counters WHERE tenant = :tenant AND (agent_id, day) IN
    (SELECT agent_id, day {_EXPIRED_COUNTERS} LIMIT :limit) RETURNING 1""",
)
"""A month is less than all of its days, so the month that contains the day is deleted, too."""
COUNT_PRUNABLE = {
    "counters": f"SELECT 0, (SELECT count(*) {_EXPIRED_BUDGETS}) + (SELECT count(*) {_EXPIRED_COUNTERS}), 0",
    "events": f"""
SELECT count(DISTINCT r.id), coalesce(sum(e.seq - coalesce(e.first, e.seq) + 1), 0), coalesce(sum(length(e.body)), 0)
FROM runs r LEFT JOIN events e ON e.tenant = :tenant AND e.run_id IN (r.id, {t.sql_run_key("r.id")})
WHERE {_EXPIRED_EVENTS}""",
    "journal": f"""
SELECT count(DISTINCT r.id), coalesce(sum(CASE WHEN j.seq IS NOT NULL THEN {_STEPS} END), 0),
    coalesce(sum(length(j.payload)), 0)
FROM runs r LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id IN (r.id, {t.sql_run_key("r.id")})
WHERE {_EXPIRED_JOURNAL}""",
}


# Forms for SQLite: of statements on the journal and the events, whose rows have the number of their run in their id
# (others read the views of the same names), and on messages, which all have a number there.

_RANGE = "{0}.id > r.number << 31 AND {0}.id < (r.number + 1) << 31"
_JOURNAL_RANGE, _EVENTS_RANGE = _RANGE.format("j"), _RANGE.format("e")
_OF_RUN = "r.tenant = :tenant AND r.id = :run_id"
_OF_SESSION = "r.tenant = :tenant AND r.session = :session"
_PREVIOUS = "coalesce((SELECT p.hash FROM journal_rows p WHERE p.id = j.id - 1), '')"
_JOURNAL_COLUMNS = t.JOURNAL.select("j", run_id="r.id", seq=f"j.id & {t.MAX_SEQ}", previous=_PREVIOUS)


def _sqlite_add_events(count: int) -> str:
    rows = ", ".join(f"(:seq{n}, :body{n})" for n in range(count))
    return f"""INSERT INTO event_rows (id, body) SELECT r.number << 31 | e.column1, e.column2
FROM runs r CROSS JOIN (VALUES {rows}) e WHERE {_OF_RUN} AND r.number > 0 ON CONFLICT (id) DO NOTHING"""


SQLITE_FORMS = {
    **{  # SQLite uses a partial index only where its condition is repeated
        each: re.sub(rf"(status = 'queued'|{re.escape(_ACTIVE)})", rf"\1 AND {_OPEN}", each)
        for each in (START_NEXT, QUEUED_RUNS_OF)
    },
    MESSAGE_OF_ID: _MESSAGE_OF_NUMBER,
    **{known_messages(count): _sqlite_known_messages(count) for count in t.EVENT_BATCHES},
    JOURNAL_END: f"""
SELECT r.status, r.epoch, j.id & {t.MAX_SEQ}, j.hash FROM runs r LEFT JOIN journal_rows j
    ON j.id = (SELECT j.id FROM journal_rows j WHERE {_JOURNAL_RANGE} ORDER BY j.id DESC LIMIT 1)
WHERE {_OF_RUN}""",
    JOURNAL: f"""
SELECT {_JOURNAL_COLUMNS} FROM runs r CROSS JOIN journal_rows j WHERE {_OF_RUN} AND {_JOURNAL_RANGE} ORDER BY j.id""",
    EVENTS: f"""
SELECT r.id, e.id & {t.MAX_SEQ}, e.body FROM runs r CROSS JOIN event_rows e
WHERE {_OF_RUN} AND e.id > r.number << 31 | max(0, min(:after, {t.MAX_SEQ})) AND e.id < (r.number + 1) << 31
ORDER BY e.id LIMIT :limit""",
    DROP_ROWS[0]: f"""
DELETE FROM journal_rows WHERE id IN
    (SELECT j.id FROM runs r CROSS JOIN journal_rows j WHERE {_OF_SESSION} AND {_JOURNAL_RANGE})""",
    DROP_ROWS[1]: f"""
DELETE FROM event_rows WHERE id IN
    (SELECT e.id FROM runs r CROSS JOIN event_rows e WHERE {_OF_SESSION} AND {_EVENTS_RANGE})""",
    PRUNE_ROWS["events"]: f"""
DELETE FROM event_rows WHERE id IN (SELECT e.id FROM runs r CROSS JOIN event_rows e
    WHERE {_OF_RUN} AND {_EVENTS_RANGE} ORDER BY e.id DESC LIMIT :limit) RETURNING length(body), 1""",
    PRUNE_ROWS["journal"]: f"""
DELETE FROM journal_rows WHERE id IN (SELECT j.id FROM runs r CROSS JOIN journal_rows j
    WHERE {_OF_RUN} AND {_JOURNAL_RANGE} ORDER BY j.id DESC LIMIT :limit) RETURNING length(payload), 1""",
    COUNT_PRUNABLE["events"]: f"""
SELECT count(DISTINCT r.id), count(e.id), coalesce(sum(length(e.body)), 0)
FROM runs r LEFT JOIN event_rows e ON {_EVENTS_RANGE} WHERE {_EXPIRED_EVENTS}""",
    COUNT_PRUNABLE["journal"]: f"""
SELECT count(DISTINCT r.id), count(j.id), coalesce(sum(length(j.payload)), 0)
FROM runs r LEFT JOIN journal_rows j ON {_JOURNAL_RANGE} WHERE {_EXPIRED_JOURNAL}""",
    PENDING_APPROVALS: f"""
SELECT {t.APPROVALS.select("a")} FROM runs r CROSS JOIN approvals a
WHERE r.tenant = :tenant AND r.{_OPEN} AND a.tenant = :tenant AND a.run_id = r.id AND a.answer IS NULL
ORDER BY a.created_at, (SELECT j.id FROM journal_rows j
    WHERE {_JOURNAL_RANGE} AND j.kind = 'asked' AND j.key = a.id), a.id""",
    **{add_events(count): _sqlite_add_events(count) for count in t.EVENT_BATCHES},
    **{add_audit_values(count): _sqlite_add_audit_values(count) for count in t.VALUE_BATCHES},
    **{update_search_sessions(count): put_search_sessions(count) for count in t.VALUE_BATCHES},
    **{add_search_texts(count): _sqlite_add_search_texts(count) for count in t.VALUE_BATCHES},
}
"""By the statement that Postgres executes."""


class SqliteParts(NamedTuple):
    """A write as SQLite executes it fastest: without RETURNING, without an INSERT … SELECT from its own table, and
    without a list of more than two values. Each of these creates a temporary table in every execution.

    Attributes:
        change: The write.
        check: A query for one value, which `change` has as `:found`; without a row, nothing is changed.
        result: A query for the rows of the changed row; without one, the result is what `check` found.
    """

    change: str
    check: str = ""
    result: str = ""


_IS_OPEN = "(status = 'queued' OR status = 'running' OR status = 'waiting')"
_SESSION_ROW, _RUN_ROW = "sessions WHERE tenant = :tenant AND key", "runs WHERE tenant = :tenant AND id"


def _without_returning(statement: str, row: str) -> SqliteParts:
    """Return the parts of a statement that changes one row, and returns expressions of it."""
    change, _, returned = statement.rpartition("RETURNING")
    return SqliteParts(change, result=f"SELECT {returned.strip()} FROM {row}")


SQLITE_PARTS = {
    PUT_SESSION: _without_returning(PUT_SESSION, f"{_SESSION_ROW} = :key"),
    SET_SESSION_METADATA: _without_returning(SET_SESSION_METADATA, f"{_SESSION_ROW} = :key"),
    ADD_MESSAGE: SqliteParts(
        "INSERT INTO messages (tenant, session, seq, id, run_id, body, id_number)"
        " VALUES (:tenant, :session, :found, :id, :run_id, :body, :id_number)",
        check=f"""
SELECT last_message + :place FROM {_SESSION_ROW} = :session
    AND NOT EXISTS (SELECT 1 FROM messages WHERE {_OF_NUMBER} = :id_number AND id = :id)""",
    ),
    SET_LAST_MESSAGE: _without_returning(SET_LAST_MESSAGE, f"{_SESSION_ROW} = :session"),
    NEXT_RUN: _without_returning(NEXT_RUN, f"{_SESSION_ROW} = :session"),
    ADD_RUN: _without_returning(
        ADD_RUN.replace(
            t.RUNS.insert(status=_FIRST_STATUS, place=":place"),
            t.RUNS.insert(
                status=_FIRST_STATUS, place=":place", number="(SELECT coalesce(max(number), 0) + 1 FROM runs)"
            ),
        ),
        f"{_RUN_ROW} = :id",
    ),
    CLAIM_RUN: _without_returning(CLAIM_RUN.replace(_OPEN, _IS_OPEN), f"{_RUN_ROW} = :run_id"),
    # SQLite uses a partial index only where its condition is repeated; `+` keeps it from evaluating that condition
    SET_RUN: _without_returning(
        SET_RUN.replace(_OPEN, _IS_OPEN)
        .replace(f"a.{_ACTIVE}", f"a.{_ACTIVE} AND a.{_OPEN}")
        .replace("q.status = 'queued'", f"+q.status = 'queued' AND q.{_OPEN}"),
        f"{_RUN_ROW} = :run_id",
    ),
    RESERVE_EVENTS: _without_returning(RESERVE_EVENTS, f"{_RUN_ROW} = :run_id"),
    ADD_JOURNAL: SqliteParts(
        "INSERT INTO journal_rows (id, kind, key, at, hash, payload)"
        " VALUES (:found, :kind, :key, :at, :hash, :payload)",
        check=f"""
SELECT r.number << 31 | :seq FROM runs r
WHERE {_OF_RUN} AND r.number > 0 AND r.epoch = :epoch AND {_IS_OPEN.replace("status", "r.status")}
    AND :end_hash = coalesce(
        (SELECT j.hash FROM journal_rows j WHERE {_JOURNAL_RANGE} ORDER BY j.id DESC LIMIT 1), '{hash_chain.START}')
    AND NOT EXISTS (SELECT 1 FROM journal_rows j WHERE {_JOURNAL_RANGE} AND j.kind = :kind AND j.key = :key)""",
    ),
    ADD_AUDIT: SqliteParts(
        t.AUDIT.insert(),
        check=f"""
SELECT :seq WHERE :previous = coalesce(
    (SELECT hash FROM audit WHERE tenant = :tenant ORDER BY seq DESC LIMIT 1), '{hash_chain.START}')""",
    ),
}
"""By the statement that Postgres executes."""
