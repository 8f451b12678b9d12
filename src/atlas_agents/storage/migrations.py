"""Schema migrations: numbered steps, forward only, that bring a database of any older version up to date.

A released step is never changed. A new one goes to the end of `STEPS`. The database keeps a checksum of each step that
was applied, so that a step which was changed afterwards is noticed. Each step is a transaction of its own: after a
crash, the migration continues with the step that was not completed. Large tables are filled in batches afterwards; see
`sql.derived`.
"""

import hashlib
import logging
from collections.abc import Mapping
from functools import cache

from atlas_agents.core.errors import StoreError

logger = logging.getLogger(__name__)
REBUILT_TABLES = ("derived_positions", "search_sessions", "search_texts", "audit_blocks", "audit_values", "tool_days")
"""Derived tables that Postgres does not write to the WAL."""

_FIRST = (
    """CREATE TABLE sessions (
        tenant {text} NOT NULL, key {text} NOT NULL, agent_id {text} NOT NULL, label {text} NOT NULL,
        archived {bool} NOT NULL, metadata {blob} NOT NULL, created_at {int} NOT NULL, updated_at {int} NOT NULL,
        last_message {int} NOT NULL DEFAULT 0, last_run {int} NOT NULL DEFAULT 0, PRIMARY KEY (tenant, key))""",
    "CREATE INDEX sessions_changed ON sessions (tenant, updated_at)",
    """CREATE TABLE messages (
        tenant {text} NOT NULL, session {text} NOT NULL, seq {int} NOT NULL, id {text} NOT NULL,
        run_id {text} NOT NULL, body {blob} NOT NULL, PRIMARY KEY (tenant, session, seq),
        UNIQUE (tenant, session, id))""",
    """CREATE TABLE runs (
        tenant {text} NOT NULL, id {text} NOT NULL, session {text} NOT NULL, place {int} NOT NULL,
        agent_id {text} NOT NULL, status {text} NOT NULL, epoch {int} NOT NULL, user_id {text} NOT NULL,
        idempotency_key {text} NOT NULL, request {blob} NOT NULL, error {text}, created_at {int} NOT NULL,
        ended_at {int}, PRIMARY KEY (tenant, id), UNIQUE (tenant, session, place))""",
    """CREATE UNIQUE INDEX runs_accepted ON runs (tenant, session, idempotency_key) WHERE idempotency_key <> ''""",
    """CREATE UNIQUE INDEX runs_active ON runs (tenant, session) WHERE status IN ('running', 'waiting')""",
    """CREATE INDEX runs_open ON runs (tenant, session, place) WHERE status IN ('queued', 'running', 'waiting')""",
    """CREATE TABLE journal (
        tenant {text} NOT NULL, run_id {text} NOT NULL, seq {int} NOT NULL, kind {text} NOT NULL, key {text} NOT NULL,
        payload {blob} NOT NULL, at {int} NOT NULL, previous {text} NOT NULL, hash {text} NOT NULL,
        PRIMARY KEY (tenant, run_id, seq), UNIQUE (tenant, run_id, kind, key))""",
    """CREATE TABLE audit (
        tenant {text} NOT NULL, seq {int} NOT NULL, entry {blob} NOT NULL, previous {text} NOT NULL,
        hash {text} NOT NULL, PRIMARY KEY (tenant, seq))""",
    """CREATE TABLE counters (
        tenant {text} NOT NULL, agent_id {text} NOT NULL, day {text} NOT NULL, used {int} NOT NULL,
        PRIMARY KEY (tenant, agent_id, day))""",
    """CREATE TABLE approvals (
        tenant {text} NOT NULL, id {text} NOT NULL, run_id {text} NOT NULL, session {text} NOT NULL,
        call_id {text} NOT NULL, binding {text} NOT NULL, question {blob} NOT NULL, expires_at {int} NOT NULL,
        created_at {int} NOT NULL, answer {blob}, answered_at {int}, PRIMARY KEY (tenant, id))""",
    "CREATE INDEX approvals_of_session ON approvals (tenant, session)",
    "CREATE INDEX approvals_pending ON approvals (tenant, created_at, id) WHERE answer IS NULL",
    """CREATE TABLE usage_sums (
        tenant {text} NOT NULL, day {text} NOT NULL, session {text} NOT NULL, agent_id {text} NOT NULL,
        model {text} NOT NULL, input_tokens {int} NOT NULL, output_tokens {int} NOT NULL,
        cached_tokens {int} NOT NULL, cost_microcents {int} NOT NULL, turns {int} NOT NULL,
        PRIMARY KEY (tenant, day, session, agent_id, model))""",
)

