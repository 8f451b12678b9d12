"""Jobs that agents delegate: run once, reported once, bounded, stopped at the deadline."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Answer, Approvals, Atlas, Delegation, Message, Policy, Request, ToolContext, tool
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.errors import Conflict, NotFound, ProviderError
from atlas_agents.core.store import JobRow, SetJob
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Environment, Registry, Scripted, VirtualClock, calls, fails, refuses, says
from atlas_agents.tools.policy import Cell
from checks import TIMEOUT, wait_until

QUICK = (0.0, 0.0, 0.0, 0.0)


def delegate(to: str, task: str = "write it", **more: Any) -> Any:
    return calls("delegate_task", target_agent=to, task_description=task, **more)


def agent(id: str, *replies: Any, **more: Any) -> Agent:
    return Agent(id, model=Scripted(*replies), tools=[delegate_task, *more.pop("tools", ())], **more)


def team(*agents: Agent, **more: Any) -> Atlas:
    more.setdefault("store", MemoryStore(clock=more.get("clock") or VirtualClock()))
    more.setdefault("delegation", Delegation(retry_delays=QUICK))
    return Atlas(agents, registry=Registry(Environment({}, dotenv=None)), **more)


async def wait_until_settled(atlas: Atlas, *states: str) -> list[JobRow]:
    """Wait until no job is pending and return all jobs in order."""

    async def look() -> bool:
        assert atlas.store is not None
        return not await atlas.store.pending_jobs(atlas.tenant, 1 << 60) and not await atlas.store.open_runs()

    await wait_until(look)
    jobs = sorted(await atlas.jobs.list(), key=lambda job: job.seq)
    if states:
        assert [job.state for job in jobs] == list(states), [job.error for job in jobs]
    return jobs


@asynccontextmanager
async def run_jobs(atlas: Atlas) -> AsyncGenerator[Atlas, None]:
    async with atlas, atlas.jobs.running():
        yield atlas


async def texts(atlas: Atlas, session: str = "default") -> list[tuple[str, str]]:
    rows = await atlas.sessions.messages(session)
    found = [Message.from_json(row.body) for row in rows]
    return [(each.role, each.text) for each in found if each.text]


async def test_delegated_task_is_done_and_its_answer_is_reported() -> None:
    lead = agent("lead", delegate("writer", "a poem", priority="high"), says("He is at it."), says("Here is the poem."))
    async with run_jobs(team(lead, agent("writer", says("Roses are red.")))) as atlas:
        assert (await atlas.ask("A poem!", user="ann")).text == "He is at it."
        (job,) = await wait_until_settled(atlas, "done")
        received = await texts(atlas)
        assert received[:2] == [("user", "A poem!"), ("assistant", "He is at it.")]
        role, words = received[2]
        assert role == "user" and job.id in words and "The answer of writer:\n\nRoses are red." in words
        assert received[3:] == [("assistant", "Here is the poem.")]
        assert await texts(atlas, job.session) == [("user", "a poem"), ("assistant", "Roses are red.")]
    assert (job.priority, job.user, job.chain, job.asker_agent) == (2, "ann", ("lead",), "lead")
    assert (job.attempts, job.result, job.notified, job.session) == (
        1,
        "Roses are red.",
        True,
        f"default/jobs/{job.id}",
    )


async def test_refusal_of_a_delegated_task_is_reported() -> None:
    async with run_jobs(
        team(agent("chief", delegate("poet"), says("ok"), says("too bad")), agent("poet", refuses("x")))
    ) as atlas:
        await atlas.ask("a poem, please")
        (job,) = await wait_until_settled(atlas, "done")
        assert job.result == "The model refused to answer: x"


async def test_job_at_the_round_limit_fails_and_reports_the_text_so_far() -> None:
    lead = agent("lead", delegate("writer"), says("He is at it."), says("Half a poem."))
    writer = agent("writer", says("Roses are") + calls("nothing"), says("Roses are red."), max_rounds=1)
    async with run_jobs(team(lead, writer)) as atlas:
        await atlas.ask("A poem!")
        (job,) = await wait_until_settled(atlas, "failed")
        reason = "the turn reached its limit of rounds (max_rounds) before the model was done"
        assert (job.error, job.result, job.attempts) == (reason, "Roses are", 1)
        report = (await texts(atlas))[2][1]
        assert f"failed: {reason}. The text of writer so far:\n\nRoses are\n" in report
        await atlas.jobs.retry(job.id)
        (job,) = await wait_until_settled(atlas, "done")
        assert job.result == "Roses are red."


async def test_job_whose_answer_was_cut_off_says_so() -> None:
    lead = agent("lead", delegate("writer"), says("He is at it."), says("Here it is."))
    async with run_jobs(team(lead, agent("writer", says("Roses", stop="length")))) as atlas:
        await atlas.ask("A poem!")
        (job,) = await wait_until_settled(atlas, "done")
        assert job.result == "Roses\n\n(The answer is incomplete: it reached the token limit.)"


async def test_delegated_task_has_its_agents_settings_and_the_report_those_of_the_turn() -> None:
    lead = Scripted(delegate("writer"), says("He is at it."), says("Here it is."))
    writer = Scripted(says("Roses are red."))
    agents = (
        Agent("lead", model=lead, tools=[delegate_task], settings={"effort": "low", "seed": 7}),
        Agent("writer", model=writer, settings={"temperature": 1.0}),
    )
    async with run_jobs(team(*agents)) as atlas:
        await atlas.ask("A poem!", settings={"effort": "high"})
        await wait_until_settled(atlas, "done")
    assert [request.settings for request in lead.requests] == [ModelSettings(effort="high", seed=7)] * 3
    assert [request.settings for request in writer.requests] == [ModelSettings(temperature=1.0)]


async def test_tool_result_has_the_job_id_and_the_audit_log_has_the_call() -> None:
    lead = agent("lead", delegate("writer"), says("Done."), says("Thanks."))
    async with run_jobs(team(lead, agent("writer", says("x")))) as atlas:
        await atlas.ask("go")
        (job,) = await wait_until_settled(atlas, "done")
        (row,) = await atlas.audit.records(atlas.tenant)
    assert (row.entry.entity_id, row.entry.success) == ("delegate_task", True)
    assert job.id in str(row.entry.meta["result"])


async def test_report_waits_for_the_running_turn() -> None:
    free = asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait."""
        await free.wait()
        return "held"

    lead = agent("lead", delegate("writer"), calls("hold"), says("First."), says("Second."), tools=[hold])
    async with run_jobs(team(lead, agent("writer", says("x")))) as atlas:
        asking_agent = asyncio.create_task(atlas.ask("go"))

        async def queued() -> bool:
            runs = await atlas.store.runs("default", "default") if atlas.store else []
            return [run.status for run in runs] == ["running", "queued"]

        await wait_until(queued)
        free.set()
        assert (await asking_agent).text == "First."
        await wait_until_settled(atlas, "done")
        assert [text for role, text in await texts(atlas) if role == "assistant"] == ["First.", "Second."]


