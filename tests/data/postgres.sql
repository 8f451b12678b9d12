CREATE SCHEMA atlas;
CREATE FUNCTION atlas.chain_audit(of_tenant text, chain bigint, entries jsonb) RETURNS text
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    place BIGINT;
    link TEXT;
    start JSONB;
    content BYTEA;
BEGIN
PERFORM pg_advisory_xact_lock(chain);
SELECT seq, hash INTO place, link FROM audit WHERE tenant = of_tenant ORDER BY seq DESC LIMIT 1;
place := coalesce(place, 0);
link := coalesce(link, '');
IF starts_with(link, 'hmac:') THEN RAISE EXCEPTION 'the audit log is signed'; END IF;
start := jsonb_build_array(place, link);
FOR content IN
    SELECT decode(value, 'base64') FROM jsonb_array_elements_text(entries) WITH ORDINALITY ORDER BY ordinality
LOOP
    place := place + 1;
    INSERT INTO audit (tenant, seq, entry, previous, hash)
    SELECT of_tenant, place, content, link, encode(
        sha256(convert_to(link || chr(10) || place || chr(10), 'UTF8') || content), 'hex') RETURNING hash INTO link;
END LOOP;
RETURN start;
END $$;
CREATE FUNCTION atlas.forget_search_texts() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'atlas'
    AS $$
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
CREATE FUNCTION atlas.reopen_usage_day() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'atlas'
    AS $$
BEGIN
    DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
    RETURN NULL;
END $$;
CREATE FUNCTION atlas.run_key(id text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT CASE WHEN id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN translate(
        substr(encode(decode(left(id, 8) || substr(id, 10, 4), 'hex'), 'base64'), 2)
            || left(encode(sha256(convert_to(id, 'UTF8')), 'base64'), 8),
        'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/',
        '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz') ELSE id END $_$;
CREATE FUNCTION atlas.write_turns(given jsonb) RETURNS text
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    of_tenant CONSTANT TEXT := given->>'tenant';
    at_time CONSTANT BIGINT := given->>'now';
    of_lock CONSTANT BIGINT := given->>'lock';
    newest BIGINT;
    part JSONB;
    answer JSONB := '{}';
    changed BIGINT;
BEGIN
-- The token of the transaction; see `statements.BEGIN_STEPWISE`.
PERFORM pg_advisory_xact_lock_shared(of_lock);
UPDATE commit_tokens SET written_at = now(), token = CASE
    WHEN token < CAST(given->>'token' AS BIGINT) THEN CAST(given->>'token' AS BIGINT) END
WHERE id = CAST(given->>'id' AS UUID);
IF NOT FOUND THEN
    INSERT INTO commit_tokens AS t
    SELECT CAST(given->>'id' AS UUID), CAST(given->>'token' AS BIGINT), now()
    ON CONFLICT (id) DO UPDATE SET written_at = now(),
        token = CASE WHEN t.token < excluded.token THEN excluded.token END;
END IF;
-- Sessions are locked in the order of the hashes of their keys.
IF given ? 'sessions' OR given ? 'runs' THEN
    PERFORM pg_advisory_xact_lock(CAST(of_lock >> 32 AS INTEGER), of_session) FROM (
        SELECT hashtext(key) AS of_session FROM jsonb_array_elements_text(given->'sessions') AS w (key) UNION
        SELECT hashtext(session) FROM runs WHERE tenant = of_tenant AND id = ANY (ARRAY(
            SELECT jsonb_array_elements_text(given->'runs'))) ORDER BY of_session) AS locks;
END IF;
IF given ? 'changed_sessions' THEN
    SELECT coalesce(max(updated_at), 0) INTO newest FROM sessions WHERE tenant = of_tenant;
    newest := CASE WHEN at_time > newest THEN at_time ELSE newest + 1 END;
    INSERT INTO sessions (tenant, key, agent_id, label, archived, metadata, created_at, updated_at)
    SELECT of_tenant, w.key, coalesce(w.agent_id, ''), coalesce(w.label, ''), coalesce(w.archived, FALSE),
        coalesce(decode(w.metadata, 'base64'), '{}'), at_time, newest
    FROM jsonb_to_recordset(given->'changed_sessions') AS w (
        key TEXT, agent_id TEXT, label TEXT, archived BOOLEAN, metadata TEXT, put BOOLEAN)
    WHERE w.put AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.tenant = of_tenant AND s.key = w.key)
    ORDER BY w.key ON CONFLICT (tenant, key) DO NOTHING;
    WITH done AS (
        UPDATE sessions s SET last_run = s.last_run + w.runs, last_message = s.last_message + w.messages,
            agent_id = coalesce(w.agent_id, s.agent_id), label = coalesce(w.label, s.label),
            archived = coalesce(w.archived, s.archived),
            metadata = coalesce(decode(w.metadata, 'base64'), s.metadata),
            updated_at = CASE WHEN w.moves OR s.updated_at <= newest - 1000 THEN newest ELSE s.updated_at END
        FROM jsonb_to_recordset(given->'changed_sessions') AS w (key TEXT, agent_id TEXT, label TEXT,
            archived BOOLEAN, metadata TEXT, runs BIGINT, messages BIGINT, moves BOOLEAN)
        WHERE s.tenant = of_tenant AND s.key = w.key RETURNING s.key, s.last_message)
    SELECT count(*), jsonb_object_agg(key, last_message) INTO changed, part FROM done;
    IF changed <> jsonb_array_length(given->'changed_sessions') THEN RAISE EXCEPTION 'session not found'; END IF;
    answer := jsonb_build_object('sessions', part);
END IF;
IF given ? 'accepted' THEN
    WITH done AS (
        INSERT INTO runs (tenant, id, session, agent_id, user_id, idempotency_key, request, fingerprint, urgency,
            status, place, epoch, created_at, last_event_at)
        SELECT of_tenant, w.id, w.session, w.agent_id, w.user_id, w.idempotency_key, decode(w.request, 'base64'),
            w.fingerprint, w.urgency,
            CASE WHEN w.queued OR EXISTS (SELECT 1 FROM runs r WHERE r.tenant = of_tenant AND r.session = w.session
                AND r.status IN ('queued', 'running', 'waiting')) THEN 'queued' ELSE 'running' END,
            s.last_run - w.later, 0, at_time, at_time
        FROM jsonb_to_recordset(given->'accepted') AS w (id TEXT, session TEXT, agent_id TEXT, user_id TEXT,
            idempotency_key TEXT, request TEXT, fingerprint TEXT, urgency BIGINT, queued BOOLEAN, later BIGINT)
        JOIN sessions s ON s.tenant = of_tenant AND s.key = w.session RETURNING id, status)
    SELECT count(*), jsonb_object_agg(id, status) INTO changed, part FROM done;
    IF changed <> jsonb_array_length(given->'accepted') THEN RAISE EXCEPTION 'run not accepted'; END IF;
    answer := answer || jsonb_build_object('accepted', part);
END IF;
IF given ? 'changed_runs' THEN
    WITH done AS (
        UPDATE runs r SET epoch = r.epoch + w.claims, status = coalesce(w.status, r.status),
            error = coalesce(w.error, r.error), events = r.events + w.reserves,
            last_event_at = CASE WHEN w.says AND (r.last_event_at IS NULL OR r.ended_at IS NOT NULL)
                THEN at_time ELSE r.last_event_at END
        FROM jsonb_to_recordset(given->'changed_runs') AS w (id TEXT, claims BIGINT, epoch BIGINT, status TEXT,
            error TEXT, reserves BIGINT, says BOOLEAN, is_open BOOLEAN)
        WHERE r.tenant = of_tenant AND r.id = w.id AND (w.epoch IS NULL OR r.epoch + w.claims = w.epoch)
            AND (NOT w.is_open OR r.status IN ('queued', 'running', 'waiting'))
            AND (w.status IS NULL OR r.status <> 'queued')
        RETURNING r.id, r.epoch, r.events)
    SELECT count(*), jsonb_object_agg(id, jsonb_build_array(epoch, events)) INTO changed, part FROM done;
    IF changed <> jsonb_array_length(given->'changed_runs') THEN RAISE EXCEPTION 'run not as expected'; END IF;
    answer := answer || jsonb_build_object('runs', part);
