"""SQL statements for SQLite whose text is not the one for Postgres; `storage.sql.statements` has the others.

SQLite creates a temporary table whenever it executes a statement with RETURNING, with a list of more than two values in
IN, or with an INSERT … SELECT from the same table. So each write of a turn has several parts without these.
"""

from collections.abc import Mapping
from typing import NamedTuple

from atlas_agents.storage.hash_chain import START
from atlas_agents.storage.sql import tables as t
from atlas_agents.storage.sql.derived_statements import put_search_sessions
from atlas_agents.storage.sql.dialect import of_count
from atlas_agents.storage.sql.statements import (
    ACTIVE,
    COUNT_EXPIRED_COUNTERS,
    EXPIRED_EVENTS,
    EXPIRED_JOURNAL,
    INSERT_RUN,
    NEXT_UPDATED_AT,
    OF_NUMBER,
    OPEN,
    UPDATED_AT_STEP,
    UPSERT_SESSION,
    numbered,
)


class Parts(NamedTuple):
    """A write in several statements.

    Attributes:
        change: The write.
        check: A query for one value, which `change` has as `:found`; without a row, nothing is changed.
        result: A query for the rows of the changed row; without one, the result is what `check` found.
    """

    change: str
    check: str = ""
    result: str = ""


PARTS: dict[str, Parts] = {}
"""Writes in several statements, by the one that changes a row."""


def _in_parts(change: str, *, check: str = "", result: str = "") -> str:
    PARTS[change] = Parts(change, check, result)
    return change


# `status IN (…)` of the index of open runs must be repeated where the index is used, and is slower elsewhere.
_IS_OPEN = "(status = 'queued' OR status = 'running' OR status = 'waiting')"
_RUN_RANGE = "{0}.id > r.number << 31 AND {0}.id < (r.number + 1) << 31"
_STEPS, _EVENTS = _RUN_RANGE.format("j"), _RUN_RANGE.format("e")
_OF_RUN = "r.tenant = :tenant AND r.id = :run_id"
_OF_SESSION = "r.tenant = :tenant AND r.session = :session"

# Sessions and messages

IS_BRANCH: str = """instr(metadata, CAST('"branch":{' AS BLOB)) > 0"""
PUT_SESSION = _in_parts(
    UPSERT_SESSION, result=f"SELECT {t.SESSIONS.columns}, last_run FROM sessions WHERE tenant = :tenant AND key = :key"
)
SET_SESSION_METADATA = _in_parts(
    f"UPDATE sessions SET metadata = :metadata, updated_at = {NEXT_UPDATED_AT} WHERE tenant = :tenant AND key = :key",
    result=f"SELECT {t.SESSIONS.columns} FROM sessions WHERE tenant = :tenant AND key = :key",
)
ADD_MESSAGE = _in_parts(
    """
INSERT INTO messages (tenant, session, seq, id, run_id, body, id_number)
VALUES (:tenant, :session, :found, :id, :run_id, :body, :id_number)""",
    check=f"""
SELECT last_message + :place FROM sessions WHERE tenant = :tenant AND key = :session
    AND NOT EXISTS (SELECT 1 FROM messages WHERE {OF_NUMBER} = :id_number AND id = :id)""",
)
SET_LAST_MESSAGE = _in_parts(
    "UPDATE sessions SET last_message = :seq WHERE tenant = :tenant AND key = :session",
    result=f"""
SELECT updated_at > {NEXT_UPDATED_AT} - {UPDATED_AT_STEP} FROM sessions WHERE tenant = :tenant AND key = :session""",
)
DROP_ROWS: tuple[str, ...] = (
    f"""
DELETE FROM journal_rows WHERE id IN (
    SELECT j.id FROM runs r CROSS JOIN journal_rows j WHERE {_OF_SESSION} AND {_STEPS})""",
    f"""
DELETE FROM event_rows WHERE id IN (
    SELECT e.id FROM runs r CROSS JOIN event_rows e WHERE {_OF_SESSION} AND {_EVENTS})""",
)

# Runs