async def test_delegating_job_is_done_after_its_child_jobs() -> None:
    a = agent("a", delegate("b"), says("I asked b."), says("All is well."))
    b = agent(
        "b", delegate("c", "one") + delegate("c", "two"), says("I asked c."), says("b has one."), says("b has both.")
    )
    async with run_jobs(team(a, b, agent("c", says("c1"), says("c2")))) as atlas:
        await atlas.ask("go")
        first, *others = await wait_until_settled(atlas, "done", "done", "done")
        assert first.result == "b has both."
        assert [(job.parent, job.chain, job.root) for job in others] == [(first.id, ("a", "b"), first.root)] * 2
        received = [text for role, text in await texts(atlas) if role == "user"]
        assert len(received) == 2 and "b has both." in received[1]


@pytest.mark.parametrize(("depth", "jobs"), [(1, 1), (3, 3), (5, 5)])
async def test_delegation_depth_is_limited(depth: int, jobs: int) -> None:
    names = [f"a{n}" for n in range(8)]
    agents = [
        agent(name, delegate(after), says(f"{name} asked."), says(f"{name} is done."))
        for name, after in pairwise(names)
    ]
    atlas = team(*agents, agent("a7", says("x")), delegation=Delegation(depth=depth))
    async with run_jobs(atlas):
        await atlas.ask("go")
        assert len(await wait_until_settled(atlas, *["done"] * jobs)) == jobs
        errors = [row.entry.meta["error"] for row in await atlas.audit.records(atlas.tenant)]
    assert errors == [None] * jobs + ["limit"], "one error, where it is cut"


async def test_delegation_loop_is_rejected() -> None:
    b = agent("b", delegate("a") + delegate("b") + delegate("unknown"), says("I do it."))
    async with run_jobs(team(agent("a", delegate("b"), says("Asked."), says("Good.")), b)) as atlas:
        await atlas.ask("go")
        (job,) = await wait_until_settled(atlas, "done")
        records = await atlas.audit.records(atlas.tenant)
    assert job.result == "I do it."
    assert [row.entry.meta["error"] for row in records] == [None, "limit", "bad_arguments", "bad_arguments"]
    assert "a is waiting for your result" in str(records[1].entry.meta["result"])