_SECOND = (
    "ALTER TABLE runs ADD COLUMN fingerprint {text} NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN events {int} NOT NULL DEFAULT 0",
    """CREATE TABLE events (
        tenant {text} NOT NULL, run_id {text} NOT NULL, seq {int} NOT NULL, body {blob} NOT NULL,
        PRIMARY KEY (tenant, run_id, seq))""",
    "ALTER TABLE approvals ADD COLUMN grants {text} NOT NULL DEFAULT ''",
    "CREATE INDEX approvals_granting ON approvals (tenant, grants) WHERE grants <> ''",
    "DROP INDEX approvals_pending",
    "CREATE INDEX approvals_pending ON approvals (tenant, run_id) WHERE answer IS NULL",
)

# Full-text search differs between the databases; see `{search}`.
_THIRD = (
    """CREATE TABLE documents (
        tenant {text} NOT NULL, kind {text} NOT NULL, id {text} NOT NULL, shelf {text} NOT NULL, source {text} NOT NULL,
        title {text} NOT NULL, hash {text} NOT NULL, model {text} NOT NULL, about {blob} NOT NULL,
        passages {int} NOT NULL, created_at {int} NOT NULL, PRIMARY KEY (tenant, kind, id))""",
    """CREATE TABLE passages (
        id {number}, tenant {text} NOT NULL, kind {text} NOT NULL, document {text} NOT NULL, shelf {text} NOT NULL,
        owners {text} NOT NULL, place {int} NOT NULL, heading {text} NOT NULL, text {text} NOT NULL,
        position {text} NOT NULL, model {text} NOT NULL, vector {vector})""",
    "CREATE UNIQUE INDEX passages_of_document ON passages (tenant, kind, document, place)",
    "CREATE INDEX passages_with_vectors ON passages (tenant, kind, model, id) WHERE vector IS NOT NULL",
    """CREATE TABLE libraries (
        tenant {text} NOT NULL, kind {text} NOT NULL, model {text} NOT NULL, version {int} NOT NULL,
        vectors {int} NOT NULL, PRIMARY KEY (tenant, kind, model))""",
    "{search}",
    "{search_added}",
    "{search_removed}",
)
_SQLITE_SEARCH = {
    "search": """CREATE VIRTUAL TABLE passage_words USING fts5 (
        owners, heading, text, content='passages', content_rowid='id',
        tokenize='porter unicode61 remove_diacritics 2')""",
    "search_added": """CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN
        INSERT INTO passage_words (rowid, owners, heading, text) VALUES (new.id, new.owners, new.heading, new.text);
        END""",
    "search_removed": """CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN
        INSERT INTO passage_words (passage_words, rowid, owners, heading, text)
        VALUES ('delete', old.id, old.owners, old.heading, old.text);
        END""",
}
_POSTGRES_SEARCH = {
    "search": """ALTER TABLE passages ADD COLUMN words tsvector GENERATED ALWAYS AS (
        setweight(to_tsvector('english', heading), 'A') || setweight(to_tsvector('english', text), 'B')) STORED""",
    "search_added": "CREATE INDEX passages_words ON passages USING gin (words)",
    "search_removed": "ALTER TABLE passages ALTER COLUMN vector SET STORAGE PLAIN",
}

