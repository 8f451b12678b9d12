"""Derived tables: what they contain follows from the rows, however and whenever these were stored."""

import asyncio
import itertools
import json
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT, Make

import fork_server
from atlas_agents.core.messages import Message, Text
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddJob,
    AddMessage,
    AddMessages,
    AddUsage,
    AuditFilter,
    DropMessages,
    DropSession,
    JobRow,
    PutSession,
    RefreshIndexes,
    ReplaceMessage,
    Store,
    ToolDay,
    UsageRow,
)
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sql import derived, reads
from atlas_agents.storage.sql.derived import AUDIT_BLOCK, DERIVED_TABLES, matches_entry
from atlas_agents.storage.sql.reads import SqlReads
from atlas_agents.storage.sql.tables import Query, Row
from atlas_agents.storage.sqlite import SqliteStore
from checks import TIMEOUT, wait_until


def message_body(text: str, role: str = "user") -> bytes:
    return Message(role, (Text(text),)).to_json()  # type: ignore[arg-type]


async def add_session(store: Store, key: str, *texts: str, label: str = "", tenant: str = TENANT) -> None:
    messages = tuple([(f"{key} {n}", message_body(text)) for n, text in enumerate(texts)])
    await store.commit(tenant, [PutSession(key, label=label), AddMessages(key, messages)])


async def find(store: Store, query: str, *, prefix: str = "", limit: int = 30, tenant: str = TENANT) -> Sequence[str]:
    found = await store.search_sessions(tenant, query, prefix=prefix, limit=limit, wait=TIMEOUT)
    return [each.session for each in found.matches]


async def test_search_finds_all_words_in_names_and_messages_latest_first(store: Store) -> None:
    await add_session(store, "a", "The fjord is deep.", "A lake, too: Łódź über_all 東京タワー")
    await add_session(store, "b", "the Fjords of Norway")
    await add_session(store, "c", label="My FJORD trip")
    assert await find(store, "fjord") == ["c", "b", "a"]
    assert await find(store, "the fjo") == ["b", "a"]
    assert await find(store, "lake deep") == []
    assert await find(store, "UBER deep") == await find(store, "京都") == []
    assert await find(store, "über all") == await find(store, "uber") == await find(store, "東京") == ["a"]
    assert await find(store, "' \" * & | ! ( : \\ %") == await find(store, "ord") == await find(store, "nowhere") == []


async def test_search_returns_the_latest_match_of_a_session(store: Store) -> None:
    await add_session(store, "a", "one walrus", "two walrus", "no match", label="walrus")
    (match,) = (await store.search_sessions(TENANT, "walrus", wait=TIMEOUT)).matches
    assert match.seq == 2
    await store.commit(TENANT, [AddMessage("a", "x", message_body("another walrus"))])
    (match,) = (await store.search_sessions(TENANT, "walrus", wait=TIMEOUT)).matches
    assert match.seq == 4


async def test_search_sees_only_the_tenant_and_the_sessions_of_the_user(store: Store) -> None:
    await add_session(store, "@ann/1", "a secret walrus")
    await add_session(store, "@anna/1", "a secret walrus")
    await add_session(store, "2", "a secret walrus")
    await add_session(store, "3", "a secret walrus", tenant="other")
    assert await find(store, "walrus") == ["2", "@anna/1", "@ann/1"]
    assert await find(store, "walrus", prefix="@ann/") == ["@ann/1"]
    assert await find(store, "walrus", tenant="other") == ["3"]
    assert await find(store, "walrus", tenant="third") == []


async def test_search_forgets_what_was_deleted_renamed_or_replaced(store: Store) -> None:
    await add_session(store, "a", "walrus", "seal", label="zoo")
    await add_session(store, "b", "walrus", label="zoo")
    assert await find(store, "walrus") == await find(store, "zoo") == ["b", "a"]
    await store.commit(TENANT, [PutSession("b", label="park"), ReplaceMessage("b", 1, message_body("otter"))])
    assert await find(store, "walrus") == await find(store, "zoo") == ["a"]
    assert await find(store, "otter") == await find(store, "park") == ["b"]
    await store.commit(TENANT, [DropMessages("a", 1)])
    assert await find(store, "seal") == []
    await store.commit(TENANT, [DropSession("a")])
    assert await find(store, "walrus") == await find(store, "zoo") == []
    await add_session(store, "a", "walrus again")
    assert await find(store, "walrus") == ["a"]


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b'{"role":"user","parts":3}', b'{"role":5}', message_body("x" * 300_000)]
)
async def test_unusual_message_does_not_keep_others_from_being_found(store: Store, body: bytes) -> None:
    messages = (("1", body), ("2", message_body("a walrus")), ("3", message_body("a result", "tool")))
    await store.commit(TENANT, [PutSession("s"), AddMessages("s", messages)])
    assert await find(store, "walrus") == ["s"]
    assert await find(store, "result") == []


