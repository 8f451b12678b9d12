PRAGMA application_id = 1096043603;
PRAGMA user_version = 1;
CREATE TABLE schema_versions (version INTEGER PRIMARY KEY, checksum TEXT NOT NULL);
CREATE TABLE sessions (
    tenant TEXT NOT NULL, key TEXT NOT NULL, agent_id TEXT NOT NULL, label TEXT NOT NULL, archived INTEGER NOT NULL,
    metadata BLOB NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    last_message INTEGER NOT NULL DEFAULT 0, last_run INTEGER NOT NULL DEFAULT 0,
    owner TEXT GENERATED ALWAYS AS (
        CASE WHEN substr(key, 1, 1) = '@' THEN substr(key, 1, instr(key, '/')) ELSE '' END) VIRTUAL,
    PRIMARY KEY (tenant, key));
CREATE TABLE messages (
    tenant TEXT NOT NULL, session TEXT NOT NULL, seq INTEGER NOT NULL, id_number INTEGER NOT NULL, id TEXT NOT NULL,
    run_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (tenant, session, seq));
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, session TEXT NOT NULL, place INTEGER NOT NULL,
    agent_id TEXT NOT NULL, status TEXT NOT NULL, epoch INTEGER NOT NULL, user_id TEXT NOT NULL,
    idempotency_key TEXT NOT NULL, fingerprint TEXT NOT NULL, request BLOB NOT NULL, error TEXT,
    created_at INTEGER NOT NULL, ended_at INTEGER, events INTEGER NOT NULL, last_event_at INTEGER,
    journaled INTEGER NOT NULL DEFAULT TRUE, urgency INTEGER NOT NULL, stop INTEGER NOT NULL,
    UNIQUE (tenant, id), UNIQUE (tenant, session, place));
CREATE TABLE journal_rows (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, at INTEGER NOT NULL, hash TEXT NOT NULL,
    payload BLOB NOT NULL);
CREATE TABLE event_rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE audit (
    tenant TEXT NOT NULL, seq INTEGER NOT NULL, entry BLOB NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    PRIMARY KEY (tenant, seq));
CREATE TABLE counters (
    tenant TEXT NOT NULL, agent_id TEXT NOT NULL, day TEXT NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (tenant, agent_id, day));
CREATE TABLE budgets (
    tenant TEXT NOT NULL, key TEXT NOT NULL, period TEXT NOT NULL, run_id TEXT NOT NULL, tokens INTEGER NOT NULL,
    requests INTEGER NOT NULL, tool_calls INTEGER NOT NULL, cost_microcents INTEGER NOT NULL,
    milliseconds INTEGER NOT NULL, expires_at INTEGER, PRIMARY KEY (tenant, key, period, run_id));
CREATE TABLE approvals (
    tenant TEXT NOT NULL, id TEXT NOT NULL, run_id TEXT NOT NULL, session TEXT NOT NULL, call_id TEXT NOT NULL,
    binding TEXT NOT NULL, question BLOB NOT NULL, expires_at INTEGER NOT NULL, created_at INTEGER NOT NULL,
    answer BLOB, answered_at INTEGER, grants TEXT NOT NULL, PRIMARY KEY (tenant, id));
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
CREATE TABLE records (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, key));
CREATE TABLE documents (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, collection TEXT NOT NULL, source TEXT NOT NULL,
    title TEXT NOT NULL, hash TEXT NOT NULL, model TEXT NOT NULL, about BLOB NOT NULL, passages INTEGER NOT NULL,
    created_at INTEGER NOT NULL, PRIMARY KEY (tenant, kind, id));
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, kind TEXT NOT NULL, document TEXT NOT NULL,
    collection TEXT NOT NULL, owners TEXT NOT NULL, place INTEGER NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL,
    position TEXT NOT NULL, model TEXT NOT NULL, vector BLOB);
CREATE VIRTUAL TABLE passage_words USING fts5 (
    owners, heading, text, content='passages', content_rowid='id', tokenize='porter unicode61 remove_diacritics 2');
CREATE TABLE libraries (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, version INTEGER NOT NULL, vectors INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, model));
CREATE TABLE derived_positions (
    tenant TEXT NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (tenant, name));
CREATE TABLE search_sessions (
    tenant TEXT NOT NULL, session TEXT NOT NULL, label TEXT NOT NULL, message INTEGER NOT NULL, run INTEGER NOT NULL,
    PRIMARY KEY (tenant, session));
CREATE TABLE search_texts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, session TEXT NOT NULL, owners TEXT NOT NULL,
    seq INTEGER NOT NULL, text TEXT NOT NULL);
CREATE VIRTUAL TABLE session_words USING fts5 (
    owners, text, content='search_texts', content_rowid='id', detail='column',
    tokenize='unicode61 remove_diacritics 0');
CREATE TABLE last_turns (
    tenant TEXT NOT NULL, agent_id TEXT NOT NULL, user_id TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (tenant, agent_id, user_id));
