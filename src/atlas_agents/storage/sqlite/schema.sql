-- The tables of an SQLite database, version 1. Times are in milliseconds since 1970.

-- Sessions. `owner` is the beginning of the keys of a user's own sessions, such as `@ann/`.

CREATE TABLE sessions (
    tenant TEXT NOT NULL, key TEXT NOT NULL, agent_id TEXT NOT NULL, label TEXT NOT NULL, archived INTEGER NOT NULL,
    metadata BLOB NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    last_message INTEGER NOT NULL DEFAULT 0, last_run INTEGER NOT NULL DEFAULT 0,
    owner TEXT GENERATED ALWAYS AS (
        CASE WHEN substr(key, 1, 1) = '@' THEN substr(key, 1, instr(key, '/')) ELSE '' END) VIRTUAL,
    PRIMARY KEY (tenant, key));
CREATE INDEX sessions_changed ON sessions (tenant, updated_at);
CREATE INDEX sessions_of_owner ON sessions (tenant, owner, updated_at, key) WHERE owner <> '';
CREATE INDEX sessions_archived ON sessions (tenant, updated_at, key) WHERE archived;
CREATE INDEX sessions_branched ON sessions (tenant, updated_at, key)
    WHERE instr(metadata, CAST('"branch":{' AS BLOB)) > 0;

-- A message is found by its id through a number that is computed from the id (`tables.message_number`).

CREATE TABLE messages (
    tenant TEXT NOT NULL, session TEXT NOT NULL, seq INTEGER NOT NULL, id_number INTEGER NOT NULL, id TEXT NOT NULL,
    run_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, session, seq));
CREATE INDEX messages_numbered ON messages (id_number);

-- Runs, with their journals and events. `last_event_at` is NULL once the events are pruned; `journaled` tells whether
-- the journal is kept. Commits are written one at a time, so no index keeps a session from having two active runs.

CREATE TABLE runs (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, session TEXT NOT NULL, place INTEGER NOT NULL,
    agent_id TEXT NOT NULL, status TEXT NOT NULL, epoch INTEGER NOT NULL, user_id TEXT NOT NULL,
    idempotency_key TEXT NOT NULL, fingerprint TEXT NOT NULL, request BLOB NOT NULL, error TEXT,
    created_at INTEGER NOT NULL, ended_at INTEGER, events INTEGER NOT NULL, last_event_at INTEGER,
    journaled INTEGER NOT NULL DEFAULT TRUE, urgency INTEGER NOT NULL, stop INTEGER NOT NULL,
    UNIQUE (tenant, id), UNIQUE (tenant, session, place));
CREATE UNIQUE INDEX runs_accepted ON runs (tenant, session, idempotency_key) WHERE idempotency_key <> '';
CREATE INDEX runs_open ON runs (tenant, session, place) WHERE status IN ('queued', 'running', 'waiting');
CREATE INDEX runs_by_last_event ON runs (tenant, last_event_at) WHERE last_event_at IS NOT NULL;
CREATE INDEX runs_journaled ON runs (tenant, ended_at) WHERE journaled AND ended_at IS NOT NULL;

-- The id of a step or an event is `runs.number << 31 | seq`: rows of a run are neighbours in one b-tree that needs no
-- index, and new ones go to its end. The views have the columns of the tables in Postgres.

CREATE TABLE journal_rows (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, at INTEGER NOT NULL, hash TEXT NOT NULL,
    payload BLOB NOT NULL);
CREATE TABLE event_rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE VIEW journal AS
    SELECT r.tenant, r.id AS run_id, j.id & 2147483647 AS seq, j.kind, j.key, j.payload, j.at,
        coalesce((SELECT p.hash FROM journal_rows p WHERE p.id = j.id - 1), '') AS previous, j.hash
    FROM runs r JOIN journal_rows j ON j.id > r.number << 31 AND j.id < (r.number + 1) << 31;
CREATE VIEW events AS
    SELECT r.tenant, r.id AS run_id, e.id & 2147483647 AS seq, e.body
    FROM runs r JOIN event_rows e ON e.id > r.number << 31 AND e.id < (r.number + 1) << 31;

CREATE TABLE audit (
    tenant TEXT NOT NULL, seq INTEGER NOT NULL, entry BLOB NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    PRIMARY KEY (tenant, seq));

-- Calls per agent and day. Budgets: what was used (`run_id` is empty), and what runs have reserved.

CREATE TABLE counters (
    tenant TEXT NOT NULL, agent_id TEXT NOT NULL, day TEXT NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (tenant, agent_id, day));
