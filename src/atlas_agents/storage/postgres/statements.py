"""SQL statements for Postgres whose text is not the one for SQLite; `storage.sql.statements` has the others.

Rows of the journal and the events have the key of their run (`tables.run_key`), which is the parameter `:run_key`.
"""

from collections.abc import Mapping
from functools import cache

from atlas_agents.storage.sql import tables as t
from atlas_agents.storage.sql.dialect import of_count
from atlas_agents.storage.sql.statements import (
    ACTIVE,
    COUNT_EXPIRED_COUNTERS,
    EXPIRED_EVENTS,
    EXPIRED_JOURNAL,
    HISTORY,
    IN_SCOPE,
    INSERT_RUN,
    LAST_MESSAGES,
    NEXT_UPDATED_AT,
    OF_NUMBER,
    OPEN,
    RUN,
    SESSION,
    UPDATED_AT_STEP,
    UPSERT_SESSION,
    numbered,
)

# Sessions and messages

IS_BRANCH: str = """position(CAST('"branch":{' AS BYTEA) IN metadata) > 0"""
PUT_SESSION = f"{UPSERT_SESSION} RETURNING {t.SESSIONS.columns}, last_run"
SET_SESSION_METADATA = f"""
UPDATE sessions SET metadata = :metadata, updated_at = {NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :key RETURNING {t.SESSIONS.columns}"""
ADD_MESSAGE = f"""
INSERT INTO messages (tenant, session, seq, id, run_id, body, id_number)
SELECT :tenant, key, last_message + :place, :id, :run_id, :body, :id_number FROM sessions
WHERE tenant = :tenant AND key = :session
    AND NOT EXISTS (SELECT 1 FROM messages WHERE {OF_NUMBER} = :id_number AND id = :id) RETURNING seq"""
SET_LAST_MESSAGE = f"""
UPDATE sessions SET last_message = :seq WHERE tenant = :tenant AND key = :session
RETURNING updated_at > {NEXT_UPDATED_AT} - {UPDATED_AT_STEP}"""
DROP_ROWS: tuple[str, ...] = (
    """
DELETE FROM journal WHERE tenant = :tenant AND run_id IN (
    SELECT run_key(id) FROM runs WHERE tenant = :tenant AND session = :session)""",
    """
DELETE FROM events WHERE tenant = :tenant AND run_id IN (
    SELECT run_key(id) FROM runs WHERE tenant = :tenant AND session = :session)""",
)

# Runs

NEXT_RUN = f"""
UPDATE sessions SET last_run = last_run + 1, updated_at = {NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :session RETURNING last_run"""
ADD_RUN = f"{INSERT_RUN} RETURNING status"
CLAIM_RUN = f"""
UPDATE runs SET epoch = epoch + 1 WHERE tenant = :tenant AND id = :run_id AND {OPEN} RETURNING epoch"""
SET_RUN = f"""
UPDATE runs SET status = :status, error = coalesce(:error, error), ended_at = :ended_at
WHERE tenant = :tenant AND id = :run_id AND epoch = :epoch AND {OPEN} AND (status <> 'queued' OR :ends OR NOT EXISTS (
    SELECT 1 FROM runs a WHERE a.tenant = :tenant AND a.session = runs.session AND a.{ACTIVE}))
RETURNING session, EXISTS (
    SELECT 1 FROM runs q WHERE q.tenant = :tenant AND q.session = runs.session AND q.status = 'queued')"""
START_NEXT = f"""
UPDATE runs SET status = 'running' WHERE tenant = :tenant AND session = :session AND status = 'queued'
    AND place = (SELECT min(place) FROM runs WHERE tenant = :tenant AND session = :session AND status = 'queued')
    AND NOT EXISTS (SELECT 1 FROM runs WHERE tenant = :tenant AND session = :session AND {ACTIVE})
RETURNING id"""
QUEUED_RUNS_OF = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND status = 'queued' ORDER BY place"""

# Journal, events and audit log. The hash of the step before is not stored twice; the last two steps of a journal may be
# one row, whose payload begins with the byte 2 (`tables.pack_steps`).

STORED_STEP = ", ".join([name for name in t.JOURNAL.names if name != "previous"])
_STEPS = "CASE WHEN substr(payload, 1, 1) = '\\x02' THEN 2 ELSE 1 END"
_PREVIOUS = f"CASE WHEN lag(seq) OVER (ORDER BY seq) = seq - {_STEPS} THEN lag(hash) OVER (ORDER BY seq) ELSE '' END"
JOURNAL_END: str = """
SELECT r.status, r.epoch, j.seq, j.hash FROM runs r LEFT JOIN LATERAL (
    SELECT seq, hash FROM journal WHERE tenant = :tenant AND run_id = :run_key ORDER BY seq DESC LIMIT 1) j ON TRUE