_FOURTH = (
    """CREATE TABLE jobs (
        tenant {text} NOT NULL, id {text} NOT NULL, kind {text} NOT NULL, agent_id {text} NOT NULL,
        task {text} NOT NULL, session {text} NOT NULL, state {text} NOT NULL, priority {int} NOT NULL,
        parent {text} NOT NULL, root {text} NOT NULL, chain {text} NOT NULL, user_id {text} NOT NULL,
        asker_run {text} NOT NULL, asker_call {text} NOT NULL, asker_session {text} NOT NULL,
        asker_agent {text} NOT NULL, due_at {int} NOT NULL, deadline {int}, attempts {int} NOT NULL,
        allowed {int} NOT NULL, epoch {int} NOT NULL, result {text}, error {text}, told {bool} NOT NULL,
        created_at {int} NOT NULL, ended_at {int}, seq {int} NOT NULL,
        PRIMARY KEY (tenant, id), UNIQUE (tenant, seq))""",
    "CREATE INDEX jobs_pending ON jobs (tenant, priority, due_at) WHERE state IN ('queued', 'running')",
    "CREATE INDEX jobs_untold ON jobs (tenant, seq) WHERE NOT told",
    "CREATE INDEX jobs_of_root ON jobs (tenant, root) WHERE root <> ''",
    """CREATE TABLE records (
        tenant {text} NOT NULL, kind {text} NOT NULL, key {text} NOT NULL, body {blob} NOT NULL,
        version {int} NOT NULL, PRIMARY KEY (tenant, kind, key))""",
    "CREATE INDEX records_of_tenants ON records (tenant) WHERE kind = 'tenant'",
    "CREATE INDEX jobs_of_parent ON jobs (tenant, parent, seq) WHERE parent <> ''",
)

# `said_at`: time of the last event, NULL once the events are pruned. `journaled`: the journal is not pruned yet.
_FIFTH = (
    "ALTER TABLE runs ADD COLUMN said_at {int}",
    "UPDATE runs SET said_at = coalesce(ended_at, created_at) WHERE events > 0",
    "CREATE INDEX runs_said ON runs (tenant, said_at) WHERE said_at IS NOT NULL",
    "ALTER TABLE runs ADD COLUMN journaled {bool} NOT NULL DEFAULT TRUE",
    "CREATE INDEX runs_journaled ON runs (tenant, ended_at) WHERE journaled AND ended_at IS NOT NULL",
)

# Urgency among the runs that wait for a worker, and the request to cancel a run wherever it executes.
_SIXTH = (
    "ALTER TABLE runs ADD COLUMN urgency {int} NOT NULL DEFAULT 1",
    "ALTER TABLE runs ADD COLUMN stop {bool} NOT NULL DEFAULT FALSE",
)

# Dead jobs are counted often, and are few among many.
_SEVENTH = ("CREATE INDEX jobs_dead ON jobs (tenant) WHERE state = 'dead'",)

# One row per writer and tenant, overwritten in each of its transactions; see `postgres.Writer`. SQLite needs none: the
# process that commits there always learns the outcome. Half of each page stays free, so that updates stay in the page.
_EIGHTH = ("{commit_tokens}",)
_POSTGRES_TOKENS = {
    "commit_tokens": """CREATE TABLE commit_tokens (
        id UUID PRIMARY KEY, token BIGINT NOT NULL, written_at TIMESTAMPTZ NOT NULL) WITH (fillfactor = 50)"""
}

# What was used of each budget and period (`run_id` is empty), and what runs have reserved.
_NINTH = (
    """CREATE TABLE budgets (
        tenant {text} NOT NULL, key {text} NOT NULL, period {text} NOT NULL, run_id {text} NOT NULL,
        tokens {int} NOT NULL, requests {int} NOT NULL, tool_calls {int} NOT NULL, cost_microcents {int} NOT NULL,
        milliseconds {int} NOT NULL, expires_at {int}, PRIMARY KEY (tenant, key, period, run_id))""",
    "CREATE INDEX budgets_of_run ON budgets (tenant, run_id) WHERE run_id <> ''",
)

# Input tokens written to a vendor's cache, output tokens of reasoning, and what caching saved.
_TENTH = (
    "ALTER TABLE usage_sums ADD COLUMN cache_write_tokens {int} NOT NULL DEFAULT 0",
    "ALTER TABLE usage_sums ADD COLUMN reasoning_tokens {int} NOT NULL DEFAULT 0",
    "ALTER TABLE usage_sums ADD COLUMN saved_microcents {int} NOT NULL DEFAULT 0",
)

