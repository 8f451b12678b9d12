"""SQL statements that SQLite and Postgres both execute, with `:name` for each parameter.

Statements whose text differs are in `storage.sqlite.statements` and `storage.postgres.statements`, under the names in
`dialect`. Column lists come from `tables`. Every statement filters by `:tenant`, except `OPEN_RUNS`, `TENANTS` and
`NEXT_AUDIT_TENANT`.
"""

from collections.abc import Sequence
from functools import cache

from atlas_agents.core.store import PRIORITIES, Passage, PutSession
from atlas_agents.storage.sql import tables as t
from atlas_agents.storage.sql.dialect import of_count

OPEN: str = "status IN ('queued', 'running', 'waiting')"
ACTIVE: str = "status IN ('running', 'waiting')"


def numbered(count: int, row: str, separator: str = ", ") -> str:
    """Repeat a text with the numbers of several rows: `(:id0), (:id1)` for `(:id{0})`."""
    return separator.join([row.format(n) for n in range(count)])


# Sessions. `updated_at` increases even if the clock goes back. It is unique per tenant on SQLite; on Postgres, commits
# that run at the same time may choose the same value, so pages are ordered by the key as well.

NEXT_UPDATED_AT: str = """(SELECT CASE WHEN :now > coalesce(max(updated_at), 0) THEN :now ELSE max(updated_at) + 1 END
    FROM sessions WHERE tenant = :tenant)"""
_CHANGES = ", ".join(
    f"{name} = coalesce(:new_{name}, sessions.{name})" for name in PutSession.__struct_fields__ if name != "key"
)
UPSERT_SESSION = f"""
{t.SESSIONS.insert(updated_at=NEXT_UPDATED_AT, last_run=":runs")}
ON CONFLICT (tenant, key) DO UPDATE SET {_CHANGES}, updated_at = {NEXT_UPDATED_AT},
    last_run = sessions.last_run + :runs"""
NAME_SESSION = f"""
UPDATE sessions SET label = :label, updated_at = {NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :key AND label IN ('', :replaces) RETURNING {t.SESSIONS.columns}"""
DROP_SESSION = "DELETE FROM sessions WHERE tenant = :tenant AND key = :session RETURNING key"
DROP_SESSION_ROWS = (
    "DELETE FROM approvals WHERE tenant = :tenant AND session = :session",
    "DELETE FROM messages WHERE tenant = :tenant AND session = :session",
    "DELETE FROM runs WHERE tenant = :tenant AND session = :session",
    "DELETE FROM budgets WHERE tenant = :tenant AND key = 'session/' || :session",
)
HAS_OPEN_RUN = f"SELECT id FROM runs WHERE tenant = :tenant AND session = :session AND {OPEN} LIMIT 1"
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
KEY_WITH_PREFIX = "key >= :first AND key < :end"
SESSION_WITH_PREFIX = "session >= :first AND session < :end"

# Messages

OF_NUMBER: str = "tenant || '' = :tenant AND session || '' = :session AND id_number"
"""Condition that keeps the planner from reading the whole session."""
MESSAGE_OF_ID = f"SELECT {t.MESSAGES.columns} FROM messages WHERE {OF_NUMBER} = :id_number AND id = :id"
UPDATED_AT_STEP = 1000
"""Milliseconds for which messages of a running turn do not change `updated_at` of its session. The value is
indexed: an update of other columns writes no entry of an index, and on Postgres stays within its page. The indexer of
sessions reads more than this again (`derived.OVERLAP_MS`)."""
SET_UPDATED_AT = f"UPDATE sessions SET updated_at = {NEXT_UPDATED_AT} WHERE tenant = :tenant AND key = :session"
NEXT_MESSAGES = f"""
UPDATE sessions SET last_message = last_message + :count, updated_at = {NEXT_UPDATED_AT}
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


@of_count
def add_messages(count: int) -> str:
    """Return the INSERT of several messages, with the parameters `:seq0`, `:id0`, `:id_number0`, `:body0` and so on."""
    rows = numbered(count, "(:tenant, :session, :seq{0}, :id{0}, '', :body{0}, :id_number{0})")
    return f"INSERT INTO messages (tenant, session, seq, id, run_id, body, id_number) VALUES {rows}"


@of_count
def known_messages(count: int) -> str:
    """Return the ids of messages of a session that may be among several: `:id_number0` and so on."""
    return f"SELECT id FROM messages WHERE {OF_NUMBER} IN ({numbered(count, ':id_number{0}')})"


# Runs

RUN_BY_KEY = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND idempotency_key = :idempotency_key
AND idempotency_key <> ''"""
_FIRST_STATUS = f"""
    CASE WHEN EXISTS (SELECT 1 FROM runs WHERE tenant = :tenant AND session = :session AND {OPEN})
    THEN 'queued' ELSE 'running' END"""
