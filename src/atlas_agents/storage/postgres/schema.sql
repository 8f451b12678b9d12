-- The tables of a Postgres schema, version 1. Times are in milliseconds since 1970. Text is compared by code point, as
-- in SQLite. Rows that each turn updates several times leave free space in their pages: a new version of a row that
-- stays in its page, and changes no indexed column, needs no index entries.

-- Sessions. `owner` is the beginning of the keys of a user's own sessions, such as `@ann/`.

CREATE TABLE sessions (
    tenant TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL, agent_id TEXT COLLATE "C" NOT NULL,
    label TEXT COLLATE "C" NOT NULL, archived BOOLEAN NOT NULL, metadata BYTEA NOT NULL, created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL, last_message BIGINT NOT NULL DEFAULT 0, last_run BIGINT NOT NULL DEFAULT 0,
    owner TEXT COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN substr(key, 1, 1) = '@' THEN substr(key, 1, strpos(key, '/')) ELSE '' END) STORED,
    PRIMARY KEY (tenant, key)) WITH (fillfactor = 70);
CREATE INDEX sessions_changed ON sessions (tenant, updated_at);
CREATE INDEX sessions_of_owner ON sessions (tenant, owner, updated_at, key) WHERE owner <> '';
CREATE INDEX sessions_archived ON sessions (tenant, updated_at, key) WHERE archived;
CREATE INDEX sessions_branched ON sessions (tenant, updated_at, key)
    WHERE position(CAST('"branch":{' AS BYTEA) IN metadata) > 0;

-- A message is found by its id through a number that is computed from the id (`tables.message_number`).

CREATE TABLE messages (
    tenant TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, id_number BIGINT NOT NULL,
    id TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, body BYTEA NOT NULL,
    PRIMARY KEY (tenant, session, seq));
CREATE INDEX messages_numbered ON messages (id_number);

-- Runs, with their journals and events. `last_event_at` is NULL once the events are pruned; `journaled` tells whether
-- the journal is kept. Only ended runs are pruned. Commits hold the lock of their session, so no index keeps it from
-- having two active runs.

CREATE TABLE runs (
    tenant TEXT COLLATE "C" NOT NULL, id TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL,
    place BIGINT NOT NULL, agent_id TEXT COLLATE "C" NOT NULL, status TEXT COLLATE "C" NOT NULL, epoch BIGINT NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL, idempotency_key TEXT COLLATE "C" NOT NULL,
    fingerprint TEXT COLLATE "C" NOT NULL, request BYTEA NOT NULL, error TEXT COLLATE "C", created_at BIGINT NOT NULL,
    ended_at BIGINT, events BIGINT NOT NULL DEFAULT 0, last_event_at BIGINT, journaled BOOLEAN NOT NULL DEFAULT TRUE,
    urgency BIGINT NOT NULL, stop BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (tenant, id), UNIQUE (tenant, session, place)) WITH (fillfactor = 70);
CREATE UNIQUE INDEX runs_accepted ON runs (tenant, session, idempotency_key) WHERE idempotency_key <> '';
CREATE INDEX runs_open ON runs (tenant, session, place) WHERE status IN ('queued', 'running', 'waiting');
CREATE INDEX runs_by_last_event ON runs (tenant, last_event_at)
    WHERE last_event_at IS NOT NULL AND ended_at IS NOT NULL;
CREATE INDEX runs_journaled ON runs (tenant, ended_at) WHERE journaled AND ended_at IS NOT NULL;

-- The name of a run in the journal and the events: 15 characters of an id that begins with the time (UUID version 7),
-- any other id as it is. The order of keys is that of the times. `tables.run_key` is the same function in Python.

