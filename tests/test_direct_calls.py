"""A tool called without a model goes the way of every call: permitted, checked, confirmed, limited, written down."""

import asyncio
from typing import Any

import pytest

from atlas_agents import Agent, Approvals, Atlas, Limits, Policy, ToolContext, tool
from atlas_agents.core.errors import ConfigError, Conflict, UnknownAgent
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Environment, Registry
from checks import PATIENCE, until

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran_yet() -> None:
    ran.clear()


@tool
async def write(text: str, context: ToolContext) -> dict[str, str]:
    """Write something down."""
    context.progress("writing")
    ran.append((text, context.idempotency_key))
    return {"wrote": text}


@tool(confirm=True)
async def risk(text: str) -> str:
    """Do something risky."""
    ran.append(text)
    return text


def atlas_with_tools(store: MemoryStore | None = None, **more: Any) -> Atlas:
    agents = [Agent("a", tools=[write, risk], role="writer"), Agent("b")]
    return Atlas(agents, store=store, registry=Registry(Environment({}, dotenv=None)), **more)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_call_has_a_result_and_a_line_in_the_audit_log(kept: bool) -> None:
    async with atlas_with_tools(MemoryStore() if kept else None) as atlas:
        result = await atlas.invoke("write", {"text": "hi"}, user="ana")
        assert (result.status, result.result) == ("ok", {"wrote": "hi"})
        (record,) = await atlas.audit.records("default")
        assert (record.entry.entity_id, record.entry.success, record.entry.meta["user"]) == ("write", True, "ana")


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [("write", {"text": 7}, "bad_arguments"), ("nothing", {}, "not_found"), ("risk", {"text": "x"}, "declined")],
)
async def test_a_refused_call_is_a_result_too_and_nothing_ran(name: str, arguments: Any, error: str) -> None:
    async with atlas_with_tools(MemoryStore()) as atlas:
        result = await atlas.invoke(name, arguments)
        assert (result.status, result.error) == ("error", error) and ran == []
        assert len(await atlas.audit.records("default")) == 1


async def test_a_policy_counts_and_so_does_the_user() -> None:
    policy = Policy(tools={"write": {"writer": "no"}})
    async with atlas_with_tools(MemoryStore(), policy=policy) as atlas:
        assert (await atlas.invoke("write", {"text": "x"})).error == "not_permitted"
        assert (await atlas.invoke("write", {"text": "x"}, agent_id="b")).error == "not_found"
        with pytest.raises(UnknownAgent):
            await atlas.invoke("write", {"text": "x"}, agent_id="unknown")
    assert ran == []


async def test_limits_count() -> None:
    async with atlas_with_tools(MemoryStore(), limits=Limits(per_day=1)) as atlas:
        assert (await atlas.invoke("write", {"text": "x"})).status == "ok"
        assert (await atlas.invoke("write", {"text": "y"})).error == "limit"
    assert len(ran) == 1


async def test_a_question_waits_for_its_answer_and_holds_up_no_other_call() -> None:
    async with atlas_with_tools(MemoryStore(), approve=Approvals(wait=True)) as atlas, asyncio.timeout(PATIENCE):
        waiting = asyncio.create_task(atlas.invoke("risk", {"text": "x"}, user="ana"))
        questions = await until(atlas.pending)
        assert (await atlas.invoke("write", {"text": "meanwhile"}, user="ana")).status == "ok"
        await atlas.answer(questions[0].id, "once")
        assert (await waiting).result == "x"


async def test_the_same_key_gives_the_first_result_and_runs_once() -> None:
    async with atlas_with_tools(MemoryStore()) as atlas:
        first = await atlas.invoke("write", {"text": "x"}, user="ana", idempotency_key="k")
        again = await atlas.invoke("write", {"text": "x"}, user="ana", idempotency_key="k")
        assert again == first and len(ran) == 1
        with pytest.raises(Conflict):
            await atlas.invoke("write", {"text": "y"}, user="ana", idempotency_key="k")
        await atlas.invoke("write", {"text": "x"}, user="bob", idempotency_key="k")
        assert len(ran) == 2
    async with atlas_with_tools() as atlas:
        with pytest.raises(ConfigError, match="requires a store"):
            await atlas.invoke("write", {"text": "x"}, idempotency_key="k")


async def test_progress_is_emitted_on_the_stream() -> None:
    async with atlas_with_tools(MemoryStore()) as atlas:
        stream = await atlas.begin_call("write", {"text": "x"})
        progress = [event.message async for event in stream if event.type == "tool:progress"]
        assert progress == ["writing"]


async def test_giving_up_waiting_stops_the_call() -> None:
    stopped = asyncio.Event()

    @tool
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    async with Atlas([Agent("a", tools=[hang])], store=MemoryStore()) as atlas:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(atlas.invoke("hang", {}), 0.2)
        await asyncio.wait_for(stopped.wait(), PATIENCE)


async def test_a_call_that_a_sudden_end_cut_short_is_unknown_and_not_made_again() -> None:
    """The first Atlas is abandoned in the middle of the call, like a killed process; the second one resumes it."""
    store, began = MemoryStore(), asyncio.Event()

    @tool
    async def transfer() -> None:
        ran.append("transfer")
        began.set()
        await asyncio.Event().wait()

    before = Atlas([Agent("a", tools=[transfer])], store=store)
    stream = await before.begin_call("transfer", {})
    await asyncio.wait_for(began.wait(), PATIENCE)
    run = stream._run  # type: ignore
    run.journal.detach()  # type: ignore
    async with Atlas([Agent("a", tools=[transfer])], store=store) as after:
        (again,) = await after.recover()
        reply = await asyncio.wait_for(again.reply(), PATIENCE)
        (result,) = reply.tool_results
        assert result.status == "unknown" and "may have happened" in result.result
        assert ran == ["transfer"]
    await before.close()
