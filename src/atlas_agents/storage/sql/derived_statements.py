"""SQL statements on the derived tables that SQLite and Postgres both execute; see `derived`."""

from functools import cache

from atlas_agents.storage.sql import tables as t
from atlas_agents.storage.sql.dialect import of_count
from atlas_agents.storage.sql.statements import OF_OWNER, numbered

# `search_sessions` tells what is indexed of each session; `search_texts` has a row for each message and one with the
# number 0 for the name. Ids increase, so later messages come later.

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


@of_count
def add_audit_blocks(count: int) -> str:
    """Return the INSERT of several blocks, with the parameters `:block0`, `:first_at0`, `:last_at0` and so on."""
    rows = numbered(count, "(:tenant, :block{0}, :first_at{0}, :last_at{0})")
    return f"""
INSERT INTO audit_blocks (tenant, block, first_at, last_at) VALUES {rows}
ON CONFLICT (tenant, block) DO NOTHING"""


@of_count
def add_tool_days(count: int) -> str:
    """Return the statement that adds calls of several tools and days: `:day0`, `:tool0`, `:calls0` and so on."""
    rows = numbered(count, "(:tenant, :day{0}, :tool{0}, :calls{0}, :failed{0}, :milliseconds{0})")
    return f"""
INSERT INTO tool_days (tenant, day, tool, calls, failed, milliseconds) VALUES {rows}
ON CONFLICT (tenant, day, tool) DO UPDATE SET calls = tool_days.calls + excluded.calls,
    failed = tool_days.failed + excluded.failed, milliseconds = tool_days.milliseconds + excluded.milliseconds"""


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


@of_count
def audit_in_ranges(count: int) -> str:
    """Return the audit rows of several ranges, with the parameters `:after0`, `:last0` and so on.

    Postgres reads whole tables if the ranges come from a join: it cannot tell how small they are.
    """
    one = f"SELECT {t.AUDIT.columns} FROM audit WHERE tenant = :tenant AND seq > :after{{0}} AND seq <= :last{{0}}"
    return numbered(count, one, " UNION ALL ")


@of_count
def read_bodies(count: int) -> str:
    """Return the next messages of several sessions, with the parameters `:session0`, `:after0`, `:limit0` and so on.

    Those of a session end with the one that makes them `:size0` bytes long, or longer.
    """
    one = """SELECT session, seq, body FROM (
    SELECT session, seq, body, sum(length(body)) OVER (ORDER BY seq) - length(body) AS size_before FROM (
        SELECT session, seq, body FROM messages
        WHERE tenant = :tenant AND session = :session{0} AND seq > :after{0} ORDER BY seq LIMIT :limit{0}) w{0}) m{0}
WHERE size_before < :size{0}"""
    return numbered(count, one, " UNION ALL ")


@of_count
def note_last_turns(count: int) -> str:
    """Return the statement that notes the new runs of several sessions: `:session0`, `:run0` and so on."""
    one = """SELECT agent_id, user_id, created_at FROM runs
    WHERE tenant = :tenant AND session = :session{0} AND place > :run{0}"""
    return f"""
INSERT INTO last_turns (tenant, agent_id, user_id, at)
SELECT CAST(:tenant AS TEXT), agent_id, user_id, max(created_at)
FROM ({numbered(count, one, " UNION ALL ")}) found WHERE TRUE GROUP BY agent_id, user_id
ON CONFLICT (tenant, agent_id, user_id) DO UPDATE SET
    at = CASE WHEN excluded.at > last_turns.at THEN excluded.at ELSE last_turns.at END"""


@of_count
def drop_search_labels(count: int) -> str:
    """Return the statement that deletes the names of several sessions, with the parameters `:session0` and so on."""
    sessions = numbered(count, ":session{0}")
    return f"DELETE FROM search_texts WHERE tenant = :tenant AND session IN ({sessions}) AND seq = 0"


@of_count
def put_search_sessions(count: int) -> str:
    """Return the statement that records the indexed part of several sessions: `:session0`, `:label0` and so on."""
    rows = numbered(count, "(:tenant, :session{0}, :label{0}, :message{0}, :run{0})")
    return f"""
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES {rows}
ON CONFLICT (tenant, session) DO UPDATE SET label = excluded.label, message = excluded.message, run = excluded.run"""
