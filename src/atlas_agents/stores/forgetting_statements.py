"""The SQL that finds, counts and removes what may be forgotten."""

_SILENT = "r.tenant = :tenant AND r.said_at < :before AND r.ended_at < :before"
_OVER = "r.tenant = :tenant AND r.journaled AND r.ended_at < :before"

RUNS = {
    "events": f"SELECT r.id FROM runs r WHERE {_SILENT} ORDER BY r.said_at LIMIT :runs",
    "journal": f"SELECT r.id FROM runs r WHERE {_OVER} ORDER BY r.ended_at LIMIT :runs",
}
DROP = {
    "events": """
DELETE FROM events WHERE tenant = :tenant AND run_id = :run_id AND seq IN
    (SELECT seq FROM events WHERE tenant = :tenant AND run_id = :run_id ORDER BY seq DESC LIMIT :limit)
RETURNING length(body)""",
    "journal": """
DELETE FROM journal WHERE tenant = :tenant AND run_id = :run_id AND seq IN
    (SELECT seq FROM journal WHERE tenant = :tenant AND run_id = :run_id ORDER BY seq DESC LIMIT :limit)
RETURNING length(payload)""",
}
DROPPED = {
    "events": "UPDATE runs SET said_at = NULL WHERE tenant = :tenant AND id = :run_id",
    "journal": "UPDATE runs SET journaled = FALSE WHERE tenant = :tenant AND id = :run_id",
}
COUNT = {
    "events": f"""
SELECT count(DISTINCT r.id), count(e.seq), coalesce(sum(length(e.body)), 0)
FROM runs r LEFT JOIN events e ON e.tenant = :tenant AND e.run_id = r.id WHERE {_SILENT}""",
    "journal": f"""
SELECT count(DISTINCT r.id), count(j.seq), coalesce(sum(length(j.payload)), 0)
FROM runs r LEFT JOIN journal j ON j.tenant = :tenant AND j.run_id = r.id WHERE {_OVER}""",
}