async def test_search_finds_the_oldest_of_many_sessions_and_limits_common_words(store: Store) -> None:
    await add_session(store, "oldest", "the zymurgy")
    for number in range(150):
        await add_session(store, f"s{number:03}", f"the message {number}", "the reply")
    assert await find(store, "zymurgy") == ["oldest"]
    found = await store.search_sessions(TENANT, "the", limit=5, wait=TIMEOUT)
    assert [each.session for each in found.matches] == ["s149", "s148", "s147", "s146", "s145"] and not found.complete
    assert (await store.search_sessions(TENANT, "reply", limit=200, wait=TIMEOUT)).complete


async def test_long_session_is_indexed_in_several_batches(store: Store) -> None:
    await add_session(store, "long", *[f"word{number}" for number in range(1000)])
    assert (await store.commit(TENANT, [RefreshIndexes()]))[0] > 0
    assert await find(store, "word999") == await find(store, "word0") == ["long"]
    assert (await store.commit(TENANT, [RefreshIndexes()]))[0] == 0


async def test_batch_reads_few_large_messages(store: Store) -> None:
    await add_session(store, "large", *[f"word{number} {'x' * 200_000}" for number in range(6)])
    batches = 0
    while (await store.commit(TENANT, [RefreshIndexes()]))[0]:
        batches += 1
    assert batches >= 3
    assert await find(store, "word5") == await find(store, "word0") == ["large"]


async def test_audit_rows_are_indexed_together_with_sessions_that_change_all_the_time(store: Store) -> None:
    await add_session(store, "busy", "a word")
    await fill_audit(store, AUDIT_BLOCK)
    assert (await store.commit(TENANT, [RefreshIndexes()]))[0] > AUDIT_BLOCK
    assert (await store.commit(TENANT, [RefreshIndexes()]))[0] == 0


@pytest.mark.durable
async def test_search_finds_a_message_whose_commit_was_visible_late(store: Store, location: tuple[str, str]) -> None:
    """Its session changed before others that are indexed already."""
    for key in ("late", "other"):
        await add_session(store, key, "word")
    assert await find(store, "word") == ["other", "late"]
    with database(*location) as execute:
        late = "(SELECT max(updated_at) - 16000 FROM sessions)"
        execute(f"UPDATE sessions SET last_message = last_message + 1, updated_at = {late} WHERE key = 'late'")
        execute("UPDATE messages SET seq = seq + 1, id = id || 'x' WHERE session = 'late'")
    assert await find(store, "word") == ["late", "other"]


@pytest.mark.durable
async def test_index_continues_after_a_restart(store: Store, make_store: Make) -> None:
    for number in range(100):
        await add_session(store, f"s{number}", f"word{number}")
    await store.commit(TENANT, [RefreshIndexes()])
    await store.close()
    again = await make_store()
    assert await find(again, "word0") == ["s0"] and await find(again, "word99") == ["s99"]


async def test_search_answers_while_the_disk_is_full(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("full") / "atlas.db", max_pages=200)
    await store.open()
    await add_session(store, "a", "walrus")
    assert await find(store, "walrus") == ["a"]
    await store.commit(TENANT, [PutSession("b")])
    with pytest.raises(Exception, match="free some disk space"):
        for number in range(1000):
            await store.commit(
                TENANT, [AddMessage("b", f"{number}", message_body(random.Random(number).randbytes(500).hex()))]
            )
    found = await store.search_sessions(TENANT, "walrus", wait=TIMEOUT)
    assert [each.session for each in found.matches] == ["a"]
    await store.close()


NOW = 1_794_000_000_000
DAY_MS = 86_400_000