WHERE r.tenant = :tenant AND r.id = :run_id"""
ADD_JOURNAL = f"""
INSERT INTO journal (tenant, {STORED_STEP})
SELECT CAST(:tenant AS TEXT), CAST(:run_key AS TEXT), CAST(:seq AS BIGINT), CAST(:kind AS TEXT), CAST(:key AS TEXT),
    CAST(:payload AS BYTEA), CAST(:at AS BIGINT), rtrim(encode(decode(CAST(:hash AS TEXT), 'hex'), 'base64'), '=')
WHERE NOT EXISTS (SELECT 1 FROM journal WHERE tenant = :tenant AND run_id = :run_key AND kind = :kind AND key = :key)
RETURNING seq"""
JOURNAL = f"""
SELECT {t.JOURNAL.select(run_id="CAST(:run_id AS TEXT)", previous=_PREVIOUS)} FROM journal
WHERE tenant = :tenant AND run_id = :run_key ORDER BY seq"""
EVENTS: str = """
SELECT CAST(:run_id AS TEXT), seq, body, first FROM events
WHERE tenant = :tenant AND run_id = :run_key AND seq > :after ORDER BY seq LIMIT :limit"""
"""A row has all events from `first` to `seq`."""
RESERVE_EVENTS: str = """
UPDATE runs SET events = events + :count, last_event_at = :now, epoch = epoch + :taken
WHERE tenant = :tenant AND id = :run_id RETURNING events, epoch - :taken"""
ADD_AUDIT = f"{t.AUDIT.insert()} RETURNING seq"
PENDING_APPROVALS = f"""
SELECT {t.APPROVALS.select("a")} FROM runs r CROSS JOIN approvals a
LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id = run_key(a.run_id) AND j.kind = 'asked' AND j.key = a.id
WHERE r.tenant = :tenant AND r.{OPEN} AND a.tenant = :tenant AND a.run_id = r.id AND a.answer IS NULL
ORDER BY a.created_at, j.seq, a.id"""


@of_count
def add_events(count: int) -> str:
    """Return the INSERT of several events, with the parameters `:seq0`, `:body0` and so on."""
    rows = numbered(count, "(CAST(:seq{0} AS BIGINT), CAST(:body{0} AS BYTEA))")
    return f"""
INSERT INTO events (tenant, run_id, seq, body)
SELECT CAST(:tenant AS TEXT), CAST(:run_key AS TEXT), w.seq, w.body FROM (VALUES {rows}) AS w (seq, body)
WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.tenant = :tenant AND e.run_id = :run_key
    AND e.seq >= w.seq AND coalesce(e.first, e.seq) <= w.seq)
ON CONFLICT (tenant, run_id, seq) DO NOTHING"""


# Several reads in one statement: each parameter is an array. Each row begins with the number of its read.

SESSIONS_BY_KEY = f"""
SELECT w.n, {t.SESSIONS.select("s")} FROM unnest(CAST(:key AS TEXT[])) WITH ORDINALITY AS w (key, n)
JOIN sessions s ON s.tenant = :tenant AND s.key = w.key"""
GROUPED = {
    SESSION: SESSIONS_BY_KEY,
    RUN: f"""
SELECT w.n, {t.RUNS.select("r")} FROM unnest(CAST(:run_id AS TEXT[])) WITH ORDINALITY AS w (id, n)
JOIN runs r ON r.tenant = :tenant AND r.id = w.id""",
    QUEUED_RUNS_OF: f"""
SELECT w.n, {t.RUNS.select("r")} FROM unnest(CAST(:session AS TEXT[])) WITH ORDINALITY AS w (session, n)
JOIN runs r ON r.tenant = :tenant AND r.session = w.session AND r.status = 'queued' ORDER BY w.n, r.place""",
    EVENTS: """
SELECT w.n, w.run_id, e.seq, e.body, e.first FROM unnest(CAST(:run_id AS TEXT[]), CAST(:run_key AS TEXT[]),
    CAST(:after AS BIGINT[]), CAST(:limit AS BIGINT[])) WITH ORDINALITY AS w (run_id, run_key, after, count, n)
