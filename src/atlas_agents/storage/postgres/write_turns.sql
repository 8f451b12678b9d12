-- Writes a group of commits of turns; see `pipelined.py`, which makes the argument and reads the answer.
--
-- Each table is written once for all commits, in a fixed order. Everything that the steps of `sql/writes.py` would read
-- and check is checked here. If anything is not as expected, the function fails, and the group is written step by step.
-- All rows are found through indexes. The planner is not asked: it plans once, when the tables may be almost empty.
--
-- A changed function gets a new name, so that processes of two versions can use one database.

CREATE FUNCTION write_turns(given JSONB) RETURNS TEXT LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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

-- Appends entries to an unsigned audit log and returns its end before. It is sent with the COMMIT, so the end of the
-- chain is locked for as long as the server needs to write.

CREATE FUNCTION chain_audit(of_tenant TEXT, chain BIGINT, entries JSONB) RETURNS TEXT LANGUAGE plpgsql
SET enable_seqscan = off AS $$
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
