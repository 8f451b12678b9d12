"""Store conformance: every write and every read of the port."""

from typing import Any

import msgspec
import pytest
from store_helpers import DAY, TENANT, Make, approval, everything, one_of_each, with_run

from atlas_agents.core.errors import Conflict, DailyLimitExceeded, NotFound, SessionBusy, StaleOwner, StoreError
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJournal,
    AddMessage,
    AddMessages,
    AddUsage,
    AnswerApproval,
    ClaimRun,
    DropMessages,
    DropSession,
    EventRow,
    MergeRun,
    NameSession,
    PutSession,
    Release,
    ReplaceMessage,
    Reserve,
    ReserveEvents,
    RunRow,
    Session,
    SessionTotals,
    SetRun,
    SetSessionMetadata,
    StopRun,
    Store,
    StoredMessage,
    UsageRow,
    Write,
)
from atlas_agents.gateway.hub import AuditTail
from atlas_agents.gateway.protocol.admin import AuditList
from atlas_agents.storage.hash_chain import find_audit_break, find_journal_break
from atlas_agents.storage.sql import tables


async def test_commit_returns_the_rows_that_are_read_afterwards(store: Store) -> None:
    session, run, message, step, entry, used, requested, granted, last, *nothing = await store.commit(
        TENANT, one_of_each()
    )
    stored = await store.session(TENANT, "s")
    assert stored is not None
    assert session == Session("s", "a", "label", False, {"k": [1, "ü"]}, session.created_at, session.updated_at)
    assert stored == session
    assert run == RunRow(
        "r1", "s", "a", "running", 0, "ann", "key", b'{"say":"hi"}', None, run.created_at, None, TENANT, "print", 0
    )
    assert await store.run(TENANT, "r1") == msgspec.structs.replace(run, events=2) and last == 2
    assert await store.events(TENANT, "r1") == [EventRow("r1", 1, b'{"e":1}'), EventRow("r1", 2, b'{"e":2}')]
    assert await store.messages(TENANT, "s") == [message] == [StoredMessage("s", 1, "m1", "r1", b'{"role":"user"}')]
    assert await store.journal(TENANT, "r1") == [step]
    assert await store.audit(TENANT) == [entry]
    assert await store.call_count(TENANT, "a", DAY) == used == 1
    assert await store.approval(TENANT, "p1") == requested == approval()
    assert await store.pending_approvals(TENANT) == [requested]
    assert await store.grants(TENANT, "b") == [granted] == [await store.approval(TENANT, "p0")]
    assert await store.usage(TENANT) == [UsageRow(DAY, "s", "a", "m", 1, 2, 3, 4, 1, 5, 6, -7)]
    assert nothing == [None, None, *await store.jobs(TENANT), *await store.records(TENANT, "user")]


async def test_missing_rows_are_none_or_empty(store: Store) -> None:
    assert await store.session(TENANT, "s") is None
    assert await store.run(TENANT, "r") is None
    assert await store.approval(TENANT, "p") is None
    assert await store.commit(TENANT, []) == []
    assert not any((await everything(store)).values())


async def test_put_session_changes_only_the_given_fields(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s", "a", "old", metadata={"x": 1})])
    await store.commit(TENANT, [PutSession("s", label="new", archived=True)])
    session = await store.session(TENANT, "s")
    assert session is not None
    assert (session.agent_id, session.label, session.archived, session.metadata) == ("a", "new", True, {"x": 1})


async def test_metadata_of_a_session_is_changed_key_by_key(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s", label="Label", metadata={"a": 1, "b": 2})])
    (session,) = await store.commit(TENANT, [SetSessionMetadata("s", {"b": [3], "c": None}, ("a", "absent"))])
    assert session.metadata == {"b": [3], "c": None} and session.label == "Label"
    assert await store.session(TENANT, "s") == session
    with pytest.raises(NotFound):
        await store.commit(TENANT, [SetSessionMetadata("gone", {"a": 1})])
    with pytest.raises(StoreError, match="the metadata of session 's' cannot be encoded as JSON"):
        await store.commit(TENANT, [SetSessionMetadata("s", {"a": object()})])
    assert await store.session(TENANT, "s") == session


async def test_only_an_existing_session_without_a_name_is_named(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), PutSession("named", label="mine")])
    session, named, missing = await store.commit(TENANT, [NameSession(key, "auto") for key in ("s", "named", "gone")])
    assert session == await store.session(TENANT, "s") and session.label == "auto"
    assert (named, missing, await store.session(TENANT, "gone")) == (None, None, None)
    kept = await store.session(TENANT, "named")
    assert kept is not None and kept.label == "mine"
    (replaced,) = await store.commit(TENANT, [NameSession("s", "better", replaces="auto")])
    assert replaced is not None and replaced.label == "better"
    (again,) = await store.commit(TENANT, [NameSession("s", "other", replaces="auto")])
    assert again is None