END IF;
IF given ? 'released' THEN
    DELETE FROM budgets WHERE tenant = of_tenant AND run_id <> '' AND run_id = ANY (ARRAY(
        SELECT jsonb_array_elements_text(given->'released')));
END IF;
IF given ? 'dropped_budgets' THEN
    DELETE FROM budgets b USING jsonb_array_elements_text(given->'dropped_budgets') AS w (run_id)
    WHERE b.tenant = of_tenant AND b.key = 'turn/' || w.run_id AND NOT EXISTS (
        SELECT 1 FROM jobs j WHERE j.tenant = of_tenant AND j.root = w.run_id AND j.root <> '');
END IF;
IF given ? 'messages' THEN
    INSERT INTO messages (tenant, session, seq, id, run_id, body, id_number)
    SELECT of_tenant, w.session, s.last_message - c.messages + w.number, w.id, w.run_id, decode(w.body, 'base64'),
        w.id_number
    FROM jsonb_to_recordset(given->'messages') AS w (
        session TEXT, id TEXT, run_id TEXT, body TEXT, number BIGINT, id_number BIGINT)
    JOIN jsonb_to_recordset(given->'changed_sessions') AS c (key TEXT, messages BIGINT) ON c.key = w.session
    JOIN sessions s ON s.tenant = of_tenant AND s.key = w.session
    WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.id_number = w.id_number AND m.id = w.id
        AND m.session || '' = w.session AND m.tenant || '' = of_tenant);
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> jsonb_array_length(given->'messages') THEN RAISE EXCEPTION 'message exists'; END IF;
END IF;
-- ON CONFLICT DO UPDATE would lock the row, which is a record in the WAL.
IF given ? 'usage' THEN
    UPDATE usage_sums u SET input_tokens = u.input_tokens + w.input_tokens,
        output_tokens = u.output_tokens + w.output_tokens, cached_tokens = u.cached_tokens + w.cached_tokens,
        cost_microcents = u.cost_microcents + w.cost_microcents, turns = u.turns + w.turns,
        cache_write_tokens = u.cache_write_tokens + w.cache_write_tokens,
        reasoning_tokens = u.reasoning_tokens + w.reasoning_tokens,
        saved_microcents = u.saved_microcents + w.saved_microcents
    FROM jsonb_to_recordset(given->'usage') AS w (day TEXT, session TEXT, agent_id TEXT, model TEXT,
        input_tokens BIGINT, output_tokens BIGINT, cached_tokens BIGINT, cost_microcents BIGINT, turns BIGINT,
        cache_write_tokens BIGINT, reasoning_tokens BIGINT, saved_microcents BIGINT)
    WHERE u.tenant = of_tenant AND u.day = w.day AND u.session = w.session AND u.agent_id = w.agent_id
        AND u.model = w.model;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> jsonb_array_length(given->'usage') THEN
        INSERT INTO usage_sums (tenant, day, session, agent_id, model, input_tokens, output_tokens, cached_tokens,
            cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents)
        SELECT of_tenant, w.* FROM jsonb_to_recordset(given->'usage') AS w (day TEXT, session TEXT, agent_id TEXT,
            model TEXT, input_tokens BIGINT, output_tokens BIGINT, cached_tokens BIGINT, cost_microcents BIGINT,
            turns BIGINT, cache_write_tokens BIGINT, reasoning_tokens BIGINT, saved_microcents BIGINT)
        WHERE NOT EXISTS (SELECT 1 FROM usage_sums u WHERE u.tenant = of_tenant AND u.day = w.day
            AND u.session = w.session AND u.agent_id = w.agent_id AND u.model = w.model);
    END IF;
END IF;
-- The first new step of a run follows its last one. A row with the last two steps has the kind and key of both.
IF given ? 'steps' THEN
    INSERT INTO journal (tenant, run_id, seq, kind, key, payload, at, hash)
    SELECT of_tenant, w.run_key, w.seq, w.kind, w.key, decode(w.payload, 'base64'), w.at, w.hash
    FROM jsonb_to_recordset(given->'steps') AS w (run_id TEXT, run_key TEXT, seq BIGINT, kind TEXT, key TEXT,
        payload TEXT, at BIGINT, previous TEXT, hash TEXT, epoch BIGINT, is_first BOOLEAN, after BIGINT,
        other_kind TEXT, other_key TEXT)
    JOIN runs r ON r.tenant = of_tenant AND r.id = w.run_id AND r.epoch = w.epoch
        AND r.status IN ('queued', 'running', 'waiting')
    WHERE (NOT w.is_first OR w.after = 0 OR EXISTS (SELECT 1 FROM journal p
            WHERE p.tenant = of_tenant AND p.run_id = w.run_key AND p.seq = w.after AND p.hash = w.previous))
        AND NOT EXISTS (SELECT 1 FROM journal s WHERE s.tenant = of_tenant AND s.run_id = w.run_key
            AND (s.kind = w.kind AND s.key = w.key OR s.kind = w.other_kind AND s.key = w.other_key));
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> jsonb_array_length(given->'steps') THEN RAISE EXCEPTION 'journal not as expected'; END IF;
END IF;
IF given ? 'ended' THEN
    WITH done AS (
        UPDATE runs r SET status = w.status, error = coalesce(w.error, r.error), ended_at = at_time
        FROM jsonb_to_recordset(given->'ended') AS w (id TEXT, epoch BIGINT, status TEXT, error TEXT)
        WHERE r.tenant = of_tenant AND r.id = w.id AND r.epoch = w.epoch
            AND r.status IN ('queued', 'running', 'waiting') RETURNING r.session)
    SELECT count(DISTINCT session) INTO changed FROM done;
    IF changed <> jsonb_array_length(given->'ended') THEN RAISE EXCEPTION 'run not as expected'; END IF;
    WITH done AS (
        UPDATE runs n SET status = 'running'
        FROM jsonb_to_recordset(given->'ended') AS w (id TEXT) JOIN runs e ON e.tenant = of_tenant AND e.id = w.id
        WHERE n.tenant = of_tenant AND n.session = e.session AND n.status = 'queued'
            AND n.place = (SELECT min(place) FROM runs q
                WHERE q.tenant = of_tenant AND q.session = e.session AND q.status = 'queued')
            AND NOT EXISTS (SELECT 1 FROM runs a WHERE a.tenant = of_tenant AND a.session = e.session
                AND a.status IN ('running', 'waiting'))
        RETURNING e.id AS ended, n.id AS started)
    SELECT jsonb_object_agg(ended, started) INTO part FROM done;
    answer := answer || jsonb_build_object('started', coalesce(part, '{}'));
END IF;
IF given ? 'event_owners' THEN
    IF EXISTS (
        SELECT 1 FROM jsonb_to_recordset(given->'event_owners') AS w (
            run_id TEXT, epoch BIGINT, first BIGINT, last BIGINT)
        LEFT JOIN runs r ON r.tenant = of_tenant AND r.id = w.run_id
        WHERE r.id IS NULL OR (w.epoch IS NOT NULL AND w.epoch <> r.epoch) OR w.first < 1 OR w.last > r.events)
    THEN RAISE EXCEPTION 'events not reserved'; END IF;
    IF EXISTS (
        SELECT 1 FROM jsonb_to_recordset(given->'events') AS w (run_key TEXT, first BIGINT, seq BIGINT)
        CROSS JOIN LATERAL (SELECT 1 FROM events e WHERE e.tenant = of_tenant AND e.run_id = w.run_key
            AND e.seq >= coalesce(w.first, w.seq) AND coalesce(e.first, e.seq) <= w.seq LIMIT 1) found)
    THEN RAISE EXCEPTION 'events exist'; END IF;
    INSERT INTO events (tenant, run_id, seq, body, first)
    SELECT of_tenant, w.run_key, w.seq, decode(w.body, 'base64'), w.first
    FROM jsonb_to_recordset(given->'events') AS w (run_key TEXT, seq BIGINT, body TEXT, first BIGINT);
