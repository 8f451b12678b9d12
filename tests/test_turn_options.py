"""Options of a turn: refusing approvals, model settings, and how options are stored."""

import asyncio
import pickle
from typing import Any

import pytest

from atlas_agents import Agent, Approvals, Atlas, Conflict, Message, Question, Text, Tool, ToolCall, tool, user
from atlas_agents.agents.options import HandoffPlan, TurnOptions
from atlas_agents.agents.run import decode_options, encode_run_request
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.core.store import Chain, RunRow
from atlas_agents.providers.registry import Registry
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT


async def _noted(input: str) -> str:
    return f"noted {input}"


def _always(question: Question) -> str:
    return "always"


async def test_call_that_requires_approval_is_refused_when_no_one_can_be_asked() -> None:
    model = Scripted(calls("note", input="x"), says("Not done."))
    tool = Tool("note", _noted, confirm=True)
    async with in_memory_atlas(model, [tool], store=MemoryStore(), approve=Approvals(wait=True)) as atlas:
        stream = atlas.send("Note x.", session="main", asks=False)
        assert (await stream.reply()).text == "Not done."
        assert await atlas.pending() == []
    (result,) = model.requests[-1].messages[-1].tool_results
    words = "note requires approval, and no one can be asked in this turn"
    assert (result.status, result.error, result.result) == ("error", "declined", words)


async def test_key_of_the_model_of_a_turn_is_redacted() -> None:
    class Keyed(Scripted):
        key = Secret("tiger-Wq7-lake-93")

    registry = Registry(Environment({}, dotenv=None))
    registry.register("own", lambda values: Keyed(says("Yes.")))
    async with Atlas([Agent("a", model=Scripted(says("No.")))], registry=registry) as atlas:
        assert (await atlas.ask("Hello", model="own/x")).text == "Yes."
        assert atlas.hide("It is tiger-Wq7-lake-93.") == "It is [REDACTED]."


async def test_resumed_turn_still_asks_no_one() -> None:
    store = MemoryStore()
    async with in_memory_atlas(Scripted(says("Yes.")), store=store) as atlas:
        run_id = (await atlas.send("Hello", session="main", asks=False).accepted()).run_id
        row = await store.run("default", run_id)
    assert row is not None and decode_options(row).asks is False


async def test_standing_approval_needs_no_one_to_ask() -> None:
    model = Scripted(calls("note", input="x"), says("One."), calls("note", input="x"), says("Two."))
    tool = Tool("note", _noted, confirm=True)
    async with in_memory_atlas(model, [tool], store=MemoryStore(), approve=_always) as atlas:
        await atlas.ask("Note x.", session="main")
        await atlas.send("Again.", session="main", asks=False).reply()
    (result,) = model.requests[-1].messages[-1].tool_results
    assert result.result == "noted x"


async def test_settings_of_a_turn_take_precedence_over_the_agents() -> None:
    model = Scripted(*[says("Yes.")] * 5)
    agent = {"settings": {"effort": "low", "top_p": 0.5, "extra_body": {"a": 1}}}
    turn = {"effort": "high", "seed": 7, "extra_body": {"b": 2}}
    async with in_memory_atlas(model, agent=agent) as atlas:
        await atlas.ask("Hello", settings=turn)
        await atlas.send("Hello", settings=ModelSettings(effort="high", seed=7, extra_body={"b": 2})).reply()
        await atlas.run("Hello", settings=turn)
        await atlas.ask("Hello")
    changed = ModelSettings(effort="high", top_p=0.5, seed=7, extra_body={"a": 1, "b": 2})
    assert [request.settings for request in model.requests[:3]] == [changed] * 3
    assert model.requests[3].settings == ModelSettings(effort="low", top_p=0.5, extra_body={"a": 1})


async def test_settings_of_one_call_without_an_atlas_take_precedence_over_the_agents() -> None:
    model = Scripted(says("Yes."))
    await Agent("a", model=model, temperature=0.2).call("Hello", settings={"temperature": 0.9})
    assert model.requests[0].settings.temperature == 0.9