# Search index of sessions. Each batch continues from a position, so the rows of an older database are indexed later. A
# message that is replaced makes the position start over, which finds the one session that is not indexed any more.
_ELEVENTH = (
    """CREATE TABLE derived_positions (
        tenant {text} NOT NULL, name {text} NOT NULL, position {int} NOT NULL, PRIMARY KEY (tenant, name))""",
    """CREATE TABLE search_sessions (
        tenant {text} NOT NULL, session {text} NOT NULL, label {text} NOT NULL, message {int} NOT NULL,
        PRIMARY KEY (tenant, session))""",
    """CREATE TABLE search_texts (
        id {number}, tenant {text} NOT NULL, session {text} NOT NULL, owners {text} NOT NULL, seq {int} NOT NULL,
        text {text} NOT NULL)""",
    "CREATE UNIQUE INDEX search_texts_of_session ON search_texts (tenant, session, seq)",
    "{session_words}",
    "{session_words_added}",
    "{session_words_removed}",
    "{search_message_removed}",
    "{search_message_replaced}",
    "{search_session_removed}",
)
_SQLITE_SESSION_SEARCH = {
    "session_words": """CREATE VIRTUAL TABLE session_words USING fts5 (
        owners, text, content='search_texts', content_rowid='id', detail='column',
        tokenize='unicode61 remove_diacritics 0')""",
    "session_words_added": """CREATE TRIGGER search_text_added AFTER INSERT ON search_texts BEGIN
        INSERT INTO session_words (rowid, owners, text) VALUES (new.id, new.owners, new.text);
        END""",
    "session_words_removed": """CREATE TRIGGER search_text_removed AFTER DELETE ON search_texts BEGIN
        INSERT INTO session_words (session_words, rowid, owners, text) VALUES ('delete', old.id, old.owners, old.text);
        END""",
    "search_message_removed": """CREATE TRIGGER search_message_removed AFTER DELETE ON messages BEGIN
        DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.session AND seq = old.seq;
        END""",
    "search_message_replaced": """CREATE TRIGGER search_message_replaced AFTER UPDATE OF body ON messages BEGIN
        DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.session;
        DELETE FROM search_sessions WHERE tenant = old.tenant AND session = old.session;
        UPDATE derived_positions SET position = 0 WHERE tenant = old.tenant AND name = 'sessions';
        END""",
    "search_session_removed": """CREATE TRIGGER search_session_removed AFTER DELETE ON sessions BEGIN
        DELETE FROM search_texts WHERE tenant = old.tenant AND session = old.key;
        DELETE FROM search_sessions WHERE tenant = old.tenant AND session = old.key;
        END""",
}
_POSTGRES_SESSION_SEARCH = {
    "session_words": """ALTER TABLE search_texts ADD COLUMN words tsvector GENERATED ALWAYS AS (
        array_to_tsvector(string_to_array(text, ' '))) STORED""",
    "session_words_added": "CREATE INDEX search_texts_words ON search_texts USING gin (words)",
    "session_words_removed": """CREATE FUNCTION forget_search_texts() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$ BEGIN
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
        RETURN NULL; END $$""",
    "search_message_removed": """CREATE TRIGGER search_message_removed AFTER DELETE ON messages
        FOR EACH ROW EXECUTE FUNCTION forget_search_texts('message removed')""",
    "search_message_replaced": """CREATE TRIGGER search_message_replaced AFTER UPDATE OF body ON messages
        FOR EACH ROW EXECUTE FUNCTION forget_search_texts('message replaced')""",
    "search_session_removed": """CREATE TRIGGER search_session_removed AFTER DELETE ON sessions
        FOR EACH ROW EXECUTE FUNCTION forget_search_texts('session removed')""",
}

# Sums and indexes that are built in batches, like the search index. `audit_values` tells which blocks of 64 audit rows
# contain a value; `usage_days` sums the usage of days that are over. A late change of such a day deletes its row in
# `usage_closed`, so that it is summed again.
_USAGE_COLUMNS = """agent_id {text} NOT NULL, model {text} NOT NULL, input_tokens {int} NOT NULL,
        output_tokens {int} NOT NULL, cached_tokens {int} NOT NULL, cost_microcents {int} NOT NULL,
        turns {int} NOT NULL, cache_write_tokens {int} NOT NULL, reasoning_tokens {int} NOT NULL,
        saved_microcents {int} NOT NULL"""
