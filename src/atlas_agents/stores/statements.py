"""The SQL that both databases understand, with `:name` where a value goes.

Every statement is bound to one `:tenant`, `OPEN_RUNS` alone is not; a test keeps that.
"""

from functools import cache

_SESSION = "key, agent_id, label, archived, metadata, created_at, updated_at"
_RUN = (
    "id, session, agent_id, status, epoch, user_id, idempotency_key, request, error, created_at, ended_at, tenant,"
    " fingerprint, events, urgency, stop"
)
_APPROVAL = "id, run_id, session, call_id, binding, question, expires_at, created_at, answer, answered_at, grants"
_USAGE = "input_tokens, output_tokens, cached_tokens, cost_microcents, turns"
_OPEN = "status IN ('queued', 'running', 'waiting')"
_ACTIVE = "status IN ('running', 'waiting')"

# Later than every other change of this tenant, even when the clock has gone back: paging by it loses nothing.
_TICK = (
    "(SELECT CASE WHEN :now > coalesce(max(updated_at), 0) THEN :now ELSE max(updated_at) + 1 END"
    " FROM sessions WHERE tenant = :tenant)"
)

PUT_SESSION = f"""
INSERT INTO sessions (tenant, {_SESSION}) VALUES (:tenant, :key, coalesce(:agent_id, ''), coalesce(:label, ''),
    coalesce(:archived, FALSE), coalesce(:metadata, :empty), :now, {_TICK})
ON CONFLICT (tenant, key) DO UPDATE SET agent_id = coalesce(:agent_id, sessions.agent_id),
    label = coalesce(:label, sessions.label), archived = coalesce(:archived, sessions.archived),
    metadata = coalesce(:metadata, sessions.metadata), updated_at = {_TICK}
RETURNING {_SESSION}"""
DROP_SESSION = "DELETE FROM sessions WHERE tenant = :tenant AND key = :session RETURNING key"
DROP_ROWS = (
    "DELETE FROM journal WHERE tenant = :tenant AND run_id IN"
    " (SELECT id FROM runs WHERE tenant = :tenant AND session = :session)",
    "DELETE FROM events WHERE tenant = :tenant AND run_id IN"
    " (SELECT id FROM runs WHERE tenant = :tenant AND session = :session)",
    "DELETE FROM approvals WHERE tenant = :tenant AND session = :session",
    "DELETE FROM messages WHERE tenant = :tenant AND session = :session",
    "DELETE FROM runs WHERE tenant = :tenant AND session = :session",
)
HAS_OPEN_RUN = f"SELECT id FROM runs WHERE tenant = :tenant AND session = :session AND {_OPEN} LIMIT 1"
SESSION = f"SELECT {_SESSION} FROM sessions WHERE tenant = :tenant AND key = :key"
SESSIONS = f"""
SELECT {_SESSION} FROM sessions WHERE tenant = :tenant AND updated_at < :before
ORDER BY updated_at DESC LIMIT :limit"""

MESSAGE_OF_ID = """
SELECT session, seq, id, run_id, body FROM messages WHERE tenant = :tenant AND session = :session AND id = :id"""
NEXT_MESSAGE = f"""
UPDATE sessions SET last_message = last_message + 1, updated_at = {_TICK}
WHERE tenant = :tenant AND key = :session RETURNING last_message"""
ADD_MESSAGE = """
INSERT INTO messages (tenant, session, seq, id, run_id, body) VALUES (:tenant, :session, :seq, :id, :run_id, :body)"""
_MESSAGES = """
SELECT session, seq, id, run_id, body FROM messages
WHERE tenant = :tenant AND session = :session AND seq > :after AND seq < :before"""
MESSAGES = f"{_MESSAGES} ORDER BY seq LIMIT :limit"
LAST_MESSAGES = f"{_MESSAGES} ORDER BY seq DESC LIMIT :limit"
HISTORY = """
SELECT s.created_at, m.seq, m.id, m.run_id, m.body FROM sessions s
LEFT JOIN messages m ON m.tenant = :tenant AND m.session = :session AND m.seq >= :since
WHERE s.tenant = :tenant AND s.key = :session ORDER BY m.seq"""
BEGUN = "SELECT created_at, last_message FROM sessions WHERE tenant = :tenant AND key = :session"