def entry(number: int, **changes: Any) -> bytes:
    """The entry of a call every hour: tool t0 to t3, agent a0 to a2, and every tenth an error."""
    meta = {"run_id": f"r{number // 5}", "user": f"u{number % 7}", "duration_ms": 1.5}
    meta |= {"approved_by": "ann"} if number % 50 == 0 else {"denied": {"by": "bob"}} if number % 60 == 1 else {}
    values = {
        "tenantId": TENANT,
        "actorExternalId": f"a{number % 3}",
        "entityId": f"t{number % 4}",
        "level": "error" if number % 10 == 0 else "info",
        "success": number % 10 > 0,
        "action": "TOOL_CALL",
        "timestamp": NOW + number * 3_600_000,
        "meta": meta,
    }
    return json.dumps({**values, **changes}).encode()


async def fill_audit(store: Store, rows: int, *, first: int = 0) -> None:
    await store.commit(TENANT, [AddAudit(entry(number)) for number in range(first, first + rows)])


async def refresh(store: Store) -> int:
    batches = 0
    while (await store.commit(TENANT, [RefreshIndexes()]))[0]:
        batches += 1
    return batches


async def find_numbers(store: Store, where: AuditFilter, limit: int = 7) -> list[int]:
    """The numbers of all matching rows, read in pages."""
    found, before = list[int](), None
    while True:
        page = await store.find_audit(TENANT, where, before=before, limit=limit)
        found += [row.seq for row in page.rows]
        assert len(page.rows) <= limit
        if page.before is None:
            return found
        before = page.before


FILTERS = [
    AuditFilter(),
    AuditFilter(agent_id="a1"),
    AuditFilter(tool="t3", level="error"),
    AuditFilter(tool="t2", level="error"),
    AuditFilter(run_id="r17"),
    AuditFilter(user="ann"),
    AuditFilter(user="bob", agent_id="a1"),
    AuditFilter(user="unknown"),
    AuditFilter(since=NOW + 2 * DAY_MS, until=NOW + 3 * DAY_MS),
    AuditFilter(tool="t1", since=NOW + 5 * DAY_MS),
    AuditFilter(until=NOW),
]


@pytest.mark.parametrize("indexed", [0, 100, 300])
async def test_audit_filters_find_the_same_rows_with_and_without_an_index(store: Store, indexed: int) -> None:
    await fill_audit(store, indexed)
    await refresh(store)
    await fill_audit(store, 300 - indexed, first=indexed)
    rows = await store.audit(TENANT)
    for where in FILTERS:
        expected = [row.seq for row in reversed(rows) if matches_entry(json.loads(row.entry), where)]
        assert await find_numbers(store, where) == expected, where
        assert await find_numbers(store, where, limit=500) == expected, where


async def test_rows_added_between_two_pages_are_neither_repeated_nor_shift_others(store: Store) -> None:
    await fill_audit(store, 200)
    first = await store.find_audit(TENANT, AuditFilter(tool="t1"), limit=10)
    await fill_audit(store, 100, first=200)
    await refresh(store)
    rest = await store.find_audit(TENANT, AuditFilter(tool="t1"), before=first.before, limit=1000)
    assert [row.seq for row in (*first.rows, *rest.rows)] == list(range(198, 0, -4))


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"timestamp": "x", "meta": 3, "entityId": 7}',
        b'{"timestamp": 99999999999999999999, "meta": {"denied": "no"}, "entityId": "a\\u0000b"}',
        b'{"timestamp": -5, "meta": {"duration_ms": "long"}}',
    ],
)
async def test_unusual_audit_rows_are_indexed_like_others(store: Store, odd: bytes) -> None:
    await store.commit(TENANT, [AddAudit(odd), AddAudit(entry(1))] * 70)
    assert await refresh(store) > 0
    assert len(await find_numbers(store, AuditFilter(tool="t1"))) == 70
    assert sum([each.calls for each in await store.tool_days(TENANT) if each.tool == "t1"]) == 70


async def test_tool_calls_are_counted_once_while_the_index_grows(store: Store) -> None:
    for first in range(0, 400, 50):
        await fill_audit(store, 50, first=first)
        days = await store.tool_days(TENANT)
        assert sum([each.calls for each in days]) == first + 50
        assert sum([each.failed for each in days]) == (first + 50) // 10
        await store.commit(TENANT, [RefreshIndexes()])
    (found,) = [
        each for each in await store.tool_days(TENANT, since="2026-11-08", until="2026-11-09") if each.tool == "t1"
    ]
    assert found == ToolDay("2026-11-08", "t1", 6, 0, 9.0)
    assert await store.tool_days("other") == []