CREATE TABLE audit_blocks (
    tenant TEXT NOT NULL, block INTEGER NOT NULL, first_at INTEGER NOT NULL, last_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, block));
CREATE TABLE audit_values (
    tenant TEXT NOT NULL, field TEXT NOT NULL, value TEXT NOT NULL, block INTEGER NOT NULL,
    PRIMARY KEY (tenant, field, value, block)) WITHOUT ROWID;
CREATE TABLE tool_days (
    tenant TEXT NOT NULL, day TEXT NOT NULL, tool TEXT NOT NULL, calls INTEGER NOT NULL, failed INTEGER NOT NULL,
    milliseconds REAL NOT NULL, PRIMARY KEY (tenant, day, tool));
CREATE TABLE usage_days (
    tenant TEXT NOT NULL, day TEXT NOT NULL, owner TEXT NOT NULL, agent_id TEXT NOT NULL, model TEXT NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    cost_microcents INTEGER NOT NULL, turns INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL, saved_microcents INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, owner, agent_id, model));
CREATE TABLE usage_closed (
    tenant TEXT NOT NULL, day TEXT NOT NULL, complete INTEGER NOT NULL, PRIMARY KEY (tenant, day));
CREATE TABLE usage_session_days (
    tenant TEXT NOT NULL, session TEXT NOT NULL, day TEXT NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (tenant, session, day)) WITHOUT ROWID;
CREATE TABLE usage_sessions (
    tenant TEXT NOT NULL, session TEXT NOT NULL, first_day TEXT NOT NULL, last_day TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    owner TEXT GENERATED ALWAYS AS (
        CASE WHEN substr(session, 1, 1) = '@' THEN substr(session, 1, instr(session, '/')) ELSE '' END) VIRTUAL,
    PRIMARY KEY (tenant, session)) WITHOUT ROWID;
