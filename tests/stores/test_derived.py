"""Derived tables: what they contain follows from the rows, however and whenever these were stored."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from store_helpers import TENANT

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
from atlas_agents.storage.sql.derived import matches_entry
from atlas_agents.storage.sqlite import SqliteStore
from checks import TIMEOUT
from conftest import Make


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


@pytest.mark.durable
async def test_index_continues_after_a_restart(store: Store, make_store: Make) -> None:
    for number in range(100):
        await add_session(store, f"s{number}", f"word{number}")
    await store.commit(TENANT, [RefreshIndexes()])
    await store.close()
    again = await make_store()
    assert await find(again, "word0") == ["s0"] and await find(again, "word99") == ["s99"]


@pytest.mark.durable
async def test_search_finds_what_an_older_version_stored(old_database: Callable[[str], None], make_store: Make) -> None:
    old_database("v1")
    store = await make_store()
    tenant, expected = "", ""
    for tenant in ("default", "acme", TENANT):
        for session in await store.sessions(tenant):
            for row in await store.messages(tenant, session.key):
                expected = expected or row.message.text
        if expected:
            break
    assert expected and await find(store, expected, tenant=tenant)


async def test_search_answers_while_the_disk_is_full(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("full") / "atlas.db", max_pages=200)
    await store.open()
    await add_session(store, "a", "walrus")
    assert await find(store, "walrus") == ["a"]
    await store.commit(TENANT, [PutSession("b")])
    with pytest.raises(Exception, match="free some disk space"):
        for number in range(1000):
            await store.commit(TENANT, [AddMessage("b", f"{number}", message_body("seal " * 200))])
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


async def test_late_usage_of_a_closed_day_is_counted(store: Store) -> None:
    await store.commit(TENANT, [used("2026-01-01", "s")])
    await refresh(store)
    await store.commit(TENANT, [used("2026-01-01", "s"), used("2026-01-01", "t")])
    assert await sums(store) == {"a": 30}
    await store.commit(TENANT, [RefreshIndexes()])
    await store.commit(TENANT, [used("2026-01-01", "t")])
    await store.commit(TENANT, [RefreshIndexes()])
    assert await sums(store) == {"a": 40}
    await refresh(store)
    assert await sums(store) == {"a": 40}


async def test_sessions_are_listed_in_pages_without_gaps_while_others_change(store: Store) -> None:
    for number in range(30):
        key = f"@ann/{number}" if number % 3 == 0 else f"@anna/{number}" if number % 3 == 1 else f"{number}"
        await store.commit(TENANT, [PutSession(key, archived=number % 5 == 0)])

    async def pages(**options: Any) -> list[str]:
        found, last = list[str](), None
        while page := await store.sessions(
            TENANT, limit=3, before=last and last.updated_at, before_key=last.key if last else "", **options
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
