"""Fork: a finished run goes on live from a step, in a scratch session, with tools simulated from the record."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from atlas_agents import Agent, Answer, Atlas, Budget, ConfigError, Interceptor, Policy, Question, Tool, ToolCall, tool
from atlas_agents.core.errors import ProviderError
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import Store
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import (
    Environment,
    ForkResult,
    Registry,
    ReplayError,
    RunRecord,
    Scripted,
    calls,
    fails,
    fork,
    list_steps,
    says,
)
from checks import TIMEOUT

ran: list[str] = []


@tool(effect="pure")
async def look(n: int) -> str:
    """Look something up."""
    ran.append(f"look {n}")
    return f"saw {n}, time {len(ran)}"


@tool(effect="unsafe", confirm=True)
async def send_mail(to: str) -> str:
    """Send a mail."""
    ran.append(f"mail {to}")
    return f"sent to {to}"


def build(store: Store | None, model: Scripted, **more: Any) -> Atlas:
    clerk = Agent("clerk", model=model, tools=[look, send_mail], system_prompt="Be brief.")
    registry = Registry(Environment({}, dotenv=None))
    return Atlas([clerk], store=store, registry=registry, **more)


async def record(*replies: Any, **more: Any) -> tuple[MemoryStore, str]:
    ran.clear()
    store = MemoryStore()
    async with build(store, Scripted(*replies), **more) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Hello")
        with suppress(ProviderError):
            await stream.reply()
    ran.clear()
    return store, stream.stream_id


async def forked(store: MemoryStore, run: str, step: int, *replies: Any, **more: Any) -> tuple[ForkResult, Scripted]:
    """Fork a run with a scripted model, and check that its own store was not changed."""
    before = [
        await store.journal("default", run),
        await store.messages("default", "default"),
        await store.audit("default"),
    ]
    model, given = Scripted(*replies), {key: more.pop(key) for key in ("policy",) if key in more}
    async with asyncio.timeout(TIMEOUT):
        result = await fork(run, build(None, model), step, store=store, **more, **given)
    after = [
        await store.journal("default", run),
        await store.messages("default", "default"),
        await store.audit("default"),
    ]
    assert after == before
    return result, model


async def test_steps_are_listed_with_their_numbers() -> None:
    store, run = await record(calls("look", n=1), says("Done."))
    steps = list_steps(await RunRecord.read(store, run))
    assert [(each.number, each.kind) for each in steps] == [
        (1, "accepted"),
        (2, "reply"),
        (3, "intent"),
        (4, "outcome"),
        (5, "reply"),
        (6, "ended"),
    ]
    assert steps[0].text == "Hello" and steps[1].text == '→ look {"n":1}' and steps[3].text == "ok: saw 1, time 1"


async def test_fork_uses_the_steps_before_it_and_another_prompt() -> None:
    store, run = await record(calls("look", n=1), says("Done."))
    result, model = await forked(store, run, 5, says("Otherwise."), system_prompt="Be long.")
    assert (result.answer, result.error) == ("Otherwise.", None) and ran == []
    (request,) = model.requests
    assert request.system == "Be long."
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert [(call.tool, call.source) for call in result.calls] == [("look", "recorded")]


async def test_same_calls_are_simulated_and_others_are_refused() -> None:
    store, run = await record(calls("look", n=1), calls("look", n=1), says("Done."))
    replies = (calls("look", n=1), calls("look", n=1), calls("look", n=1), calls("look", n=2), says("New."))
    result, model = await forked(store, run, 2, *replies)
    assert result.answer == "New." and ran == []
    assert [(call.result, call.source) for call in result.calls[:3]] == [
        ("saw 1, time 1", "simulated"),
        ("saw 1, time 2", "simulated"),
        ("saw 1, time 2", "simulated"),
    ]
    assert result.calls[3].source == "not in the record" and "was not run" in result.calls[3].result
    assert len(model.requests) == 5


async def test_allowed_tools_are_run_with_approvals() -> None:
    asked: list[str] = []

    def approve(question: Question) -> Any:
        asked.append(question.tool)
        return Answer("once", by="ana")

    store, run = await record(says("Done."))
    script = (calls("look", n=3) + calls("send_mail", to="bo"), says("Sent."))
    refused, _ = await forked(store, run, 2, *script, allow_tools=["send_mail"])
    assert ran == [] and refused.calls[1].status == "error" and refused.calls[0].source == "not in the record"
    result, _ = await forked(store, run, 2, *script, allow_tools=["send_mail"], approve=approve)
    assert ran == ["mail bo"] and asked == ["send_mail"]
    assert (result.calls[1].result, result.calls[1].source) == ("sent to bo", "run")


@pytest.mark.parametrize("name", ["shop/pay", "shop__pay"])
async def test_tool_allowed_by_the_name_that_models_see_still_needs_its_approval(name: str) -> None:
    asked: list[str] = []

    def refuse(question: Question) -> Any:
        asked.append(question.tool)
        return Answer("no", by="ana")

    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"paid {amount}")
        return "paid"

    store, run = await record(says("Done."))
    model = Scripted(calls("shop__pay", amount=5), says("Not paid."))
    paying = Tool("shop/pay", pay, parameters={"amount": {"type": "integer"}}, effect="unsafe", confirm=True)
    clerk = Agent("clerk", model=model, tools=[paying])
    async with asyncio.timeout(TIMEOUT):
        result = await fork(run, clerk, 2, store=store, allow_tools=[name], approve=refuse)
    assert (asked, ran, result.answer) == (["shop/pay"], [], "Not paid.")


async def test_recorded_approvals_answer_for_simulated_calls() -> None:
    def deny(question: Question) -> Any:
        return Answer("no", by="ana", reason="too early")

    store, run = await record(calls("send_mail", to="bo"), says("Done."), approve=deny)
    result, _ = await forked(store, run, 2, calls("send_mail", to="bo"), says("Not sent."))
    assert result.calls[0].result == {"cancelled": True, "reason": "too early"} and ran == []


async def test_other_policy_decides_in_a_fork() -> None:
    store, run = await record(calls("look", n=1), says("Done."))
    policy = Policy(tools={"look": {"*": "no"}})
    result, _ = await forked(store, run, 2, calls("look", n=1), says("Refused."), policy=policy)
    assert result.calls[0].status == "error" and "not permitted" in result.calls[0].result


@pytest.mark.parametrize("scope", ["turn", "user", "tenant"])
async def test_budgets_of_the_atlas_limit_a_fork(scope: Any) -> None:
    store, run = await record(calls("look", n=1), says("Done."))
    atlas = build(None, Scripted(calls("look", n=1), says("Short.")), budgets=Budget(requests=1, scope=scope))
    async with asyncio.timeout(TIMEOUT):
        refused = await fork(run, atlas, 5, store=store)
        assert refused.answer == "" and refused.error is not None and "budget" in refused.error
        another = await fork(run, atlas, 5, store=store)  # starts at zero
    assert (another.answer, another.error) == ("Short.", None)


async def test_other_model_goes_on_and_a_fork_may_fail() -> None:
    store, run = await record(calls("look", n=1), fails(ProviderError("gone", "auth")))
    other, atlas = Scripted(says("From another model.")), build(None, Scripted())
    atlas.registry.register("other", lambda environment: other)
    result = await fork(run, atlas, 5, model="other/one", store=store)
    assert result.answer == "From another model." and other.requests[0].model == "one"
    failed, _ = await forked(store, run, 5)
    assert failed.answer == "" and failed.error is not None


async def test_invalid_steps_and_tools_are_refused() -> None:
    store, run = await record(says("Done."))
    for step in (0, 1, 4):
        with pytest.raises(ReplayError, match=rf"invalid step {step} of run .*: expected 2 to 3"):
            await forked(store, run, step)
    with pytest.raises(ConfigError, match="unknown tool 'nope': agent 'clerk' has look, send_mail"):
        await forked(store, run, 2, allow_tools=["nope"])


async def test_log_of_a_hook_that_fails_in_a_fork_has_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    def fail(call: ToolCall) -> None:
        raise ValueError(f"no entry with {secret}")

    secret = "tiger-Wq7-lake-93"
    store, run = await record(calls("look", n=1), says("Done."))
    atlas = build(None, Scripted(calls("look", n=2), says("Done.")), interceptors=[Interceptor(tool_call=fail)])
    atlas.keep_secret(Secret(secret))
    async with asyncio.timeout(TIMEOUT):
        await fork(run, atlas, 2, store=store)
    assert "no entry with [REDACTED]" in caplog.text and secret not in caplog.text