NEXT_RUN = _in_parts(
    f"""
UPDATE sessions SET last_run = last_run + 1, updated_at = {NEXT_UPDATED_AT}
WHERE tenant = :tenant AND key = :session""",
    result="SELECT last_run FROM sessions WHERE tenant = :tenant AND key = :session",
)
ADD_RUN = _in_parts(INSERT_RUN, result="SELECT status FROM runs WHERE tenant = :tenant AND id = :id")
CLAIM_RUN = _in_parts(
    f"UPDATE runs SET epoch = epoch + 1 WHERE tenant = :tenant AND id = :run_id AND {_IS_OPEN}",
    result="SELECT epoch FROM runs WHERE tenant = :tenant AND id = :run_id",
)
# `+` keeps SQLite from evaluating the condition of the index for each row.
SET_RUN = _in_parts(
    f"""
UPDATE runs SET status = :status, error = coalesce(:error, error), ended_at = :ended_at
WHERE tenant = :tenant AND id = :run_id AND epoch = :epoch AND {_IS_OPEN}
    AND (status <> 'queued' OR :ends OR NOT EXISTS (
        SELECT 1 FROM runs a WHERE a.tenant = :tenant AND a.session = runs.session AND a.{ACTIVE} AND a.{OPEN}))""",
    result=f"""
SELECT session, EXISTS (SELECT 1 FROM runs q
    WHERE q.tenant = :tenant AND q.session = runs.session AND +q.status = 'queued' AND q.{OPEN})
FROM runs WHERE tenant = :tenant AND id = :run_id""",
)
START_NEXT = f"""
UPDATE runs SET status = 'running' WHERE tenant = :tenant AND session = :session AND status = 'queued' AND {OPEN}
    AND place = (SELECT min(place) FROM runs
        WHERE tenant = :tenant AND session = :session AND status = 'queued' AND {OPEN})
    AND NOT EXISTS (SELECT 1 FROM runs
        WHERE tenant = :tenant AND session = :session AND {ACTIVE} AND {OPEN})
RETURNING id"""
QUEUED_RUNS_OF = f"""
SELECT {t.RUNS.columns} FROM runs WHERE tenant = :tenant AND session = :session AND status = 'queued' AND {OPEN}
ORDER BY place"""

# Journal, events and audit log

JOURNAL_END = f"""
SELECT r.status, r.epoch, j.id & {t.MAX_SEQ}, j.hash FROM runs r LEFT JOIN journal_rows j
    ON j.id = (SELECT j.id FROM journal_rows j WHERE {_STEPS} ORDER BY j.id DESC LIMIT 1)
WHERE {_OF_RUN}"""
ADD_JOURNAL = _in_parts(
    """
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (:found, :kind, :key, :at, :hash, :payload)""",
    check=f"""
SELECT r.number << 31 | :seq FROM runs r
WHERE {_OF_RUN} AND r.epoch = :epoch AND (r.status = 'queued' OR r.status = 'running' OR r.status = 'waiting')
    AND :end_hash = coalesce((SELECT j.hash FROM journal_rows j WHERE {_STEPS} ORDER BY j.id DESC LIMIT 1), '{START}')
    AND NOT EXISTS (SELECT 1 FROM journal_rows j WHERE {_STEPS} AND j.kind = :kind AND j.key = :key)""",
)
_PREVIOUS = "coalesce((SELECT p.hash FROM journal_rows p WHERE p.id = j.id - 1), '')"
JOURNAL = f"""
SELECT {t.JOURNAL.select("j", run_id="r.id", seq=f"j.id & {t.MAX_SEQ}", previous=_PREVIOUS)}
FROM runs r CROSS JOIN journal_rows j WHERE {_OF_RUN} AND {_STEPS} ORDER BY j.id"""
EVENTS = f"""
SELECT r.id, e.id & {t.MAX_SEQ}, e.body FROM runs r CROSS JOIN event_rows e
WHERE {_OF_RUN} AND e.id > r.number << 31 | max(0, min(:after, {t.MAX_SEQ})) AND e.id < (r.number + 1) << 31
ORDER BY e.id LIMIT :limit"""
RESERVE_EVENTS = _in_parts(
    """
UPDATE runs SET events = events + :count, last_event_at = :now, epoch = epoch + :taken
WHERE tenant = :tenant AND id = :run_id""",
    result="SELECT events, epoch - :taken FROM runs WHERE tenant = :tenant AND id = :run_id",
)
ADD_AUDIT = _in_parts(
    t.AUDIT.insert(),
    check=f"""
SELECT :seq WHERE :previous = coalesce(
    (SELECT hash FROM audit WHERE tenant = :tenant ORDER BY seq DESC LIMIT 1), '{START}')""",
)
AUDIT_BYTES = f"SELECT {t.AUDIT.select(entry='CAST(entry AS BLOB)')} FROM audit WHERE tenant = :tenant ORDER BY seq"
PENDING_APPROVALS = f"""
SELECT {t.APPROVALS.select("a")} FROM runs r CROSS JOIN approvals a
WHERE r.tenant = :tenant AND r.{OPEN} AND a.tenant = :tenant AND a.run_id = r.id AND a.answer IS NULL
ORDER BY a.created_at, (SELECT j.id FROM journal_rows j WHERE {_STEPS} AND j.kind = 'asked' AND j.key = a.id), a.id"""


