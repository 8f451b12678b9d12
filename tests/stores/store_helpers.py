"""Helpers for the store tests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec

from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJob,
    AddJournal,
    AddMessage,
    AddUsage,
    ApprovalRow,
    JobRow,
    PutApproval,
    PutRecord,
    PutSession,
    Reserve,
    ReserveEvents,
    Store,
    UsageRow,
    Write,
)

T = TypeVar("T")
Make: TypeAlias = Callable[[], Awaitable[Store]]
"""Opens the store of a test; each call opens the same database again."""
TENANT = "acme"
DAY = "2026-11-15"


async def with_run(store: Store, run: str = "r1", session: str = "s", tenant: str = TENANT) -> None:
    """Create a session with one accepted run."""
    await store.commit(tenant, [PutSession(session), AcceptRun(run, session, "a")])


def approval(id: str = "p1", binding: str = "b", created_at: int = 1) -> ApprovalRow:
    return ApprovalRow(id, "r1", "s", "c1", binding, b'{"q":1}', 99, created_at)


def job(id: str = "j1", **more: Any) -> JobRow:
    """A job with an asker."""
    given: dict[str, Any] = {"root": "r1", "chain": ("a",), "asker_session": "s", "asker_agent": "a", "asker_run": "r1"}
    return JobRow(id, "delegation", "b", "write", "s/jobs/1", **{**given, **more})


async def outcomes(tries: Iterable[Awaitable[T]]) -> tuple[list[T], list[BaseException]]:
    """Await all concurrently; return the results and the exceptions."""
    found = await asyncio.gather(*tries, return_exceptions=True)
    good: list[T] = []
    bad: list[BaseException] = []
    for one in found:
        if isinstance(one, BaseException):
            bad.append(one)
        else:
            good.append(one)
    return good, bad


async def everything(store: Store, tenant: str = TENANT) -> dict[str, Any]:
    """Everything a tenant can read."""
    sessions = await store.sessions(tenant)
    runs = [run for session in sessions for run in await store.runs(tenant, session.key)]
    return {
        "sessions": sessions,
        "messages": [m for session in sessions for m in await store.messages(tenant, session.key)],
        "runs": runs,
        "journal": [row for run in runs for row in await store.journal(tenant, run.id)],
        "audit": await store.audit(tenant),
        "events": [row for run in runs for row in await store.events(tenant, run.id)],
        "approvals": await store.pending_approvals(tenant),
        "grants": await store.grants(tenant, "b"),
        "counted": await store.call_count(tenant, "a", DAY),
        "usage": await store.usage(tenant),
        "jobs": await store.jobs(tenant),
        "records": await store.records(tenant, "user"),
    }


def one_of_each() -> list[Write]:
    """Writes that touch every table."""
    return [
        PutSession("s", "a", "label", metadata={"k": [1, "ü"]}),
        AcceptRun("r1", "s", "a", "ann", "key", "print", b'{"say":"hi"}'),
        AddMessage("s", "m1", b'{"role":"user"}', "r1"),
        AddJournal("r1", 0, "accepted", "", b"{}"),
        AddAudit(b'{"n":1}'),
        Reserve("a", DAY, 5),
        PutApproval(approval()),
        PutApproval(msgspec.structs.replace(approval("p0"), answer=b"yes", answered_at=2, grants="b")),
        ReserveEvents("r1", 2),
        AddEvents("r1", ((1, b'{"e":1}'), (2, b'{"e":2}'))),
        AddUsage(UsageRow(DAY, "s", "a", "m", 1, 2, 3, 4, 1, 5, 6, -7)),
        AddJob(job()),
        PutRecord("user", "ann", b"{}"),
    ]