END IF;
-- A signed audit log: the process computes the hashes. The end of the chain is locked last.
IF given ? 'chain' THEN
    PERFORM pg_advisory_xact_lock(CAST(given->>'chain' AS BIGINT));
    SELECT jsonb_build_array(seq, hash) INTO part FROM audit WHERE tenant = of_tenant ORDER BY seq DESC LIMIT 1;
    answer := answer || jsonb_build_object('chain', part);
END IF;
RETURN answer;
END $$;
CREATE TABLE atlas.approvals (
    tenant text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    run_id text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    call_id text NOT NULL COLLATE pg_catalog."C",
    binding text NOT NULL COLLATE pg_catalog."C",
    question bytea NOT NULL,
    expires_at bigint NOT NULL,
    created_at bigint NOT NULL,
    answer bytea,
    answered_at bigint,
    grants text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE atlas.audit (
    tenant text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    entry bytea NOT NULL,
    previous text NOT NULL COLLATE pg_catalog."C",
    hash text NOT NULL COLLATE pg_catalog."C"
);
CREATE UNLOGGED TABLE atlas.audit_blocks (
    tenant text NOT NULL COLLATE pg_catalog."C",
    block bigint NOT NULL,
    first_at bigint NOT NULL,
    last_at bigint NOT NULL
);
CREATE UNLOGGED TABLE atlas.audit_values (
    tenant text NOT NULL COLLATE pg_catalog."C",
    field text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C",
    block bigint NOT NULL
);
CREATE TABLE atlas.budgets (
    tenant text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    period text NOT NULL COLLATE pg_catalog."C",
    run_id text NOT NULL COLLATE pg_catalog."C",
    tokens bigint NOT NULL,
    requests bigint NOT NULL,
    tool_calls bigint NOT NULL,
    cost_microcents bigint NOT NULL,
    milliseconds bigint NOT NULL,
    expires_at bigint
);
CREATE TABLE atlas.commit_tokens (
    id uuid NOT NULL,
    token bigint NOT NULL,
    written_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE atlas.counters (
    tenant text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    day text NOT NULL COLLATE pg_catalog."C",
    used bigint NOT NULL
);
CREATE UNLOGGED TABLE atlas.derived_positions (
    tenant text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    "position" bigint NOT NULL
);
CREATE TABLE atlas.documents (
    tenant text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    collection text NOT NULL COLLATE pg_catalog."C",
    source text NOT NULL COLLATE pg_catalog."C",
    title text NOT NULL COLLATE pg_catalog."C",
    hash text NOT NULL COLLATE pg_catalog."C",
    model text NOT NULL COLLATE pg_catalog."C",
    about bytea NOT NULL,
    passages bigint NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE atlas.events (
    tenant text NOT NULL COLLATE pg_catalog."C",
    run_id text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    body bytea NOT NULL,
    first bigint
);
CREATE TABLE atlas.jobs (
    tenant text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    task text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    state text NOT NULL COLLATE pg_catalog."C",
    priority bigint NOT NULL,
    parent text NOT NULL COLLATE pg_catalog."C",
    root text NOT NULL COLLATE pg_catalog."C",
    chain text NOT NULL COLLATE pg_catalog."C",
    user_id text NOT NULL COLLATE pg_catalog."C",
    asker_run text NOT NULL COLLATE pg_catalog."C",
    asker_call text NOT NULL COLLATE pg_catalog."C",
    asker_session text NOT NULL COLLATE pg_catalog."C",
    asker_agent text NOT NULL COLLATE pg_catalog."C",
    due_at bigint NOT NULL,
    deadline bigint,
    attempts bigint NOT NULL,
    allowed bigint NOT NULL,
    epoch bigint NOT NULL,
    result text COLLATE pg_catalog."C",
    error text COLLATE pg_catalog."C",
    notified boolean NOT NULL,
    created_at bigint NOT NULL,
    ended_at bigint,
    seq bigint NOT NULL,
    traceparent text NOT NULL COLLATE pg_catalog."C",
    owner text GENERATED ALWAYS AS (
CASE
    WHEN (substr(session, 1, 1) = '@'::text) THEN substr(session, 1, strpos(session, '/'::text))
    ELSE ''::text
END) STORED COLLATE pg_catalog."C"
);
CREATE TABLE atlas.journal (
    tenant text NOT NULL COLLATE pg_catalog."C",
    run_id text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    payload bytea NOT NULL,
    at bigint NOT NULL,
    hash text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE atlas.last_turns (
    tenant text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    user_id text NOT NULL COLLATE pg_catalog."C",
    at bigint NOT NULL
);
CREATE TABLE atlas.libraries (
    tenant text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    model text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    vectors bigint NOT NULL
);
CREATE TABLE atlas.messages (
    tenant text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    id_number bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    run_id text NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL
);
CREATE TABLE atlas.passages (
    id bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    document text NOT NULL COLLATE pg_catalog."C",
    collection text NOT NULL COLLATE pg_catalog."C",
    owners text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    heading text NOT NULL COLLATE pg_catalog."C",
    text text NOT NULL COLLATE pg_catalog."C",
    "position" text NOT NULL COLLATE pg_catalog."C",
    model text NOT NULL COLLATE pg_catalog."C",
    vector real[],
    words tsvector GENERATED ALWAYS AS ((setweight(to_tsvector('english'::regconfig, heading), 'A'::"char") || setweight(to_tsvector('english'::regconfig, text), 'B'::"char"))) STORED
);
ALTER TABLE ONLY atlas.passages ALTER COLUMN vector SET STORAGE PLAIN;
ALTER TABLE atlas.passages ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME atlas.passages_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE atlas.records (
    tenant text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE atlas.runs (
    tenant text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    agent_id text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    user_id text NOT NULL COLLATE pg_catalog."C",
    idempotency_key text NOT NULL COLLATE pg_catalog."C",
    fingerprint text NOT NULL COLLATE pg_catalog."C",
    request bytea NOT NULL,
    error text COLLATE pg_catalog."C",
    created_at bigint NOT NULL,
    ended_at bigint,
    events bigint DEFAULT 0 NOT NULL,
    last_event_at bigint,
    journaled boolean DEFAULT true NOT NULL,
    urgency bigint NOT NULL,
    stop boolean DEFAULT false NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE atlas.schema_versions (
    version bigint NOT NULL,
    checksum text NOT NULL
);
CREATE UNLOGGED TABLE atlas.search_sessions (
    tenant text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    label text NOT NULL COLLATE pg_catalog."C",
    message bigint NOT NULL,
    run bigint NOT NULL
);
CREATE UNLOGGED TABLE atlas.search_texts (
    id bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    words tsvector NOT NULL
);
ALTER TABLE atlas.search_texts ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME atlas.search_texts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE atlas.sessions (
    tenant text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    label text NOT NULL COLLATE pg_catalog."C",
    archived boolean NOT NULL,
    metadata bytea NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    last_message bigint DEFAULT 0 NOT NULL,
    last_run bigint DEFAULT 0 NOT NULL,
    owner text GENERATED ALWAYS AS (
CASE
    WHEN (substr(key, 1, 1) = '@'::text) THEN substr(key, 1, strpos(key, '/'::text))
    ELSE ''::text
END) STORED COLLATE pg_catalog."C"
)
WITH (fillfactor='70');
CREATE UNLOGGED TABLE atlas.tool_days (
    tenant text NOT NULL COLLATE pg_catalog."C",
    day text NOT NULL COLLATE pg_catalog."C",
    tool text NOT NULL COLLATE pg_catalog."C",
    calls bigint NOT NULL,
    failed bigint NOT NULL,
    milliseconds double precision NOT NULL
);
CREATE TABLE atlas.usage_closed (
    tenant text NOT NULL COLLATE pg_catalog."C",
    day text NOT NULL COLLATE pg_catalog."C",
    complete boolean NOT NULL
);
CREATE TABLE atlas.usage_days (
    tenant text NOT NULL COLLATE pg_catalog."C",
    day text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    model text NOT NULL COLLATE pg_catalog."C",
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    cost_microcents bigint NOT NULL,
    turns bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    saved_microcents bigint NOT NULL
);
CREATE TABLE atlas.usage_session_days (
    tenant text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    day text NOT NULL COLLATE pg_catalog."C",
    tokens bigint NOT NULL
);
CREATE TABLE atlas.usage_sessions (
    tenant text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    first_day text NOT NULL COLLATE pg_catalog."C",
    last_day text NOT NULL COLLATE pg_catalog."C",
    tokens bigint NOT NULL,
    owner text GENERATED ALWAYS AS (
CASE
    WHEN (substr(session, 1, 1) = '@'::text) THEN substr(session, 1, strpos(session, '/'::text))
    ELSE ''::text
END) STORED COLLATE pg_catalog."C"
);
CREATE TABLE atlas.usage_sums (
    tenant text NOT NULL COLLATE pg_catalog."C",
    day text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    model text NOT NULL COLLATE pg_catalog."C",
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    cost_microcents bigint NOT NULL,
    turns bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    saved_microcents bigint NOT NULL,
    owner text GENERATED ALWAYS AS (
CASE
    WHEN (substr(session, 1, 1) = '@'::text) THEN substr(session, 1, strpos(session, '/'::text))
    ELSE ''::text
END) STORED COLLATE pg_catalog."C"
)
WITH (fillfactor='80');
-- Data for Name: approvals; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.approvals VALUES ('acme', 'p1', 'r1', 's', 'c1', 'b', '\x7b2271223a317d', 99, 1, NULL, NULL, '');
INSERT INTO atlas.approvals VALUES ('acme', 'p0', 'r1', 's', 'c1', 'b', '\x7b2271223a317d', 99, 1, '\x796573', 2, 'b');
-- Data for Name: audit; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.audit VALUES ('acme', 1, '\x7b226e223a317d', '', 'c3057ae2ad4eef2eaa8f0225aa6889050eebd3621fbc862a6427fea5637ce374');
INSERT INTO atlas.audit VALUES ('default', 1, '\x7b2274656e616e744964223a2264656661756c74222c226163746f7245787465726e616c4964223a2261222c22656e746974794964223a226c6f6f6b222c226c6576656c223a22696e666f222c226d657373616765223a224167656e7420612063616c6c6564206c6f6f6b3a2073756363657373222c2273756363657373223a747275652c226d657461223a7b22617267756d656e7473223a7b226e223a317d2c22726573756c74223a226c6f6f6b20313a20646f6e65222c226475726174696f6e5f6d73223a32332e3436342c226572726f72223a6e756c6c2c2272657472795f636f756e74223a302c22737461747573223a226f6b222c2272756e5f6964223a2230316131663630662d333866382d376535362d623461372d376337333339396264643066222c2263616c6c5f6964223a2263616c6c5f30316131663630662d333866382d376535362d623461372d3763373333393962646430665f31222c2276657264696374223a22796573222c2272756c65223a2274686520746f6f6c2077617320676976656e20746f20746865206167656e74222c22706f6c696379223a22222c22726f6c65223a22222c2275736572223a22222c226e65656473223a5b5d2c2261637473223a66616c73657d2c2274696d657374616d70223a313739353132393535353236382c226163746f7254797065223a226167656e74222c22616374696f6e223a22544f4f4c5f43414c4c222c22656e7469747954797065223a22746f6f6c227d', '', '39d8b0026f2d14bb141dbb7a588a848f5cbcb4b60f1017d947f51e2202c723bf');
-- Data for Name: audit_blocks; Type: TABLE DATA; Schema: atlas; Owner: -
-- Data for Name: audit_values; Type: TABLE DATA; Schema: atlas; Owner: -
-- Data for Name: budgets; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.budgets VALUES ('acme', 'day', '2026-11-15', 'r1', 5, 1, 0, 7, 0, NULL);
-- Data for Name: commit_tokens; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.commit_tokens VALUES ('39862179-d65b-21d7-c92c-561359bea149', 2, '2026-11-19 23:05:55.101458+00');
INSERT INTO atlas.commit_tokens VALUES ('e00c6376-317a-5e92-a4ff-9c98d8591fa6', 20, '2026-11-19 23:05:55.378659+00');
INSERT INTO atlas.commit_tokens VALUES ('e1337376-91a5-caa0-8b41-750c0fd7cfb9', 18, '2026-11-19 23:05:55.567001+00');
INSERT INTO atlas.commit_tokens VALUES ('cae25347-2b9f-090d-e438-01aad142cacd', 22, '2026-11-19 23:05:55.646818+00');
-- Data for Name: counters; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.counters VALUES ('acme', 'a', '2026-11-15', 1);
-- Data for Name: derived_positions; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.derived_positions VALUES ('acme', 'sessions', 1795129555104);
INSERT INTO atlas.derived_positions VALUES ('acme', 'audit', 0);
INSERT INTO atlas.derived_positions VALUES ('default', 'sessions', 1795129555375);
INSERT INTO atlas.derived_positions VALUES ('default', 'audit', 0);
-- Data for Name: documents; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.documents VALUES ('acme', 'knowledge', 'd1', 'handbook', '/lamps.md', 'Lamps', 'h', 'lamp', '\x7b7d', 2, 1795129555103);
-- Data for Name: events; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.events VALUES ('acme', 'r1', 1, '\x7b2265223a317d', NULL);
INSERT INTO atlas.events VALUES ('acme', 'r1', 2, '\x7b2265223a327d', NULL);
-- Data for Name: jobs; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.jobs VALUES ('acme', 'j1', 'delegation', 'b', 'write', 's/jobs/1', 'queued', 1, '', 'r1', '["a"]', '', 'r1', '', 's', 'a', 0, NULL, 0, 5, 0, NULL, NULL, false, 1795129555103, NULL, 1, '', DEFAULT);
-- Data for Name: journal; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.journal VALUES ('acme', 'r1', 1, 'accepted', '', '\x7b7d', 1795129555103, 'HmLHIKfHP75bQfnmQtQq6k1xAE8rZMjheArId0XRTO4');
INSERT INTO atlas.journal VALUES ('default', 'P6q2nYsue0PDLCp', 1, 'accepted', '', '\x5b2230316131663630662d333866382d376166662d393230382d363233346564336430326164225d', 1795129555203, '3ls1vR4aeaZcz7MjcE/KuqdIJOeVt0WWwSaKo1hg4RI');
INSERT INTO atlas.journal VALUES ('default', 'P6q2nYsue0PDLCp', 2, 'reply', '1', '\x019d945b0a02310c004f1448da3c9ad3481f16044171bfbdbb5dd1c5c565112f908499213f92ddcc09295357ec10534f604751289c0dac5a8ceea535ec8799fd2bbaf3e519f42abc418fee1fa6de133d54b0ae01bc9082a46c4a5cd951bf5cba50701109cc7b8e9606a7b5a9a9de4ed7f9a3ac8ced9b1a0cff34a54662891051aad4d0624429b995b18f28072e5255dd98f238684bea03', 1795129555249, 'Di/eJl9WrzzHnHh2N06S5zdJoyxAs7nhyxrIhTD9GqA');
INSERT INTO atlas.journal VALUES ('default', 'P6q2nYsue0PDLCp', 3, 'intent', 'call_01a1f60f-38f8-7e56-b4a7-7c73399bdd0f_1', '\x012390620c0c130dd3cc0cd2748d2dd22c74cd534dcd74934c12cd75cd93cd8d8d2d2d9352520cd2e241c10b4d5739f9e0348b92b6800164585b0b00', 1795129555249, 'eIxotW3isvauA+PgWl/DsYAsh5mn7fAgm/GuU6X1bmA');
INSERT INTO atlas.journal VALUES ('default', 'P6q2nYsue0PDLCp', 4, 'outcome', 'call_01a1f60f-38f8-7e56-b4a7-7c73399bdd0f_1', '\x012318c1e0a836304c344c333348d335b648b3d0354f3535d34d324934d7354f363736b6b44c4a4931488b0785328ea49b939f9fad6068a500ce87b500', 1795129555269, '0Otljjkb+R9+PE3vwSFrqumt+OPt7fMKBoSiMavWWKo');
INSERT INTO atlas.journal VALUES ('default', 'P6q2nYsue0PDLCp', 6, 'ended', '', '\x0201ad94310ec2300c45778ec1dc2027ce8f939330a00e499a0824860a2686de9d742b6a19a898fd257fbf27f9d242e3fdd526a64524409b00c078db31d01ff6903f5f9bacd3927fd4d551551c6095149795278a8a91403a84e44a5a195a36f989fc333f6ee3fc213e0c6c90e77f9077a2215e131132b2199809290ef33d9e3926ae5c7d315cc41ebbb67143c1ce3f65bfd49fa637', 1795129555284, 'D/sA+uPykgMdd0uyhEypLWOw5rmgf3xFL3Knq6OkMMk');
INSERT INTO atlas.journal VALUES ('default', 'P6q2n_YeFE2Nw0O', 1, 'accepted', '', '\x5b2230316131663630662d333936332d373835632d396437392d643362393330383363313738225d', 1795129555303, 'p4Gx9ZxS5RC3npD7GufTMo8sYm55UnhOwT+sudbk2i0');
INSERT INTO atlas.journal VALUES ('default', 'P6q2n_YeFE2Nw0O', 2, 'reply', '1', '\x019d94db09c3300c002712e861c9f13445566ce85f69bebb7b1d28a1a121842e2089bb4317c91ee684e4d40d3b4831811cbd80a33490b921f7ca93f57a5bd97fa2f35801ecba1bf0f8f5256a1b981db24705371668a937a45c3819fea82c4a5c545598cf146d092e7b514b3cef8ff5a1ec849d8b1a08ff146599344f84881a1a3c8ba0569febd847e49caa8659c9897c1c74e4f40d', 1795129555327, 'h6tee/jfefCS6Kznn/E+XVSA610yIahEoQMdF/6Taoc');
INSERT INTO atlas.journal VALUES ('default', 'P6q2n_YeFE2Nw0O', 3, 'intent', 'call_01a1f60f-3963-7cf9-a03e-3de02fb286fb_1', '\x012390620c0c130dd3cc0cd2748d2dcd8c75cd93d32c75130d8c53758d53520d8cd2928c2cccd292e241c10b4d5789c9203fa2242d60f818d5d60200', 1795129555327, 'HFCI09l57YV8f+KJiTFD0sgf56Ij0ALWZX+kQ9/yqso');
INSERT INTO atlas.journal VALUES ('default', 'P6q2na5gDWl60wk', 1, 'accepted', '', '\x5b2230316131663630662d333938362d373465352d386635632d396435626461356238383731225d', 1795129555336, 'qYuG8Qwvjhb5fi/2UjRGdAp/XgGq3i9MFLQZzoqjKAQ');
INSERT INTO atlas.journal VALUES ('default', 'P6q2na5gDWl60wk', 2, 'reply', '1', '\x019d94510ac2300c404f54489a265d4e23696a617fb2097e79773b9061710cf1024df2dea33f923dcc09d0b009b4403a49c80e3114e1149c1a5c5163294e978dfd3bbac732df378e43791d1f3d3f54ed4faa869cb0068346c15ad42a6ae0357dc954c6a8cc4c4c6792f608d751d5eacb7cdbbe9441d9b9aa0ef14f559291f38400c0ce1e2b1170b15afa3c448ba9b08b68bfdcfa4247565f', 1795129555354, 'O/huJ179/nuH7Amnp1raeajJEjzgyU8IxoYHUIiGk5o');
INSERT INTO atlas.journal VALUES ('default', 'P6q2na5gDWl60wk', 3, 'intent', 'call_01a1f60f-3986-7c02-b654-c3f0e192bbc3_1', '\x012390620c0c130dd3cc0cd2748d2d2dcc74cd930d8c7493cc4c4d74938dd30c520d2d8d9292928de341c10b4d57e5459925a0a042495cc01032aead0500', 1795129555354, '9s5PMX99GxVPdj4Oz+ldlAzNnJPKo+7Hvto1h2voNvo');
INSERT INTO atlas.journal VALUES ('default', 'P6q2nadfinsG-W9', 1, 'accepted', '', '\x5b2230316131663630662d333961392d376236302d383864382d343534663430666464623863225d', 1795129555375, 'pnBlhfa1hJY8zMmY1pdXvnmIL4ICn2dT9GaEBJW6ANQ');
-- Data for Name: last_turns; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.last_turns VALUES ('acme', 'a', 'ann', 1795129555103);
INSERT INTO atlas.last_turns VALUES ('default', 'a', '', 1795129555375);
-- Data for Name: libraries; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.libraries VALUES ('acme', 'knowledge', 'lamp', 1, 1);
-- Data for Name: messages; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.messages VALUES ('acme', 's', 1, 5956738442260666920, 'm1', 'r1', '\x7b22726f6c65223a2275736572227d');
INSERT INTO atlas.messages VALUES ('default', 'whole', 1, 117645610529079458, '01a1f60f-38f8-7aff-9208-6234ed3d02ad', '01a1f60f-38f8-7e56-b4a7-7c73399bdd0f', '\x0123312232527372f2914336d130cdcc204dd7d822cd42d73c312d4dd7d2c8c042d7ccc8d82435c538c5c028310523ec2d4d0d8d2c4d4d4d0d2d8dd0a20100');
INSERT INTO atlas.messages VALUES ('default', 'whole', 2, 117645610532473794, '01a1f60f-392c-7f62-9b16-58a7614c4906', '01a1f60f-38f8-7e56-b4a7-7c73399bdd0f', '\x018dd4dd0ac2300c86e12b0a346d7e9aab91b65b40101477bc7b77131d16c7d80de4e07b5e7272d9dd9c021674090e297b061d59a05251d0a62999d561087e59b7ff4477bbbf83eec25bd6c3f947ea7bd162037589601505381715a44616e4cfd218a33173243a32da1a9c7aa9a93daf8ff5a37462c752cb86e7a5e617');
INSERT INTO atlas.messages VALUES ('default', 'whole', 3, 117645610529120421, '01a1f60f-38f8-7e56-b4a7-7c73399bdd0f.2', '01a1f60f-38f8-7e56-b4a7-7c73399bdd0f', '\x01233be2c149c0c030d130cdcc204dd7d822cd42d73cd5d44c37c924d15cd73cd9dcd8d8d2322925c5202d1e14fa3892744e7e7eb682a19502387f22c5176153f58c30e2d4d2d4d0c8d2d4d4d4c8c298503e21d2dd5646c6c08c0f00');
INSERT INTO atlas.messages VALUES ('default', 'whole', 4, 117645610535129363, '01a1f60f-3954-7e6c-800a-35b50199b6eb', '01a1f60f-38f8-7e56-b4a7-7c73399bdd0f', '\x01232764c3338091a1871cbe898669660669bac696a626bae6a966c9ba16060689bac6a649a6068696964966a949183160696a6864696a6a6a6461425ac81627176516804a009410c612b2c664866c2d00');
INSERT INTO atlas.messages VALUES ('default', 'in a call', 1, 117645610536085277, '01a1f60f-3963-785c-9d79-d3b93083c178', '01a1f60f-3963-7cf9-a03e-3de02fb286fb', '\x0123312232527372f2914336d130cdcc204dd7d8d2cc58d7dcc23459d732c5dc5237c538c9d2d8c0c238d9d0dc0223ec2d4d0d8d2c4d4d4d8d2c2dd1a20100');
INSERT INTO atlas.messages VALUES ('default', 'in a call', 2, 117645610537646423, '01a1f60f-397a-7acb-a623-e4fe01792460', '01a1f60f-3963-7cf9-a03e-3de02fb286fb', '\x018dd4410a84300c85e11305d2c4a6e634435a1b7027baf6ee5a1864ca8878812cfeef9197656fe784c1820b3ab00a432aae60c81578aa489e6914cf9fd6fe3b3a2b2d40b7bb331eed3f50d7c16490ac643021863a78c5909406c13f4a8d8134c6c8444f44d704b71e6a2bebbcb487d2813d439d09df43ed07');
INSERT INTO atlas.messages VALUES ('default', 'in a keyed call', 1, 117645610538409715, '01a1f60f-3986-74e5-8f5c-9d5bda5b8871', '01a1f60f-3986-7c02-b654-c3f0e192bbc3', '\x0123312232527372f2914336d130cdcc204dd7d8d2c24cd7dc24d554d722cd3459d732c5342925d134c9c2c21c33ec2d4d0d8d2c4d4d4d8d8d4dd0a20100');
INSERT INTO atlas.messages VALUES ('default', 'in a keyed call', 2, 117645610539614707, '01a1f60f-3999-741d-a0f3-af29d69a0cd4', '01a1f60f-3986-7c02-b654-c3f0e192bbc3', '\x018dd4510a83300cc6f1130592a6a9e634a34d17f04d74b027ef3e0b43561ce205f2f0ff7de466d9bf7342cae4091d58c704836180922482b1e393349462fc68edbfa37b2fd3ab75ec96b7e7e3ed87ea38a90a43a40a199d217bd09a34a3d578c254a1a022c2c25748c708d79e6ab5659adb4be9c8aea9f688f7a9b60f');
INSERT INTO atlas.messages VALUES ('default', 'while speaking', 1, 117645610540697108, '01a1f60f-39a9-7b60-88d8-454f40fddb8c', '01a1f60f-39a9-7265-ad15-341df1dfbc2b', '\x0123312232527372f2914336d130cdcc204dd7d832d152d73cc9cc40d7c222c542d7c4d424cdc4202d2525c9221923ec2d4d0d8d2c4d4d4d8dcd2cd1a20100');
-- Data for Name: passages; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.passages OVERRIDING SYSTEM VALUE VALUES (1, 'acme', 'knowledge', 'd1', 'handbook', 'o637cc70f148057a1715bef4b62f1200970b4d4fa42319c68b3d17cbf5c45a99f od85283ba576a5af311c4c3d2f8b1bc93d7af3f87d7e7e5818eb23d19b152dbc7', 0, 'Lamps', 'A lamp gives light.', '1', 'lamp', '{0,0.600098,0.799805}', DEFAULT);
INSERT INTO atlas.passages OVERRIDING SYSTEM VALUE VALUES (2, 'acme', 'knowledge', 'd1', 'handbook', 'o637cc70f148057a1715bef4b62f1200970b4d4fa42319c68b3d17cbf5c45a99f od85283ba576a5af311c4c3d2f8b1bc93d7af3f87d7e7e5818eb23d19b152dbc7', 1, '', 'No vector.', '', 'lamp', NULL, DEFAULT);
-- Data for Name: records; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.records VALUES ('acme', 'user', 'ann', '\x7b7d', 1);
INSERT INTO atlas.records VALUES ('default', 'request', '67157810005c5c2d3305badb', '\x7b22646179223a22323032362d31312d3139222c2274657874223a227b5c2273797374656d5c223a5c226238653164646133616330616133383230616432393930625c222c5c22746f6f6c735c223a5b5b5c226c6f6f6b5c222c5c223032656239356335353666633933386331653830613635315c225d2c5b5c2277726974655c222c5c223464313939633831346533643033366532366362393163365c225d2c5b5c226163745c222c5c223131383065663665306336316462323163346331393934345c225d5d2c5c22746f6f6c5f63686f6963655c223a5c226175746f5c222c5c2273657474696e67735c223a7b5c2265787472615f626f64795c223a7b7d7d2c5c226f75747075745c223a5c225c227d227d', 1);
INSERT INTO atlas.records VALUES ('default', 'request', 'b8e1dda3ac0aa3820ad2990b', '\x7b22646179223a22323032362d31312d3139222c2274657874223a22227d', 1);
INSERT INTO atlas.records VALUES ('default', 'request', '02eb95c556fc938c1e80a651', '\x7b22646179223a22323032362d31312d3139222c2274657874223a227b5c226e616d655c223a5c226c6f6f6b5c222c5c226465736372697074696f6e5c223a5c224c6f6f6b2e5c222c5c22706172616d65746572735c223a7b5c226164646974696f6e616c50726f706572746965735c223a66616c73652c5c2270726f706572746965735c223a7b5c226e5c223a7b5c22747970655c223a5c22696e74656765725c227d7d2c5c2272657175697265645c223a5b5c226e5c225d2c5c22747970655c223a5c226f626a6563745c227d7d227d', 1);
INSERT INTO atlas.records VALUES ('default', 'request', '4d199c814e3d036e26cb91c6', '\x7b22646179223a22323032362d31312d3139222c2274657874223a227b5c226e616d655c223a5c2277726974655c222c5c226465736372697074696f6e5c223a5c22577269746520756e6465722061206b65792e5c222c5c22706172616d65746572735c223a7b5c226164646974696f6e616c50726f706572746965735c223a66616c73652c5c2270726f706572746965735c223a7b5c226e5c223a7b5c22747970655c223a5c22696e74656765725c227d7d2c5c2272657175697265645c223a5b5c226e5c225d2c5c22747970655c223a5c226f626a6563745c227d7d227d', 1);
INSERT INTO atlas.records VALUES ('default', 'request', '1180ef6e0c61db21c4c19944', '\x7b22646179223a22323032362d31312d3139222c2274657874223a227b5c226e616d655c223a5c226163745c222c5c226465736372697074696f6e5c223a5c224163742e5c222c5c22706172616d65746572735c223a7b5c226164646974696f6e616c50726f706572746965735c223a66616c73652c5c2270726f706572746965735c223a7b5c226e5c223a7b5c22747970655c223a5c22696e74656765725c227d7d2c5c2272657175697265645c223a5b5c226e5c225d2c5c22747970655c223a5c226f626a6563745c227d7d227d', 1);
-- Data for Name: runs; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.runs VALUES ('acme', 'r1', 's', 1, 'a', 'running', 0, 'ann', 'key', 'print', '\x7b22736179223a226869227d', NULL, 1795129555103, NULL, 2, 1795129555103, true, 1, false);
INSERT INTO atlas.runs VALUES ('default', '01a1f60f-38f8-7e56-b4a7-7c73399bdd0f', 'whole', 1, 'a', 'done', 1, '', '', '', '\x01c39781088570466a4e4e3e7230271aa69919a4e91a5ba459e89a27a6a5e95a1a1958e89a19199ba4a618a7181825a6604484a5a9a191a5a9a9a9a1a5115a9cd0a8c40000', NULL, 1795129555203, 1795129555284, 0, 1795129555203, true, 1, false);
INSERT INTO atlas.runs VALUES ('default', '01a1f60f-3963-7cf9-a03e-3de02fb286fb', 'in a call', 1, 'a', 'running', 1, '', '', '', '\x01c39781088570466a4e4e3e7230271aa69919a4e91a5b9a19eb9a5b9826eb5aa6985beaa61827591a1b5818271b9a5b604484a5a9a191a5a9a9a991a5255a9cd0a8c40000', NULL, 1795129555303, NULL, 0, 1795129555303, true, 1, false);
INSERT INTO atlas.runs VALUES ('default', '01a1f60f-3986-7c02-b654-c3f0e192bbc3', 'in a keyed call', 1, 'a', 'running', 1, '', '', '', '\x01c39781088570466a4e4e3e7230271aa69919a4e91a5b5a98e99a9ba49aea5aa49926eb5aa69826a5249a26595898634684a5a9a191a5a9a9a9b1b1095a9cd0a8c40000', NULL, 1795129555336, NULL, 0, 1795129555336, true, 1, false);
INSERT INTO atlas.runs VALUES ('default', '01a1f60f-39a9-7265-ad15-341df1dfbc2b', 'while speaking', 1, 'a', 'running', 1, '', '', '', '\x01c39781088570466a4e4e3e7230271aa69919a4e91a5b265aea9a279919e85a58a458e89a989aa49918a4a5a4245924634484a5a9a191a5a9a9a9b199255a9cd0a8c40000', NULL, 1795129555375, NULL, 0, 1795129555375, true, 1, false);
-- Data for Name: schema_versions; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.schema_versions VALUES (1, '90a8254c0514580a');
-- Data for Name: search_sessions; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.search_sessions VALUES ('acme', 's', 'label', 1, 1);
INSERT INTO atlas.search_sessions VALUES ('acme', '@ann/notes', 'Notes', 0, 0);
INSERT INTO atlas.search_sessions VALUES ('default', 'whole', '', 4, 1);
INSERT INTO atlas.search_sessions VALUES ('default', 'in a call', '', 2, 1);
INSERT INTO atlas.search_sessions VALUES ('default', 'in a keyed call', '', 2, 1);
INSERT INTO atlas.search_sessions VALUES ('default', 'while speaking', '', 1, 1);
-- Data for Name: search_texts; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.search_texts OVERRIDING SYSTEM VALUE VALUES (3, 'acme', 's', 0, '''label''');
INSERT INTO atlas.search_texts OVERRIDING SYSTEM VALUE VALUES (4, 'acme', '@ann/notes', 0, '''notes''');
INSERT INTO atlas.search_texts OVERRIDING SYSTEM VALUE VALUES (5, 'default', 'whole', 1, '''hello''');
INSERT INTO atlas.search_texts OVERRIDING SYSTEM VALUE VALUES (6, 'default', 'whole', 4, '''whole''');
INSERT INTO atlas.search_texts OVERRIDING SYSTEM VALUE VALUES (7, 'default', 'in a call', 1, '''hello''');
INSERT INTO atlas.search_texts OVERRIDING SYSTEM VALUE VALUES (8, 'default', 'in a keyed call', 1, '''hello''');
INSERT INTO atlas.search_texts OVERRIDING SYSTEM VALUE VALUES (9, 'default', 'while speaking', 1, '''hello''');
-- Data for Name: sessions; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.sessions VALUES ('acme', 's', 'a', 'label', false, '\x7b226b223a5b312c22c3bc225d7d', 1795129555103, 1795129555103, 1, 1, DEFAULT);
INSERT INTO atlas.sessions VALUES ('acme', '@ann/notes', 'a', 'Notes', false, '\x7b226272616e6368223a7b22726f6f74223a2273227d7d', 1795129555103, 1795129555104, 0, 0, DEFAULT);
INSERT INTO atlas.sessions VALUES ('default', 'whole', '', '', false, '\x7b7d', 1795129555203, 1795129555203, 4, 1, DEFAULT);
INSERT INTO atlas.sessions VALUES ('default', 'in a call', '', '', false, '\x7b7d', 1795129555303, 1795129555303, 2, 1, DEFAULT);
INSERT INTO atlas.sessions VALUES ('default', 'in a keyed call', '', '', false, '\x7b7d', 1795129555336, 1795129555336, 2, 1, DEFAULT);
INSERT INTO atlas.sessions VALUES ('default', 'while speaking', '', '', false, '\x7b7d', 1795129555375, 1795129555375, 1, 1, DEFAULT);
-- Data for Name: tool_days; Type: TABLE DATA; Schema: atlas; Owner: -
-- Data for Name: usage_closed; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.usage_closed VALUES ('acme', '2026-01-02', true);
INSERT INTO atlas.usage_closed VALUES ('acme', '2026-11-15', true);
-- Data for Name: usage_days; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.usage_days VALUES ('acme', '2026-01-02', '@ann/', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, 7);
INSERT INTO atlas.usage_days VALUES ('acme', '2026-11-15', '', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, -7);
-- Data for Name: usage_session_days; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.usage_session_days VALUES ('acme', '@ann/notes', '2026-01-02', 3);
INSERT INTO atlas.usage_session_days VALUES ('acme', 's', '2026-11-15', 3);
-- Data for Name: usage_sessions; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.usage_sessions VALUES ('acme', '@ann/notes', '2026-01-02', '2026-01-02', 3, DEFAULT);
INSERT INTO atlas.usage_sessions VALUES ('acme', 's', '2026-11-15', '2026-11-15', 3, DEFAULT);
-- Data for Name: usage_sums; Type: TABLE DATA; Schema: atlas; Owner: -
INSERT INTO atlas.usage_sums VALUES ('acme', '2026-11-15', 's', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, -7, DEFAULT);
INSERT INTO atlas.usage_sums VALUES ('acme', '2026-01-02', '@ann/notes', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, 7, DEFAULT);
INSERT INTO atlas.usage_sums VALUES ('default', '2026-11-19', 'whole', 'a', 'scripted', 4, 1, 0, 0, 1, 0, 0, 0, DEFAULT);
INSERT INTO atlas.usage_sums VALUES ('default', '2026-11-19', 'in a call', 'a', 'scripted', 1, 0, 0, 0, 1, 0, 0, 0, DEFAULT);
INSERT INTO atlas.usage_sums VALUES ('default', '2026-11-19', 'in a keyed call', 'a', 'scripted', 1, 0, 0, 0, 1, 0, 0, 0, DEFAULT);
SELECT pg_catalog.setval('atlas.passages_id_seq', 2, true);
SELECT pg_catalog.setval('atlas.search_texts_id_seq', 9, true);
ALTER TABLE ONLY atlas.approvals
    ADD CONSTRAINT approvals_pkey PRIMARY KEY (tenant, id);
ALTER TABLE ONLY atlas.audit_blocks
    ADD CONSTRAINT audit_blocks_pkey PRIMARY KEY (tenant, block);
ALTER TABLE ONLY atlas.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (tenant, seq);
ALTER TABLE ONLY atlas.audit_values
    ADD CONSTRAINT audit_values_pkey PRIMARY KEY (tenant, field, value, block);
ALTER TABLE ONLY atlas.budgets
    ADD CONSTRAINT budgets_pkey PRIMARY KEY (tenant, key, period, run_id);
ALTER TABLE ONLY atlas.commit_tokens
    ADD CONSTRAINT commit_tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY atlas.counters
    ADD CONSTRAINT counters_pkey PRIMARY KEY (tenant, agent_id, day);
ALTER TABLE ONLY atlas.derived_positions
    ADD CONSTRAINT derived_positions_pkey PRIMARY KEY (tenant, name);
ALTER TABLE ONLY atlas.documents
    ADD CONSTRAINT documents_pkey PRIMARY KEY (tenant, kind, id);
ALTER TABLE ONLY atlas.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (tenant, run_id, seq);
ALTER TABLE ONLY atlas.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (tenant, id);
ALTER TABLE ONLY atlas.jobs
    ADD CONSTRAINT jobs_tenant_seq_key UNIQUE (tenant, seq);
ALTER TABLE ONLY atlas.journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (tenant, run_id, seq);
ALTER TABLE ONLY atlas.last_turns
    ADD CONSTRAINT last_turns_pkey PRIMARY KEY (tenant, agent_id, user_id);
ALTER TABLE ONLY atlas.libraries
    ADD CONSTRAINT libraries_pkey PRIMARY KEY (tenant, kind, model);
ALTER TABLE ONLY atlas.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (tenant, session, seq);
ALTER TABLE ONLY atlas.passages
    ADD CONSTRAINT passages_pkey PRIMARY KEY (id);
ALTER TABLE ONLY atlas.records
    ADD CONSTRAINT records_pkey PRIMARY KEY (tenant, kind, key);
ALTER TABLE ONLY atlas.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (tenant, id);
ALTER TABLE ONLY atlas.runs
    ADD CONSTRAINT runs_tenant_session_place_key UNIQUE (tenant, session, place);
ALTER TABLE ONLY atlas.schema_versions
    ADD CONSTRAINT schema_versions_pkey PRIMARY KEY (version);
ALTER TABLE ONLY atlas.search_sessions
    ADD CONSTRAINT search_sessions_pkey PRIMARY KEY (tenant, session);
ALTER TABLE ONLY atlas.search_texts
    ADD CONSTRAINT search_texts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY atlas.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (tenant, key);
ALTER TABLE ONLY atlas.tool_days
    ADD CONSTRAINT tool_days_pkey PRIMARY KEY (tenant, day, tool);
ALTER TABLE ONLY atlas.usage_closed
    ADD CONSTRAINT usage_closed_pkey PRIMARY KEY (tenant, day);
ALTER TABLE ONLY atlas.usage_days
    ADD CONSTRAINT usage_days_pkey PRIMARY KEY (tenant, day, owner, agent_id, model);
ALTER TABLE ONLY atlas.usage_session_days
    ADD CONSTRAINT usage_session_days_pkey PRIMARY KEY (tenant, session, day);
ALTER TABLE ONLY atlas.usage_sessions
    ADD CONSTRAINT usage_sessions_pkey PRIMARY KEY (tenant, session);
ALTER TABLE ONLY atlas.usage_sums
    ADD CONSTRAINT usage_sums_pkey PRIMARY KEY (tenant, day, session, agent_id, model);
CREATE INDEX approvals_granting ON atlas.approvals USING btree (tenant, grants) WHERE (grants <> ''::text);
CREATE INDEX approvals_of_session ON atlas.approvals USING btree (tenant, session);
CREATE INDEX approvals_pending ON atlas.approvals USING btree (tenant, run_id) WHERE (answer IS NULL);
CREATE INDEX budgets_of_run ON atlas.budgets USING btree (tenant, run_id) WHERE (run_id <> ''::text);
CREATE INDEX documents_by_time ON atlas.documents USING btree (tenant, kind, created_at, id);
CREATE INDEX documents_of_collection ON atlas.documents USING btree (tenant, kind, collection, id);
CREATE INDEX documents_of_collection_by_time ON atlas.documents USING btree (tenant, kind, collection, created_at, id);
CREATE INDEX jobs_due ON atlas.jobs USING btree (tenant, priority, due_at, seq) WHERE (state = 'queued'::text);
CREATE INDEX jobs_expiring ON atlas.jobs USING btree (tenant, deadline) WHERE ((state = 'queued'::text) AND (deadline IS NOT NULL));
CREATE INDEX jobs_in_state ON atlas.jobs USING btree (tenant, state, seq);
CREATE INDEX jobs_of_owner ON atlas.jobs USING btree (tenant, owner, seq) WHERE (owner <> ''::text);
CREATE INDEX jobs_of_owner_in_state ON atlas.jobs USING btree (tenant, owner, state, seq) WHERE (owner <> ''::text);
CREATE INDEX jobs_of_parent ON atlas.jobs USING btree (tenant, parent, seq) WHERE (parent <> ''::text);
CREATE INDEX jobs_of_root ON atlas.jobs USING btree (tenant, root) WHERE (root <> ''::text);
CREATE INDEX jobs_unreported ON atlas.jobs USING btree (tenant, notified) WHERE ((notified = false) AND (state <> ALL (ARRAY['queued'::text, 'running'::text])));
CREATE INDEX messages_numbered ON atlas.messages USING btree (id_number);
CREATE INDEX nearest_26dac3b3fb289c55ca85342e ON atlas.passages USING hnsw (((vector)::public.vector(3)) public.vector_cosine_ops) WHERE ((model = 'lamp'::text) AND (vector IS NOT NULL));
CREATE UNIQUE INDEX passages_of_document ON atlas.passages USING btree (tenant, kind, document, place);
CREATE INDEX passages_with_vectors ON atlas.passages USING btree (tenant, kind, model, id) WHERE (vector IS NOT NULL);
CREATE INDEX passages_words ON atlas.passages USING gin (words);
CREATE INDEX records_of_tenants ON atlas.records USING btree (tenant) WHERE (kind = 'tenant'::text);
CREATE UNIQUE INDEX runs_accepted ON atlas.runs USING btree (tenant, session, idempotency_key) WHERE (idempotency_key <> ''::text);
CREATE INDEX runs_by_last_event ON atlas.runs USING btree (tenant, last_event_at) WHERE ((last_event_at IS NOT NULL) AND (ended_at IS NOT NULL));
CREATE INDEX runs_journaled ON atlas.runs USING btree (tenant, ended_at) WHERE (journaled AND (ended_at IS NOT NULL));
CREATE INDEX runs_open ON atlas.runs USING btree (tenant, session, place) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text, 'waiting'::text]));
CREATE UNIQUE INDEX search_texts_of_session ON atlas.search_texts USING btree (tenant, session, seq);
CREATE INDEX search_texts_words ON atlas.search_texts USING gin (words);
CREATE INDEX sessions_archived ON atlas.sessions USING btree (tenant, updated_at, key) WHERE archived;
CREATE INDEX sessions_branched ON atlas.sessions USING btree (tenant, updated_at, key) WHERE (POSITION(('\x226272616e6368223a7b'::bytea) IN (metadata)) > 0);
CREATE INDEX sessions_changed ON atlas.sessions USING btree (tenant, updated_at);
CREATE INDEX sessions_of_owner ON atlas.sessions USING btree (tenant, owner, updated_at, key) WHERE (owner <> ''::text);
CREATE INDEX usage_sessions_by_tokens ON atlas.usage_sessions USING btree (tenant, tokens DESC, session, first_day, last_day);
CREATE INDEX usage_sessions_of_owner ON atlas.usage_sessions USING btree (tenant, owner, tokens DESC, session) WHERE (owner <> ''::text);
CREATE TRIGGER search_message_removed AFTER DELETE ON atlas.messages FOR EACH ROW EXECUTE FUNCTION atlas.forget_search_texts('message removed');
CREATE TRIGGER search_message_replaced AFTER UPDATE OF body ON atlas.messages FOR EACH ROW EXECUTE FUNCTION atlas.forget_search_texts('message replaced');
CREATE TRIGGER search_session_removed AFTER DELETE ON atlas.sessions FOR EACH ROW EXECUTE FUNCTION atlas.forget_search_texts('session removed');
CREATE TRIGGER usage_changed AFTER INSERT OR UPDATE ON atlas.usage_sums FOR EACH ROW EXECUTE FUNCTION atlas.reopen_usage_day();