async def test_many_messages_are_appended_at_once(store: Store) -> None:
    bodies = [(f"m{n}", b'{"n":%d}' % n) for n in range(150)]
    with pytest.raises(NotFound):
        await store.commit(TENANT, [AddMessages("s", (("m", b"{}"),))])
    await store.commit(TENANT, [PutSession("s"), AddMessage("s", "first", b"{}")])
    await store.commit(TENANT, [AddMessages("s", tuple(bodies[:100])), AddMessages("s", ())])
    await store.commit(TENANT, [AddMessages("s", tuple(bodies[100:])), AddMessage("s", "last", b"{}")])
    rows = await store.messages(TENANT, "s")
    assert [row.seq for row in rows] == list(range(1, 153))
    assert [(row.id, row.body) for row in rows[1:-1]] == bodies
    assert await store.message(TENANT, "s", "m7") == rows[8]
    assert await store.message(TENANT, "s", "none") is await store.message("other", "s", "m7") is None


def same_number(tenant: str, session: str, id: str) -> int:
    return 7


@pytest.mark.parametrize("id", ["m", "01a1ecc7-ce79-71f0-b606-1d0d3add125a", "ü" * 50, ""])
@pytest.mark.parametrize("is_alike", [False, True])
async def test_message_is_found_by_its_id_and_not_added_again(
    store: Store, id: str, is_alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the numbers of all messages are the same."""
    if is_alike:
        monkeypatch.setattr(tables, "message_number", same_number)
    for tenant in (TENANT, "other"):
        await store.commit(tenant, [PutSession("s"), PutSession("t"), AddMessage("s", f"{id}.", b"0")])
        await store.commit(tenant, [AddMessage("s", id, b"1"), AddMessage("t", id, tenant.encode())])
    first, second = await store.messages(TENANT, "s")
    assert await store.message(TENANT, "s", id) == second and await store.message(TENANT, "s", f"{id}.") == first
    assert await store.message(TENANT, "t", id) == StoredMessage("t", 1, id, "", TENANT.encode())
    again = await store.commit(
        TENANT, [AddMessage("s", id, b"2"), AddMessage("s", "x", b""), AddMessage("s", "x", b"")]
    )
    assert again[0] == second and again[1] == again[2]
    for messages in ((("y", b""), (id, b"")), (("y", b""), ("y", b""))):
        with pytest.raises(Conflict, match="session 's' already has message"):
            await store.commit(TENANT, [AddMessages("s", messages)])
    assert [row.id for row in await store.messages(TENANT, "s")] == [f"{id}.", id, "x"]


def test_numbers_of_messages_are_in_the_order_of_time_and_fit_into_64_bits() -> None:
    ids = [f"{time:08x}-0000-7000-8000-000000000000" for time in (0, 1, 0x01A1ECC7, 0x3FFFFFFF, 0xFFFFFFFF)]
    numbers = [tables.message_number(TENANT, "s", id) for id in (*ids, f"{ids[2]}.2", "m", "")]
    assert numbers[:4] == sorted(numbers[:4]) and max(numbers[:4]) < min(numbers[-2:])
    assert all(0 <= number < 1 << 63 for number in numbers) and len(set(numbers)) == len(numbers)
    assert numbers[2] >> 16 == numbers[5] >> 16


async def test_messages_after_a_number_are_deleted_unless_a_run_is_open(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), AddMessages("s", tuple((f"m{n}", b"{}") for n in range(9)))])
    await store.commit(TENANT, [DropMessages("s", 4)])
    assert [row.seq for row in await store.messages(TENANT, "s")] == [1, 2, 3, 4]
    await store.commit(TENANT, [AcceptRun("r", "s", "a")])
    with pytest.raises(Conflict):
        await store.commit(TENANT, [DropMessages("s", 0)])


async def test_last_runs_of_a_session_are_listed_in_the_order_of_acceptance(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), *[AcceptRun(f"r{n}", "s", "a") for n in range(4)]])
    await store.commit(TENANT, [ClaimRun("r0"), SetRun("r0", 1, "done")])
    assert [run.id for run in await store.runs(TENANT, "s", last=2)] == ["r2", "r3"]
    assert [run.id for run in await store.runs(TENANT, "s", last=9)] == ["r0", "r1", "r2", "r3"]
    assert [run.id for run in await store.runs(TENANT, "s", open_only=True)] == ["r1", "r2", "r3"]
    assert await store.runs(TENANT, "s", last=0) == await store.runs(TENANT, "t", last=1) == []


async def test_ended_runs_of_a_session_are_listed_without_their_requests(store: Store) -> None:
    accepted = [AcceptRun(f"r{n}", "s", "a", request=b'{"n":%d}' % n) for n in range(3)]
    await store.commit(TENANT, [PutSession("s"), *accepted, ClaimRun("r0"), SetRun("r0", 1, "done")])
    assert [run.request for run in await store.runs(TENANT, "s")] == [b"", b'{"n":1}', b'{"n":2}']
    run = await store.run(TENANT, "r0")
    assert run is not None and run.request == b'{"n":0}'


async def test_sessions_of_a_prefix_are_listed_and_counted(store: Store) -> None:
    for key in ("@ana/1", "@ana/2", "@ana", "@ana0", "@an/1", "@anab/1", "x", "@ANA/1", "@ana/é"):
        await store.commit(TENANT, [PutSession(key), AddMessage(key, "m", b"12345")])
    await store.commit(TENANT, [AddMessages("@ana/1", (("a", b"1"), ("b", b"22")))])
    found = await store.sessions(TENANT, prefix="@ana/")
    assert [session.key for session in found] == ["@ana/1", "@ana/é", "@ana/2"]
    (last,) = await store.sessions(TENANT, prefix="@ana/", limit=1, before=found[1].updated_at)
    assert last.key == "@ana/2"
    await store.commit(TENANT, [PutSession("@ana/2", archived=True, metadata={"key": "value"})])
    size = 3 * 1000 + 2 * len("{}") + len('{"key":"value"}') + 18
    assert await store.session_totals(TENANT, "@ana/") == SessionTotals(2, 5, size)
    assert await store.session_totals(TENANT, "@none/") == SessionTotals(0, 0, 0)
    assert await store.session_totals("other", "@ana/") == SessionTotals(0, 0, 0)


async def test_sessions_are_listed_latest_first_and_paging_loses_none(store: Store) -> None:
    for n in range(7):
        await store.commit(TENANT, [PutSession(f"s{n}")])
    await store.commit(TENANT, [AddMessage("s2", "m", b"{}")])
    keys: list[str] = []
    before = None
    while page := await store.sessions(TENANT, limit=3, before=before):
        keys += [session.key for session in page]
        before = page[-1].updated_at
    assert keys == ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]


async def test_messages_keep_their_order_and_an_id_is_added_once(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), PutSession("other")])
    for n in range(5):
        await store.commit(TENANT, [AddMessage("s", f"m{n}", b"%d" % n)])
    again = await store.commit(TENANT, [AddMessage("s", "m1", b"changed"), AddMessage("other", "m1", b"x")])
    assert [row.seq for row in again] == [2, 1]
    assert [m.body for m in await store.messages(TENANT, "s")] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"after": 1, "limit": 2}, [2, 3]),
        ({"before": 4}, [1, 2, 3]),
        ({"after": 1, "before": 5, "limit": 2}, [2, 3]),
        ({"limit": 2, "last": True}, [4, 5]),
        ({"before": 4, "limit": 2, "last": True}, [2, 3]),
        ({"after": 2, "before": 5, "limit": 9, "last": True}, [3, 4]),
        ({"after": -3, "before": 99, "last": True}, [1, 2, 3, 4, 5]),
        ({"before": 0}, []),
        ({"after": 5}, []),
        ({"limit": 0, "last": True}, []),
        ({"limit": -1}, []),
    ],
)
async def test_page_of_messages_is_in_order_from_either_end(
    store: Store, page: dict[str, Any], numbers: list[int]
) -> None:
    await store.commit(TENANT, [PutSession("s"), *(AddMessage("s", f"m{n}", b"") for n in range(5))])
    assert [message.seq for message in await store.messages(TENANT, "s", **page)] == numbers


@pytest.mark.parametrize(
    "write",
    [
        AddMessage("s", "m", b""),
        ReplaceMessage("s", 1, b""),
        AcceptRun("r", "s", "a"),
        DropSession("s"),
        ClaimRun("r"),
        SetRun("r", 0, "done"),
        StopRun("r"),
        MergeRun("r"),
        AddJournal("r", 0, "reply", "1", b""),
        AnswerApproval("p", b""),
        ReserveEvents("r", 1),
        AddEvents("r", ((1, b""),)),
        AddEvents("r", ()),
    ],
)
async def test_write_to_a_missing_row_raises_not_found(store: Store, write: Write) -> None:
    with pytest.raises(NotFound):
        await store.commit(TENANT, [write])


async def test_replaced_message_keeps_its_place_and_id(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), AddMessage("s", "m1", b"garbled"), AddMessage("s", "m2", b"{}")])
    (replaced,) = await store.commit(TENANT, [ReplaceMessage("s", 1, b"{}")])
    rows = await store.messages(TENANT, "s")
    assert rows[0] == replaced
    assert [(row.seq, row.id, row.body) for row in rows] == [(1, "m1", b"{}"), (2, "m2", b"{}")]


async def test_runs_of_a_session_wait_for_each_other_and_start_in_order(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s")])
    accepted = [(await store.commit(TENANT, [AcceptRun(f"r{n}", "s", "a")]))[0] for n in range(3)]
    assert [run.status for run in accepted] == ["running", "queued", "queued"]
    for n, following in ((0, "r1"), (1, "r2"), (2, None)):
        assert await store.commit(TENANT, [SetRun(f"r{n}", 0, "done")]) == [following]
    assert [(run.id, run.status) for run in await store.runs(TENANT, "s")] == [
        ("r0", "done"), ("r1", "done"), ("r2", "done"),
    ]  # fmt: skip
    assert await store.open_runs() == []


async def test_failed_runs_are_those_of_the_given_messages(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), PutSession("other")])
    for n, status in enumerate(("failed", "done", "cancelled", "failed", "running"), 1):
        await store.commit(
            TENANT, [AcceptRun(f"r{n}", "s", "a", request=b"{}"), AddMessage("s", f"m{n}", b"{}", f"r{n}")]
        )
        await store.commit(TENANT, [SetRun(f"r{n}", 0, status, "no" if status == "failed" else None)])
    await store.commit(TENANT, [AcceptRun("else", "other", "a"), AddMessage("other", "m", b"{}", "else")])
    await store.commit(TENANT, [SetRun("else", 0, "failed")])
    found = await store.failed_runs(TENANT, "s", 1, 5)
    assert [(run.id, run.status, run.error) for run in found] == [
        ("r1", "failed", "no"), ("r3", "cancelled", None), ("r4", "failed", "no"),
    ]  # fmt: skip
    assert {run.request for run in found} == {b""}
    assert [run.id for run in await store.failed_runs(TENANT, "s", 2, 3)] == ["r3"]
    assert await store.failed_runs(TENANT, "s", 6, 9) == await store.failed_runs("t9", "s", 1, 9) == []


async def test_cancelling_a_queued_run_does_not_affect_the_running_one(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), *(AcceptRun(f"r{n}", "s", "a") for n in range(3))])
    assert await store.commit(TENANT, [SetRun("r0", 0, "waiting"), SetRun("r1", 0, "cancelled")]) == [None, None]
    with pytest.raises(Conflict, match="active run"):
        await store.commit(TENANT, [SetRun("r2", 0, "running")])
    with pytest.raises(Conflict, match="queue"):
        await store.commit(TENANT, [SetRun("r0", 0, "queued")])
    assert await store.commit(TENANT, [SetRun("r0", 0, "failed", "a \0 \ud800 fault")]) == ["r2"]
    failed = await store.run(TENANT, "r0")
    assert failed is not None and failed.error == "a \ufffd ? fault" and failed.ended_at is not None


async def test_stop_cancels_a_queued_run_and_flags_a_running_one(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), *(AcceptRun(f"r{n}", "s", "a", urgency=n) for n in range(3))])
    stopped = [(await store.commit(TENANT, [StopRun(id)]))[0] for id in ("r1", "r0", "r0")]
    assert [(run.id, run.status, run.stop, run.urgency, run.ended_at is None) for run in stopped] == [
        ("r1", "cancelled", True, 1, False), ("r0", "running", True, 0, True), ("r0", "running", True, 0, True),
    ]  # fmt: skip
    assert await store.run(TENANT, "r1") == stopped[0]
    assert await store.commit(TENANT, [SetRun("r0", 0, "cancelled")]) == ["r2"]
    for id in ("r0", "r1"):
        with pytest.raises(Conflict, match="ended"):
            await store.commit(TENANT, [StopRun(id)])


async def test_merged_run_leaves_the_queue_as_done(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), *(AcceptRun(f"r{n}", "s", "a") for n in range(3))])
    assert [run.id for run in await store.queued_runs(TENANT, "s")] == ["r1", "r2"]
    (merged,) = await store.commit(TENANT, [MergeRun("r1")])
    assert (merged.status, merged.epoch, merged.ended_at is None) == ("done", 0, False)
    for id in ("r0", "r1"):
        with pytest.raises(Conflict, match="not queued"):
            await store.commit(TENANT, [MergeRun(id)])
    assert [run.id for run in await store.queued_runs(TENANT, "s")] == ["r2"]
    assert await store.commit(TENANT, [SetRun("r0", 0, "done")]) == ["r2"]


async def test_repeated_accept_returns_the_known_run_and_writes_nothing(store: Store) -> None:
    first = AcceptRun("r1", "s", "a", idempotency_key="k", fingerprint="1", request=b"now")
    await store.commit(TENANT, [PutSession("s"), first, AddMessage("s", "m1", b"")])
    before = await everything(store)
    again = AcceptRun("r2", "s", "a", idempotency_key="k", fingerprint="1", request=b"later", at_once=True)
    results = await store.commit(TENANT, [PutSession("s", label="x"), again, AddMessage("s", "m2", b"")])
    assert results == [None, await store.run(TENANT, "r1"), None]
    with pytest.raises(Conflict, match="another request"):
        await store.commit(TENANT, [AcceptRun("r3", "s", "a", idempotency_key="k", fingerprint="2", request=b"now")])
    assert await everything(store) == before


async def test_run_that_must_start_at_once_is_rejected_while_another_is_open(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), PutSession("t"), AcceptRun("r1", "s", "a", at_once=True)])
    for status in ("running", "waiting"):
        await store.commit(TENANT, [SetRun("r1", 0, status)])
        before = await everything(store)
        with pytest.raises(SessionBusy, match="running turn"):
            await store.commit(TENANT, [AddMessage("s", "m", b""), AcceptRun("r2", "s", "a", at_once=True)])
        assert await everything(store) == before
    (other,) = await store.commit(TENANT, [AcceptRun("r3", "t", "a", at_once=True)])
    _, run = await store.commit(TENANT, [SetRun("r1", 0, "done"), AcceptRun("r2", "s", "a", at_once=True)])
    assert other.status == run.status == "running"


async def test_idempotency_key_belongs_to_its_session_and_an_empty_one_never_matches(store: Store) -> None:
    keyed = [AcceptRun(f"r{s}", s, "a", idempotency_key="k") for s in ("s", "t")]
    await store.commit(TENANT, [PutSession("s"), PutSession("t"), *keyed])
    await store.commit(TENANT, [AcceptRun("r1", "s", "a"), AcceptRun("r2", "s", "a")])
    assert len(await store.open_runs()) == 4
    with pytest.raises(Conflict, match="already"):
        await store.commit(TENANT, [AcceptRun("r1", "t", "a")])


async def test_outdated_epoch_cannot_write(store: Store) -> None:
    await with_run(store)
    assert await store.commit(TENANT, [ClaimRun("r1")]) == [1]
    assert await store.commit(TENANT, [ClaimRun("r1")]) == [2]
    for write in (AddJournal("r1", 1, "reply", "1", b""), SetRun("r1", 1, "done"), SetRun("r1", 3, "done")):
        with pytest.raises(StaleOwner):
            await store.commit(TENANT, [write])
    await store.commit(TENANT, [AddJournal("r1", 2, "resumed", "2", b""), SetRun("r1", 2, "done")])
    for write in (AddJournal("r1", 2, "reply", "2", b""), SetRun("r1", 2, "failed"), ClaimRun("r1")):
        with pytest.raises(Conflict, match="ended"):
            await store.commit(TENANT, [write])


async def test_step_is_journaled_once_and_the_chain_is_valid(store: Store) -> None:
    await with_run(store)
    for n in range(4):
        await store.commit(TENANT, [AddJournal("r1", 0, "intent", str(n), b"{}"), AddAudit(b"%d" % n)])
    with pytest.raises(Conflict, match="already"):
        await store.commit(TENANT, [AddJournal("r1", 0, "intent", "2", b"other")])
    await store.commit(TENANT, [AddJournal("r1", 0, "outcome", "2", b"{}")])
    rows, entries = await store.journal(TENANT, "r1"), await store.audit(TENANT)
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
    assert find_journal_break(rows) is None and find_audit_break(entries) is None
    assert find_audit_break(entries[:1] + entries[2:]) == 2
    assert [entry.seq for entry in await store.audit(TENANT, after=1, limit=2)] == [2, 3]


async def test_audit_rows_are_filtered_by_person_and_time_in_pages(store: Store) -> None:
    def entry(at: int) -> bytes:
        people: dict[str, Any] = {"user": "ana" if at % 100 == 0 else "ben"}
        if at == 250:
            people["approved_by"] = "ana"
        if at == 350:
            people["denied"] = {"by": "ana"}
        return msgspec.json.encode({"timestamp": at, "meta": people})

    before_clock_was_corrected = 9_999
    await store.commit(TENANT, [AddAudit(entry(at)) for at in (before_clock_was_corrected, *range(2, 602))])
    log = AuditTail(store, TENANT)

    async def times(**filters: Any) -> list[int]:
        """Read page by page until the cursor ends."""
        params, found = AuditList(**filters), list[int]()
        while True:
            page = await log.page(params)
            found += [row.entry["timestamp"] for row in page.entries]
            if page.next_cursor is None:
                return found
            params = msgspec.structs.replace(params, cursor=page.next_cursor)

    assert await times(user="ana", since=50, to=600, limit=3) == [500, 400, 350, 300, 250, 200, 100]
    assert await times(user="ana", since=200, to=350) == [300, 250, 200]
    assert await times(user="cora") == []
    assert await times(since=600) == [601, 600, before_clock_was_corrected]
    assert await times(since=602) == [before_clock_was_corrected]


async def test_counter_stops_at_its_limit(store: Store) -> None:
    reserve = Reserve("a", DAY, 2)
    assert await store.commit(TENANT, [reserve, reserve]) == [1, 2]
    with pytest.raises(DailyLimitExceeded):
        await store.commit(TENANT, [reserve])
    with pytest.raises(DailyLimitExceeded):
        await store.commit(TENANT, [Reserve("b", DAY, 0)])
    assert await store.commit(TENANT, [Release("a", DAY), reserve, Release("b", DAY)]) == [1, 2, 0]
    assert await store.call_count(TENANT, "a", DAY) == 2
    assert await store.call_count(TENANT, "a", "2026-11-16") == 0


async def test_clock_that_was_set_back_does_not_reset_the_daily_limit(store: Store) -> None:
    assert await store.commit(TENANT, [Reserve("a", DAY, 2), Reserve("a", DAY, 2)]) == [1, 2]
    with pytest.raises(DailyLimitExceeded):
        await store.commit(TENANT, [Reserve("a", "2026-11-14", 2)])
    assert await store.commit(TENANT, [Release("a", "2026-11-14")]) == [1]
    assert await store.commit(TENANT, [Reserve("a", "2026-11-16", 2), Reserve("a", DAY, 2)]) == [1, 2]
    assert await store.commit(TENANT, [Reserve("a", "2026-11-01", 2), Reserve("b", "2026-11-14", 2)]) == [1, 1]
    days = (DAY, "2026-11-16", "2026-11-01")
    assert [await store.call_count(TENANT, "a", day) for day in days] == [1, 2, 1]


async def test_usage_is_summed_and_filtered_by_day(store: Store) -> None:
    for day in ("2026-11-01", "2026-11-02", "2026-11-02", "2026-11-03"):
        await store.commit(TENANT, [AddUsage(UsageRow(day, "s", "a", "m", 1, 2, 3, 1 << 40, 1, 4, 5, -6))])
    assert await store.usage(TENANT, since="2026-11-02", until="2026-11-03") == [
        UsageRow("2026-11-02", "s", "a", "m", 2, 4, 6, 2 << 40, 2, 8, 10, -12)
    ]


async def test_dropping_a_session_deletes_all_but_audit_log_and_usage(store: Store) -> None:
    await store.commit(TENANT, one_of_each())
    with pytest.raises(Conflict, match="open run"):
        await store.commit(TENANT, [DropSession("s")])
    await store.commit(TENANT, [SetRun("r1", 0, "done"), DropSession("s"), PutSession("s")])
    left = await everything(store)
    assert not any(left[name] for name in ("messages", "runs", "journal", "events", "approvals", "grants"))
    assert len(left["audit"]) == len(left["usage"]) == 1
    assert await store.run(TENANT, "r1") is None and await store.approval(TENANT, "p0") is None
    assert await store.journal(TENANT, "r1") == await store.events(TENANT, "r1") == []
    (message,) = await store.commit(TENANT, [AddMessage("s", "m1", b"new")])
    assert message.seq == 1


@pytest.mark.parametrize("position", range(len(one_of_each()) + 1))
async def test_failing_write_anywhere_in_a_commit_writes_nothing(store: Store, position: int) -> None:
    await store.commit(TENANT, [PutSession("kept", label="x"), AcceptRun("kept", "kept", "a"), Reserve("a", DAY, 9)])
    before = await everything(store)
    writes = one_of_each()
    writes.insert(position, AnswerApproval("unknown", b""))
    with pytest.raises(NotFound):
        await store.commit(TENANT, writes)
    assert await everything(store) == before
    await store.commit(TENANT, one_of_each())


async def test_failing_drop_restores_everything(store: Store) -> None:
    await store.commit(TENANT, one_of_each())
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    await store.commit(TENANT, [PutSession("t"), *(AcceptRun(f"t{n}", "t", "a") for n in range(3))])
    before, open_before = await everything(store), await store.open_runs()
    with pytest.raises(NotFound):
        await store.commit(TENANT, [SetRun("t0", 0, "done"), DropSession("s"), DropSession("s")])
    assert await everything(store) == before
    assert await store.open_runs() == open_before
    assert await store.commit(TENANT, [SetRun("t0", 0, "done"), SetRun("t1", 0, "done")]) == ["t1", "t2"]


async def test_tenants_with_the_same_ids_are_separate(store: Store) -> None:
    await store.commit("a", one_of_each())
    before = await everything(store, "a")
    assert not any((await everything(store, "b")).values())
    for write in (AddMessage("s", "x", b""), ClaimRun("r1"), SetRun("r1", 0, "done"), AnswerApproval("p1", b"")):
        with pytest.raises(NotFound):
            await store.commit("b", [write])
    await store.commit("b", one_of_each())
    await store.commit("b", [SetRun("r1", 0, "done"), AnswerApproval("p1", b"no"), DropSession("s")])
    assert await everything(store, "a") == before
    assert [run.tenant for run in await store.open_runs()] == ["a"]


@pytest.mark.parametrize(
    ("tenant", "writes"),
    [
        ("", [AddAudit(b"")]),
        ("a\0b", [AddAudit(b"")]),
        (TENANT, [PutSession("a\0b")]),
        (TENANT, [PutSession("a\ud800b")]),
        (TENANT, [PutSession("s", metadata={"x": object()})]),
        (TENANT, [AddUsage(UsageRow(DAY, "s", "a", "m", 1 << 63))]),
        (TENANT, [AcceptRun("r", "fine", "a"), ReserveEvents("r", -1)]),
        (TENANT, [AcceptRun("r", "fine", "a"), ReserveEvents("r", 1 << 62)]),
        (TENANT, ["no write"]),
    ],
)
async def test_values_that_no_database_can_store_are_rejected_alike(
    store: Store, tenant: str, writes: list[Any]
) -> None:
    with pytest.raises(StoreError) as raised:
        await store.commit(tenant, [PutSession("fine"), *writes])
    assert "\n" not in str(raised.value)
    assert await store.sessions(TENANT) == []


@pytest.mark.parametrize("text", ["", " ", "'; DROP TABLE runs; --", "ünïcode 😀", "a:b %s %(x)s $1 ?", "x" * 5000])
async def test_any_other_text_is_stored_unchanged(store: Store, text: str) -> None:
    body = bytes(range(256)) * 40
    await store.commit(TENANT, [PutSession(text, text, text, metadata={text: text}), AddMessage(text, text, body)])
    session = await store.session(TENANT, text)
    assert session is not None
    assert (session.key, session.agent_id, session.label, session.metadata) == (text, text, text, {text: text})
    assert await store.messages(TENANT, text) == [StoredMessage(text, 1, text, "", body)]


@pytest.mark.parametrize("size", [0, 1, 46, 47, 48, 16_380, 16_384, 16_385])
@pytest.mark.parametrize("first", [b"", b"\x01", b'{"role":"user","parts":['])
async def test_content_of_any_size_is_stored_unchanged(store: Store, first: bytes, size: int) -> None:
    """Some is compressed, and begins with a byte that other content may begin with as well."""
    contents = first + b"w" * size, first + bytes(n * n % 251 for n in range(size))
    for id, content in zip(("plain", "mixed"), contents, strict=True):
        writes = [PutSession(id), AddMessage(id, id, content), AddMessages(id, (("more", content),))]
        await store.commit(TENANT, [*writes, AcceptRun(id, id, "a", "", "", "", content), ClaimRun(id)])
        await store.commit(TENANT, [AddJournal(id, 1, "accepted", "", content)])
        assert [row.body for row in await store.messages(TENANT, id)] == [content] * 2
        (run,), (step,) = await store.runs(TENANT, id, open_only=True), await store.journal(TENANT, id)
        assert run.request == step.payload == content
        assert find_journal_break([step]) is None


@pytest.mark.durable
async def test_reopened_store_has_everything(store: Store, make_store: Make) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.commit(TENANT, [AddAudit(b"")])
    assert await everything(await make_store()) == before