@pytest.mark.parametrize("parallel", [True, False])
async def test_jobs_per_message_are_limited(parallel: bool) -> None:
    many = delegate("b", "0")
    for n in range(1, 50):
        many += delegate("b", str(n))
    a = agent("a", many, says("Asked."), *[says("Good.")] * 20, parallel_tools=parallel)
    atlas = team(a, agent("b", *[says("x")] * 20), delegation=Delegation(jobs=20))
    async with run_jobs(atlas):
        await atlas.ask("go")
        await wait_until_settled(atlas, *["done"] * 20)
        errors = [row.entry.meta["error"] for row in await atlas.audit.records(atlas.tenant)]
    assert (errors.count(None), errors.count("limit")) == (20, 30), "one error each"


async def test_endless_exchange_between_two_agents_is_stopped() -> None:
    a = agent("a", *[delegate("b"), says("Asked.")] * 7, delegate("b"), says("I give up."))
    async with run_jobs(team(a, agent("b", *[says("x")] * 9), delegation=Delegation(jobs=7))) as atlas:
        await atlas.ask("go")
        await wait_until_settled(atlas, *["done"] * 7)
        assert (await texts(atlas))[-1] == ("assistant", "I give up.")


async def test_job_past_its_deadline_is_stopped_and_reported() -> None:
    clock, begun = VirtualClock(), asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    lead = agent("lead", delegate("slow", deadline="2 minutes"), says("Asked."), says("A pity."))
    slow = agent("slow", calls("hang"), says("x"), tools=[hang])
    hang.timeout = 600
    async with run_jobs(team(lead, slow, clock=clock, store=MemoryStore(clock=clock))) as atlas:
        await atlas.ask("go")
        await begun.wait()
        await clock.advance(119)
        assert (await atlas.jobs.list())[0].state == "running"
        await clock.advance(2)
        (job,) = await wait_until_settled(atlas, "expired")
        assert "missed its deadline" in (await texts(atlas))[2][1]
        runs = await atlas.store.runs("default", job.session) if atlas.store else []
        assert [run.status for run in runs] == ["cancelled"]


async def test_child_jobs_are_cancelled_at_the_deadline() -> None:
    clock = VirtualClock()
    b = agent("b", delegate("c", deadline="1 day"), says("Asked c."), says("x"))
    atlas = team(
        agent("a", delegate("b", deadline="10 minutes"), says("Asked."), says("Good.")),
        b,
        agent("c", says("c")),
        clock=clock,
    )
    async with run_jobs(atlas):
        await atlas.ask("go")
        first, second = await wait_until_settled(atlas, "done", "done")
    assert first.deadline == second.deadline == int((clock.time() + 600) * 1000)


async def test_cancelling_a_job_cancels_its_child_jobs() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    a = agent("a", delegate("b"), says("Asked."), says("A pity."))
    b, c = (
        agent("b", delegate("c"), says("Waiting for c."), says("x")),
        agent("c", calls("hang"), says("x"), tools=[hang]),
    )
    async with run_jobs(team(a, b, c)) as atlas:
        await atlas.ask("go")
        await begun.wait()
        (first,) = await atlas.jobs.list(states=("running",), limit=1, before=2)
        ended = await atlas.jobs.cancel(first.id, by="ann")
        assert (ended.state, ended.error) == ("cancelled", "cancelled by ann")
        jobs = await wait_until_settled(atlas, "cancelled", "cancelled")
        assert "was cancelled by ann" in (await texts(atlas))[2][1]
        assert await texts(atlas, jobs[0].session) == [("user", "write it"), ("assistant", "Waiting for c.")]
        with pytest.raises(Conflict):
            await atlas.jobs.cancel(first.id)
        with pytest.raises(NotFound):
            await atlas.jobs.cancel("no such")