INSERT_RUN = f"{t.RUNS.insert(status=_FIRST_STATUS, place=':place')} ON CONFLICT (tenant, id) DO NOTHING"
RUN = f"SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND id = :run_id"
MERGE_RUN = f"""
UPDATE runs SET status = 'done', ended_at = :now WHERE tenant = :tenant AND id = :run_id AND status = 'queued'
RETURNING {t.RUNS.columns}"""
STOP_RUN = f"""
UPDATE runs SET stop = TRUE, ended_at = CASE WHEN status = 'queued' THEN :now END,
    status = CASE WHEN status = 'queued' THEN 'cancelled' ELSE status END
WHERE tenant = :tenant AND id = :run_id AND {OPEN} RETURNING {t.RUNS.columns}"""
_OPEN_REQUEST = f"substr(request, 1, CASE WHEN {OPEN} THEN length(request) ELSE 0 END)"
LAST_RUNS = f"""
SELECT {t.RUNS.select(request=_OPEN_REQUEST)} FROM runs WHERE tenant = :tenant AND session = :session
ORDER BY place DESC LIMIT :limit"""
FAILED_RUNS = f"""
SELECT {t.RUNS.select(request=_OPEN_REQUEST)} FROM runs WHERE tenant = :tenant AND status IN ('failed', 'cancelled')
AND id IN (SELECT run_id FROM messages WHERE tenant = :tenant AND session = :session AND seq >= :first AND seq <= :last)
ORDER BY place"""
LAST_OPEN_RUNS = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND {OPEN}
ORDER BY place DESC LIMIT :limit"""
OPEN_RUNS = f"SELECT {t.RUNS.columns} FROM runs WHERE {OPEN} ORDER BY tenant, session, place"
RESERVED_EVENTS = "SELECT events, epoch FROM runs WHERE tenant = :tenant AND id = :run_id"

# Audit log

AUDIT_END = "SELECT seq, hash FROM audit WHERE tenant = :tenant ORDER BY seq DESC LIMIT 1"
NEXT_AUDIT_TENANT = "SELECT tenant FROM audit WHERE tenant > :after ORDER BY tenant LIMIT 1"
_AUDIT = f"SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq > :after"
AUDIT = f"{_AUDIT} ORDER BY seq LIMIT :limit"
LAST_AUDIT = f"{_AUDIT} ORDER BY seq DESC LIMIT :limit"

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

# Approvals. The pending ones (`dialect.PENDING_APPROVALS`) are found through the open runs, which are few, while
# unanswered requests accumulate; those of one millisecond are listed as they were asked.

PUT_APPROVAL = f"{t.APPROVALS.insert()} ON CONFLICT (tenant, id) DO NOTHING RETURNING {t.APPROVALS.columns}"
ANSWER_APPROVAL = f"""
UPDATE approvals SET answer = :answer, answered_at = :now, grants = :grants
WHERE tenant = :tenant AND id = :id AND answer IS NULL RETURNING {t.APPROVALS.columns}"""
APPROVAL = f"SELECT {t.APPROVALS.columns} FROM approvals WHERE tenant = :tenant AND id = :id"
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
    deadline = CASE WHEN deadline <= :now THEN NULL ELSE deadline END, notified = :notified
WHERE tenant = :tenant AND id = :id RETURNING {t.JOBS.columns}"""
MARK_JOB_NOTIFIED = f"""
UPDATE jobs SET notified = TRUE WHERE tenant = :tenant AND id = :id AND attempts = :attempts AND NOT {_OPEN_JOB}
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
        "notified = FALSE AND state NOT IN ('queued', 'running')",
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
RECORDS_WITH_PREFIX = f"{_RECORDS} AND {KEY_WITH_PREFIX} ORDER BY key"
PUT_RECORD = f"""
{t.RECORDS.insert(version="1")}
ON CONFLICT (tenant, kind, key) DO UPDATE SET body = :body, version = records.version + 1
RETURNING {t.RECORDS.columns}"""
DROP_RECORD = "DELETE FROM records WHERE tenant = :tenant AND kind = :kind AND key = :key RETURNING key"
TENANTS = "SELECT tenant FROM records WHERE kind = 'tenant' ORDER BY tenant"

# Documents and passages

IN_SCOPE = "tenant = :tenant AND kind = :kind AND (:any OR collection = :collection)"
PUT_DOCUMENT = t.DOCUMENTS.insert()
GROW_DOCUMENT = f"""
UPDATE documents SET passages = passages + :added, hash = :hash WHERE tenant = :tenant AND kind = :kind AND id = :id
RETURNING {t.DOCUMENTS.columns}"""
DROP_DOCUMENT = f"DELETE FROM documents WHERE {IN_SCOPE} AND id = :id RETURNING model"
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
DOCUMENTS_OF = f"{_DOCUMENTS} AND collection = :collection AND id > :after ORDER BY id LIMIT :limit"
_LATEST = "(created_at, id) < (:before, :before_id) ORDER BY created_at DESC, id DESC LIMIT :limit"
LATEST_DOCUMENTS = f"{_DOCUMENTS} AND {_LATEST}"
LATEST_DOCUMENTS_OF = f"{_DOCUMENTS} AND collection = :collection AND {_LATEST}"
COLLECTIONS = "SELECT DISTINCT collection FROM documents WHERE tenant = :tenant AND kind = :kind ORDER BY collection"
PASSAGES_OF = f"""
SELECT {t.PASSAGES.columns} FROM passages WHERE tenant = :tenant AND kind = :kind AND document = :id AND place > :after
ORDER BY place LIMIT :limit"""
LIBRARY = "SELECT version, vectors FROM libraries WHERE tenant = :tenant AND kind = :kind AND model = :model"
_WITH_VECTORS = "tenant = :tenant AND kind = :kind AND model = :model AND vector IS NOT NULL"
VECTORS = f"SELECT id, collection, vector FROM passages WHERE {_WITH_VECTORS} AND id > :after ORDER BY id LIMIT :limit"
VECTOR_IDS = f"SELECT id FROM passages WHERE {_WITH_VECTORS} ORDER BY id"


@of_count
def add_passages(count: int) -> str:
    """Return the INSERT of several passages of a document, with the parameters `:place0`, `:heading0` and so on."""
    own = ("place", *Passage.__struct_fields__)
    columns = ", ".join(("tenant, kind, document, collection, owners, model", *own))
    shared = ":tenant, :kind, :document, :collection, :owners, :model"
    row = ", ".join((shared, *(f":{name}{{0}}" for name in own)))
    return f"INSERT INTO passages ({columns}) VALUES {numbered(count, f'({row})')}"


@of_count
def passages_by_id(count: int) -> str:
    """Select passages by id (`:id0` and so on). `tenant || ''` keeps the planner from using an index on the tenant."""
    ids = numbered(count, ":id{0}")
    return f"SELECT {t.PASSAGES.columns} FROM passages WHERE tenant || '' = :tenant AND id IN ({ids})"


# Pruning, by what is pruned

EXPIRED_EVENTS = "r.tenant = :tenant AND r.last_event_at < :before AND r.ended_at < :before"
EXPIRED_JOURNAL = "r.tenant = :tenant AND r.journaled AND r.ended_at < :before"
PRUNABLE_RUNS = {
    "events": f"SELECT r.id FROM runs r WHERE {EXPIRED_EVENTS} ORDER BY r.last_event_at LIMIT :runs",
    "journal": f"SELECT r.id FROM runs r WHERE {EXPIRED_JOURNAL} ORDER BY r.ended_at LIMIT :runs",
}
MARK_PRUNED = {
    "events": "UPDATE runs SET last_event_at = NULL WHERE tenant = :tenant AND id = :run_id",
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
COUNT_EXPIRED_COUNTERS = f"SELECT 0, (SELECT count(*) {_EXPIRED_BUDGETS}) + (SELECT count(*) {_EXPIRED_COUNTERS}), 0"
