"""In-memory store: the cost of a commit does not depend on the amount of data, and short reads do not suspend."""

import time
from itertools import count

import pytest
from store_helpers import TENANT

from atlas_agents.core.store import AcceptRun, AddAudit, AddJournal, AddMessage, ClaimRun, PutSession, SetRun
from atlas_agents.storage.sqlite import MemoryStore


async def turns(store: MemoryStore, sessions: range) -> float:
    """CPU seconds of ten turns in each of these sessions."""
    begin = time.thread_time()
    for session in map(str, sessions):
        for turn in range(10):
            run = f"{session}-{turn}"
            begun = [PutSession(session), AcceptRun(run, session, "a"), ClaimRun(run), AddMessage(session, run, b"")]
            await store.commit(TENANT, begun)
            await store.commit(TENANT, [AddJournal(run, 1, "ended", "", b""), AddAudit(b""), SetRun(run, 1, "done")])
    return time.thread_time() - begin


async def test_turn_costs_the_same_in_the_first_and_in_the_four_hundredth_session() -> None:
    store = MemoryStore()
    costs = [await turns(store, range(n, n + 10)) for n in range(0, 400, 10)]
    assert min(costs[-10:]) < 2 * min(costs[:10])
    assert len(await store.sessions(TENANT, limit=800)) == 400


async def test_short_reads_do_not_suspend_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule of a simulation depends on its seed alone."""
    store = MemoryStore()
    await store.open()
    await store.commit("default", [PutSession("s"), *[AcceptRun(f"r{n}", "s", "a") for n in range(16)]])
    seconds = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    reading = store.runs("default", "s")
    try:
        with pytest.raises(StopIteration) as ended:
            reading.send(None)
        assert len(ended.value.value) == 16
    finally:
        reading.close()
        await store.close()