_TWELFTH = (
    """CREATE TABLE audit_blocks (
        tenant {text} NOT NULL, block {int} NOT NULL, first_at {int} NOT NULL, last_at {int} NOT NULL,
        PRIMARY KEY (tenant, block))""",
    """CREATE TABLE audit_values (
        tenant {text} NOT NULL, field {text} NOT NULL, value {text} NOT NULL, block {int} NOT NULL,
        PRIMARY KEY (tenant, field, value, block)){clustered}""",
    """CREATE TABLE tool_days (
        tenant {text} NOT NULL, day {text} NOT NULL, tool {text} NOT NULL, calls {int} NOT NULL, failed {int} NOT NULL,
        milliseconds {real} NOT NULL, PRIMARY KEY (tenant, day, tool))""",
    f"""CREATE TABLE usage_days (
        tenant {{text}} NOT NULL, day {{text}} NOT NULL, owner {{text}} NOT NULL, {_USAGE_COLUMNS},
        PRIMARY KEY (tenant, day, owner, agent_id, model))""",
    """CREATE TABLE usage_closed (
        tenant {text} NOT NULL, day {text} NOT NULL, complete {bool} NOT NULL, PRIMARY KEY (tenant, day))""",
    "ALTER TABLE usage_sums ADD COLUMN owner {owner_of_session}",
    "{usage_changed_function}",
    "{usage_added}",
    "{usage_changed}",
)
_SQLITE_USAGE = {
    "usage_changed_function": "",
    "usage_added": """CREATE TRIGGER usage_added AFTER INSERT ON usage_sums BEGIN
        DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
        END""",
    "usage_changed": """CREATE TRIGGER usage_changed AFTER UPDATE ON usage_sums BEGIN
        DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
        END""",
}
_POSTGRES_USAGE = {
    "usage_changed_function": """CREATE FUNCTION reopen_usage_day() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$ BEGIN
        DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
        RETURN NULL; END $$""",
    "usage_added": "",
    "usage_changed": """CREATE TRIGGER usage_changed AFTER INSERT OR UPDATE ON usage_sums
        FOR EACH ROW EXECUTE FUNCTION reopen_usage_day()""",
}

_OWNER = """{text} GENERATED ALWAYS AS (
        CASE WHEN substr({column}, 1, 1) = '@' THEN substr({column}, 1, {find}({column}, '/')) ELSE '' END) {kind}"""
"""The beginning of the keys of a user's own sessions, such as `@ann/`; empty for other sessions."""

# Trace context of the call or client that asked for a job: all processes that work on it report one trace.
_THIRTEENTH = ("ALTER TABLE jobs ADD COLUMN traceparent {text} NOT NULL DEFAULT ''",)

# Indexes for the sessions and jobs of one user and for archived sessions; other sessions and jobs pay nothing for them.
# `last_turns` is kept by the indexer of sessions.
_FOURTEENTH = (
    "ALTER TABLE sessions ADD COLUMN owner {owner_of_key}",
    "CREATE INDEX sessions_of_owner ON sessions (tenant, owner, updated_at, key) WHERE owner <> ''",
    "CREATE INDEX sessions_archived ON sessions (tenant, updated_at, key) WHERE archived",
    "ALTER TABLE jobs ADD COLUMN owner {owner_of_session}",
    "CREATE INDEX jobs_of_owner ON jobs (tenant, owner, seq) WHERE owner <> ''",
    "ALTER TABLE search_sessions ADD COLUMN run {int} NOT NULL DEFAULT 0",
    """CREATE TABLE last_turns (
        tenant {text} NOT NULL, agent_id {text} NOT NULL, user_id {text} NOT NULL, at {int} NOT NULL,
        PRIMARY KEY (tenant, agent_id, user_id))""",
    """INSERT INTO last_turns (tenant, agent_id, user_id, at)
        SELECT tenant, agent_id, user_id, max(created_at) FROM runs GROUP BY tenant, agent_id, user_id""",
)

# Usage by session of the days that are over. `usage_sessions` has the first and last day of a session and its tokens,
# which are the most that it can have used in a range of days. All days are summed again to fill both tables.
_FIFTEENTH = (
    """CREATE TABLE usage_session_days (
        tenant {text} NOT NULL, session {text} NOT NULL, day {text} NOT NULL, tokens {int} NOT NULL,
        PRIMARY KEY (tenant, session, day)){clustered}""",
    """CREATE TABLE usage_sessions (
        tenant {text} NOT NULL, session {text} NOT NULL, first_day {text} NOT NULL, last_day {text} NOT NULL,
        tokens {int} NOT NULL, owner {owner_of_session}, PRIMARY KEY (tenant, session)){clustered}""",
    "CREATE INDEX usage_sessions_by_tokens ON usage_sessions (tenant, tokens DESC, session, first_day, last_day)",
    """CREATE INDEX usage_sessions_of_owner ON usage_sessions (tenant, owner, tokens DESC, session)
        WHERE owner <> ''""",
    "DELETE FROM usage_closed",
)

