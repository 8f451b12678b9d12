"""The SQL about records, and the sums that are made of all that a tenant keeps."""

_COLUMNS = "kind, key, body, version"

RECORD = f"SELECT {_COLUMNS} FROM records WHERE tenant = :tenant AND kind = :kind AND key = :key"
RECORDS = f"SELECT {_COLUMNS} FROM records WHERE tenant = :tenant AND kind = :kind ORDER BY key"
PUT_RECORD = f"""
INSERT INTO records (tenant, {_COLUMNS}) VALUES (:tenant, :kind, :key, :body, 1)
ON CONFLICT (tenant, kind, key) DO UPDATE SET body = :body, version = records.version + 1
RETURNING {_COLUMNS}"""
DROP_RECORD = "DELETE FROM records WHERE tenant = :tenant AND kind = :kind AND key = :key RETURNING key"
ACTIVE = """
SELECT agent_id, user_id, max(created_at) FROM runs WHERE tenant = :tenant GROUP BY agent_id, user_id
ORDER BY agent_id, user_id"""
TOKENS = """
SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_sums
WHERE tenant = :tenant AND day >= :since AND day < :until"""
STORED = """
SELECT (SELECT coalesce(sum(length(body)), 0) FROM messages WHERE tenant = :tenant)
    + (SELECT coalesce(sum(length(payload)), 0) FROM journal WHERE tenant = :tenant)
    + (SELECT coalesce(sum(length(body)), 0) FROM events WHERE tenant = :tenant)"""
TENANTS = "SELECT tenant FROM records WHERE kind = 'tenant' ORDER BY tenant"