def used(day: str, session: str, agent: str = "a", model: str = "m", tokens: int = 10) -> AddUsage:
    return AddUsage(UsageRow(day, session, agent, model, tokens, 1, 2, 3, 1, 4, 5, -6))


async def sums(store: Store, **options: Any) -> dict[str, int]:
    found = await store.sum_usage(TENANT, options.pop("by", "agent_id"), **options)
    return {f"{row.agent_id}{row.model}{row.session}{row.day}": row.input_tokens for row in found}


async def test_sums_of_usage_are_the_same_before_and_after_days_are_closed(store: Store) -> None:
    await store.commit(
        TENANT,
        [
            *[used(f"2026-01-{day:02}", "s", f"a{day % 2}", tokens=day) for day in range(1, 11)],
            *[used(f"2026-01-{day:02}", "@ann/s", "a0", "n", tokens=100) for day in range(1, 4)],
            used("2999-01-01", "t", "a0", tokens=1000),
        ],
    )
    for _ in range(2):
        assert await sums(store) == {"a0": 1330, "a1": 25}
        assert await sums(store, by="model") == {"m": 1055, "n": 300}
        assert await sums(store, since="2026-01-02", until="2026-01-04") == {"a0": 202, "a1": 3}
        assert await sums(store, owner="@ann/") == {"a0": 300}
        assert await sums(store, owner="@an/") == {}
        by_day = await sums(store, by="day")
        assert by_day["2026-01-03"] == 103 and by_day["2999-01-01"] == 1000 and len(by_day) == 11
        assert (await sums(store, by_day=True))["a02026-01-02"] == 102
        assert await sums(store, by="session") == {"s": 55, "@ann/s": 300, "t": 1000}
        assert await sums(store, by="session", limit=1) == {"t": 1000}
        (row,) = await store.sum_usage(TENANT, "agent_id", since="2026-01-01", until="2026-01-02", owner="@ann/")
        assert row == UsageRow("", "", "a0", "", 100, 1, 2, 3, 1, 4, 5, -6)
        assert await store.sum_usage("other", "model") == []
        await refresh(store)


async def test_sessions_with_the_most_tokens_are_the_same_before_and_after_days_are_closed(store: Store) -> None:
    """Sessions are used on several days, so the heaviest ones overall are not those of a range of days."""
    rng = random.Random(5)
    keys = [f"s{n:03}" for n in range(300)] + [f"@ann/s{n:03}" for n in range(300)]
    rows = [used(f"2026-01-{rng.randint(1, 28):02}", rng.choice(keys), tokens=rng.randint(1, 5000)) for _ in range(900)]
    rows += [used("2026-01-01", key, tokens=1_000_000 + 10_000 * n) for n, key in enumerate(keys[:280])]
    rows += [used("2999-01-01", rng.choice(keys), tokens=rng.randint(1, 5000)) for _ in range(20)]
    await store.commit(TENANT, rows)

    def expected(since: str, until: str, owner: str) -> list[tuple[int, str]]:
        totals: Counter[str] = Counter()
        for each in rows:
            if since <= each.usage.day < until and each.usage.session.startswith(owner):
                totals[each.usage.session] += each.usage.input_tokens + each.usage.output_tokens
        return sorted([(-tokens, session) for session, tokens in totals.items()])

    ranges = (("", "9999"), ("2026-01-02", "9999"), ("2026-01-10", "2026-01-12"), ("", "2026-01-02"))
    for _ in range(2):
        for (since, until), owner, limit in itertools.product(ranges, ("", "@ann/"), (3, 260, None)):
            named: Any = {"since": since, "until": until, "owner": owner, "limit": limit}
            found = await store.sum_usage(TENANT, "session", **named)
            assert [(-row.input_tokens - row.output_tokens, row.session) for row in found] == expected(
                since, until, owner
            )[:limit]
        await refresh(store)