CREATE TABLE budgets (
    tenant TEXT NOT NULL, key TEXT NOT NULL, period TEXT NOT NULL, run_id TEXT NOT NULL, tokens INTEGER NOT NULL,
    requests INTEGER NOT NULL, tool_calls INTEGER NOT NULL, cost_microcents INTEGER NOT NULL,
    milliseconds INTEGER NOT NULL, expires_at INTEGER, PRIMARY KEY (tenant, key, period, run_id));
CREATE INDEX budgets_of_run ON budgets (tenant, run_id) WHERE run_id <> '';

CREATE TABLE approvals (
    tenant TEXT NOT NULL, id TEXT NOT NULL, run_id TEXT NOT NULL, session TEXT NOT NULL, call_id TEXT NOT NULL,
    binding TEXT NOT NULL, question BLOB NOT NULL, expires_at INTEGER NOT NULL, created_at INTEGER NOT NULL,
    answer BLOB, answered_at INTEGER, grants TEXT NOT NULL, PRIMARY KEY (tenant, id));
CREATE INDEX approvals_of_session ON approvals (tenant, session);
CREATE INDEX approvals_pending ON approvals (tenant, run_id) WHERE answer IS NULL;
CREATE INDEX approvals_granting ON approvals (tenant, grants) WHERE grants <> '';

CREATE TABLE usage_sums (
    tenant TEXT NOT NULL, day TEXT NOT NULL, session TEXT NOT NULL, agent_id TEXT NOT NULL, model TEXT NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    cost_microcents INTEGER NOT NULL, turns INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL, saved_microcents INTEGER NOT NULL,
    owner TEXT GENERATED ALWAYS AS (
        CASE WHEN substr(session, 1, 1) = '@' THEN substr(session, 1, instr(session, '/')) ELSE '' END) VIRTUAL,
    PRIMARY KEY (tenant, day, session, agent_id, model));

CREATE TABLE jobs (
    tenant TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, agent_id TEXT NOT NULL, task TEXT NOT NULL,
    session TEXT NOT NULL, state TEXT NOT NULL, priority INTEGER NOT NULL, parent TEXT NOT NULL, root TEXT NOT NULL,
    chain TEXT NOT NULL, user_id TEXT NOT NULL, asker_run TEXT NOT NULL, asker_call TEXT NOT NULL,
    asker_session TEXT NOT NULL, asker_agent TEXT NOT NULL, due_at INTEGER NOT NULL, deadline INTEGER,
    attempts INTEGER NOT NULL, allowed INTEGER NOT NULL, epoch INTEGER NOT NULL, result TEXT, error TEXT,
    notified INTEGER NOT NULL, created_at INTEGER NOT NULL, ended_at INTEGER, seq INTEGER NOT NULL,
    traceparent TEXT NOT NULL,
    owner TEXT GENERATED ALWAYS AS (
        CASE WHEN substr(session, 1, 1) = '@' THEN substr(session, 1, instr(session, '/')) ELSE '' END) VIRTUAL,
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
    tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, key));
CREATE INDEX records_of_tenants ON records (tenant) WHERE kind = 'tenant';

-- Documents and their passages. `owners` has a word for the tenant and one for the collection, so that a full-text
-- search skips the passages of others.

CREATE TABLE documents (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, collection TEXT NOT NULL, source TEXT NOT NULL,
    title TEXT NOT NULL, hash TEXT NOT NULL, model TEXT NOT NULL, about BLOB NOT NULL, passages INTEGER NOT NULL,
    created_at INTEGER NOT NULL, PRIMARY KEY (tenant, kind, id));
CREATE INDEX documents_of_collection ON documents (tenant, kind, collection, id);
CREATE INDEX documents_by_time ON documents (tenant, kind, created_at, id);
CREATE INDEX documents_of_collection_by_time ON documents (tenant, kind, collection, created_at, id);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, kind TEXT NOT NULL, document TEXT NOT NULL,
    collection TEXT NOT NULL, owners TEXT NOT NULL, place INTEGER NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL,
    position TEXT NOT NULL, model TEXT NOT NULL, vector BLOB);
CREATE UNIQUE INDEX passages_of_document ON passages (tenant, kind, document, place);
CREATE INDEX passages_with_vectors ON passages (tenant, kind, model, id) WHERE vector IS NOT NULL;
CREATE VIRTUAL TABLE passage_words USING fts5 (
    owners, heading, text, content='passages', content_rowid='id', tokenize='porter unicode61 remove_diacritics 2');
CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN
    INSERT INTO passage_words (rowid, owners, heading, text) VALUES (new.id, new.owners, new.heading, new.text);
END;
CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN
    INSERT INTO passage_words (passage_words, rowid, owners, heading, text)
    VALUES ('delete', old.id, old.owners, old.heading, old.text);
END;
CREATE TABLE libraries (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, version INTEGER NOT NULL, vectors INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, model));