INSERT INTO schema_versions (version, checksum) VALUES (1, '3089b0ea8eb1d666');
INSERT INTO sessions (tenant, key, agent_id, label, archived, metadata, created_at, updated_at, last_message, last_run) VALUES ('acme', 's', 'a', 'label', 0, X'7B226B223A5B312C22C3BC225D7D', 1795129553371, 1795129553371, 1, 1);
INSERT INTO sessions (tenant, key, agent_id, label, archived, metadata, created_at, updated_at, last_message, last_run) VALUES ('acme', '@ann/notes', 'a', 'Notes', 0, X'7B226272616E6368223A7B22726F6F74223A2273227D7D', 1795129553371, 1795129553372, 0, 0);
INSERT INTO sessions (tenant, key, agent_id, label, archived, metadata, created_at, updated_at, last_message, last_run) VALUES ('default', 'whole', '', '', 0, X'7B7D', 1795129553851, 1795129553851, 4, 1);
INSERT INTO sessions (tenant, key, agent_id, label, archived, metadata, created_at, updated_at, last_message, last_run) VALUES ('default', 'in a call', '', '', 0, X'7B7D', 1795129553898, 1795129553898, 2, 1);
INSERT INTO sessions (tenant, key, agent_id, label, archived, metadata, created_at, updated_at, last_message, last_run) VALUES ('default', 'in a keyed call', '', '', 0, X'7B7D', 1795129553911, 1795129553911, 2, 1);
INSERT INTO sessions (tenant, key, agent_id, label, archived, metadata, created_at, updated_at, last_message, last_run) VALUES ('default', 'while speaking', '', '', 0, X'7B7D', 1795129553967, 1795129553967, 1, 1);
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('acme', 's', 1, 5956738442260666920, 'm1', 'r1', X'7B22726F6C65223A2275736572227D');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'whole', 1, 117645610440400364, '01a1f60f-33af-7e62-9913-f9d690103caa', '01a1f60f-33af-7290-9f83-08d3cbc731e5', X'0123312232527372F2914336D130CDCC204DD7D838314DD73CD5CC48D7D2D2D05837CD32C5CCD2C0D0C03839311123EC2D4D0D8D2C4D4D8D2D8C2DD1A20100');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'whole', 2, 117645610442622037, '01a1f60f-33d1-75aa-9998-a7db3a2aa69c', '01a1f60f-33af-7290-9f83-08d3cbc731e5', X'018D94610AC3200C464F14308634E63423D50A8342C7FADBBB4F4729950DE90502DF7B8FDC24FB37278786797219882C837875A03910B89028CE5108177E34F64774EBF60DBA0BAFD2C37231755E4C08C266A0AA014CD24CE6CD268D3F2E95D12B3305A191A3B3C1BD37B5C7F7F3D53E4A676C6CAA32BC69AA8E2B1F');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'whole', 3, 117645610440441878, '01a1f60f-33af-7290-9f83-08d3cbc731e5.2', '01a1f60f-33af-7290-9f83-08d3cbc731e5', X'01233BE2C149C0C030D130CDCC204DD7D838314DD7DCC8D240D732CDC258D7C022C5383929D9DCD830D5341E14FA3892744E7E7EB682A19502387F22C5176153F58C30E2D4D2D4D0C8D2D4D4D8C2D298503E21D2DD5696C07C0F00');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'whole', 4, 117645610444013775, '01a1f60f-33e6-7f8b-9dd4-0d8c68a746bd', '01a1f60f-33af-7290-9f83-08d3cbc731e5', X'01232764C3338091A1871CBE898669660669BAC6C6A966BAE6691649BA96292926BA062916C9661689E626664929183160696A6864696A6A6C6169425AC81627176516804A009410C612B2C664866C2D00');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'in a call', 1, 117645610444233246, '01a1f60f-33e9-77c5-b72b-a39ada92e67f', '01a1f60f-33e9-78c2-a660-8037cf2b9354', X'0123312232527372F2914336D130CDCC204DD7D838D552D7DC3CD95437C9DC284937D1D81218529646A966E66918616F696A6864696A6A6C61891E0D00');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'in a call', 2, 117645610444501038, '01a1f60f-33ed-7a02-ae10-5841f4a29b87', '01a1f60f-33e9-78c2-a660-8037cf2b9354', X'018D944B0AC3300C054F24D0C7B2ADD314C58921BBD2AC73F7DA50684C4A930B3CD0CCA09B647FE684E454235610590C522E0C1E23424649A5F264A2E1D1D97FA2F3D2010CDD3578BC1F447D0767488E6D702104CD816A70B629A7934A53625315C376E185C79EE0368ADACA6B7DF6873208FB2FAA21BC2F6A7F03');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'in a keyed call', 1, 117645610444608112, '01a1f60f-33ef-70e7-ba22-465db36872e5', '01a1f60f-33ef-7fd0-a7ff-1a06259ed333', X'0123312232527372F2914336D130CDCC204DD7D838354DD7DC20D55C3729D1C848D7C4CC3425C9D8CCC2DC28D51423EC2D4D0D8D2C4D4D8D2D0D8CD1A20100');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'in a keyed call', 2, 117645610446582622, '01a1f60f-340d-7578-a0b1-231d96d92153', '01a1f60f-33ef-7fd0-a7ff-1a06259ed333', X'018D94410A02310C454F1448FA4D6B4E23D54C60763223B8F2EEB6A0625186B9C05FBCF7F83BC9FECD89A54A640E02A6A012CE544B0449E59CD4260770EAEC5FD1DD97F9D6390EE5357C787CA97A4F1ED8A9683952E5B35082B865B7248A1F99A6924C15066C49FA44B88EAAD6CB325FFBA50CCAB65535883B5549BB8E27');
INSERT INTO messages (tenant, session, seq, id_number, id, run_id, body) VALUES ('default', 'while speaking', 1, 117645610448682532, '01a1f60f-342d-70bb-b42c-f4aeef4e12ac', '01a1f60f-342d-7bce-aa9d-433885ed5580', X'0123312232527372F2914336D130CDCC204DD7D8C42845D7DC20294937C9C4285937CD24313535CD24D5D028311923EC2D4D0D8D2C4D4D8D2DCD4CD1A20100');
INSERT INTO runs (number, tenant, id, session, place, agent_id, status, epoch, user_id, idempotency_key, fingerprint, request, error, created_at, ended_at, events, last_event_at, journaled, urgency, stop) VALUES (1, 'acme', 'r1', 's', 1, 'a', 'running', 0, 'ann', 'key', 'print', X'7B22736179223A226869227D', NULL, 1795129553371, NULL, 2, 1795129553371, 1, 1, 0);
INSERT INTO runs (number, tenant, id, session, place, agent_id, status, epoch, user_id, idempotency_key, fingerprint, request, error, created_at, ended_at, events, last_event_at, journaled, urgency, stop) VALUES (2, 'default', '01a1f60f-33af-7290-9f83-08d3cbc731e5', 'whole', 1, 'a', 'done', 1, '', '', '', X'01C39781088570466A4E4E3E7230271AA69919A4E91A1B27A6E99AA79A19E95A5A1A1AEBA659A698591A181A18272726624484A5A9A191A5A9A9B185B1255A9CD0A8C40000', NULL, 1795129553851, 1795129553894, 0, NULL, 1, 1, 0);
INSERT INTO runs (number, tenant, id, session, place, agent_id, status, epoch, user_id, idempotency_key, fingerprint, request, error, created_at, ended_at, events, last_event_at, journaled, urgency, stop) VALUES (3, 'default', '01a1f60f-33e9-78c2-a660-8037cf2b9354', 'in a call', 1, 'a', 'running', 1, '', '', '', X'01C39781088570466A4E4E3E7230271AA69919A4E91A1BA75AEA9A9B279BEA26991B25E9261A5B0283CDD228D5CC3C0D23222C4D0D8D2C4D4D8D2D2CD1E38446250600', NULL, 1795129553898, NULL, 0, NULL, 1, 1, 0);
INSERT INTO runs (number, tenant, id, session, place, agent_id, status, epoch, user_id, idempotency_key, fingerprint, request, error, created_at, ended_at, events, last_event_at, journaled, urgency, stop) VALUES (4, 'default', '01a1f60f-33ef-7fd0-a7ff-1a06259ed333', 'in a keyed call', 1, 'a', 'running', 1, '', '', '', X'01C39781088570466A4E4E3E7230271AA69919A4E91A1BA7A6E99A1BA49AEB26251A19E99A9899A624199B59981BA59A624484A5A9A191A5A9A9B1A581315A9CD0A8C40000', NULL, 1795129553911, NULL, 0, NULL, 1, 1, 0);
INSERT INTO runs (number, tenant, id, session, place, agent_id, status, epoch, user_id, idempotency_key, fingerprint, request, error, created_at, ended_at, events, last_event_at, journaled, urgency, stop) VALUES (5, 'default', '01a1f60f-342d-7bce-aa9d-433885ed5580', 'while speaking', 1, 'a', 'running', 1, '', '', '', X'01C39781088570466A4E4E3E7230271AA69919A4E91A9B18A5E89A1B2425E926991825EBA69924A6A6A699A41A1A2526634484A5A9A191A5A9A9B1A599295A9CD0A8C40000', NULL, 1795129553967, NULL, 0, NULL, 1, 1, 0);
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (2147483649, 'accepted', '', 1795129553371, '8c53c7bfbc0c014fee0cf956dd590131d525926045d6f4e18b780a954c2ecca2', X'7B7D');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (4294967297, 'accepted', '', 1795129553851, 'f8ec5cbf5b34c4a9f43c93dbedb27664f0248bcac089352e44ee886ef0b2fd98', X'5B2230316131663630662D333361662D376536322D393931332D663964363930313033636161225D');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (4294967298, 'reply', '1', 1795129553884, '178d1d52c65d01e5d1ee6af3c3f746611a5daba0b1070a3790135c39c882bfb8', X'018D94510AC2300C404F54489AA5694E23696A411014F7EDDDED44C68A63EC024DF2DEA327C9EEE60468D812B440642D485408DA3205C895BCB8105EF9B2B0FF45777F7C831EC2EBF4F0BD31B5BE5831089B0555CDC1A416B26896D4FF5C2A635466CA42478ED606E7D1D4ECAFDB73F9510663C7A63AC393A6FA7183A924C8921100D8D96325022E564B9F8768712AEC29A94C687DA13DA91F');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (4294967299, 'intent', 'call_01a1f60f-33af-7290-9f83-08d3cbc731e5_1', 1795129553884, '4ad0e03d84469ef0689a49362097a5ed9383f23bb530b901fbabe592a02e3b9d', X'012390620C0C130DD3CC0CD2748D8D13D374CD8D2C0D742DD32C8C750D2C528C939392CD8D0D534DE341C10B4D5739F9E0348B92B6800164585B0B00');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (4294967300, 'outcome', 'call_01a1f60f-33af-7290-9f83-08d3cbc731e5_1', 1795129553892, '3a21cd0c01dd795169841695a9916287c092c8e2873e4cbd87fca1887938b0e2', X'012318C1E0A836304C344C333348D335364E4CD33537B234D0B54CB330D635B048314E4E4A3637364C358D0785328EA49B939F9FAD6068A500CE87B500');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (4294967301, 'reply', '2', 1795129553894, '0a315e7423d30d002cb3f26e6208379a74b2d14490b5f417166721b0981b7436', X'01ADD43B0E02310C04D0BB5093951D7F929C843AB1632D1D82FB4BEC7620B601718291DE68E617D9CBBA95B1BCFA760C8548445353893A5273E7045E4D6B2FACC33F1A6882B989506DFC9DECC3EED7DBFE006FC207B2F40F592D28A52200888965270219DDC73EA0989829783A19B1F4D3794B3C207E02');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (4294967302, 'ended', '', 1795129553894, '8a721394b8276f1dd033ecfc52e83a4904118e14b07ab4a84d6fe78acc9cf67e', X'0123339398E070756D2D00');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (6442450945, 'accepted', '', 1795129553898, '541f628bf7026124d268f5a342d3e4859167575e26514b39b8c7f4e5cae6675a', X'5B2230316131663630662D333365392D373763352D623732622D613339616461393265363766225D');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (6442450946, 'reply', '1', 1795129553902, '3726458c5a2dea8472d3bf0081d89d50195338997e0abde13f2e11dbdac03bee', X'019D945B0A02310C455754C8A3699AD5489A99827FE27CBB775B10747050710337C93997FC48F6B04E808EBD404FCCAB25AD41C94B815481353A3563C9A7C9FE513A8F0960D7BB018F6E2FA29E814B528711B82224A9197B76B256F54DA5099289B0C1B8F08BC759C16D2F6A8BEBF9321FCA4ED8675103E19FA28AA26845009090A08519A4F9D2C63C44A7DC244A31CDE863A123A777');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (6442450947, 'intent', 'call_01a1f60f-33e9-78c2-a660-8037cf2b9354_1', 1795129553902, '258b720cc7008dc0b7f8317b20de13f55f57641d797aabdae49d5f711a411d7e', X'012390620C0C130DD3CC0CD2748D8D532D75CD2D928D7413CDCC0C742D0C8CCD93D38C922C8D4D4DE241C10B4D5789C9203FA2242D60F818D5D60200');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (8589934593, 'accepted', '', 1795129553911, '48abb97436191cd4237324b42652b82f20311e8a7d14f0d1fc0a43f7cdf9efd2', X'5B2230316131663630662D333365662D373065372D626132322D343635646233363837326535225D');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (8589934594, 'reply', '1', 1795129553955, 'a97df07ae704a3e201d260f996f9fc13bbed97d33bf6973e9644755365c37ac0', X'018D94610AC2300C464F14C8D72CAD398DA4ED0AFB279BE02FEF6E072A4E65EC024DF2DEA307C9FECD89E168911B898C8D52AB4C9E5A2338C7A036561139AFEC9FD1DDE6E9BA72DC94D7F1C9FD43D5EBC9812B254D2772CEA020A816AB05A8FCC83445305531913D49EF0897ADAAA5CCD365FD5236CAF65575880755E14B554CE8578199B568099D116BF69AFB3CC0C390B5C4686980F785FE597D00');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (8589934595, 'intent', 'call_01a1f60f-33ef-7fd0-a7ff-1a06259ed333_1', 1795129553955, 'afdf8da161d39a8a55cf02ee6f2bc2e08a03fbaea8ceda215e76a3ff9df22c14', X'012390620C0C130DD3CC0CD2748D8D53D374CDD3520C7413CDD3D2740D130DCC8C4C2D53538C8D8DE341C10B4D57E5459925A0A042495CC01032AEAD0500');
INSERT INTO journal_rows (id, kind, key, at, hash, payload) VALUES (10737418241, 'accepted', '', 1795129553967, 'eda4c5b52a1c5be822e583d949d67f24d17c94db8ba4472e1690a230942fd0ae', X'5B2230316131663630662D333432642D373062622D623432632D663461656566346531326163225D');
INSERT INTO event_rows (id, body) VALUES (2147483649, X'7B2265223A317D');
INSERT INTO event_rows (id, body) VALUES (2147483650, X'7B2265223A327D');
INSERT INTO audit (tenant, seq, entry, previous, hash) VALUES ('acme', 1, X'7B226E223A317D', '', 'c3057ae2ad4eef2eaa8f0225aa6889050eebd3621fbc862a6427fea5637ce374');
INSERT INTO audit (tenant, seq, entry, previous, hash) VALUES ('default', 1, X'7B2274656E616E744964223A2264656661756C74222C226163746F7245787465726E616C4964223A2261222C22656E746974794964223A226C6F6F6B222C226C6576656C223A22696E666F222C226D657373616765223A224167656E7420612063616C6C6564206C6F6F6B3A2073756363657373222C2273756363657373223A747275652C226D657461223A7B22617267756D656E7473223A7B226E223A317D2C22726573756C74223A226C6F6F6B20313A20646F6E65222C226475726174696F6E5F6D73223A392E31382C226572726F72223A6E756C6C2C2272657472795F636F756E74223A302C22737461747573223A226F6B222C2272756E5F6964223A2230316131663630662D333361662D373239302D396638332D303864336362633733316535222C2263616C6C5F6964223A2263616C6C5F30316131663630662D333361662D373239302D396638332D3038643363626337333165355F31222C2276657264696374223A22796573222C2272756C65223A2274686520746F6F6C2077617320676976656E20746F20746865206167656E74222C22706F6C696379223A22222C22726F6C65223A22222C2275736572223A22222C226E65656473223A5B5D2C2261637473223A66616C73657D2C2274696D657374616D70223A313739353132393535333839322C226163746F7254797065223A226167656E74222C22616374696F6E223A22544F4F4C5F43414C4C222C22656E7469747954797065223A22746F6F6C227D', '', 'afb199b0b5d06ed38c17c5a34843f7a50726d32fbe5a5ba5e9a7c783352d5b33');
INSERT INTO counters (tenant, agent_id, day, used) VALUES ('acme', 'a', '2026-11-15', 1);
INSERT INTO budgets (tenant, key, period, run_id, tokens, requests, tool_calls, cost_microcents, milliseconds, expires_at) VALUES ('acme', 'day', '2026-11-15', 'r1', 5, 1, 0, 7, 0, NULL);
INSERT INTO approvals (tenant, id, run_id, session, call_id, binding, question, expires_at, created_at, answer, answered_at, grants) VALUES ('acme', 'p1', 'r1', 's', 'c1', 'b', X'7B2271223A317D', 99, 1, NULL, NULL, '');
INSERT INTO approvals (tenant, id, run_id, session, call_id, binding, question, expires_at, created_at, answer, answered_at, grants) VALUES ('acme', 'p0', 'r1', 's', 'c1', 'b', X'7B2271223A317D', 99, 1, X'796573', 2, 'b');
INSERT INTO usage_sums (tenant, day, session, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents) VALUES ('acme', '2026-11-15', 's', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, -7);
INSERT INTO usage_sums (tenant, day, session, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents) VALUES ('acme', '2026-01-02', '@ann/notes', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, 7);
INSERT INTO usage_sums (tenant, day, session, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents) VALUES ('default', '2026-11-19', 'whole', 'a', 'scripted', 4, 1, 0, 0, 1, 0, 0, 0);
INSERT INTO usage_sums (tenant, day, session, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents) VALUES ('default', '2026-11-19', 'in a call', 'a', 'scripted', 1, 0, 0, 0, 1, 0, 0, 0);
INSERT INTO usage_sums (tenant, day, session, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents) VALUES ('default', '2026-11-19', 'in a keyed call', 'a', 'scripted', 1, 0, 0, 0, 1, 0, 0, 0);
INSERT INTO jobs (tenant, id, kind, agent_id, task, session, state, priority, parent, root, chain, user_id, asker_run, asker_call, asker_session, asker_agent, due_at, deadline, attempts, allowed, epoch, result, error, notified, created_at, ended_at, seq, traceparent) VALUES ('acme', 'j1', 'delegation', 'b', 'write', 's/jobs/1', 'queued', 1, '', 'r1', '["a"]', '', 'r1', '', 's', 'a', 0, NULL, 0, 5, 0, NULL, NULL, 0, 1795129553371, NULL, 1, '');
INSERT INTO records (tenant, kind, key, body, version) VALUES ('acme', 'user', 'ann', X'7B7D', 1);
INSERT INTO records (tenant, kind, key, body, version) VALUES ('default', 'request', '67157810005c5c2d3305badb', X'7B22646179223A22323032362D31312D3139222C2274657874223A227B5C2273797374656D5C223A5C226238653164646133616330616133383230616432393930625C222C5C22746F6F6C735C223A5B5B5C226C6F6F6B5C222C5C223032656239356335353666633933386331653830613635315C225D2C5B5C2277726974655C222C5C223464313939633831346533643033366532366362393163365C225D2C5B5C226163745C222C5C223131383065663665306336316462323163346331393934345C225D5D2C5C22746F6F6C5F63686F6963655C223A5C226175746F5C222C5C2273657474696E67735C223A7B5C2265787472615F626F64795C223A7B7D7D2C5C226F75747075745C223A5C225C227D227D', 1);
INSERT INTO records (tenant, kind, key, body, version) VALUES ('default', 'request', 'b8e1dda3ac0aa3820ad2990b', X'7B22646179223A22323032362D31312D3139222C2274657874223A22227D', 1);
INSERT INTO records (tenant, kind, key, body, version) VALUES ('default', 'request', '02eb95c556fc938c1e80a651', X'7B22646179223A22323032362D31312D3139222C2274657874223A227B5C226E616D655C223A5C226C6F6F6B5C222C5C226465736372697074696F6E5C223A5C224C6F6F6B2E5C222C5C22706172616D65746572735C223A7B5C226164646974696F6E616C50726F706572746965735C223A66616C73652C5C2270726F706572746965735C223A7B5C226E5C223A7B5C22747970655C223A5C22696E74656765725C227D7D2C5C2272657175697265645C223A5B5C226E5C225D2C5C22747970655C223A5C226F626A6563745C227D7D227D', 1);
INSERT INTO records (tenant, kind, key, body, version) VALUES ('default', 'request', '4d199c814e3d036e26cb91c6', X'7B22646179223A22323032362D31312D3139222C2274657874223A227B5C226E616D655C223A5C2277726974655C222C5C226465736372697074696F6E5C223A5C22577269746520756E6465722061206B65792E5C222C5C22706172616D65746572735C223A7B5C226164646974696F6E616C50726F706572746965735C223A66616C73652C5C2270726F706572746965735C223A7B5C226E5C223A7B5C22747970655C223A5C22696E74656765725C227D7D2C5C2272657175697265645C223A5B5C226E5C225D2C5C22747970655C223A5C226F626A6563745C227D7D227D', 1);
INSERT INTO records (tenant, kind, key, body, version) VALUES ('default', 'request', '1180ef6e0c61db21c4c19944', X'7B22646179223A22323032362D31312D3139222C2274657874223A227B5C226E616D655C223A5C226163745C222C5C226465736372697074696F6E5C223A5C224163742E5C222C5C22706172616D65746572735C223A7B5C226164646974696F6E616C50726F706572746965735C223A66616C73652C5C2270726F706572746965735C223A7B5C226E5C223A7B5C22747970655C223A5C22696E74656765725C227D7D2C5C2272657175697265645C223A5B5C226E5C225D2C5C22747970655C223A5C226F626A6563745C227D7D227D', 1);
INSERT INTO documents (tenant, kind, id, collection, source, title, hash, model, about, passages, created_at) VALUES ('acme', 'knowledge', 'd1', 'handbook', '/lamps.md', 'Lamps', 'h', 'lamp', X'7B7D', 2, 1795129553371);
INSERT INTO passages (id, tenant, kind, document, collection, owners, place, heading, text, position, model, vector) VALUES (1, 'acme', 'knowledge', 'd1', 'handbook', 'o637cc70f148057a1715bef4b62f1200970b4d4fa42319c68b3d17cbf5c45a99f od85283ba576a5af311c4c3d2f8b1bc93d7af3f87d7e7e5818eb23d19b152dbc7', 0, 'Lamps', 'A lamp gives light.', '1', 'lamp', X'0000CD38663A');
INSERT INTO passages (id, tenant, kind, document, collection, owners, place, heading, text, position, model, vector) VALUES (2, 'acme', 'knowledge', 'd1', 'handbook', 'o637cc70f148057a1715bef4b62f1200970b4d4fa42319c68b3d17cbf5c45a99f od85283ba576a5af311c4c3d2f8b1bc93d7af3f87d7e7e5818eb23d19b152dbc7', 1, '', 'No vector.', '', 'lamp', NULL);
INSERT INTO libraries (tenant, kind, model, version, vectors) VALUES ('acme', 'knowledge', 'lamp', 1, 1);
INSERT INTO derived_positions (tenant, name, position) VALUES ('acme', 'sessions', 1795129553372);
INSERT INTO derived_positions (tenant, name, position) VALUES ('acme', 'audit', 0);
INSERT INTO derived_positions (tenant, name, position) VALUES ('default', 'sessions', 1795129553967);
INSERT INTO derived_positions (tenant, name, position) VALUES ('default', 'audit', 0);
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES ('acme', 's', 'label', 1, 1);
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES ('acme', '@ann/notes', 'Notes', 0, 0);
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES ('default', 'whole', '', 4, 1);
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES ('default', 'in a call', '', 2, 1);
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES ('default', 'in a keyed call', '', 2, 1);
INSERT INTO search_sessions (tenant, session, label, message, run) VALUES ('default', 'while speaking', '', 1, 1);
INSERT INTO search_texts (id, tenant, session, owners, seq, text) VALUES (1, 'acme', 's', 'odaff43a17f44a347246854433e281465c4cd47801af8ecbbb0f78de3de1d8f2f', 0, 'label');
INSERT INTO search_texts (id, tenant, session, owners, seq, text) VALUES (2, 'acme', '@ann/notes', 'odaff43a17f44a347246854433e281465c4cd47801af8ecbbb0f78de3de1d8f2f o5e9483f92198a54d1490ed8a6abed0c0e587e3198f34d476dd93c8d53fbb3ba0', 0, 'notes');
INSERT INTO search_texts (id, tenant, session, owners, seq, text) VALUES (3, 'default', 'whole', 'o7f0320da4c75ea7d8ccf7796fe767d9018d0ace4e9a04c35be690ef1046acf5b', 1, 'hello');
INSERT INTO search_texts (id, tenant, session, owners, seq, text) VALUES (4, 'default', 'whole', 'o7f0320da4c75ea7d8ccf7796fe767d9018d0ace4e9a04c35be690ef1046acf5b', 4, 'whole');
INSERT INTO search_texts (id, tenant, session, owners, seq, text) VALUES (5, 'default', 'in a call', 'o7f0320da4c75ea7d8ccf7796fe767d9018d0ace4e9a04c35be690ef1046acf5b', 1, 'hello');
INSERT INTO search_texts (id, tenant, session, owners, seq, text) VALUES (6, 'default', 'in a keyed call', 'o7f0320da4c75ea7d8ccf7796fe767d9018d0ace4e9a04c35be690ef1046acf5b', 1, 'hello');
INSERT INTO search_texts (id, tenant, session, owners, seq, text) VALUES (7, 'default', 'while speaking', 'o7f0320da4c75ea7d8ccf7796fe767d9018d0ace4e9a04c35be690ef1046acf5b', 1, 'hello');
INSERT INTO last_turns (tenant, agent_id, user_id, at) VALUES ('acme', 'a', 'ann', 1795129553371);
INSERT INTO last_turns (tenant, agent_id, user_id, at) VALUES ('default', 'a', '', 1795129553967);
INSERT INTO usage_days (tenant, day, owner, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents) VALUES ('acme', '2026-01-02', '@ann/', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, 7);
INSERT INTO usage_days (tenant, day, owner, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns, cache_write_tokens, reasoning_tokens, saved_microcents) VALUES ('acme', '2026-11-15', '', 'a', 'm', 1, 2, 3, 4, 1, 5, 6, -7);
INSERT INTO usage_closed (tenant, day, complete) VALUES ('acme', '2026-01-02', 1);
INSERT INTO usage_closed (tenant, day, complete) VALUES ('acme', '2026-11-15', 1);
INSERT INTO usage_session_days (tenant, session, day, tokens) VALUES ('acme', '@ann/notes', '2026-01-02', 3);
INSERT INTO usage_session_days (tenant, session, day, tokens) VALUES ('acme', 's', '2026-11-15', 3);
INSERT INTO usage_sessions (tenant, session, first_day, last_day, tokens) VALUES ('acme', '@ann/notes', '2026-01-02', '2026-01-02', 3);
INSERT INTO usage_sessions (tenant, session, first_day, last_day, tokens) VALUES ('acme', 's', '2026-11-15', '2026-11-15', 3);
INSERT INTO passage_words (passage_words) VALUES ('rebuild');
INSERT INTO session_words (session_words) VALUES ('rebuild');
CREATE INDEX sessions_changed ON sessions (tenant, updated_at);
CREATE INDEX sessions_of_owner ON sessions (tenant, owner, updated_at, key) WHERE owner <> '';
CREATE INDEX sessions_archived ON sessions (tenant, updated_at, key) WHERE archived;
CREATE INDEX sessions_branched ON sessions (tenant, updated_at, key)
    WHERE instr(metadata, CAST('"branch":{' AS BLOB)) > 0;
