"""Stored approvals: a request survives a restart with its id and deadline, and is answered once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Answer, Approvals, Atlas, Conflict, NotFound, Policy, Question, tool
from atlas_agents.core.aio import SystemClock
from atlas_agents.core.errors import StoreLost
from atlas_agents.core.store import AnswerApproval, Store, Write
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from checks import TIMEOUT, wait_until

BUY = calls("buy", what="tea")


class Shop:
    """Counts purchases, which require approval."""

    def __init__(self) -> None:
        self.bought: list[str] = []

        @tool(confirm=True)
        async def buy(what: str) -> str:
            """Buy something."""
            self.bought.append(what)
            return f"bought {what}"

        self.buy = buy


def refuse(question: Question) -> str:
    return "no"


async def open_atlas() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


async def wait_for_question(atlas: Atlas) -> Question:
    (question,) = await wait_until(atlas.pending)
    return question


async def test_question_keeps_its_id_and_deadline_across_a_restart(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "atlas.db"
    first = SqliteStore(path)
    await first.open()
    atlas = in_memory_atlas(Scripted(BUY, says("Done.")), [shop.buy], store=first, approve=Approvals(wait=True))
    stream = atlas.send("go", session="s")
    question = await wait_for_question(atlas)
    assert [run.status for run in await first.runs("default", "s")] == ["waiting"]
    await atlas.close()
    await first.close()
    assert shop.bought == []

    second = SqliteStore(path)
    await second.open()
    async with in_memory_atlas(
        Scripted(says("Done.")), [shop.buy], store=second, approve=Approvals(wait=True)
    ) as atlas:
        (again,) = await atlas.recover()
        assert await wait_for_question(atlas) == question
        assert again.stream_id == stream.stream_id
        await atlas.answer(question.id, Answer("once", by="ana"))
        assert (await again.reply()).text == "Done."
        assert shop.bought == ["tea"]
        (row,) = list(await atlas.audit.records("default"))
        assert row.entry.meta["approved_by"] == "ana"
        assert [entry.kind for entry in await second.journal("default", stream.stream_id)] == [
            *("accepted", "reply", "asked", "resumed", "answered", "intent", "outcome", "reply", "ended")
        ]
    await second.close()


async def test_stored_answer_is_used_after_a_crash() -> None:
    shop, store = Shop(), await open_atlas()
    atlas = in_memory_atlas(Scripted(BUY), [shop.buy], store=store, approve=Approvals(wait=True))
    atlas.send("go", session="s")
    question = await wait_for_question(atlas)
    await atlas.close()
    await atlas.answer(question.id, "once")  # no run waits for it
    async with in_memory_atlas(Scripted(says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True)) as atlas:
        (stream,) = await atlas.recover()
        await stream.reply()
    assert shop.bought == ["tea"]
    assert await atlas.pending() == []


async def test_second_late_and_unknown_answers_are_rejected() -> None:
    shop, store = Shop(), await open_atlas()
    async with in_memory_atlas(
        Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True)
    ) as atlas:
        stream = atlas.send("go", session="s")
        question = await wait_for_question(atlas)
        await atlas.answer(question.id, "no")
        with pytest.raises(Conflict, match="already answered"):
            await atlas.answer(question.id, "once")
        await stream.reply()
        with pytest.raises(Conflict, match="has ended"):
            await atlas.answer(question.id, "once")
        with pytest.raises(NotFound):
            await atlas.answer("nothing", "once")
    assert shop.bought == []


async def test_one_of_two_concurrent_answers_counts() -> None:
    shop, store = Shop(), await open_atlas()
    async with in_memory_atlas(
        Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True)
    ) as atlas:
        stream = atlas.send("go", session="s")
        question = await wait_for_question(atlas)
        given = [atlas.answer(question.id, Answer("once", by=by)) for by in ("ana", "bea")]
        results = await asyncio.gather(*given, return_exceptions=True)
        await stream.reply()
    assert sum(isinstance(each, Conflict) for each in results) == 1
    assert shop.bought == ["tea"]


async def test_missing_answer_stays_a_refusal() -> None:
    shop, store, clock = Shop(), await open_atlas(), VirtualClock()
    approvals = Approvals(wait=True, deadline=60)
    async with in_memory_atlas(
        Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=approvals, clock=clock
    ) as atlas:
        stream = atlas.send("go", session="s")
        question = await wait_for_question(atlas)
        await clock.advance(61)
        await stream.reply()
        with pytest.raises(Conflict):
            await atlas.answer(question.id, "once")
    assert shop.bought == []


async def test_always_answer_holds_after_a_restart_for_the_same_call_only() -> None:
    shop, store = Shop(), await open_atlas()
    async with in_memory_atlas(
        Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True)
    ) as atlas:
        stream = atlas.send("go", session="s")
        await atlas.answer((await wait_for_question(atlas)).id, "always")
        await stream.reply()
    model = Scripted(BUY, says("Done."), calls("buy", what="coffee"), says("Done."))
    async with in_memory_atlas(model, [shop.buy], store=store, approve=Approvals(wait=True)) as atlas:
        await atlas.ask("again", session="other")
        assert shop.bought == ["tea", "tea"]
        stream = atlas.send("and", session="other")
        await atlas.answer((await wait_for_question(atlas)).id, "no")
        await stream.reply()
    assert shop.bought == ["tea", "tea"]


async def test_session_answer_holds_after_a_restart_for_its_session() -> None:
    shop, store = Shop(), await open_atlas()
    async with in_memory_atlas(
        Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True)
    ) as atlas:
        stream = atlas.send("go", session="s")
        await atlas.answer((await wait_for_question(atlas)).id, "session")
        await stream.reply()
    model = Scripted(BUY, says("Done."), BUY, says("Done."))
    async with in_memory_atlas(model, [shop.buy], store=store, approve=refuse) as atlas:
        await atlas.ask("again", session="s")
        assert shop.bought == ["tea", "tea"]
        await atlas.ask("again", session="other")
    assert shop.bought == ["tea", "tea"]


async def test_edited_arguments_survive_a_restart() -> None:
    shop, store = Shop(), await open_atlas()
    atlas = in_memory_atlas(Scripted(BUY), [shop.buy], store=store, approve=Approvals(wait=True))
    atlas.send("go", session="s")
    question = await wait_for_question(atlas)
    await atlas.close()
    await atlas.answer(question.id, Answer("always", arguments={"what": "water"}))
    model = Scripted(says("Done."), calls("buy", what="water"), says("Done."))
    async with in_memory_atlas(model, [shop.buy], store=store, approve=Approvals(wait=True)) as atlas:
        (stream,) = await atlas.recover()
        await stream.reply()
        await atlas.ask("and water", session="s")
    assert shop.bought == ["water", "water"]


async def test_approval_under_an_older_policy_is_requested_again() -> None:
    shop, store = Shop(), await open_atlas()
    old, new = (Policy(tools={"buy": {"assistant": "ask"}, "x": {"*": cell}}) for cell in ("no", "yes"))
    atlas = in_memory_atlas(Scripted(BUY), [shop.buy], store=store, approve=Approvals(wait=True), policy=old)
    atlas.send("go", session="s")
    question = await wait_for_question(atlas)
    await atlas.close()
    await atlas.answer(question.id, "once")
    async with in_memory_atlas(
        Scripted(says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True), policy=new
    ) as atlas:
        (stream,) = await atlas.recover()
        again = await wait_for_question(atlas)
        assert again.id != question.id
        assert shop.bought == []
        await atlas.answer(again.id, "once")
        await stream.reply()
    assert shop.bought == ["tea"]


async def test_one_of_two_required_persons_is_not_enough_in_either_store() -> None:
    shop, store = Shop(), await open_atlas()
    approvals = Approvals(wait=True, two_person=True)
    async with in_memory_atlas(Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=approvals) as atlas:
        stream = atlas.send("go", session="s", user="ana")
        await atlas.answer((await wait_for_question(atlas)).id, Answer("once", by="ana"))
        await stream.reply()
    assert shop.bought == []


async def test_questions_wait_in_memory_without_a_store() -> None:
    shop = Shop()
    async with in_memory_atlas(Scripted(BUY, says("Done.")), [shop.buy], approve=Approvals(wait=True)) as atlas:
        stream = atlas.send("go")
        await atlas.answer((await wait_for_question(atlas)).id, "once")
        assert (await stream.reply()).text == "Done."
        assert await atlas.pending() == []
        with pytest.raises(NotFound):
            await atlas.answer("nothing", "once")
    assert shop.bought == ["tea"]


async def test_subscriber_gets_the_question_and_its_answer() -> None:
    shop, store = Shop(), await open_atlas()
    async with in_memory_atlas(
        Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True)
    ) as atlas:
        stream = atlas.send("go", session="s")
        question = await wait_for_question(atlas)
        await atlas.answer(question.id, Answer("once", by="ana"))
        events = [event async for event in stream]
    types = [event.type for event in events]
    assert types.index("approval:asked") < types.index("approval:answered") < types.index("tool:result")
    asked_event = next(event for event in events if event.type == "approval:asked")
    answered_event = next(event for event in events if event.type == "approval:answered")
    assert asked_event.question == question
    assert (answered_event.approval_id, answered_event.decision, answered_event.by) == (question.id, "once", "ana")


async def pending_questions(store: Store, model: Scripted, shop: Shop) -> tuple[Atlas, Question]:
    agent = Agent("assistant", model=model, tools=[shop.buy])
    atlas = Atlas([agent], store=store, approve=Approvals(wait=True))
    atlas.send("go", session="s")
    return atlas, await wait_for_question(atlas)


async def test_cancelled_turn_withdraws_its_question() -> None:
    shop, store = Shop(), await open_atlas()
    atlas, question = await pending_questions(store, Scripted(BUY), shop)
    async with atlas:
        stream = atlas.stream(question.run_id)
        assert stream is not None
        stream.cancel()
        await wait_until(lambda: ended(store))
        assert await atlas.pending() == []
        with pytest.raises(Conflict):
            await atlas.answer(question.id, "once")
    assert shop.bought == []


async def ended(store: Store) -> bool:
    return not await store.open_runs()


class LosingStore(MemoryStore):
    """Commits the next answer, then fails as if the connection was lost."""

    loses = True

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        results = await super().commit(tenant, writes)
        if self.loses and isinstance(writes[0], AnswerApproval):
            self.loses = False
            raise StoreLost("gone", unclear=True)
        return results


async def test_stored_answer_counts_after_a_lost_acknowledgement() -> None:
    shop, store = Shop(), LosingStore()
    await store.open()
    atlas = in_memory_atlas(Scripted(BUY, says("Done.")), [shop.buy], store=store, approve=Approvals(wait=True))
    async with atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go", session="s")
        await atlas.answer((await wait_for_question(atlas)).id, "once")
        assert (await stream.reply()).text == "Done."
    assert shop.bought == ["tea"]


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
async def test_pending_approval_stays_listed_and_answerable_after_the_clock_jumped(jump: float) -> None:
    class WallClock(SystemClock):
        ahead = 0.0

        def time(self) -> float:
            return super().time() + self.ahead

    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    clock, store = WallClock(), MemoryStore()
    await store.open()
    model = Scripted(calls("pay"), says("Done."))
    approve = Approvals(wait=True, deadline=300.0)
    async with in_memory_atlas(model, [pay], store=store, approve=approve, clock=clock) as atlas:
        stream = atlas.send("go", session="s")
        (question,) = await wait_until(atlas.pending)
        clock.ahead = jump
        (listed,) = await atlas.pending()
        assert listed.id == question.id
        assert listed.expires_at == pytest.approx(question.expires_at + jump, abs=5.0)
        await atlas.answer(question.id, "once")
        assert (await stream.reply()).text == "Done."