async def test_failing_job_is_retried_and_then_dead() -> None:
    away = [fails(ProviderError("away", "auth"))] * 5
    lead = agent("lead", delegate("b") + delegate("c"), says("Asked."), says("One."), says("Other."), says("Both."))
    b = agent("b", *away, says("Now it works."))
    c = agent("c", fails(ProviderError("no such model", "bad_request")), says("x"))
    async with run_jobs(team(lead, b, c)) as atlas:
        await atlas.ask("go")
        dead, failed = await wait_until_settled(atlas, "dead", "failed")
        assert (dead.attempts, dead.error) == (5, "away") and (failed.attempts, failed.error) == (1, "no such model")
        words = [text for role, text in await texts(atlas) if role == "user"]
        assert any("after 5 attempts: away" in text for text in words)
        again = await atlas.jobs.retry(dead.id)
        assert (again.state, again.allowed) == ("queued", 10)
        done, _ = await wait_until_settled(atlas, "done", "failed")
        assert (done.result, done.attempts) == ("Now it works.", 6)
        assert "Now it works." in [text for role, text in await texts(atlas) if role == "user"][-1]
        with pytest.raises(Conflict):
            await atlas.jobs.retry(done.id)


async def test_retry_delay_of_a_job_grows() -> None:
    clock = VirtualClock()
    lead = agent("lead", delegate("b"), says("Asked."), says("Good."))
    b = agent("b", fails(ProviderError("away", "auth")), fails(ProviderError("away", "auth")), says("Back."))
    async with run_jobs(team(lead, b, clock=clock, delegation=Delegation(retry_delays=(7.0, 60.0)))) as atlas:
        await atlas.ask("go")

        async def state() -> tuple[str, int]:
            (job,) = await atlas.jobs.list()
            return job.state, job.attempts

        async def is_requeued() -> bool:
            return (await state())[0] == "queued" and (await state())[1] > 0

        await wait_until(is_requeued)
        await clock.advance(6)
        assert await state() == ("queued", 1)
        await clock.advance(5)
        await wait_until(lambda: _is(state, ("queued", 2)))
        await clock.advance(55)
        assert await state() == ("queued", 2)
        await clock.advance(10)
        await wait_until_settled(atlas, "done")


async def _is(state: Callable[[], Awaitable[Any]], wanted: Any) -> bool:
    return await state() == wanted


async def test_approval_in_a_job_is_asked_of_a_person_and_not_of_the_asker() -> None:
    done: list[str] = []

    @tool(confirm=True)
    async def pay(context: ToolContext) -> str:
        """Pay."""
        done.append(context.user)
        return "paid"

    lead = agent("lead", delegate("payer"), says("Asked."), calls("approve"), says("I cannot approve it."))
    payer = agent("payer", calls("pay"), says("Paid."), tools=[pay])
    async with run_jobs(team(lead, payer, approve=Approvals(wait=True))) as atlas:
        await atlas.ask("go", user="ann")
        (question,) = await wait_until(atlas.pending)
        assert (question.agent_id, question.asked_by, question.tool) == ("payer", "ann", "pay")
        assert not done
        await atlas.answer(question.id, Answer("once", by="ann"))
        (job,) = await wait_until_settled(atlas, "done")
        assert done == ["ann"] and question.session == job.session


async def test_delegated_agent_acts_under_its_own_role() -> None:
    @tool
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    may: dict[str, Cell] = {"admin": "yes"}
    rules = Policy(tools={"delegate_task": {"*": "yes"}, "deploy": may})
    lead = agent("lead", delegate("intern"), says("Asked."), says("Good."), role="admin", tools=[deploy])
    intern = agent("intern", calls("deploy"), says("I may not."), role="intern", tools=[deploy])
    async with run_jobs(team(lead, intern, policy=rules)) as atlas:
        await atlas.ask("go")
        (job,) = await wait_until_settled(atlas, "done")
        records = await atlas.audit.records(atlas.tenant)
    assert job.result == "I may not."
    assert [(row.entry.entity_id, row.entry.meta["error"]) for row in records] == [
        ("delegate_task", None), ("deploy", "not_permitted"),
    ]  # fmt: skip


async def test_concurrent_jobs_are_limited_and_start_by_urgency() -> None:
    priorities = ["low", "normal", "urgent", "high", "normal"]
    wait_for_question = delegate("w", "0", priority="low")
    for n, priority in enumerate(priorities, 1):
        wait_for_question += delegate("w", str(n), priority=priority)
    lead = agent("lead", wait_for_question, says("Asked."), *[says("ok")] * 6)
    atlas = team(lead, agent("w", *[says("done")] * 6), delegation=Delegation(at_once=1))
    seen: list[tuple[str, str]] = []
    atlas.jobs.on_change(lambda job: seen.append((job.task, job.state)))
    async with atlas:
        await atlas.ask("go")
        assert [job.state for job in await atlas.jobs.list()] == ["queued"] * 6, "no job has started yet"
        async with atlas.jobs.running():
            await wait_until_settled(atlas, *["done"] * 6)
    order = ["3", "4", "2", "5", "0", "1"]
    assert [each for each in seen if each[1] != "queued"] == [
        (task, state) for task in order for state in ("running", "done")
    ]