KNOWN_RUN = f"""
SELECT {_RUN} FROM runs WHERE tenant = :tenant AND session = :session AND idempotency_key = :idempotency_key
AND idempotency_key <> ''"""
NEXT_RUN = f"""
UPDATE sessions SET last_run = last_run + 1, updated_at = {_TICK}
WHERE tenant = :tenant AND key = :session RETURNING last_run"""
ADD_RUN = f"""
INSERT INTO runs ({_RUN}, place) SELECT :id, :session, :agent_id,
    CASE WHEN EXISTS (SELECT 1 FROM runs WHERE tenant = :tenant AND session = :session AND {_OPEN})
    THEN 'queued' ELSE 'running' END,
    0, :user_id, :idempotency_key, :request, NULL, :now, NULL, :tenant, :fingerprint, 0, :urgency, FALSE, :place
WHERE NOT EXISTS (SELECT 1 FROM runs WHERE tenant = :tenant AND id = :id)
RETURNING {_RUN}"""
CLAIM_RUN = f"""
UPDATE runs SET epoch = epoch + 1 WHERE tenant = :tenant AND id = :run_id AND {_OPEN} RETURNING epoch"""
RUN = f"SELECT {_RUN} FROM runs WHERE tenant = :tenant AND id = :run_id"
ACTIVE_RUN = f"SELECT id FROM runs WHERE tenant = :tenant AND session = :session AND {_ACTIVE}"
SET_RUN = """
UPDATE runs SET status = :status, error = coalesce(:error, error), ended_at = :ended_at
WHERE tenant = :tenant AND id = :run_id"""
START_NEXT = f"""
UPDATE runs SET status = 'running' WHERE tenant = :tenant AND session = :session AND status = 'queued'
AND place = (SELECT min(place) FROM runs WHERE tenant = :tenant AND session = :session AND status = 'queued')
AND NOT EXISTS (SELECT 1 FROM runs WHERE tenant = :tenant AND session = :session AND {_ACTIVE})
RETURNING id"""
STOP_RUN = f"""
UPDATE runs SET stop = TRUE, ended_at = CASE WHEN status = 'queued' THEN :now END,
    status = CASE WHEN status = 'queued' THEN 'cancelled' ELSE status END
WHERE tenant = :tenant AND id = :run_id AND {_OPEN} RETURNING {_RUN}"""
RUNS = f"SELECT {_RUN} FROM runs WHERE tenant = :tenant AND session = :session ORDER BY place"
OPEN_RUNS_OF = f"SELECT {_RUN} FROM runs WHERE tenant = :tenant AND session = :session AND {_OPEN} ORDER BY place"
OPEN_RUNS = f"SELECT {_RUN} FROM runs WHERE {_OPEN} ORDER BY tenant, session, place"

JOURNAL_END = """
SELECT r.status, r.epoch, j.seq, j.hash FROM runs r LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id = r.id
    AND j.seq = (SELECT max(seq) FROM journal WHERE tenant = :tenant AND run_id = :run_id)
WHERE r.tenant = :tenant AND r.id = :run_id"""
ADD_JOURNAL = """
INSERT INTO journal (tenant, run_id, seq, kind, key, payload, at, previous, hash)
VALUES (:tenant, :run_id, :seq, :kind, :key, :payload, :at, :previous, :hash)
ON CONFLICT (tenant, run_id, kind, key) DO NOTHING RETURNING seq"""
JOURNAL = """
SELECT run_id, seq, kind, key, payload, at, previous, hash FROM journal WHERE tenant = :tenant AND run_id = :run_id
ORDER BY seq"""