CROSS JOIN LATERAL (SELECT seq, body, first FROM events
    WHERE tenant = :tenant AND run_id = w.run_key AND seq > w.after ORDER BY seq LIMIT w.count) e
ORDER BY w.n, e.seq""",
    LAST_MESSAGES: f"""
SELECT w.n, {t.MESSAGES.select("m")} FROM unnest(CAST(:session AS TEXT[]), CAST(:after AS BIGINT[]),
    CAST(:before AS BIGINT[]), CAST(:limit AS BIGINT[])) WITH ORDINALITY AS w (session, after, before, count, n)
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

# Transactions

BEGIN_STEPWISE = """
INSERT INTO commit_tokens AS t
SELECT CAST(:id AS UUID), CAST(:token AS BIGINT), now() FROM pg_advisory_xact_lock(CAST(:lock AS BIGINT))
ON CONFLICT (id) DO UPDATE SET written_at = now(), token = CASE WHEN t.token < excluded.token THEN excluded.token END"""
"""Takes the tenant's lock and writes the token. If the token was fenced, the write fails because NULL is not allowed:
then the transaction arrived after its writer had given up on it."""
BEGIN_SHARED = """
INSERT INTO commit_tokens AS t
SELECT CAST(:id AS UUID), CAST(:token AS BIGINT), now() FROM pg_advisory_xact_lock_shared(CAST(:lock AS BIGINT))
ON CONFLICT (id) DO UPDATE SET written_at = now(), token = CASE WHEN t.token < excluded.token THEN excluded.token END"""
FENCE = """
INSERT INTO commit_tokens AS t SELECT CAST(:id AS UUID), CAST(:token AS BIGINT) + 1, now()
ON CONFLICT (id) DO UPDATE SET written_at = now(),
    token = CASE WHEN t.token = :token THEN t.token ELSE excluded.token END RETURNING token = :token"""
"""Decides whether a transaction was committed: waits until it has ended, and returns whether its token is there. If
not, a higher token takes its place, so that the transaction fails if it arrives later."""
PRUNE_TOKENS = """
DELETE FROM commit_tokens WHERE id IN (
    SELECT id FROM commit_tokens WHERE written_at < now() - interval '1 day' FOR UPDATE SKIP LOCKED)"""
"""Deletes old tokens. A token is needed only while a writer retries, which takes seconds; a live writer inserts a
deleted row again."""
WRITE_TURNS = "SELECT write_turns(CAST(:given AS JSONB))"
CHAIN_AUDIT = "SELECT chain_audit(:tenant, CAST(:chain AS BIGINT), CAST(:entries AS JSONB))"
"""Appends entries to an unsigned audit log and returns its end before. Other processes wait until the COMMIT."""
ADD_AUDIT_ROWS = f"""
INSERT INTO audit (tenant, {t.AUDIT.columns})
SELECT CAST(:tenant AS TEXT), w.seq, decode(w.entry, 'base64'), w.previous, w.hash
FROM jsonb_to_recordset(CAST(:rows AS JSONB)) AS w (seq BIGINT, entry TEXT, previous TEXT, hash TEXT) ORDER BY w.seq"""
JOURNAL_ENDS = """
SELECT w.id, j.seq, j.hash FROM unnest(CAST(:run_ids AS TEXT[]), CAST(:run_keys AS TEXT[])) AS w (id, key)
LEFT JOIN LATERAL (SELECT seq, hash FROM journal WHERE tenant = :tenant AND run_id = w.key
    ORDER BY seq DESC LIMIT 1) j ON TRUE"""

# Pruning

PRUNE_ROWS: Mapping[str, str] = {
    "events": """
DELETE FROM events WHERE tenant = :tenant AND run_id = :run_key AND seq IN
    (SELECT seq FROM events WHERE tenant = :tenant AND run_id = :run_key ORDER BY seq DESC LIMIT :limit)
RETURNING length(body), seq - coalesce(first, seq) + 1""",
    "journal": f"""
DELETE FROM journal WHERE tenant = :tenant AND run_id = :run_key AND seq IN
    (SELECT seq FROM journal WHERE tenant = :tenant AND run_id = :run_key ORDER BY seq DESC LIMIT :limit)
RETURNING length(payload), {_STEPS}""",
}
COUNT_PRUNABLE: Mapping[str, str] = {
    "counters": COUNT_EXPIRED_COUNTERS,
    "events": f"""
SELECT count(DISTINCT r.id), coalesce(sum(e.seq - coalesce(e.first, e.seq) + 1), 0), coalesce(sum(length(e.body)), 0)
FROM runs r LEFT JOIN events e ON e.tenant = :tenant AND e.run_id = run_key(r.id) WHERE {EXPIRED_EVENTS}""",
    "journal": f"""
SELECT count(DISTINCT r.id), coalesce(sum(CASE WHEN j.seq IS NOT NULL THEN {_STEPS} END), 0),
    coalesce(sum(length(j.payload)), 0)
FROM runs r LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id = run_key(r.id) WHERE {EXPIRED_JOURNAL}""",
}