async def test_callbacks_that_fail_do_not_stop_the_jobs(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    atlas = team(agent("lead", delegate("w", "0"), says("Asked."), says("ok")), agent("w", says("done")))
    atlas.jobs.on_change(fail)
    atlas.jobs.on_turn(fail)
    async with asyncio.timeout(TIMEOUT), run_jobs(atlas):
        await atlas.ask("go")
        (job,) = await wait_until_settled(atlas, "done")
    assert job.result == "done"
    assert "callback failed" in caplog.text and "ZeroDivisionError" in caplog.text


async def test_delegation_requires_a_store() -> None:
    atlas = Atlas([agent("a", delegate("b"), says("I do it myself.")), agent("b")])
    reply = await atlas.ask("go")
    assert reply.text == "I do it myself."


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_job_that_ended_during_downtime_does_not_resume(how: str, tmp_path: Path) -> None:
    clock, begun, made = VirtualClock(), asyncio.Event(), list[str]()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    store = SqliteStore(tmp_path / "atlas.db", clock=clock)
    await store.open()
    lead = agent("lead", delegate("slow", deadline="2 minutes"), says("Asked."), says("A pity."))
    slow = agent("slow", calls("hang"), says("It went on."), tools=[hang])
    async with run_jobs(team(lead, slow, clock=clock, store=store)) as atlas:
        await atlas.ask("go")
        await begun.wait()
    (job,) = await store.jobs("default")
    assert job.state == "running" and len(await store.open_runs()) == 1
    if how == "cancelled":
        await store.commit("default", [SetJob(job.id, "cancelled", error="by ann")])  # then the process stopped
    else:
        await clock.advance(130)
    later = team(lead, slow, clock=clock, store=store)
    later.on("message:received", lambda event: made.append(event.message.text))
    async with later:
        await later.recover()
        async with later.jobs.running():
            await wait_until_settled(later, how)
        assert [run.status for run in await store.runs("default", job.session)] == ["cancelled"]
    assert "It went on." not in made
    await store.close()


async def test_answer_to_a_deleted_session_is_not_delivered() -> None:
    free = asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait."""
        await free.wait()
        return "held"

    lead = agent("lead", delegate("slow"), says("Asked."))
    async with run_jobs(team(lead, agent("slow", calls("hold"), says("Done."), tools=[hold]))) as atlas:
        await atlas.ask("go", session="short")
        await atlas.sessions.delete("short")
        free.set()
        (job,) = await wait_until_settled(atlas, "done")
        assert job.notified and [each.key for each in await atlas.sessions.list()] == [job.session]


async def test_jobs_are_closed_although_a_driver_loses_the_cancellation() -> None:
    """As `asyncio.wait_for` does before Python 3.12 if its result arrives at the same time."""
    reading = asyncio.Event()

    class Deaf(MemoryStore):
        async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[JobRow]:
            reading.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return []

    async with team(agent("lead"), store=Deaf()) as atlas:
        atlas.jobs.start()
        await reading.wait()
        async with asyncio.timeout(TIMEOUT):
            await atlas.jobs.close()


async def test_job_that_fails_while_due_jobs_are_read_waits_for_its_next_attempt() -> None:
    """The row that was read still calls it running, and due."""
    attempted, reading, may_return = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[JobRow]:
            found = await super().pending_jobs(tenant, now, limit=limit)
            if [job.state for job in found] == ["running"]:
                reading.set()
                await may_return.wait()
            return found

    async def fail(request: Request) -> str:
        attempted.set()
        await reading.wait()
        raise ProviderError("away", "auth")

    store, clock = Slow(), VirtualClock()
    worker = Agent("worker", model=fail)
    async with run_jobs(team(worker, store=store, clock=clock, delegation=Delegation(retry_delays=(1000.0,)))) as atlas:
        submitted = await atlas.jobs.add(JobRow("j1", "request", "worker", "write it", session="jobs/1", root="j1"))
        async with asyncio.timeout(TIMEOUT):
            await attempted.wait()
            atlas.jobs.wake()

            async def has_failed() -> bool:
                job = await store.job(atlas.tenant, submitted.id)
                return job is not None and job.state == "queued"

            await wait_until(has_failed)
            may_return.set()
            for _ in range(100):
                await asyncio.sleep(0)
        (job,) = await atlas.jobs.list()
        assert (job.state, job.attempts) == ("queued", 1)