async def test_settings_of_a_turn_apply_after_a_hand_off() -> None:
    model = Scripted(calls("hand_off", agent="other"), says("Yes."))
    agents = [Agent("first", model=model, hands_off_to=["other"]), Agent("other", model=model, max_tokens=50)]
    async with Atlas(agents=agents) as atlas:
        options = TurnOptions(settings=ModelSettings(effort="high"), requested=ModelSettings(max_tokens=20))
        await atlas.start_turn("Hello", options).reply()
    assert model.requests[1].settings == ModelSettings(max_tokens=20, effort="high")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"effrt": "high"},
            "unknown model setting 'effrt'; known settings: temperature, top_p, max_tokens, stop, seed",
        ),
        (
            {"effort": "huge"},
            "effort must be one of none, minimal, low, medium, high, xhigh, max or a number of tokens",
        ),
        ({"effort": 500, "max_tokens": 500}, "effort must be less than max_tokens, which includes the reasoning"),
        ({"temperature": 3}, "temperature must be between 0 and 2, got 3"),
        ({"top_p": "much"}, "top_p: Expected `float | null`, got `str`"),
        ({"extra_body": {"messages": []}}, "extra_body cannot set 'messages', which every request sets itself"),
        ({"extra_headers": {"Host": "x"}}, "extra_headers cannot set 'Host', which every request sets itself"),
        ({"extra_headers": {"X-A": "one\r\nX-B: two"}}, "the value of 'X-A' has a character that headers cannot have"),
        ({"extra_headers": {"X A": "one"}}, "invalid header name 'X A'"),
    ],
)
async def test_wrong_settings_are_refused_before_the_turn_starts(settings: dict[str, object], message: str) -> None:
    model = Scripted()
    async with in_memory_atlas(model) as atlas:
        with pytest.raises(ConfigError) as refused:
            await atlas.ask("Hello", settings=settings)
    assert message in str(refused.value)
    with pytest.raises(ConfigError):
        Agent("a", model=model, settings=settings)


async def test_requested_settings_apply_within_the_agents_own() -> None:
    model = Scripted(*[says("Yes.")] * 4)
    own = {"max_tokens": 100, "settings": {"seed": 1, "effort": "medium"}}
    requests = (
        ModelSettings(temperature=0.5, max_tokens=40),
        ModelSettings(max_tokens=400, seed=2, effort="max"),
        ModelSettings(effort="low", extra_body={"tools": []}, extra_headers={"X-A": "1"}),
        None,
    )
    async with in_memory_atlas(model, agent=own) as atlas:
        for requested in requests:
            await atlas.start_turn("Hello", TurnOptions(requested=requested)).reply()
    first, second, third, fourth = (request.settings for request in model.requests)
    assert first == ModelSettings(temperature=0.5, max_tokens=40, seed=1, effort="medium")
    assert second == fourth == ModelSettings(max_tokens=100, seed=1, effort="medium")
    assert third == ModelSettings(max_tokens=100, seed=1, effort="low")
    assert ModelSettings(temperature=0.0).fill(ModelSettings(temperature=0.5)).temperature == 0.0


def test_settings_of_a_wrong_type_are_refused() -> None:
    wrong: Any = {"temperature": "hot"}
    with pytest.raises(ConfigError, match="invalid model settings"):
        ModelSettings(**wrong)
    text: Any = "END"
    with pytest.raises(ConfigError, match="stop must be a list of texts, got 'END'"):
        ModelSettings(stop=text)
    wrong = 5
    with pytest.raises(ConfigError, match="agent 'a': invalid model settings 5: expected a ModelSettings or a mapping"):
        Agent("a", settings=wrong)  # pyrefly: ignore[bad-argument-type] - wrong on purpose
    wrong = {"seed": "one"}
    with pytest.raises(ConfigError, match="agent 'a': invalid model settings: seed: Expected"):
        Agent("a", settings=wrong)
    assert Agent("a", stop="END").settings.model_settings.stop == ("END",)
    with pytest.raises(ConfigError, match="agent 'a': effort must be less than max_tokens"):
        Agent("a", settings={"effort": 5000}, max_tokens=4000)