# Full-text search and vectors

MATCHING = f"""
SELECT id, ts_rank(words, to_tsquery('english', :match), 1) AS score FROM (
    SELECT id, words FROM passages WHERE {IN_SCOPE} AND words @@ to_tsquery('english', :match) LIMIT :max_rows) found
ORDER BY score DESC, id LIMIT :limit"""
SESSION_MATCHES = """
SELECT id, session, seq FROM search_texts WHERE tenant = :tenant AND id < :before
    AND (:all OR (session >= :first AND session < :end)) AND words @@ CAST(:match AS tsquery)
ORDER BY id DESC LIMIT :limit"""


@of_count
def count_matches(count: int) -> str:
    """Return a count of the passages with each word (`:match0` and so on), up to `:max_rows`."""
    one = f"""
SELECT count(*) FROM (SELECT 1 FROM passages
    WHERE {IN_SCOPE} AND words @@ to_tsquery('english', :match{{0}}) LIMIT :max_rows) found"""
    return numbered(count, one, " UNION ALL ")


@cache
def find_nearest(dimensions: int) -> str:
    """Return a vector search with the pgvector index of one model."""
    distance = f"CAST(vector AS vector({dimensions})) <=> CAST(:vector AS vector({dimensions}))"
    return f"""
SELECT id, 1 - ({distance}) FROM passages WHERE {IN_SCOPE} AND model = :model AND vector IS NOT NULL
ORDER BY {distance} LIMIT :limit"""


@of_count
def add_search_texts(count: int) -> str:
    """Return the INSERT of the words of several texts, with the parameters `:session0`, `:seq0`, `:text0` and so on."""
    rows = numbered(count, "(CAST(:session{0} AS TEXT), CAST(:seq{0} AS BIGINT), CAST(:text{0} AS TEXT))")
    return f"""
INSERT INTO search_texts (tenant, session, seq, words)
SELECT CAST(:tenant AS TEXT), w.session, w.seq, array_to_tsvector(string_to_array(w.text, ' '))
FROM (VALUES {rows}) AS w (session, seq, text)
WHERE (SELECT f.seq FROM search_texts f
    WHERE f.tenant = :tenant AND f.session = w.session AND f.seq = w.seq) IS NULL"""


# ON CONFLICT would write a second record to the WAL for each row. One process at a time indexes a tenant. The subquery
# keeps the order of the rows; a join might read the whole table.


@of_count
def add_audit_values(count: int) -> str:
    """Return the INSERT of several values, with the parameters `:field0`, `:value0`, `:block0` and so on."""
    rows = numbered(count, "(CAST(:field{0} AS TEXT), CAST(:value{0} AS TEXT), CAST(:block{0} AS BIGINT))")
    return f"""
INSERT INTO audit_values (tenant, field, value, block)
SELECT CAST(:tenant AS TEXT), w.field, w.value, w.block FROM (VALUES {rows}) AS w (field, value, block)
WHERE (SELECT v.block FROM audit_values v
    WHERE v.tenant = :tenant AND v.field = w.field AND v.value = w.value AND v.block = w.block) IS NULL"""


@of_count
def update_search_sessions(count: int) -> str:
    """Return the statement that updates the indexed part of several sessions, with less WAL than an INSERT."""
    rows = numbered(
        count,
        "(CAST(:session{0} AS TEXT), CAST(:label{0} AS TEXT), CAST(:message{0} AS BIGINT), CAST(:run{0} AS BIGINT))",
    )
    return f"""
UPDATE search_sessions s SET label = w.label, message = w.message, run = w.run
FROM (VALUES {rows}) AS w (session, label, message, run) WHERE s.tenant = :tenant AND s.session = w.session"""