CREATE FUNCTION run_key(id TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN translate(
        substr(encode(decode(left(id, 8) || substr(id, 10, 4), 'hex'), 'base64'), 2)
            || left(encode(sha256(convert_to(id, 'UTF8')), 'base64'), 8),
        'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/',
        '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz') ELSE id END $$;

-- A row of `events` has the events from `first` to `seq` in compressed form, or one plain event if `first` is NULL.

CREATE TABLE journal (
    tenant TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL, payload BYTEA NOT NULL, at BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL, PRIMARY KEY (tenant, run_id, seq));
CREATE TABLE events (
    tenant TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, body BYTEA NOT NULL,
    first BIGINT, PRIMARY KEY (tenant, run_id, seq));

-- One row per writer and tenant, overwritten in each of its transactions; see `postgres.Writer`.

CREATE TABLE commit_tokens (
    id UUID PRIMARY KEY, token BIGINT NOT NULL, written_at TIMESTAMPTZ NOT NULL) WITH (fillfactor = 50);

CREATE TABLE audit (
    tenant TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, entry BYTEA NOT NULL, previous TEXT COLLATE "C" NOT NULL,
    hash TEXT COLLATE "C" NOT NULL, PRIMARY KEY (tenant, seq));

-- Calls per agent and day. Budgets: what was used (`run_id` is empty), and what runs have reserved.

CREATE TABLE counters (
    tenant TEXT COLLATE "C" NOT NULL, agent_id TEXT COLLATE "C" NOT NULL, day TEXT COLLATE "C" NOT NULL,
    used BIGINT NOT NULL, PRIMARY KEY (tenant, agent_id, day));
CREATE TABLE budgets (
    tenant TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL, period TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL, tokens BIGINT NOT NULL, requests BIGINT NOT NULL, tool_calls BIGINT NOT NULL,
    cost_microcents BIGINT NOT NULL, milliseconds BIGINT NOT NULL, expires_at BIGINT,
    PRIMARY KEY (tenant, key, period, run_id));
CREATE INDEX budgets_of_run ON budgets (tenant, run_id) WHERE run_id <> '';

CREATE TABLE approvals (
    tenant TEXT COLLATE "C" NOT NULL, id TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL,
    session TEXT COLLATE "C" NOT NULL, call_id TEXT COLLATE "C" NOT NULL, binding TEXT COLLATE "C" NOT NULL,
    question BYTEA NOT NULL, expires_at BIGINT NOT NULL, created_at BIGINT NOT NULL, answer BYTEA, answered_at BIGINT,
    grants TEXT COLLATE "C" NOT NULL, PRIMARY KEY (tenant, id));
CREATE INDEX approvals_of_session ON approvals (tenant, session);
CREATE INDEX approvals_pending ON approvals (tenant, run_id) WHERE answer IS NULL;
CREATE INDEX approvals_granting ON approvals (tenant, grants) WHERE grants <> '';

CREATE TABLE usage_sums (
    tenant TEXT COLLATE "C" NOT NULL, day TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL, model TEXT COLLATE "C" NOT NULL, input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, cost_microcents BIGINT NOT NULL,
    turns BIGINT NOT NULL, cache_write_tokens BIGINT NOT NULL, reasoning_tokens BIGINT NOT NULL,
    saved_microcents BIGINT NOT NULL,
    owner TEXT COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN substr(session, 1, 1) = '@' THEN substr(session, 1, strpos(session, '/')) ELSE '' END) STORED,
    PRIMARY KEY (tenant, day, session, agent_id, model)) WITH (fillfactor = 80);

CREATE TABLE jobs (
    tenant TEXT COLLATE "C" NOT NULL, id TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL, task TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL, priority BIGINT NOT NULL, parent TEXT COLLATE "C" NOT NULL,
    root TEXT COLLATE "C" NOT NULL, chain TEXT COLLATE "C" NOT NULL, user_id TEXT COLLATE "C" NOT NULL,
    asker_run TEXT COLLATE "C" NOT NULL, asker_call TEXT COLLATE "C" NOT NULL, asker_session TEXT COLLATE "C" NOT NULL,
    asker_agent TEXT COLLATE "C" NOT NULL, due_at BIGINT NOT NULL, deadline BIGINT, attempts BIGINT NOT NULL,
    allowed BIGINT NOT NULL, epoch BIGINT NOT NULL, result TEXT COLLATE "C", error TEXT COLLATE "C",
    notified BOOLEAN NOT NULL, created_at BIGINT NOT NULL, ended_at BIGINT, seq BIGINT NOT NULL,
    traceparent TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN substr(session, 1, 1) = '@' THEN substr(session, 1, strpos(session, '/')) ELSE '' END) STORED,
    PRIMARY KEY (tenant, id), UNIQUE (tenant, seq));
