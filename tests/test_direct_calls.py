"""Direct tool calls without a model go through the same pipeline as every call."""

import asyncio
from typing import Any

import pytest

from atlas_agents import Agent, Approvals, Atlas, Limits, Policy, ToolContext, tool
from atlas_agents.core.errors import ConfigError, Conflict, UnknownAgent
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Environment, Registry
from checks import TIMEOUT, wait_until

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _clear_ran() -> None:
    ran.clear()


@tool
async def write(text: str, context: ToolContext) -> dict[str, str]:
    """Record a text."""
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
async def test_direct_call_returns_a_result_and_writes_an_audit_row(kept: bool) -> None:
    async with atlas_with_tools(MemoryStore() if kept else None) as atlas:
        result = await atlas.invoke("write", {"text": "hi"}, user="ana")
        assert (result.status, result.result) == ("ok", {"wrote": "hi"})
        (record,) = await atlas.audit.records("default")
        assert (record.entry.entity_id, record.entry.success, record.entry.meta["user"]) == ("write", True, "ana")


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [("write", {"text": 7}, "bad_arguments"), ("nothing", {}, "not_found"), ("risk", {"text": "x"}, "declined")],
)
async def test_denied_direct_call_returns_an_error_and_runs_nothing(name: str, arguments: Any, error: str) -> None:
    async with atlas_with_tools(MemoryStore()) as atlas:
        result = await atlas.invoke(name, arguments)
        assert (result.status, result.error) == ("error", error) and ran == []
        assert len(await atlas.audit.records("default")) == 1


async def test_direct_call_is_checked_against_policy_and_user() -> None:
    policy = Policy(tools={"write": {"writer": "no"}})
    async with atlas_with_tools(MemoryStore(), policy=policy) as atlas:
        assert (await atlas.invoke("write", {"text": "x"})).error == "not_permitted"
        assert (await atlas.invoke("write", {"text": "x"}, agent_id="b")).error == "not_found"
        with pytest.raises(UnknownAgent):
            await atlas.invoke("write", {"text": "x"}, agent_id="unknown")
    assert ran == []


async def test_direct_call_counts_against_the_limits() -> None:
    async with atlas_with_tools(MemoryStore(), limits=Limits(per_day=1)) as atlas:
        assert (await atlas.invoke("write", {"text": "x"})).status == "ok"
        assert (await atlas.invoke("write", {"text": "y"})).error == "limit"
    assert len(ran) == 1


async def test_waiting_approval_does_not_block_other_calls() -> None:
    async with atlas_with_tools(MemoryStore(), approve=Approvals(wait=True)) as atlas, asyncio.timeout(TIMEOUT):
        waiting = asyncio.create_task(atlas.invoke("risk", {"text": "x"}, user="ana"))
        questions = await wait_until(atlas.pending)
        assert (await atlas.invoke("write", {"text": "meanwhile"}, user="ana")).status == "ok"
        await atlas.answer(questions[0].id, "once")
        assert (await waiting).result == "x"


async def test_same_idempotency_key_runs_once_and_returns_the_first_result() -> None:
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


async def test_cancelled_wait_stops_the_call() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    async with Atlas([Agent("a", tools=[hang])], store=MemoryStore()) as atlas:
        call = asyncio.create_task(atlas.invoke("hang", {}))
        await asyncio.wait_for(started.wait(), TIMEOUT)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(stopped.wait(), TIMEOUT)


async def test_call_interrupted_by_a_crash_is_unknown_and_not_repeated() -> None:
    """The first Atlas is abandoned during the call, like a killed process; the second one resumes it."""
    store, began = MemoryStore(), asyncio.Event()

    @tool
    async def transfer() -> None:
        ran.append("transfer")
        began.set()
        await asyncio.Event().wait()

    before = Atlas([Agent("a", tools=[transfer])], store=store)
    stream = await before.begin_call("transfer", {})
    await asyncio.wait_for(began.wait(), TIMEOUT)
    run = stream._run
    run.journal.detach()  # type: ignore
    async with Atlas([Agent("a", tools=[transfer])], store=store) as after:
        (again,) = await after.recover()
        reply = await asyncio.wait_for(again.reply(), TIMEOUT)
        (result,) = reply.tool_results
        assert result.status == "unknown" and "may have happened" in result.result
        assert ran == ["transfer"]
    await before.close()