CREATE INDEX messages_numbered ON messages (id_number);
CREATE UNIQUE INDEX runs_accepted ON runs (tenant, session, idempotency_key) WHERE idempotency_key <> '';
CREATE INDEX runs_open ON runs (tenant, session, place) WHERE status IN ('queued', 'running', 'waiting');
CREATE INDEX runs_by_last_event ON runs (tenant, last_event_at) WHERE last_event_at IS NOT NULL;
CREATE INDEX runs_journaled ON runs (tenant, ended_at) WHERE journaled AND ended_at IS NOT NULL;
CREATE VIEW journal AS
    SELECT r.tenant, r.id AS run_id, j.id & 2147483647 AS seq, j.kind, j.key, j.payload, j.at,
        coalesce((SELECT p.hash FROM journal_rows p WHERE p.id = j.id - 1), '') AS previous, j.hash
    FROM runs r JOIN journal_rows j ON j.id > r.number << 31 AND j.id < (r.number + 1) << 31;
CREATE VIEW events AS
    SELECT r.tenant, r.id AS run_id, e.id & 2147483647 AS seq, e.body
    FROM runs r JOIN event_rows e ON e.id > r.number << 31 AND e.id < (r.number + 1) << 31;
CREATE INDEX budgets_of_run ON budgets (tenant, run_id) WHERE run_id <> '';
CREATE INDEX approvals_of_session ON approvals (tenant, session);
CREATE INDEX approvals_pending ON approvals (tenant, run_id) WHERE answer IS NULL;
CREATE INDEX approvals_granting ON approvals (tenant, grants) WHERE grants <> '';
CREATE INDEX jobs_in_state ON jobs (tenant, state, seq);
CREATE INDEX jobs_of_owner ON jobs (tenant, owner, seq) WHERE owner <> '';
CREATE INDEX jobs_of_owner_in_state ON jobs (tenant, owner, state, seq) WHERE owner <> '';
CREATE INDEX jobs_of_parent ON jobs (tenant, parent, seq) WHERE parent <> '';
CREATE INDEX jobs_of_root ON jobs (tenant, root) WHERE root <> '';
CREATE INDEX jobs_due ON jobs (tenant, priority, due_at, seq) WHERE state = 'queued';
CREATE INDEX jobs_expiring ON jobs (tenant, deadline) WHERE state = 'queued' AND deadline IS NOT NULL;
CREATE INDEX jobs_unreported ON jobs (tenant, notified) WHERE notified = FALSE AND state NOT IN ('queued', 'running');
CREATE INDEX records_of_tenants ON records (tenant) WHERE kind = 'tenant';
CREATE INDEX documents_of_collection ON documents (tenant, kind, collection, id);
CREATE INDEX documents_by_time ON documents (tenant, kind, created_at, id);
CREATE INDEX documents_of_collection_by_time ON documents (tenant, kind, collection, created_at, id);
CREATE UNIQUE INDEX passages_of_document ON passages (tenant, kind, document, place);
CREATE INDEX passages_with_vectors ON passages (tenant, kind, model, id) WHERE vector IS NOT NULL;
CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN
    INSERT INTO passage_words (rowid, owners, heading, text) VALUES (new.id, new.owners, new.heading, new.text);
END;
CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN
    INSERT INTO passage_words (passage_words, rowid, owners, heading, text)
    VALUES ('delete', old.id, old.owners, old.heading, old.text);
END;
CREATE UNIQUE INDEX search_texts_of_session ON search_texts (tenant, session, seq);
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
CREATE TRIGGER usage_added AFTER INSERT ON usage_sums BEGIN
    DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
END;
CREATE TRIGGER usage_changed AFTER UPDATE ON usage_sums BEGIN
    DELETE FROM usage_closed WHERE tenant = new.tenant AND day = new.day;
END;
CREATE INDEX usage_sessions_by_tokens ON usage_sessions (tenant, tokens DESC, session, first_day, last_day);
CREATE INDEX usage_sessions_of_owner ON usage_sessions (tenant, owner, tokens DESC, session) WHERE owner <> '';