CREATE INDEX jobs_in_state ON jobs (tenant, state, seq);
CREATE INDEX jobs_of_owner ON jobs (tenant, owner, seq) WHERE owner <> '';
CREATE INDEX jobs_of_owner_in_state ON jobs (tenant, owner, state, seq) WHERE owner <> '';
CREATE INDEX jobs_of_parent ON jobs (tenant, parent, seq) WHERE parent <> '';
CREATE INDEX jobs_of_root ON jobs (tenant, root) WHERE root <> '';
CREATE INDEX jobs_due ON jobs (tenant, priority, due_at, seq) WHERE state = 'queued';
CREATE INDEX jobs_expiring ON jobs (tenant, deadline) WHERE state = 'queued' AND deadline IS NOT NULL;
CREATE INDEX jobs_unreported ON jobs (tenant, notified) WHERE notified = FALSE AND state NOT IN ('queued', 'running');

CREATE TABLE records (
    tenant TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL,
    body BYTEA NOT NULL, version BIGINT NOT NULL, PRIMARY KEY (tenant, kind, key));
CREATE INDEX records_of_tenants ON records (tenant) WHERE kind = 'tenant';

-- Documents and their passages.

CREATE TABLE documents (
    tenant TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C" NOT NULL, id TEXT COLLATE "C" NOT NULL,
    collection TEXT COLLATE "C" NOT NULL, source TEXT COLLATE "C" NOT NULL, title TEXT COLLATE "C" NOT NULL,
    hash TEXT COLLATE "C" NOT NULL, model TEXT COLLATE "C" NOT NULL, about BYTEA NOT NULL, passages BIGINT NOT NULL,
    created_at BIGINT NOT NULL, PRIMARY KEY (tenant, kind, id));
CREATE INDEX documents_of_collection ON documents (tenant, kind, collection, id);
CREATE INDEX documents_by_time ON documents (tenant, kind, created_at, id);
CREATE INDEX documents_of_collection_by_time ON documents (tenant, kind, collection, created_at, id);
CREATE TABLE passages (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL, document TEXT COLLATE "C" NOT NULL, collection TEXT COLLATE "C" NOT NULL,
    owners TEXT COLLATE "C" NOT NULL, place BIGINT NOT NULL, heading TEXT COLLATE "C" NOT NULL,
    text TEXT COLLATE "C" NOT NULL, position TEXT COLLATE "C" NOT NULL, model TEXT COLLATE "C" NOT NULL,
    vector REAL[],
    words TSVECTOR GENERATED ALWAYS AS (
        setweight(to_tsvector('english', heading), 'A') || setweight(to_tsvector('english', text), 'B')) STORED);
ALTER TABLE passages ALTER COLUMN vector SET STORAGE PLAIN;
CREATE UNIQUE INDEX passages_of_document ON passages (tenant, kind, document, place);
CREATE INDEX passages_with_vectors ON passages (tenant, kind, model, id) WHERE vector IS NOT NULL;
CREATE INDEX passages_words ON passages USING gin (words);
CREATE TABLE libraries (
    tenant TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C" NOT NULL, model TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL, vectors BIGINT NOT NULL, PRIMARY KEY (tenant, kind, model));

-- Derived tables, built in batches from a stored position on; see `sql/derived.py`. First the search index of sessions,
-- which has the words of each message. A message that is replaced makes the position start over, which finds the one
-- session that is not indexed any more. UNLOGGED: the search index and the index of the audit log follow from other
-- tables. A crash of Postgres empties them together with their positions, and they are built again.

CREATE UNLOGGED TABLE derived_positions (
    tenant TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL,
    PRIMARY KEY (tenant, name));
CREATE UNLOGGED TABLE search_sessions (
    tenant TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, label TEXT COLLATE "C" NOT NULL,
    message BIGINT NOT NULL, run BIGINT NOT NULL, PRIMARY KEY (tenant, session));
CREATE UNLOGGED TABLE search_texts (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant TEXT COLLATE "C" NOT NULL,
    session TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, words TSVECTOR NOT NULL);
CREATE UNIQUE INDEX search_texts_of_session ON search_texts (tenant, session, seq);
CREATE INDEX search_texts_words ON search_texts USING gin (words);
CREATE FUNCTION forget_search_texts() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_ARGV[0] = 'message removed' THEN
        DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.session AND seq = old.seq;
    ELSIF TG_ARGV[0] = 'message replaced' THEN
        DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.session;
        DELETE FROM search_sessions WHERE tenant = old.tenant AND session = old.session;
        UPDATE derived_positions SET position = 0 WHERE tenant = old.tenant AND name = 'sessions';
    ELSE
        DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.key;
        DELETE FROM search_sessions WHERE tenant = old.tenant AND session = old.key;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER search_message_removed AFTER DELETE ON messages
    FOR EACH ROW EXECUTE FUNCTION forget_search_texts('message removed');
CREATE TRIGGER search_message_replaced AFTER UPDATE OF body ON messages
    FOR EACH ROW EXECUTE FUNCTION forget_search_texts('message replaced');
CREATE TRIGGER search_session_removed AFTER DELETE ON sessions
    FOR EACH ROW EXECUTE FUNCTION forget_search_texts('session removed');
CREATE TABLE last_turns (
    tenant TEXT COLLATE "C" NOT NULL, agent_id TEXT COLLATE "C" NOT NULL, user_id TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL, PRIMARY KEY (tenant, agent_id, user_id));

-- The index of the audit log tells which blocks of 64 rows contain a value.

CREATE UNLOGGED TABLE audit_blocks (
    tenant TEXT COLLATE "C" NOT NULL, block BIGINT NOT NULL, first_at BIGINT NOT NULL, last_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, block));
