"""Approval requests, their answers and permanent grants."""

import msgspec
import pytest
from store_helpers import TENANT, approval, with_run

from atlas_agents.core.errors import Conflict
from atlas_agents.core.store import AcceptRun, AddJournal, AnswerApproval, ApprovalRow, PutApproval, SetRun, Store


async def test_approval_is_answered_once(store: Store) -> None:
    await with_run(store)
    await store.commit(TENANT, [PutApproval(approval("p2", created_at=2)), PutApproval(approval("p1"))])
    assert [row.id for row in await store.pending_approvals(TENANT)] == ["p1", "p2"]
    (answered,) = await store.commit(TENANT, [AnswerApproval("p1", b"yes")])
    assert answered == await store.approval(TENANT, "p1") and answered.answer == b"yes" and answered.answered_at
    with pytest.raises(Conflict):
        await store.commit(TENANT, [AnswerApproval("p1", b"no")])
    assert await store.commit(TENANT, [PutApproval(approval("p1"))]) == [answered]
    with pytest.raises(Conflict):
        await store.commit(TENANT, [PutApproval(approval("p1", binding="other"))])
    assert [row.id for row in await store.pending_approvals(TENANT)] == ["p2"]


async def test_only_approvals_of_open_runs_are_pending(store: Store) -> None:
    await with_run(store)
    queued = msgspec.structs.replace(approval("p2"), run_id="r2")
    nobodys = msgspec.structs.replace(approval("p3"), run_id="no such run")
    await store.commit(TENANT, [AcceptRun("r2", "s", "a"), *(PutApproval(a) for a in (approval(), queued, nobodys))])
    assert await store.pending_approvals(TENANT) == [approval(), queued]
    await store.commit(TENANT, [SetRun("r1", 0, "waiting")])
    assert await store.pending_approvals(TENANT) == [approval(), queued]
    await store.commit(TENANT, [SetRun("r1", 0, "cancelled")])
    assert await store.pending_approvals(TENANT) == [queued]
    assert await store.approval(TENANT, "p1") == approval()


async def test_approvals_of_one_millisecond_are_listed_as_they_were_asked(store: Store) -> None:
    await with_run(store)
    for id in ("p3", "p1", "p2"):
        await store.commit(TENANT, [AddJournal("r1", 0, "asked", id, b"{}"), PutApproval(approval(id))])
    assert [row.id for row in await store.pending_approvals(TENANT)] == ["p3", "p1", "p2"]


async def test_answer_may_grant_a_hash_permanently(store: Store) -> None:
    await with_run(store)
    await store.commit(TENANT, [PutApproval(approval(f"p{n}")) for n in range(4)])
    for id, hash in (("p1", "h"), ("p0", "h"), ("p2", "other"), ("p3", "")):
        (row,) = await store.commit(TENANT, [AnswerApproval(id, b"yes", hash)])
        assert row.grants == hash

    async def granting(binding: str, tenant: str = TENANT) -> list[str]:
        return sorted(row.id for row in await store.grants(tenant, binding))

    assert await granting("h") == ["p0", "p1"]
    assert await granting("other") == ["p2"]
    assert await granting("") == await granting("b") == await granting("h", "another tenant") == []


async def test_unanswered_approval_grants_nothing(store: Store) -> None:
    row: ApprovalRow = msgspec.structs.replace(approval(), grants="h")
    await store.commit(TENANT, [PutApproval(row)])
    assert await store.grants(TENANT, "h") == []
    with pytest.raises(Conflict):
        await store.commit(TENANT, [AnswerApproval("p1", b"yes", "h"), AnswerApproval("p1", b"no")])
    assert await store.grants(TENANT, "h") == []
    (answered,) = await store.commit(TENANT, [AnswerApproval("p1", b"no")])
    assert answered.grants == "" and await store.grants(TENANT, "h") == []
