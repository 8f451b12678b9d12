"""One life of the process: open the store, let the clients live, and close; or whatever the plan has for it."""

import asyncio
import logging
from pathlib import Path

import msgspec

from atlas_agents import Agent, Answer, Approvals, Atlas, Delegation, History, Limits, Question, RetryPolicy
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import Store
from atlas_agents.testing import Environment, Registry
from crash.client import Client, answer_to
from crash.plays import TOOLS, Player
from crash.points import PEACE, Plan, Points
from crash.scripts import Script
from crash.stage import STAGE, Clock
from crash.stores import Place
from crash.world import World

_REGISTRY = Registry(Environment({}, dotenv=None))
_RETRY = RetryPolicy(order="given", retries=1, backoff=0.1)
_LONGEST = 12.0
_GIVES_UP = 0.3
_HANGS = 0.08


class Setting(msgspec.Struct, frozen=True):
    """Where a case happens, and since when, by the real clock."""

    folder: Path
    place: Place
    script: Script
    began: float


class Life(msgspec.Struct, frozen=True):
    """One process of a case: its number, and what strikes in it."""

    number: int
    plan: Plan


class _Noted(logging.Handler):
    """Errors that are logged are noted in the world, for who reads of a case that went wrong."""

    def emit(self, record: logging.LogRecord) -> None:
        STAGE.world.note("log", record.levelname, text=record.getMessage()[:2000])


async def live(setting: Setting, life: Life) -> None:
    """From the opening of the store to its closing, if it comes to that."""
    prepare(setting, life)
    script, plan, before = setting.script, life.plan, STAGE.world.all()
    store = setting.place.store(STAGE.clock)
    STAGE.opening = not script.migrates
    try:
        await store.open()
    except StoreError as error:  # it is reported, and the process ends
        STAGE.world.note("runner", "not opened", text=str(error))
        return
    STAGE.opening = False
    atlas = build(script, store)
    client = Client(atlas, script, before)
    try:
        async with asyncio.timeout(_GIVES_UP if plan.forever else _LONGEST):
            await client.live(again=life.number > 1, sends_first=plan.sends_first)
    except TimeoutError:
        STAGE.world.note("runner", "gave up" if plan.forever else "stuck")
    await atlas.close()
    STAGE.world.note("runner", "passed", n=STAGE.points.passed, text="\n".join(STAGE.points.names))
    if plan.deed in ("nothing", "kill"):  # and still alive: nothing has struck
        STAGE.points = Points(PEACE, STAGE.world)
        await _recover_again(setting, store)
    await store.close()


async def start_again(setting: Setting, life: Life) -> None:
    """Another start, when all is done."""
    prepare(setting, life)
    store = setting.place.store(STAGE.clock)
    await store.open()
    await _recover_again(setting, store)
    await store.close()


async def _recover_again(setting: Setting, store: Store) -> None:
    """It must find nothing to do, and change nothing."""
    before = setting.place.rows()
    atlas = build(setting.script, store)
    streams = await atlas.recover()
    for stream in streams:
        await asyncio.wait([asyncio.ensure_future(stream.reply())])
    left = await store.pending_jobs(atlas.tenant, 1 << 60)
    same = not streams and not left and setting.place.rows() == before
    STAGE.world.note("runner", "recovered again", n=int(same))
    await atlas.close()


def prepare(setting: Setting, life: Life) -> None:
    STAGE.world = World(setting.folder / "world", life.number)
    STAGE.points = Points(life.plan, STAGE.world)
    STAGE.clock = Clock(setting.began, life.plan.jump)
    logging.basicConfig(handlers=[_Noted(logging.ERROR)], force=True)
    if life.plan.deed == "timeout":
        for each in TOOLS:
            each.timeout = _HANGS


def build(script: Script, store: Store) -> Atlas:
    models = [Player("first", breaks=True), Player("second")] if script.fails_over else [Player()]
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
        history=History(max_messages=script.memory or None),
        limits=Limits(per_day=script.per_day or None, tick=0.03),
        delegation=Delegation(retry_delays=(0.0,)),
        approve=Approvals(_say if script.asks == "function" else None, wait=True, deadline=script.deadline),
        retries=(0.1, 0.1),
        registry=_REGISTRY,
        clock=STAGE.clock,
    )


async def _say(question: Question) -> Answer:
    """The person as a function."""
    if STAGE.points.here("approval function") == "exception":
        raise RuntimeError("no one there")
    await asyncio.sleep(0)
    answer = answer_to(question)
    STAGE.world.note("client", "says", key=question.id, text=answer.decision)
    return answer