def test_lower_token_limit_of_a_turn_lowers_the_agents_reasoning_budget() -> None:
    agent = ModelSettings(effort=4000)
    assert agent.merge(ModelSettings(max_tokens=2000)).effort == 1999
    assert agent.fill(ModelSettings(max_tokens=2000)).effort == 1999
    assert agent.merge(ModelSettings(max_tokens=1)).effort is None
    with pytest.raises(ConfigError, match="got effort=4000 and max_tokens=50"):
        ModelSettings(max_tokens=50).merge(agent)


def test_header_values_of_settings_are_never_printed_and_not_sent_to_worker_processes() -> None:
    settings = ModelSettings(seed=1, extra_headers={"X-Token": "sk-canary-0123456789"})
    assert repr(settings) == "ModelSettings(seed=1, extra_headers={'X-Token': '…'})"
    copy = pickle.loads(pickle.dumps(Agent("a", settings=settings, max_rounds=3).worker_copy()))
    assert (copy.settings.model_settings, copy.max_rounds) == (ModelSettings(seed=1), 3)


async def test_resumed_turn_has_its_settings() -> None:
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    store = MemoryStore()
    async with in_memory_atlas(Scripted(calls("forever")), [forever], store=store) as atlas, asyncio.timeout(TIMEOUT):
        options = TurnOptions(settings=ModelSettings(effort="high", seed=7), requested=ModelSettings(max_tokens=90))
        atlas.start_turn("Hello", options, session="main")
        await running.wait()
    model = Scripted(says("Done."))
    agent = {"settings": {"effort": "low", "max_tokens": 100}}
    async with in_memory_atlas(model, [forever], store=store, agent=agent) as atlas, asyncio.timeout(TIMEOUT):
        (stream,) = await atlas.recover()
        assert (await stream.reply()).text == "Done."
    assert model.requests[0].settings == ModelSettings(effort="high", seed=7, max_tokens=90)


async def test_header_values_of_an_agent_are_redacted_like_keys() -> None:
    model, token = Scripted(says("Yes.")), "opaque-canary-0123456789"
    async with in_memory_atlas(model, agent={"settings": {"extra_headers": {"X-Token": token}}}) as atlas:
        await atlas.ask("Hello")
        assert token not in atlas.hide(f"the header is {token}")


async def test_idempotency_key_with_other_settings_is_a_conflict() -> None:
    async with in_memory_atlas(Scripted(says("Yes.")), store=MemoryStore()) as atlas:
        first = await atlas.ask("Hello", session="main", idempotency_key="k", settings={"effort": "low"})
        again = await atlas.ask("Hello", session="main", idempotency_key="k", settings={"effort": "low"})
        assert again.id == first.id
        with pytest.raises(Conflict):
            await atlas.ask("Hello", session="main", idempotency_key="k", settings={"effort": "high"})


def test_options_are_stored_under_their_names() -> None:
    message = Message("user", (Text("hi"),), id="m", created_at=5)
    stored = encode_run_request([message], TurnOptions(when_busy="reject", idempotency_key="k"))
    first = b'{"role":"user","parts":[{"type":"text","text":"hi"}],"id":"m","created_at":5,"metadata":{}}'
    defaults = b'"output":null,"model":"","asks":true,"mode":"","team":{},"chain":{},"requested":null'
    assert stored == b'{"messages":[' + first + b"]," + defaults + b"}"


def test_options_survive_storage() -> None:
    options = TurnOptions(
        model="openai/x",
        asks=False,
        mode="plan",
        team=HandoffPlan("a", hands_to=("b",), stays=True),
        chain=Chain("root", ("a",), "job", 5, 2),
        call=ToolCall("c", "note", {"input": "x"}),
        requested=ModelSettings(temperature=0.5, max_tokens=7),
        settings=ModelSettings(effort="high"),
        max_rounds=3,
        metadata={"language": "fr"},
    )
    row = RunRow("r", "s", "a", "queued", request=encode_run_request([user("hi")], options))
    assert decode_options(row) == options
