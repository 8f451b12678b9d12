"""One process of a case: open the store, run the clients and close, unless a fault ends it."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from atlas_agents import Agent, Answer, Approvals, Atlas, Compaction, Delegation, History, Limits, Question, RetryPolicy
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import Store
from atlas_agents.testing import Environment, Registry
from checks import scaled
from crash.client import Client, make_answer
from crash.evidence_log import EvidenceLog
from crash.fault_points import NO_FAULT, Plan, Points
from crash.process_state import STATE, Clock
from crash.replies import TOOLS, ReplayModel
from crash.scripts import Script
from crash.stores import Database

_REGISTRY = Registry(Environment({}, dotenv=None))
_RETRY = RetryPolicy(order="given", retries=1, backoff=0.1)
_BUDGETS = ("turn tokens=1000000 requests=100", "user tokens=1000000 requests=1000 tool_calls=1000")
_PROCESS_TIMEOUT = 60.0
_FAULT_TIMEOUT = 0.2
"""Seconds that a process goes on with a permanent fault."""
_TOOL_TIMEOUT = 0.08
"""Seconds that a tool may take when it is to run into its timeout."""
_TIMEOUTS = [each.timeout for each in TOOLS]


class CaseSetup(msgspec.Struct, frozen=True):
    """Folder, database and script of a case, and its start by the real clock."""

    folder: Path
    database: Database
    script: Script
    began: float


class CaseProcess(msgspec.Struct, frozen=True):
    """One process of a case: its number and its fault plan. With `restarts` it starts after everything has ended."""

    number: int
    plan: Plan
    restarts: bool = False


class _LogHandler(logging.Handler):
    """Records logged errors in the evidence log, for reports of failed cases."""

    def emit(self, record: logging.LogRecord) -> None:
        STATE.log.record("log", record.levelname, text=record.getMessage()[:2000])


async def run_process(setup: CaseSetup, process: CaseProcess, before_stop: Callable[[], object] | None = None) -> None:
    """Run one process from opening the store to closing it; `before_stop` is called before it stops for a snapshot."""
    _prepare(setup, process, before_stop)
    if process.restarts:
        await _restart(setup)
    else:
        await _run_to_end(setup, process)


async def _run_to_end(setup: CaseSetup, process: CaseProcess) -> None:
    script, plan, before = setup.script, process.plan, STATE.log.all()
    store = setup.database.store(STATE.clock)
    STATE.opening = not script.migrates
    try:
        await store.open()
    except StoreError as error:  # it is reported, and the process ends
        STATE.log.record("runner", "not opened", text=str(error))
        return
    STATE.opening = False
    atlas = build(script, store)
    client = Client(atlas, script, before)
    try:
        async with asyncio.timeout(scaled(_PROCESS_TIMEOUT)) as limit:
            if plan.forever:
                STATE.points.on_first_fault = partial(_limit_soon, asyncio.get_running_loop(), limit)
            await client.run_to_end(restarted=process.number > 1, sends_first=plan.sends_first)
    except TimeoutError:
        STATE.log.record("runner", "gave up" if plan.forever else "stuck")
    await atlas.close()
    STATE.log.record("runner", "passed", n=STATE.points.passed, text="\n".join(STATE.points.names))
    if plan.fault in ("nothing", "kill"):  # no fault was injected
        STATE.points = Points(NO_FAULT, STATE.log)
        await _recover_again(setup, store)
    await store.close()


def _limit_soon(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
    """Let the limit end soon, unless it is no longer needed; called in any thread."""

    def reschedule() -> None:
        with suppress(RuntimeError):
            limit.reschedule(loop.time() + _FAULT_TIMEOUT)

    loop.call_soon_threadsafe(reschedule)


async def _restart(setup: CaseSetup) -> None:
    store = setup.database.store(STATE.clock)
    await store.open()
    await _recover_again(setup, store)
    await store.close()


async def _recover_again(setup: CaseSetup, store: Store) -> None:
    """Recover again and record whether nothing was done and nothing changed."""
    before, atlas = setup.database.rows(), build(setup.script, store)
    streams = await atlas.recover()
    for stream in streams:
        await asyncio.wait([asyncio.ensure_future(stream.reply())])
    left = await store.pending_jobs(atlas.tenant, 1 << 60)
    same = not streams and not left and setup.database.rows() == before
    STATE.log.record("runner", "recovered again", n=int(same))
    await atlas.close()


def _prepare(setup: CaseSetup, process: CaseProcess, before_stop: Callable[[], object] | None) -> None:
    STATE.log = EvidenceLog(setup.folder / "evidence", process.number)
    STATE.points = Points(process.plan, STATE.log, before_stop)
    STATE.clock = Clock(setup.began, process.plan.jump)
    STATE.steering_sent = asyncio.Event()
    STATE.steering_sent.set()
    logging.basicConfig(handlers=[_LogHandler(logging.ERROR)], force=True)
    for each, timeout in zip(TOOLS, _TIMEOUTS, strict=True):
        each.timeout = _TOOL_TIMEOUT if process.plan.fault == "timeout" else timeout


def build(script: Script, store: Store) -> Atlas:
    models = [ReplayModel("first", breaks=True), ReplayModel("second")] if script.fails_over else [ReplayModel()]
    agents = [
        Agent(
            id,
            providers=models,
            tools=TOOLS,
            retry=_RETRY,
            parallel_tools=not script.one_by_one,
            mode=script.mode,
            max_rounds=script.rounds,
        )
        for id in ("abc" if script.jobs else "a")
    ]
    return Atlas(
        agents,
        store=store,
        history=_history(script),
        limits=Limits(per_day=script.per_day or None, tick=0.03),
        budgets=_BUDGETS if script.budget else None,
        delegation=Delegation(retry_delays=(0.0,)),
        approve=Approvals(_approve if script.asks == "function" else None, wait=True, deadline=script.deadline),
        retries=(0.1, 0.1),
        registry=_REGISTRY,
        clock=STATE.clock,
    )


def _history(script: Script) -> History:
    compaction = Compaction(threshold=1, keep=0.2, clear_results=False) if script.compacts else None
    return History(max_messages=script.memory or None, max_tokens=script.compacts or None, compaction=compaction)


async def _approve(question: Question) -> Answer:
    """Answer an approval request as the script demands."""
    if STATE.points.hit("approval function") == "exception":
        raise RuntimeError("no one there")
    await asyncio.sleep(0)
    answer = make_answer(question)
    STATE.log.record("client", "says", key=question.id, text=answer.decision)
    return answer