# Rows that each turn updates several times leave free space in their pages: a new version of a row that stays in its
# page, and changes no indexed column, needs no index entries. SQLite updates rows in place.
_SIXTEENTH = ("{fill_sessions}", "{fill_runs}", "{fill_usage}")
_POSTGRES_FILL = {
    "fill_sessions": "ALTER TABLE sessions SET (fillfactor = 70)",
    "fill_runs": "ALTER TABLE runs SET (fillfactor = 70)",
    "fill_usage": "ALTER TABLE usage_sums SET (fillfactor = 80)",
}

# Compact journal and events of SQLite. A row's id is the number of its run and its own: rows of a run are neighbours in
# one b-tree that needs no index, and new ones go to its end. `sqlite_files` moves the rows of an older database. The
# views have the columns of the tables in Postgres.
_SEVENTEENTH = (
    "{numbered_runs}",
    "{number_index}",
    "{older_journal}",
    "{older_events}",
    "{journal_rows}",
    "{event_rows}",
    "{journal_view}",
    "{events_view}",
)
_SQLITE_COMPACT = {
    "numbered_runs": "ALTER TABLE runs ADD COLUMN number INTEGER",
    "number_index": "CREATE UNIQUE INDEX runs_numbered ON runs (number)",
    "older_journal": "ALTER TABLE journal RENAME TO journal_older",
    "older_events": "ALTER TABLE events RENAME TO events_older",
    "journal_rows": """CREATE TABLE journal_rows (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, at INTEGER NOT NULL, hash TEXT NOT NULL,
        payload BLOB NOT NULL)""",
    "event_rows": "CREATE TABLE event_rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "journal_view": """CREATE VIEW journal AS
        SELECT r.tenant, r.id AS run_id, j.id & 2147483647 AS seq, j.kind, j.key, j.payload, j.at,
            coalesce((SELECT p.hash FROM journal_rows p WHERE p.id = j.id - 1), '') AS previous, j.hash
        FROM runs r JOIN journal_rows j ON j.id > r.number << 31 AND j.id < (r.number + 1) << 31""",
    "events_view": """CREATE VIEW events AS
        SELECT r.tenant, r.id AS run_id, e.id & 2147483647 AS seq, e.body
        FROM runs r JOIN event_rows e ON e.id > r.number << 31 AND e.id < (r.number + 1) << 31""",
}

# Compact journal and events of Postgres. Each row is an entry in one index only, the hash of the step before is not
# stored again, and a row of `events` has the events from `first` to `seq` in compressed form (NULL: one plain event).
# No row is rewritten.
_EIGHTEENTH = ("{event_packs}", "{journal_keys}", "{journal_previous}")
_POSTGRES_COMPACT = {
    "event_packs": "ALTER TABLE events ADD COLUMN first BIGINT",
    "journal_keys": "ALTER TABLE journal DROP CONSTRAINT journal_tenant_run_id_kind_key_key",
    "journal_previous": "ALTER TABLE journal DROP COLUMN previous",
}

# Messages, journals and requests are compressed from here on: older processes cannot read them. On SQLite, where
# commits are made one after the other, no index has to keep a session from having two active runs. A message is found
# by a number that is computed from its id; see `sql.tables.message_number`. On SQLite, where the index of the ids is
# part of the table, `sqlite_files` moves the messages of an older database; on Postgres, they have no number.
_NINETEENTH = (
    "{active_runs}",
    "{removal_trigger}",
    "{replacement_trigger}",
    "{older_messages}",
    "{numbered_messages}",
    "{message_numbers}",
    "{older_message_ids}",
    "{search_message_removed_again}",
    "{search_message_replaced_again}",
)
_SQLITE_MESSAGES = {
    "active_runs": "DROP INDEX runs_active",
    "removal_trigger": "DROP TRIGGER search_message_removed",
    "replacement_trigger": "DROP TRIGGER search_message_replaced",
    "older_messages": "ALTER TABLE messages RENAME TO messages_older",
    "numbered_messages": """CREATE TABLE messages (
        tenant TEXT NOT NULL, session TEXT NOT NULL, seq INTEGER NOT NULL, id_number INTEGER NOT NULL,
        id TEXT NOT NULL, run_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, session, seq))""",
    "message_numbers": "CREATE INDEX messages_numbered ON messages (id_number)",
    "older_message_ids": "",
    "search_message_removed_again": _SQLITE_SESSION_SEARCH["search_message_removed"],
    "search_message_replaced_again": _SQLITE_SESSION_SEARCH["search_message_replaced"],
}
_POSTGRES_MESSAGES = {
    **dict.fromkeys(_SQLITE_MESSAGES, ""),
    "older_messages": "ALTER TABLE messages DROP CONSTRAINT messages_tenant_session_id_key",
    "numbered_messages": "ALTER TABLE messages ADD COLUMN id_number BIGINT",
    "message_numbers": "CREATE INDEX messages_numbered ON messages (id_number) WHERE id_number IS NOT NULL",
    "older_message_ids": "CREATE INDEX messages_older ON messages (tenant, session, id) WHERE id_number IS NULL",
}

# Postgres only, and no row is rewritten. Rows of journals and events have a short key of their run, and hashes of steps
# are in base64 from here on: older processes cannot read them. A session has one active run because its commits hold
# its lock. Only ended runs are pruned, so only they are in the index by their last event. The text from which the words
# of a message are made is not stored.
_TWENTIETH = ("{one_active_run}", "{last_events_of_all}", "{last_events_of_ended}", "{stored_words}")
_POSTGRES_SHORT = {
    "one_active_run": "DROP INDEX runs_active",
    "last_events_of_all": "DROP INDEX runs_said",
    "last_events_of_ended": """CREATE INDEX runs_said ON runs (tenant, said_at)
        WHERE said_at IS NOT NULL AND ended_at IS NOT NULL""",
    "stored_words": "ALTER TABLE search_texts ALTER COLUMN words DROP EXPRESSION",
}

# Postgres only. The search index and the index of the audit log follow from other tables, so they are not written to
# the WAL. A crash of Postgres empties all of them, the positions included: they are built again in the background, as
# after this step, which rewrites no rows. `last_turns` is small, and knows runs of sessions that were deleted.
_TWENTY_FIRST = ("{derived_again}", *(f"{{unlogged_{table}}}" for table in REBUILT_TABLES))
_POSTGRES_UNLOGGED = {
    "derived_again": f"TRUNCATE {', '.join(REBUILT_TABLES)}",
    **{f"unlogged_{table}": f"ALTER TABLE {table} SET UNLOGGED" for table in REBUILT_TABLES},
}

# The documents of a collection, and the memories of one agent and user, are a part of all. Pages of a list are found by
# the time when a document was added.
_TWENTY_SECOND = (
    "CREATE INDEX documents_of_collection ON documents (tenant, kind, shelf, id)",
    "CREATE INDEX documents_by_time ON documents (tenant, kind, created_at, id)",
    "CREATE INDEX documents_of_collection_by_time ON documents (tenant, kind, shelf, created_at, id)",
)

# Jobs in a state, those that are due or past their deadline, and those whose outcome is not reported. A list of the
# most urgent ones reads no others, however many are due later or have ended. The few sessions that are branches.
_TWENTY_THIRD = (
    "DROP INDEX jobs_pending",
    "DROP INDEX jobs_untold",
    "DROP INDEX jobs_dead",
    "CREATE INDEX jobs_in_state ON jobs (tenant, state, seq)",
    "CREATE INDEX jobs_of_owner_in_state ON jobs (tenant, owner, state, seq) WHERE owner <> ''",
    "CREATE INDEX jobs_due ON jobs (tenant, priority, due_at, seq) WHERE state = 'queued'",
    "CREATE INDEX jobs_expiring ON jobs (tenant, deadline) WHERE state = 'queued' AND deadline IS NOT NULL",
    "CREATE INDEX jobs_unreported ON jobs (tenant, told) WHERE told = FALSE AND state NOT IN ('queued', 'running')",
    "CREATE INDEX sessions_branched ON sessions (tenant, updated_at, key) WHERE {is_branch}",
)

STEPS: tuple[tuple[str, ...], ...] = (
    *(_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH, _EIGHTH, _NINTH, _TENTH),
    *(_ELEVENTH, _TWELFTH, _THIRTEENTH, _FOURTEENTH, _FIFTEENTH, _SIXTEENTH, _SEVENTEENTH, _EIGHTEENTH, _NINETEENTH),
    *(_TWENTIETH, _TWENTY_FIRST, _TWENTY_SECOND, _TWENTY_THIRD),
)
VERSION = len(STEPS)

SQLITE = {
    "text": "TEXT",
    "int": "INTEGER",
    "bool": "INTEGER",
    "blob": "BLOB",
    "number": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "vector": "BLOB",
    "real": "REAL",
    "clustered": " WITHOUT ROWID",
    "owner_of_session": _OWNER.format(find="instr", kind="VIRTUAL", text="TEXT", column="session"),
    "owner_of_key": _OWNER.format(find="instr", kind="VIRTUAL", text="TEXT", column="key"),
    **_SQLITE_SEARCH,
    **_SQLITE_SESSION_SEARCH,
    **_SQLITE_USAGE,
    **_SQLITE_COMPACT,
    "commit_tokens": "",
    **dict.fromkeys(_POSTGRES_FILL, ""),
    **dict.fromkeys(_POSTGRES_COMPACT, ""),
    **_SQLITE_MESSAGES,
    **dict.fromkeys(_POSTGRES_SHORT, ""),
    **dict.fromkeys(_POSTGRES_UNLOGGED, ""),
    "is_branch": """instr(metadata, CAST('"branch":{' AS BLOB)) > 0""",
}
POSTGRES = {
    "text": 'TEXT COLLATE "C"',
    "int": "BIGINT",
    "bool": "BOOLEAN",
    "blob": "BYTEA",
    "number": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "vector": "REAL[]",
    "real": "DOUBLE PRECISION",
    "clustered": "",
    "owner_of_session": _OWNER.format(find="strpos", kind="STORED", text='TEXT COLLATE "C"', column="session"),
    "owner_of_key": _OWNER.format(find="strpos", kind="STORED", text='TEXT COLLATE "C"', column="key"),
    **_POSTGRES_SEARCH,
    **_POSTGRES_SESSION_SEARCH,
    **_POSTGRES_USAGE,
    **_POSTGRES_TOKENS,
    **_POSTGRES_FILL,
    **_POSTGRES_COMPACT,
    **dict.fromkeys(_SQLITE_COMPACT, ""),
    **_POSTGRES_MESSAGES,
    **_POSTGRES_SHORT,
    **_POSTGRES_UNLOGGED,
    "is_branch": """position(CAST('"branch":{' AS BYTEA) IN metadata) > 0""",
}


def pending_migrations(version: int, where: str, types: dict[str, str]) -> list[tuple[int, list[str]]]:
    """Return the pending steps of a database of this version, each with the version that it leads to.

    `types` fills in the placeholders of one kind of database; statements that are empty for it are left out.
    """
    if not 0 <= version <= VERSION:
        raise StoreError(
            f"{where} has schema version {version}, but this version of Atlas Agents supports up to {VERSION}: "
            "use a newer Atlas Agents; nothing was changed"
        )
    return [
        (number, [sql for statement in step if (sql := statement.format(**types))])
        for number, step in enumerate(STEPS[version:], version + 1)
    ]


def log_step(where: str, number: int, last: int) -> None:
    """Log the start of a migration step; the gateway shows this even before it is ready."""
    logger.info("migrating the database: %s step=%d of=%d", where, number, last)


def log_moved(where: str, what: str, moved: int, total: int) -> None:
    """Log how many runs or messages are in the compact tables."""
    logger.info("migrating the database: %s %s=%d of=%d", where, what, moved, total)


def step_checksums(types: dict[str, str]) -> dict[int, str]:
    """Return the checksum of each step for one kind of database, by the version it leads to."""
    replacements = tuple(types.items())
    return {number: _checksum(tuple(step), replacements) for number, step in enumerate(STEPS, 1)}


@cache
def _checksum(step: tuple[str, ...], replacements: tuple[tuple[str, str], ...]) -> str:
    types = dict(replacements)
    return hashlib.sha256("\n".join(statement.format(**types) for statement in step).encode()).hexdigest()[:16]


def check_applied(applied: Mapping[int, str], where: str, types: dict[str, str]) -> None:
    """Raise StoreError if a step was applied in a form that differs from this version's."""
    expected = step_checksums(types)
    for number, checksum in sorted(applied.items()):
        if number in expected and expected[number] != checksum:
            raise StoreError(
                f"{where}: migration {number} was applied with the checksum {checksum}, but has {expected[number]} in "
                "this version of Atlas Agents: the database comes from another build. Use that build, or restore a "
                "backup from before; nothing was changed"
            )