-- Derived tables, built in batches from a stored position on; see `sql/derived.py`. First the search index of sessions.
-- A message that is replaced makes the position start over, which finds the one session that is not indexed any more.

CREATE TABLE derived_positions (
    tenant TEXT NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (tenant, name));
CREATE TABLE search_sessions (
    tenant TEXT NOT NULL, session TEXT NOT NULL, label TEXT NOT NULL, message INTEGER NOT NULL, run INTEGER NOT NULL,
    PRIMARY KEY (tenant, session));
CREATE TABLE search_texts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, session TEXT NOT NULL, owners TEXT NOT NULL,
    seq INTEGER NOT NULL, text TEXT NOT NULL);
CREATE UNIQUE INDEX search_texts_of_session ON search_texts (tenant, session, seq);
CREATE VIRTUAL TABLE session_words USING fts5 (
    owners, text, content='search_texts', content_rowid='id', detail='column',
    tokenize='unicode61 remove_diacritics 0');
CREATE TRIGGER search_text_added AFTER INSERT ON search_texts BEGIN
    INSERT INTO session_words (rowid, owners, text) VALUES (new.id, new.owners, new.text);
END;
CREATE TRIGGER search_text_removed AFTER DELETE ON search_texts BEGIN
    INSERT INTO session_words (session_words, rowid, owners, text) VALUES ('delete', old.id, old.owners, old.text);
END;
CREATE TRIGGER search_message_removed AFTER DELETE ON messages BEGIN
    DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.session AND seq = old.seq;
END;
CREATE TRIGGER search_message_replaced AFTER UPDATE OF body ON messages BEGIN
    DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.session;
    DELETE FROM search_sessions WHERE tenant = old.tenant AND session = old.session;
    UPDATE derived_positions SET position = 0 WHERE tenant = old.tenant AND name = 'sessions';
END;
CREATE TRIGGER search_session_removed AFTER DELETE ON sessions BEGIN
    DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.key;
    DELETE FROM search_sessions WHERE tenant = old.tenant AND session = old.key;
END;
CREATE TABLE last_turns (
    tenant TEXT NOT NULL, agent_id TEXT NOT NULL, user_id TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (tenant, agent_id, user_id));

-- The index of the audit log tells which blocks of 64 rows contain a value.

CREATE TABLE audit_blocks (
    tenant TEXT NOT NULL, block INTEGER NOT NULL, first_at INTEGER NOT NULL, last_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, block));
CREATE TABLE audit_values (
    tenant TEXT NOT NULL, field TEXT NOT NULL, value TEXT NOT NULL, block INTEGER NOT NULL,
    PRIMARY KEY (tenant, field, value, block)) WITHOUT ROWID;
CREATE TABLE tool_days (
    tenant TEXT NOT NULL, day TEXT NOT NULL, tool TEXT NOT NULL, calls INTEGER NOT NULL, failed INTEGER NOT NULL,
    milliseconds REAL NOT NULL, PRIMARY KEY (tenant, day, tool));

-- Sums of the usage of days that are over. A late change of such a day deletes its row in `usage_closed`, so that it is
-- summed again. The tokens of `usage_sessions` are the most that a session can have used in a range of days.

CREATE TABLE usage_days (
    tenant TEXT NOT NULL, day TEXT NOT NULL, owner TEXT NOT NULL, agent_id TEXT NOT NULL, model TEXT NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    cost_microcents INTEGER NOT NULL, turns INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL, saved_microcents INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, owner, agent_id, model));
CREATE TABLE usage_closed (
    tenant TEXT NOT NULL, day TEXT NOT NULL, complete INTEGER NOT NULL, PRIMARY KEY (tenant, day));
CREATE TRIGGER usage_added AFTER INSERT ON usage_sums BEGIN
    DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
END;
CREATE TRIGGER usage_changed AFTER UPDATE ON usage_sums BEGIN
    DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
END;
CREATE TABLE usage_session_days (
    tenant TEXT NOT NULL, session TEXT NOT NULL, day TEXT NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (tenant, session, day)) WITHOUT ROWID;
CREATE TABLE usage_sessions (
    tenant TEXT NOT NULL, session TEXT NOT NULL, first_day TEXT NOT NULL, last_day TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    owner TEXT GENERATED ALWAYS AS (
        CASE WHEN substr(session, 1, 1) = '@' THEN substr(session, 1, instr(session, '/')) ELSE '' END) VIRTUAL,
    PRIMARY KEY (tenant, session)) WITHOUT ROWID;
CREATE INDEX usage_sessions_by_tokens ON usage_sessions (tenant, tokens DESC, session, first_day, last_day);
CREATE INDEX usage_sessions_of_owner ON usage_sessions (tenant, owner, tokens DESC, session) WHERE owner <> '';