RESERVE_EVENTS = """
UPDATE runs SET events = events + :count, said_at = :now, epoch = epoch + :taken
WHERE tenant = :tenant AND id = :run_id RETURNING events, epoch - :taken"""
RESERVED_EVENTS = "SELECT events, epoch FROM runs WHERE tenant = :tenant AND id = :run_id"
EVENTS = """
SELECT run_id, seq, body FROM events WHERE tenant = :tenant AND run_id = :run_id AND seq > :after
ORDER BY seq LIMIT :limit"""


@cache
def add_events(count: int) -> str:
    """Add so many events at once, as `:seq0`, `:body0` and so on."""
    rows = ", ".join(f"(:tenant, :run_id, :seq{n}, :body{n})" for n in range(count))
    return f"INSERT INTO events (tenant, run_id, seq, body) VALUES {rows} ON CONFLICT (tenant, run_id, seq) DO NOTHING"


AUDIT_END = "SELECT seq, hash FROM audit WHERE tenant = :tenant ORDER BY seq DESC LIMIT 1"
ADD_AUDIT = """
INSERT INTO audit (tenant, seq, entry, previous, hash) VALUES (:tenant, :seq, :entry, :previous, :hash)"""
_AUDIT = "SELECT seq, entry, previous, hash FROM audit WHERE tenant = :tenant AND seq > :after"
AUDIT = f"{_AUDIT} ORDER BY seq LIMIT :limit"
LAST_AUDIT = f"{_AUDIT} ORDER BY seq DESC LIMIT :limit"

# A clock that was put back gives nobody a second day: the latest one that was counted goes on, unless it is far ahead.
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
COUNTED = "SELECT used FROM counters WHERE tenant = :tenant AND agent_id = :agent_id AND day = :day"

PUT_APPROVAL = f"""
INSERT INTO approvals (tenant, {_APPROVAL}) VALUES (:tenant, :id, :run_id, :session, :call_id, :binding, :question,
    :expires_at, :created_at, :answer, :answered_at, :grants)
ON CONFLICT (tenant, id) DO NOTHING RETURNING {_APPROVAL}"""
ANSWER_APPROVAL = f"""
UPDATE approvals SET answer = :answer, answered_at = :now, grants = :grants
WHERE tenant = :tenant AND id = :id AND answer IS NULL RETURNING {_APPROVAL}"""
APPROVAL = f"SELECT {_APPROVAL} FROM approvals WHERE tenant = :tenant AND id = :id"
# From the open runs to their questions, for those are few; questions that nobody answered pile up.
PENDING_APPROVALS = f"""
SELECT {", ".join(f"a.{name}" for name in _APPROVAL.split(", "))} FROM runs r CROSS JOIN approvals a
WHERE r.tenant = :tenant AND r.{_OPEN} AND a.tenant = :tenant AND a.run_id = r.id AND a.answer IS NULL
ORDER BY a.created_at, a.id"""
GRANTS = f"""
SELECT {_APPROVAL} FROM approvals WHERE tenant = :tenant AND grants = :binding AND grants <> '' AND answer IS NOT NULL
ORDER BY answered_at, id"""

ADD_USAGE = f"""
INSERT INTO usage_sums (tenant, day, session, agent_id, model, {_USAGE})
VALUES (:tenant, :day, :session, :agent_id, :model, :input_tokens, :output_tokens, :cached_tokens, :cost_microcents,
    :turns)
ON CONFLICT (tenant, day, session, agent_id, model) DO UPDATE SET
    input_tokens = usage_sums.input_tokens + :input_tokens, output_tokens = usage_sums.output_tokens + :output_tokens,
    cached_tokens = usage_sums.cached_tokens + :cached_tokens,
    cost_microcents = usage_sums.cost_microcents + :cost_microcents, turns = usage_sums.turns + :turns"""
USAGE = f"""
SELECT day, session, agent_id, model, {_USAGE} FROM usage_sums WHERE tenant = :tenant AND day >= :since AND day < :until
ORDER BY day, session, agent_id, model"""