CREATE UNLOGGED TABLE audit_values (
    tenant TEXT COLLATE "C" NOT NULL, field TEXT COLLATE "C" NOT NULL, value TEXT COLLATE "C" NOT NULL,
    block BIGINT NOT NULL, PRIMARY KEY (tenant, field, value, block));
CREATE UNLOGGED TABLE tool_days (
    tenant TEXT COLLATE "C" NOT NULL, day TEXT COLLATE "C" NOT NULL, tool TEXT COLLATE "C" NOT NULL,
    calls BIGINT NOT NULL, failed BIGINT NOT NULL, milliseconds DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, day, tool));

-- Sums of the usage of days that are over. A late change of such a day deletes its row in `usage_closed`, so that it is
-- summed again. The tokens of `usage_sessions` are the most that a session can have used in a range of days.

CREATE TABLE usage_days (
    tenant TEXT COLLATE "C" NOT NULL, day TEXT COLLATE "C" NOT NULL, owner TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL, model TEXT COLLATE "C" NOT NULL, input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, cost_microcents BIGINT NOT NULL,
    turns BIGINT NOT NULL, cache_write_tokens BIGINT NOT NULL, reasoning_tokens BIGINT NOT NULL,
    saved_microcents BIGINT NOT NULL, PRIMARY KEY (tenant, day, owner, agent_id, model));
CREATE TABLE usage_closed (
    tenant TEXT COLLATE "C" NOT NULL, day TEXT COLLATE "C" NOT NULL, complete BOOLEAN NOT NULL,
    PRIMARY KEY (tenant, day));
CREATE FUNCTION reopen_usage_day() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
    RETURN NULL;
END $$;
CREATE TRIGGER usage_changed AFTER INSERT OR UPDATE ON usage_sums FOR EACH ROW EXECUTE FUNCTION reopen_usage_day();
CREATE TABLE usage_session_days (
    tenant TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, day TEXT COLLATE "C" NOT NULL,
    tokens BIGINT NOT NULL, PRIMARY KEY (tenant, session, day));
CREATE TABLE usage_sessions (
    tenant TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, first_day TEXT COLLATE "C" NOT NULL,
    last_day TEXT COLLATE "C" NOT NULL, tokens BIGINT NOT NULL,
    owner TEXT COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN substr(session, 1, 1) = '@' THEN substr(session, 1, strpos(session, '/')) ELSE '' END) STORED,
    PRIMARY KEY (tenant, session));
CREATE INDEX usage_sessions_by_tokens ON usage_sessions (tenant, tokens DESC, session, first_day, last_day);
CREATE INDEX usage_sessions_of_owner ON usage_sessions (tenant, owner, tokens DESC, session) WHERE owner <> '';