@of_count
def add_events(count: int) -> str:
    """Return the INSERT of several events, with the parameters `:seq0`, `:body0` and so on."""
    return f"""
INSERT INTO event_rows (id, body) SELECT r.number << 31 | w.column1, w.column2
FROM runs r CROSS JOIN (VALUES {numbered(count, "(:seq{0}, :body{0})")}) w WHERE {_OF_RUN}
ON CONFLICT (id) DO NOTHING"""


# Pruning

PRUNE_ROWS: Mapping[str, str] = {
    "events": f"""
DELETE FROM event_rows WHERE id IN (SELECT e.id FROM runs r CROSS JOIN event_rows e
    WHERE {_OF_RUN} AND {_EVENTS} ORDER BY e.id DESC LIMIT :limit) RETURNING length(body), 1""",
    "journal": f"""
DELETE FROM journal_rows WHERE id IN (SELECT j.id FROM runs r CROSS JOIN journal_rows j
    WHERE {_OF_RUN} AND {_STEPS} ORDER BY j.id DESC LIMIT :limit) RETURNING length(payload), 1""",
}
COUNT_PRUNABLE: Mapping[str, str] = {
    "counters": COUNT_EXPIRED_COUNTERS,
    "events": f"""
SELECT count(DISTINCT r.id), count(e.id), coalesce(sum(length(e.body)), 0)
FROM runs r LEFT JOIN event_rows e ON {_EVENTS} WHERE {EXPIRED_EVENTS}""",
    "journal": f"""
SELECT count(DISTINCT r.id), count(j.id), coalesce(sum(length(j.payload)), 0)
FROM runs r LEFT JOIN journal_rows j ON {_STEPS} WHERE {EXPIRED_JOURNAL}""",
}

# Full-text search. The indexes contain the owners of a text as words, so they skip texts of other tenants.

MATCHING = """
SELECT p.id, -w.score FROM (SELECT id, score FROM (
        SELECT rowid AS id, bm25(passage_words, 0.0, 2.0, 1.0) AS score FROM passage_words
        WHERE passage_words MATCH :match LIMIT :max_rows)
    ORDER BY score LIMIT :limit) w
JOIN passages p ON p.id = w.id WHERE p.tenant = :tenant AND p.kind = :kind ORDER BY w.score, p.id"""
SESSION_MATCHES = """
SELECT t.id, t.session, t.seq FROM (
    SELECT rowid AS id FROM session_words WHERE session_words MATCH :match AND rowid < :before
    ORDER BY rowid DESC LIMIT :limit) w
CROSS JOIN search_texts t WHERE t.id = w.id AND t.tenant = :tenant ORDER BY t.id DESC"""


@of_count
def count_matches(count: int) -> str:
    """Return a count of the passages that match each expression (`:match0` and so on), up to `:max_rows`."""
    one = "SELECT count(*) FROM (SELECT 1 FROM passage_words WHERE passage_words MATCH :match{0} LIMIT :max_rows)"
    return numbered(count, one, " UNION ALL ")


@of_count
def add_search_texts(count: int) -> str:
    """Return the INSERT of several texts, with the parameters `:session0`, `:owners0`, `:seq0`, `:text0` and so on."""
    rows = numbered(count, "(:tenant, :session{0}, :owners{0}, :seq{0}, :text{0})")
    return f"""
INSERT INTO search_texts (tenant, session, owners, seq, text) VALUES {rows}
ON CONFLICT (tenant, session, seq) DO NOTHING"""


@of_count
def add_audit_values(count: int) -> str:
    """Return the INSERT of several values, with the parameters `:field0`, `:value0`, `:block0` and so on."""
    rows = numbered(count, "(:tenant, :field{0}, :value{0}, :block{0})")
    return f"""
INSERT INTO audit_values (tenant, field, value, block) VALUES {rows}
ON CONFLICT (tenant, field, value, block) DO NOTHING"""


update_search_sessions = put_search_sessions
