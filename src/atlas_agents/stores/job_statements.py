"""The SQL about jobs, of the same kind as the other statements."""

_COLUMNS = (
    "id, kind, agent_id, task, session, state, priority, parent, root, chain, user_id, asker_run, asker_call,"
    " asker_session, asker_agent, due_at, deadline, attempts, allowed, epoch, result, error, told, created_at,"
    " ended_at, seq"
)
_OPEN = "state IN ('queued', 'running')"

ADD_JOB = f"""
INSERT INTO jobs (tenant, {_COLUMNS}) SELECT :tenant, :id, :kind, :agent_id, :task, :session, 'queued', :priority,
    :parent, :root, :chain, :user_id, :asker_run, :asker_call, :asker_session, :asker_agent, :due_at, :deadline, 0,
    :allowed, 0, NULL, NULL, :told, :now, NULL,
    (SELECT coalesce(max(seq), 0) + 1 FROM jobs WHERE tenant = :tenant)
RETURNING {_COLUMNS}"""
COUNT_JOBS = "SELECT count(*) FROM jobs WHERE tenant = :tenant AND root = :root AND root <> ''"
JOB = f"SELECT {_COLUMNS} FROM jobs WHERE tenant = :tenant AND id = :id"
CLAIM_JOB = f"""
UPDATE jobs SET epoch = epoch + 1, attempts = attempts + CASE WHEN state = 'queued' THEN 1 ELSE 0 END, state = 'running'
WHERE tenant = :tenant AND id = :id AND {_OPEN} RETURNING {_COLUMNS}"""
SET_JOB = f"""
UPDATE jobs SET state = :state, epoch = :epoch, result = coalesce(:result, result), error = coalesce(:error, error),
    due_at = coalesce(:due_at, due_at), ended_at = :ended_at
WHERE tenant = :tenant AND id = :id RETURNING {_COLUMNS}"""
RETRY_JOB = f"""
UPDATE jobs SET state = 'queued', allowed = attempts + :more, due_at = :now, result = NULL, ended_at = NULL,
    deadline = CASE WHEN deadline <= :now THEN NULL ELSE deadline END, told = :told
WHERE tenant = :tenant AND id = :id RETURNING {_COLUMNS}"""
TELL_JOB = f"""
UPDATE jobs SET told = TRUE WHERE tenant = :tenant AND id = :id AND attempts = :attempts AND NOT {_OPEN}
RETURNING id"""
JOBS = f"SELECT {_COLUMNS} FROM jobs WHERE tenant = :tenant AND seq < :before ORDER BY seq DESC LIMIT :limit"
JOBS_UNDER = f"SELECT {_COLUMNS} FROM jobs WHERE tenant = :tenant AND parent = :parent AND parent <> '' ORDER BY seq"
PENDING_JOBS = f"""
SELECT {_COLUMNS} FROM jobs WHERE tenant = :tenant AND {_OPEN}
    AND (state = 'running' OR due_at <= :until OR deadline <= :until)
UNION ALL SELECT {_COLUMNS} FROM jobs WHERE tenant = :tenant AND NOT told AND NOT {_OPEN}
ORDER BY 7 DESC, 16, 26 LIMIT :limit"""


def jobs_in(states: int) -> str:
    """The latest jobs in one of so many states, `:state0` and so on."""
    names = ", ".join(f":state{n}" for n in range(states))
    return JOBS.replace("AND seq", f"AND state IN ({names}) AND seq")