async def test_usage_of_one_session_is_summed(store: Store) -> None:
    rows = [used("2026-01-01", "s", "a", tokens=1), used("2026-01-02", "s", "b", tokens=2)]
    await store.commit(TENANT, [*rows, used("2999-01-01", "s", tokens=4), used("2026-01-02", "t")])
    for _ in range(2):
        assert await sums(store, by="session", session="s") == {"s": 7}
        assert await sums(store, by="session", session="s", since="2026-01-02") == {"s": 6}
        assert await sums(store, session="s") == {"a": 5, "b": 2}
        assert await sums(store, by="session", session="other") == {}
        assert await sums(store, by="session", session="s", by_day=True) == {
            "s2026-01-01": 1,
            "s2026-01-02": 2,
            "s2999-01-01": 4,
        }
        await refresh(store)


async def test_late_usage_of_a_closed_day_is_counted(store: Store) -> None:
    await store.commit(TENANT, [used("2026-01-01", "s")])
    await refresh(store)
    await store.commit(TENANT, [used("2026-01-01", "s"), used("2026-01-01", "t")])
    assert await sums(store) == {"a": 30}
    await store.commit(TENANT, [RefreshIndexes()])
    await store.commit(TENANT, [used("2026-01-01", "t")])
    await store.commit(TENANT, [RefreshIndexes()])
    assert await sums(store) == {"a": 40}
    assert await sums(store, by="session") == {"s": 20, "t": 20}
    await refresh(store)
    assert await sums(store) == {"a": 40}
    assert await sums(store, by="session") == {"s": 20, "t": 20}


