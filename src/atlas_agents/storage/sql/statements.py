"""SQL statements that SQLite and Postgres both execute, with `:name` for each parameter.

Column lists come from `tables`. Every statement filters by `:tenant`, except `OPEN_RUNS` and `TENANTS`.
"""

from functools import cache

from atlas_agents.core.store import Passage, PutSession
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
{t.SESSIONS.insert(updated_at=_NEXT_UPDATED_AT)}
ON CONFLICT (tenant, key) DO UPDATE SET {_CHANGES}, updated_at = {_NEXT_UPDATED_AT} RETURNING {t.SESSIONS.columns}"""
SET_SESSION_METADATA = f"""UPDATE sessions SET metadata = :metadata, updated_at = {_NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :key RETURNING {t.SESSIONS.columns}"""
NAME_SESSION = f"""UPDATE sessions SET label = :label, updated_at = {_NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :key AND label IN ('', :replaces) RETURNING {t.SESSIONS.columns}"""
DROP_SESSION = "DELETE FROM sessions WHERE tenant = :tenant AND key = :session RETURNING key"
DROP_ROWS = (
    "DELETE FROM journal WHERE tenant = :tenant AND run_id IN"
    " (SELECT id FROM runs WHERE tenant = :tenant AND session = :session)",
    "DELETE FROM events WHERE tenant = :tenant AND run_id IN"
    " (SELECT id FROM runs WHERE tenant = :tenant AND session = :session)",
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

MESSAGE_OF_ID = f"""
SELECT {t.MESSAGES.columns} FROM messages WHERE tenant = :tenant AND session = :session AND id = :id"""
NEXT_MESSAGE = f"""
UPDATE sessions SET last_message = last_message + 1, updated_at = {_NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :session RETURNING last_message"""
ADD_MESSAGE = t.MESSAGES.insert()
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
HISTORY_STATE = "SELECT created_at, last_message FROM sessions WHERE tenant = :tenant AND key = :session"

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
ON CONFLICT (tenant, id) DO NOTHING RETURNING {t.RUNS.columns}"""
CLAIM_RUN = f"""
UPDATE runs SET epoch = epoch + 1 WHERE tenant = :tenant AND id = :run_id AND {_OPEN} RETURNING epoch"""
RUN = f"SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND id = :run_id"
ACTIVE_RUN = f"SELECT id FROM runs WHERE tenant = :tenant AND session = :session AND {_ACTIVE}"
SET_RUN = """
UPDATE runs SET status = :status, error = coalesce(:error, error), ended_at = :ended_at
WHERE tenant = :tenant AND id = :run_id"""
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
RUNS = f"""
SELECT {t.RUNS.select(request=_OPEN_REQUEST)} FROM runs WHERE tenant = :tenant AND session = :session
ORDER BY place"""
FAILED_RUNS = f"""
SELECT {t.RUNS.select(request=_OPEN_REQUEST)} FROM runs WHERE tenant = :tenant AND status IN ('failed', 'cancelled')
AND id IN (SELECT run_id FROM messages WHERE tenant = :tenant AND session = :session AND seq >= :first AND seq <= :last)
ORDER BY place"""
OPEN_RUNS_OF = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND {_OPEN} ORDER BY place"""
QUEUED_RUNS_OF = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND status = 'queued' ORDER BY place"""
OPEN_RUNS = f"SELECT {t.RUNS.columns} FROM runs WHERE {_OPEN} ORDER BY tenant, session, place"

# Journal and audit log

JOURNAL_END = """
SELECT r.status, r.epoch, j.seq, j.hash FROM runs r LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id = r.id
    AND j.seq = (SELECT max(seq) FROM journal WHERE tenant = :tenant AND run_id = :run_id)
WHERE r.tenant = :tenant AND r.id = :run_id"""
ADD_JOURNAL = f"{t.JOURNAL.insert()} ON CONFLICT (tenant, run_id, kind, key) DO NOTHING RETURNING seq"
JOURNAL = f"SELECT {t.JOURNAL.columns} FROM journal WHERE tenant = :tenant AND run_id = :run_id ORDER BY seq"
AUDIT_END = "SELECT seq, hash FROM audit WHERE tenant = :tenant ORDER BY seq DESC LIMIT 1"
NEXT_AUDIT_TENANT = "SELECT tenant FROM audit WHERE tenant > :after ORDER BY tenant LIMIT 1"
ADD_AUDIT = t.AUDIT.insert()
_AUDIT = f"SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq > :after"
AUDIT = f"{_AUDIT} ORDER BY seq LIMIT :limit"
LAST_AUDIT = f"{_AUDIT} ORDER BY seq DESC LIMIT :limit"
AUDIT_BYTES = f"SELECT {t.AUDIT.select(entry='CAST(entry AS BLOB)')} FROM audit WHERE tenant = :tenant ORDER BY seq"

# Events

RESERVE_EVENTS = """
UPDATE runs SET events = events + :count, said_at = :now, epoch = epoch + :taken
WHERE tenant = :tenant AND id = :run_id RETURNING events, epoch - :taken"""
RESERVED_EVENTS = "SELECT events, epoch FROM runs WHERE tenant = :tenant AND id = :run_id"
EVENTS = f"""
SELECT {t.EVENTS.columns} FROM events WHERE tenant = :tenant AND run_id = :run_id AND seq > :after
ORDER BY seq LIMIT :limit"""


@cache
def add_messages(count: int) -> str:
    """Return the INSERT of several messages, with the parameters `:seq0`, `:id0`, `:body0` and so on."""
    rows = ", ".join(f"(:tenant, :session, :seq{n}, :id{n}, '', :body{n})" for n in range(count))
    return f"INSERT INTO messages (tenant, session, seq, id, run_id, body) VALUES {rows}"


def add_events(count: int) -> str:
    """Return the INSERT of several events, with the parameters `:seq0`, `:body0` and so on."""
    rows = ", ".join(f"(:tenant, :run_id, :seq{n}, :body{n})" for n in range(count))
    return f"INSERT INTO events (tenant, run_id, seq, body) VALUES {rows} ON CONFLICT (tenant, run_id, seq) DO NOTHING"


# Several reads in one statement, for Postgres only. Each row begins with the number of its read.

POSTGRES_SESSIONS_BY_KEY = f"""
SELECT w.n, {t.SESSIONS.select("s")} FROM unnest(CAST(:keys AS TEXT[])) WITH ORDINALITY AS w (key, n)
JOIN sessions s ON s.tenant = :tenant AND s.key = w.key"""
POSTGRES_RUNS_BY_ID = f"""
SELECT w.n, {t.RUNS.select("r")} FROM unnest(CAST(:ids AS TEXT[])) WITH ORDINALITY AS w (id, n)
JOIN runs r ON r.tenant = :tenant AND r.id = w.id"""
POSTGRES_EVENTS_OF_RUNS = f"""
SELECT w.n, {t.EVENTS.select("e")} FROM unnest(CAST(:run_ids AS TEXT[]), CAST(:afters AS BIGINT[]),
    CAST(:limits AS BIGINT[])) WITH ORDINALITY AS w (run_id, after, count, n)
CROSS JOIN LATERAL (SELECT {t.EVENTS.columns} FROM events
    WHERE tenant = :tenant AND run_id = w.run_id AND seq > w.after ORDER BY seq LIMIT w.count) e
ORDER BY w.n, e.seq"""

# Statements of `pipelined`, for Postgres only. They check the state that the steps of `writes` read first.

POSTGRES_LOCK_CHAIN = "SELECT pg_advisory_xact_lock(:lock)"
POSTGRES_LOCK_SESSIONS = """
SELECT key FROM sessions WHERE tenant = :tenant AND key = ANY (ARRAY(
    SELECT given FROM unnest(CAST(:sessions AS TEXT[])) AS given
    UNION ALL SELECT session FROM runs WHERE tenant = :tenant AND id = ANY (CAST(:run_ids AS TEXT[]))))
ORDER BY key FOR NO KEY UPDATE"""
POSTGRES_ADD_NEW_MESSAGE = f"""
WITH existing AS (
    SELECT seq, run_id, body FROM messages WHERE tenant = :tenant AND session = :session AND id = :id),
next AS (
    UPDATE sessions SET last_message = last_message + 1, updated_at = {_NEXT_UPDATED_AT}
    WHERE tenant = :tenant AND key = :session AND NOT EXISTS (SELECT 1 FROM existing) RETURNING last_message),
added AS (
    INSERT INTO messages (tenant, session, seq, id, run_id, body)
    SELECT :tenant, :session, last_message, :id, :run_id, :body FROM next RETURNING seq)
SELECT seq, run_id, body FROM existing UNION ALL SELECT seq, NULL, NULL FROM added"""
POSTGRES_ACCEPT_RUN = f"""
WITH next AS ({NEXT_RUN})
{t.RUNS.insert(status=_FIRST_STATUS, place="(SELECT last_run FROM next)")}
ON CONFLICT (tenant, id) DO NOTHING RETURNING {t.RUNS.columns}"""
POSTGRES_SET_OWN_RUN = f"""{SET_RUN} AND epoch = :epoch AND {_OPEN} RETURNING id"""
POSTGRES_START_NEXT_OF_RUN = START_NEXT.replace(
    ":session", "(SELECT session FROM runs WHERE tenant = :tenant AND id = :run_id)"
)
POSTGRES_JOURNAL_ENDS = """
SELECT given, j.seq, j.hash FROM unnest(CAST(:run_ids AS TEXT[])) AS given LEFT JOIN LATERAL (
    SELECT seq, hash FROM journal WHERE tenant = :tenant AND run_id = given ORDER BY seq DESC LIMIT 1) j ON TRUE"""
POSTGRES_ADD_JOURNALS = f"""
INSERT INTO journal (tenant, {t.JOURNAL.columns}) SELECT :tenant, {t.JOURNAL.select("w")}
FROM unnest(CAST(:run_id AS TEXT[]), CAST(:seq AS BIGINT[]), CAST(:kind AS TEXT[]), CAST(:key AS TEXT[]),
    CAST(:payload AS BYTEA[]), CAST(:at AS BIGINT[]), CAST(:previous AS TEXT[]), CAST(:hash AS TEXT[]),
    CAST(:epoch AS BIGINT[]), CAST(:is_first AS BOOLEAN[])) AS w ({t.JOURNAL.columns}, epoch, is_first)
JOIN runs r ON r.tenant = :tenant AND r.id = w.run_id AND r.epoch = w.epoch AND r.{_OPEN}
WHERE NOT w.is_first OR w.seq = 1 OR EXISTS (SELECT 1 FROM journal p
    WHERE p.tenant = :tenant AND p.run_id = w.run_id AND p.seq = w.seq - 1 AND p.hash = w.previous)
ON CONFLICT DO NOTHING RETURNING seq"""
POSTGRES_ADD_EVENTS_OF_RUNS = """
WITH added AS (
    INSERT INTO events (tenant, run_id, seq, body) SELECT :tenant, e.run_id, e.seq, e.body
    FROM unnest(CAST(:run_ids AS TEXT[]), CAST(:seqs AS BIGINT[]), CAST(:bodies AS BYTEA[])) AS e (run_id, seq, body)
    ON CONFLICT (tenant, run_id, seq) DO NOTHING)
SELECT id, events, epoch FROM runs WHERE tenant = :tenant AND id = ANY (CAST(:ids AS TEXT[]))
ORDER BY id FOR NO KEY UPDATE"""


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
LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id = a.run_id AND j.kind = 'asked' AND j.key = a.id
WHERE r.tenant = :tenant AND r.{_OPEN} AND a.tenant = :tenant AND a.run_id = r.id AND a.answer IS NULL
ORDER BY a.created_at, j.seq, a.id"""
GRANTS = f"""
SELECT {t.APPROVALS.columns} FROM approvals
WHERE tenant = :tenant AND grants = :binding AND grants <> '' AND answer IS NOT NULL ORDER BY answered_at, id"""

# Usage

_USAGE_KEY = ("day", "session", "agent_id", "model")
_SUMS = ", ".join(f"{name} = usage_sums.{name} + :{name}" for name in t.USAGE.names if name not in _USAGE_KEY)
ADD_USAGE = f"{t.USAGE.insert()} ON CONFLICT (tenant, {', '.join(_USAGE_KEY)}) DO UPDATE SET {_SUMS}"
USAGE = f"""
SELECT {t.USAGE.columns} FROM usage_sums WHERE tenant = :tenant AND day >= :since AND day < :until
ORDER BY {", ".join(_USAGE_KEY)}"""
LAST_TURNS = "SELECT agent_id, user_id, at FROM last_turns WHERE tenant = :tenant ORDER BY agent_id, user_id"
NOTE_LAST_TURNS = """
INSERT INTO last_turns (tenant, agent_id, user_id, at)
SELECT tenant, agent_id, user_id, max(created_at) FROM runs WHERE tenant = :tenant AND session = :session
GROUP BY tenant, agent_id, user_id
ON CONFLICT (tenant, agent_id, user_id) DO UPDATE SET
    at = CASE WHEN excluded.at > last_turns.at THEN excluded.at ELSE last_turns.at END"""
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
PENDING_JOBS = f"""
SELECT {t.JOBS.columns} FROM jobs WHERE tenant = :tenant AND {_OPEN_JOB}
    AND (state = 'running' OR due_at <= :until OR deadline <= :until)
UNION ALL SELECT {t.JOBS.columns} FROM jobs WHERE tenant = :tenant AND NOT told AND NOT {_OPEN_JOB}
ORDER BY priority DESC, due_at, seq LIMIT :limit"""


@cache
def list_jobs(states: int, *conditions: str) -> str:
    """Return jobs that fulfil the conditions, in any state or in several, with the parameters `:state0` and so on."""
    names = ", ".join(f":state{n}" for n in range(states))
    wanted = " AND ".join(("seq < :before", *conditions, *([f"state IN ({names})"] if states else [])))
    return f"""
SELECT {t.JOBS.columns} FROM jobs WHERE tenant = :tenant AND {wanted}
ORDER BY seq DESC LIMIT :limit"""


# Records

RECORD = f"SELECT {t.RECORDS.columns} FROM records WHERE tenant = :tenant AND kind = :kind AND key = :key"
RECORDS = f"SELECT {t.RECORDS.columns} FROM records WHERE tenant = :tenant AND kind = :kind ORDER BY key"
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
DOCUMENTS = f"SELECT {t.DOCUMENTS.columns} FROM documents WHERE {_IN_SCOPE} AND id > :after ORDER BY id LIMIT :limit"
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
SET_POSITION = """
INSERT INTO derived_positions (tenant, name, position) VALUES (:tenant, :name, :position)
ON CONFLICT (tenant, name) DO UPDATE SET position = excluded.position"""
NEXT_SESSION_TENANT = "SELECT tenant FROM sessions WHERE tenant > :after ORDER BY tenant LIMIT 1"
NEWEST_SESSION = "SELECT coalesce(max(updated_at), 0) FROM sessions WHERE tenant = :tenant"
UNINDEXED_SESSIONS = """
SELECT s.key, s.updated_at, s.label, s.last_message, s.last_run, coalesce(i.message, 0), i.label, coalesce(i.run, 0)
FROM sessions s LEFT JOIN search_sessions i ON i.tenant = :tenant AND i.session = s.key
WHERE s.tenant = :tenant AND s.updated_at >= :position
    AND (i.session IS NULL OR i.message < s.last_message OR i.run < s.last_run OR i.label <> s.label)
ORDER BY s.updated_at LIMIT :limit"""
BODIES = """
SELECT seq, body FROM messages WHERE tenant = :tenant AND session = :session AND seq > :after
ORDER BY seq LIMIT :limit"""
PUT_SEARCH_SESSION = """
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES (:tenant, :session, :label, :message, :run)
ON CONFLICT (tenant, session) DO UPDATE SET label = excluded.label, message = excluded.message, run = excluded.run"""
DROP_SEARCH_LABEL = "DELETE FROM search_texts WHERE tenant = :tenant AND session = :session AND seq = 0"
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
START_POSITION = """
INSERT INTO derived_positions (tenant, name, position) VALUES (:tenant, :name, 0)
ON CONFLICT (tenant, name) DO NOTHING"""
MOVE_POSITION = """
UPDATE derived_positions SET position = :position WHERE tenant = :tenant AND name = :name AND position = :known
RETURNING position"""
AUDIT_BEFORE = f"""
SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq < :before AND seq > :after
ORDER BY seq DESC LIMIT :limit"""
ADD_TOOL_DAY = """
INSERT INTO tool_days (tenant, day, tool, calls, failed, milliseconds)
VALUES (:tenant, :day, :tool, :calls, :failed, :milliseconds)
ON CONFLICT (tenant, day, tool) DO UPDATE SET calls = tool_days.calls + :calls, failed = tool_days.failed + :failed,
    milliseconds = tool_days.milliseconds + :milliseconds"""
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
CLOSE_DAY = "UPDATE usage_closed SET complete = TRUE WHERE tenant = :tenant AND day = :day RETURNING day"
DROP_USAGE_DAY = "DELETE FROM usage_days WHERE tenant = :tenant AND day = :day"
_USAGE_AMOUNTS = tuple(name for name in t.USAGE.names if name not in _USAGE_KEY)
_ADDED_AMOUNTS = ", ".join(f"sum({name})" for name in _USAGE_AMOUNTS)
SUM_USAGE_DAY = f"""
INSERT INTO usage_days (tenant, day, owner, agent_id, model, {", ".join(_USAGE_AMOUNTS)})
SELECT CAST(:tenant AS TEXT), day, owner, agent_id, model, {_ADDED_AMOUNTS} FROM usage_sums
WHERE tenant = :tenant AND day = :day GROUP BY day, owner, agent_id, model"""


@cache
def usage_by(keys: tuple[str, ...]) -> str:
    """Return the sums of usage by some of day, agent and model: from the sums of days that are over, and the rest."""
    columns = f"day, agent_id, model, {', '.join(_USAGE_AMOUNTS)}"
    groups = ", ".join(keys)
    return f"""{_DAYS}
SELECT {groups}, {_ADDED_AMOUNTS} FROM (
    SELECT {columns} FROM usage_days WHERE tenant = :tenant AND day >= :since AND day < :until
        AND (:all OR owner = :owner) AND EXISTS (
            SELECT 1 FROM usage_closed c WHERE c.tenant = :tenant AND c.day = usage_days.day AND c.complete)
    UNION ALL
    SELECT {", ".join(f"u.{name}" for name in columns.split(", "))} FROM open_days CROSS JOIN usage_sums u
    WHERE u.tenant = :tenant AND u.day = open_days.day AND (:all OR u.owner = :owner)) found
GROUP BY {groups} ORDER BY {groups} LIMIT :limit"""


SUM_SESSION_DAY = """
INSERT INTO usage_session_days (tenant, session, day, tokens)
SELECT CAST(:tenant AS TEXT), session, day, sum(input_tokens + output_tokens) FROM usage_sums
WHERE tenant = :tenant AND day = :day GROUP BY session, day
ON CONFLICT (tenant, session, day) DO UPDATE SET tokens = excluded.tokens"""
SUM_SESSIONS = """
INSERT INTO usage_sessions (tenant, session, first_day, last_day, tokens)
SELECT CAST(:tenant AS TEXT), session, min(day), max(day), sum(tokens) FROM usage_session_days
WHERE tenant = :tenant AND session IN (SELECT session FROM usage_sums WHERE tenant = :tenant AND day = :day)
GROUP BY session
ON CONFLICT (tenant, session) DO UPDATE SET first_day = excluded.first_day, last_day = excluded.last_day,
    tokens = excluded.tokens"""
_HEAVIEST_SESSIONS = """
FROM usage_sessions WHERE tenant = :tenant AND last_day >= :since AND first_day < :until{owned}
ORDER BY tokens DESC, session"""


@cache
def usage_by_session(keys: tuple[str, ...], *, owned: bool = False) -> str:
    """Return the sums of usage of the sessions with the most tokens; those that were used in open days are included.

    At most `:sessions` are examined. A session that is not has no more tokens than the last one that is, which
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
    """Return the INSERT of several values, with the parameters `:field0`, `:value0`, `:block0` and so on."""
    rows = ", ".join(f"(:tenant, :field{n}, :value{n}, :block{n})" for n in range(count))
    return f"""INSERT INTO audit_values (tenant, field, value, block) VALUES {rows}
ON CONFLICT (tenant, field, value, block) DO NOTHING"""


@cache
def find_audit_blocks(fields: tuple[str, ...]) -> str:
    """Return the latest blocks of audit rows that contain a value of each field, given as `:<field>`."""
    blocks, order, conditions = "audit_blocks b", "b.block", ""
    for name in fields[:1]:
        blocks, order = f"audit_values f CROSS JOIN {blocks}", "f.block"
        conditions += f" AND f.tenant = :tenant AND f.field = '{name}' AND f.value = :{name} AND b.block = f.block"
    for name in fields[1:]:
        conditions += f""" AND EXISTS (SELECT 1 FROM audit_values v
            WHERE v.tenant = :tenant AND v.field = '{name}' AND v.value = :{name} AND v.block = b.block)"""
    return f"""
SELECT {order} FROM {blocks} WHERE b.tenant = :tenant AND {order} <= :block AND b.last_at >= :since
    AND b.first_at < :until{conditions}
ORDER BY {order} DESC LIMIT :blocks"""


@cache
def audit_in_ranges(count: int) -> str:
    """Return the audit rows of several ranges, with the parameters `:after0`, `:last0` and so on.

    Postgres reads whole tables if the ranges come from a join: it cannot tell how small they are.
    """
    one = f"SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq > :after{{0}} AND seq <= :last{{0}}"
    return " UNION ALL ".join(one.format(n) for n in range(count))


@cache
def add_search_texts(count: int) -> str:
    """Return the INSERT of several texts of a session, with the parameters `:seq0`, `:text0` and so on."""
    rows = ", ".join(f"(:tenant, :session, :owners, :seq{n}, :text{n})" for n in range(count))
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
    "events": """
DELETE FROM events WHERE tenant = :tenant AND run_id = :run_id AND seq IN
    (SELECT seq FROM events WHERE tenant = :tenant AND run_id = :run_id ORDER BY seq DESC LIMIT :limit)
RETURNING length(body)""",
    "journal": """
DELETE FROM journal WHERE tenant = :tenant AND run_id = :run_id AND seq IN
    (SELECT seq FROM journal WHERE tenant = :tenant AND run_id = :run_id ORDER BY seq DESC LIMIT :limit)
RETURNING length(payload)""",
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
SELECT count(DISTINCT r.id), count(e.seq), coalesce(sum(length(e.body)), 0)
FROM runs r LEFT JOIN events e ON e.tenant = :tenant AND e.run_id = r.id WHERE {_EXPIRED_EVENTS}""",
    "journal": f"""
SELECT count(DISTINCT r.id), count(j.seq), coalesce(sum(length(j.payload)), 0)
FROM runs r LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id = r.id WHERE {_EXPIRED_JOURNAL}""",
}