@pytest.mark.parametrize("changed_after", [None, 1, 2, 5, 9])
async def test_day_with_many_sessions_is_summed_in_small_commits(
    store: Store, changed_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commits of the tenant wait meanwhile. A late change of the day starts it over."""
    assert isinstance(store, SqlReads)
    monkeypatch.setattr(derived, "_USAGE_SESSIONS", 4)
    keys = [f"s{n:02}" for n in range(10)] + [f"@ann/s{n:02}" for n in range(6)] + ["@bob/s"]
    await store.commit(TENANT, [used(day, key) for day in ("2026-01-01", "2026-01-02") for key in keys])
    total, summed = 2 * len(keys), 0
    for number in itertools.count(1):
        (remaining,) = await store.commit(TENANT, [RefreshIndexes()])
        ((rows,),) = await store.fetch(Query("SELECT count(*) FROM usage_session_days", {}))
        assert rows - summed <= 4
        summed = rows
        if number == changed_after:
            await store.commit(TENANT, [used("2026-01-01", "s03"), used("2026-01-01", "@bob/s", "b")])
            total += 2
        by_agent = {"a": 10 * (total - 1), "b": 10} if total % len(keys) else {"a": 10 * total}
        assert await sums(store) == by_agent
        assert sum((await sums(store, by="session")).values()) == 10 * total
        assert await sums(store, owner="@ann/") == {"a": 120}
        if not remaining:
            break
    assert await store.fetch(Query("SELECT count(*) FROM usage_closed WHERE complete", {})) == [(2,)]
    assert await store.fetch(
        Query("SELECT count(*) FROM derived_positions WHERE substr(name, 1, 5) = 'usage'", {})
    ) == [(0,)]
    assert await store.fetch(Query("SELECT sum(tokens) FROM usage_sessions", {})) == [(11 * total,)]


async def test_sessions_are_listed_in_pages_without_gaps_while_others_change(store: Store) -> None:
    for number in range(30):
        key = f"@ann/{number}" if number % 3 == 0 else f"@anna/{number}" if number % 3 == 1 else f"{number}"
        await store.commit(TENANT, [PutSession(key, archived=number % 5 == 0)])

    async def pages(**options: Any) -> list[str]:
        found, last = list[str](), None
        while page := await store.sessions(
            TENANT, limit=3, before=last.updated_at if last else None, before_key=last.key if last else "", **options
        ):
            found += [each.key for each in page]
            last = page[-1]
            await store.commit(TENANT, [PutSession(f"new {len(found)}", archived=bool(options.get("archived")))])
            await store.commit(TENANT, [PutSession(f"@ann/new {len(found)}")])
        return found

    assert await pages(prefix="@ann/") == [f"@ann/{number}" for number in range(27, -1, -3)]
    assert await pages(prefix="@ann/2") == ["@ann/27", "@ann/24", "@ann/21"]
    archived = [key for key in await pages(archived=True) if not key.startswith("new")]
    assert [key.rpartition("/")[2] for key in archived] == ["25", "20", "15", "10", "5", "0"]


async def test_jobs_of_one_user_are_listed_in_pages(store: Store) -> None:
    sessions = ("@ann/1", "@anna/1", "other")
    await store.commit(
        TENANT, [AddJob(JobRow(f"j{n}", "request", "a", "do", sessions[n % 3], root=f"j{n}")) for n in range(9)]
    )
    first = await store.jobs(TENANT, prefix="@ann/", limit=2)
    rest = await store.jobs(TENANT, prefix="@ann/", states=["queued"], before=first[-1].seq)
    assert [job.id for job in (*first, *rest)] == ["j6", "j3", "j0"]
    assert await store.jobs(TENANT, prefix="@ann/", states=["dead"]) == []


async def test_last_turn_of_each_user_is_known(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), AcceptRun("r1", "s", "a", "ann", "", "", b"")])
    ((agent, user, at),) = await store.last_turns(TENANT)
    assert (agent, user) == ("a", "ann") and at > 0
    await store.commit(TENANT, [AcceptRun("r2", "s", "a", "bob", "", "", b"")])
    assert [each[:2] for each in await store.last_turns(TENANT)] == [("a", "ann"), ("a", "bob")]


PROGRESS = (
    "SELECT count(*) FROM search_sessions",
    "SELECT coalesce(max(position), 0) FROM derived_positions WHERE name = 'audit'",
)


@pytest.mark.durable
async def test_backfill_continues_after_each_of_many_kills(make_store: Make, location: tuple[str, str]) -> None:
    """The database is one whose derived tables are empty, as after an upgrade. SIGKILL comes during a batch."""
    sessions, rows = 400, 12_000
    where, schema = location
    store = await make_store()
    for n in range(sessions):
        await add_session(store, f"s{n}", f"word{n}x shared", label=f"name{n}x")
    await fill_audit(store, rows)
    await store.commit(TENANT, [used(f"2026-01-{n % 28 + 1:02}", f"s{n}", tokens=n) for n in range(sessions)])
    await store.close()
    with database(where, schema) as execute:
        for table in DERIVED_TABLES:
            execute(f"DELETE FROM {table}")
    indexed, kills = [0, 0], 0
    while sessions - indexed[0] >= 64 or rows - indexed[1] > 1000:  # less is refreshed when it is needed
        seconds = kills % 5 * 0.002
        process = await fork_server.start(
            str(Path(__file__).with_name("killed_backfill.py")), where, schema, "3", str(seconds)
        )
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == -signal.SIGKILL
        with database(where, schema) as execute:
            now = [execute(each)[0][0] for each in PROGRESS]
        assert now > indexed and now[0] >= indexed[0] and now[1] >= indexed[1]
        indexed, kills = now, kills + 1
    assert kills > 3
    store = await make_store()
    await refresh(store)
    assert await find(store, "word7x") == ["s7"] and await find(store, "name350x") == ["s350"]
    assert len(await find(store, "shared", limit=500)) == sessions
    assert sum([each.calls for each in await store.tool_days(TENANT)]) == rows
    wanted = [n + 1 for n in range(rows) if matches_entry(json.loads(entry(n)), AuditFilter(tool="t2"))]
    assert await find_numbers(store, AuditFilter(tool="t2"), limit=500) == wanted[::-1]
    assert sum([row.input_tokens for row in await store.sum_usage(TENANT, "session")]) == sum(range(sessions))


@pytest.mark.durable
async def test_days_that_are_over_are_summed_after_the_next_start(
    store: Store, make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_REFRESH_DELAY", 0.0)
    await store.commit(TENANT, [PutSession("s"), *[used(f"2026-01-{day:02}", "s") for day in range(1, 11)]])
    await store.close()
    opened = await make_store()
    assert isinstance(opened, SqlReads)
    closed = Query("SELECT count(*) FROM usage_closed WHERE complete", {})

    async def are_closed() -> bool:
        return (await opened.fetch(closed))[0][0] == 10

    await wait_until(are_closed)
    assert await sums(opened, by="session") == {"s": 100}


@pytest.mark.durable
async def test_backfill_logs_its_progress(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, SqlReads)
    monkeypatch.setattr(reads, "_LOG_INTERVAL", -1.0)
    for n in range(40):
        await add_session(store, f"s{n}", "word")
    with caplog.at_level("INFO", "atlas_agents.storage.sql.reads"):
        await fill_audit(store, 600)  # so many rows are indexed in the background
        await wait_until(lambda: "refreshed the indexes" in caplog.text)
    lines = [record.getMessage().rpartition("=")[0] for record in caplog.records]
    assert f"refreshing the indexes: tenant={TENANT} sessions=40 of=40 audit_rows=576 of=600 seconds" in lines
    assert lines[-1] == f"refreshed the indexes: tenant={TENANT} seconds"


@pytest.mark.durable
async def test_rows_added_while_another_refresh_runs_are_indexed_after_it(
    make_store: Make, location: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is the check after opening, which has found nothing to do when the rows arrive."""
    monkeypatch.setattr(reads, "_REFRESH_AFTER", 5)
    monkeypatch.setattr(reads, "_REFRESH_DELAY", 0)
    checked, added = asyncio.Event(), asyncio.Event()
    store = await make_store()
    assert isinstance(store, SqlReads)
    search = store.search

    async def search_late(query: Query) -> list[Row]:
        found = await search(query)
        if not checked.is_set():
            checked.set()
            await added.wait()
        return found

    monkeypatch.setattr(store, "search", search_late)
    await checked.wait()
    for n in range(5):
        await add_session(store, f"s{n}", "word")
    added.set()
    with database(*location) as execute:
        await wait_until(lambda: execute("SELECT count(*) FROM search_sessions")[0][0] == 5)


@contextmanager
def database(where: str, schema: str) -> Generator[Callable[[str], Any]]:
    """A connection past the store, which would refresh the derived tables."""
    if not where.startswith("postgresql:"):
        with closing(sqlite3.connect(where, isolation_level=None)) as connection:
            yield lambda statement: connection.execute(statement).fetchall()
        return
    with psycopg.connect(where, autocommit=True) as postgres:
        postgres.execute(f"SET search_path = {schema}".encode())

        def execute(statement: str) -> Any:
            cursor = postgres.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        yield execute


async def fill_derived(store: Store, days: int = 3) -> None:
    """Store and index sessions, audit rows and the usage of days that are over."""
    for number in range(40):
        await add_session(store, f"s{number}", f"word{number}x shared", label=f"name{number}x")
    await fill_audit(store, 300)
    await store.commit(TENANT, [used(f"2026-01-{day:02}", "s1") for day in range(1, days + 1)])
    await refresh(store)


async def assert_derived(store: Store, days: int = 3) -> None:
    """Check that everything of `fill_derived` is found, and counted once."""
    assert await find(store, "word7x") == ["s7"] and await find(store, "name30x") == ["s30"]
    assert len(await find(store, "shared", limit=100)) == 40
    for _ in range(2):
        assert sum([each.calls for each in await store.tool_days(TENANT)]) == 300
        wanted = [n + 1 for n in range(300) if matches_entry(json.loads(entry(n)), AuditFilter(tool="t2"))]
        assert await find_numbers(store, AuditFilter(tool="t2"), limit=500) == wanted[::-1]
        assert await sums(store, by="session") == {"s1": 10 * days}
        await refresh(store)


async def test_postgres_has_statistics_of_the_derived_tables_after_a_backfill(
    postgres_server: PostgresServer, migrated: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_REFRESH_DELAY", 0.0)
    monkeypatch.setattr(reads, "_MANY_BATCHES", 5)
    with postgres_server.copy_of(migrated, schema) as url, database(url, "atlas") as execute:
        store = PostgresStore(url, schema="atlas")
        await store.open()
        await store.commit(TENANT, [PutSession("s"), *[used(f"2026-01-{day:02}", "s") for day in range(1, 11)]])
        await store.close()
        rows = "SELECT reltuples FROM pg_class WHERE oid = 'usage_days'::regclass"
        assert execute(rows) == [(-1,)]
        await store.open()
        await wait_until(lambda: execute(rows) == [(10,)])
        await store.close()


async def test_derived_tables_are_built_again_after_a_crash_of_postgres() -> None:
    with PostgresServer() as server:
        store = PostgresStore(server.url)
        await store.open()
        await fill_derived(store)
        async with server.gone():
            pass
        with database(server.url, "atlas") as execute:
            unlogged = execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relpersistence = 'u'")
            assert [execute(f"SELECT count(*) FROM {table}")[0][0] for (table,) in unlogged] == [0] * 6
            assert {table for (table,) in unlogged} < set(DERIVED_TABLES)
        await assert_derived(store)
        await store.close()
