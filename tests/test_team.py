"""Teams: routing, a supervisor, a chain, an agent as a tool, hand-offs."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Delegation, Message, Policy, Price, RetryPolicy, Usage, tool
from atlas_agents.core.events import HandedOff, StreamEnd
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.team import HandoffPlan, agent_tool, by_keywords, by_rules, chain, last_speaker, supervisor
from atlas_agents.testing import Reply, Scripted, calls, fails, says
from checks import TIMEOUT


def agent(id: str, *replies: Reply, **options: Any) -> Agent:
    return Agent(id, model=Scripted(*replies), description=f"Knows {id}.", **options)


def find_model(agent: Agent) -> Scripted:
    (model,) = agent.models
    assert isinstance(model, Scripted)
    return model


async def test_keywords_select_the_agent() -> None:
    atlas = Atlas(
        [agent("front", says("front")), agent("code", says("code")), agent("money", says("money"), says("m"))]
    )
    atlas.route(by_keywords({"code": ["bug", "python"], "money": ["invoice", "tax"]}, default="front"))
    assert (await atlas.ask("There is a BUG in it.")).text == "code"
    assert (await atlas.ask("Debugging taxonomies is fun.")).text == "front"
    assert (await atlas.ask("The invoice says tax, in Python.")).text == "money"
    assert (await atlas.ask("Hello", agent_id="money")).text == "m"


async def test_first_matching_rule_selects_the_agent() -> None:
    atlas = Atlas([agent("short", says("s"), says("s")), agent("long", says("l"))])
    atlas.route(by_rules((lambda message: len(message.text) < 5, "short"), (lambda message: True, "long")))
    assert [(await atlas.ask(text)).text for text in ("Hi", "Hello there", "Hm")] == ["s", "l", "s"]


async def test_supervisor_hands_off_and_the_specialist_answers() -> None:
    chief = agent("chief", calls("hand_off", agent="money", note="It is about tax."), system_prompt="You route.")
    money = agent("money", says("Pay it."), system_prompt="You count.")
    atlas = Atlas([chief, money, agent("code")]).route(supervisor("chief"))
    stream = atlas.send("Do I pay tax?")
    seen = [event async for event in stream]
    assert [event for event in seen if isinstance(event, HandedOff)] == [HandedOff(stream.stream_id, "chief", "money")]
    assert {event.stream_id for event in seen} == {stream.stream_id}
    reply = await stream.reply()
    assert (reply.text, reply.metadata["agent"]) == ("Pay it.", "money")
    (routed,), (answered,) = find_model(chief).requests, find_model(money).requests
    (offer,) = routed.tools
    assert offer.parameters["properties"]["agent"]["enum"] == ["money", "code"] and "Knows money." in offer.description
    assert "You count." in answered.system and answered.tools == ()


BOTH = calls("hand_off", agent="money", note="The tax.") + calls("hand_off", agent="code", note="The bug.")


async def test_supervisor_splits_a_request_and_joins_the_answers() -> None:
    """Two hand-offs in one reply: both agents answer, and the supervisor joins. Only the second one was asked."""
    chief = agent("chief", BOTH, says("Pay it, and fix it."))
    code = agent("code", says("Fix it."))
    atlas = Atlas([chief, agent("money", says("Pay it.")), code]).route(supervisor("chief"))
    seen = [event async for event in atlas.send("Tax and a bug!")]
    hands = [(event.from_agent, event.to_agent) for event in seen if isinstance(event, HandedOff)]
    assert hands == [("chief", "money"), ("money", "code"), ("code", "chief")]
    answers = [each for each in atlas.conversation().messages if each.role == "assistant" and not each.tool_calls]
    assert [(each.metadata["agent"], each.text) for each in answers] == [
        ("money", "Pay it."),
        ("code", "Fix it."),
        ("chief", "Pay it, and fix it."),
    ]
    (asked,) = find_model(code).requests
    assert "Pay it." in str(asked.messages) and "Now answer your part" in asked.messages[-1].text


async def test_split_request_goes_on_after_a_restart(tmp_path: Path) -> None:
    def opened(chief: list[Reply], money: list[Reply], code: list[Reply]) -> Atlas:
        agents = [agent("chief", *chief), agent("money", *money), agent("code", *code)]
        return Atlas(agents, store=SqliteStore(tmp_path / "db"), retries=())

    first = opened([BOTH], [says("Pay it.")], [])
    assert first.store is not None
    await first.store.open()
    async for event in first.route(supervisor("chief")).send("Tax and a bug!", session="s"):
        if isinstance(event, HandedOff) and event.to_agent == "code":
            break
    await first.close()
    await first.store.close()

    second = opened([says("Pay it, and fix it.")], [], [says("Fix it.")])
    assert second.store is not None
    await second.store.open()
    (resumed,) = await second.recover()
    assert (await resumed.reply()).text == "Pay it, and fix it."
    await second.close()
    await second.store.close()


async def test_supervisor_may_answer_itself() -> None:
    atlas = Atlas([agent("chief", says("Hello!")), agent("money")]).route(supervisor("chief", "money"))
    assert (await atlas.ask("Hi")).text == "Hello!"


async def test_each_agent_acts_under_its_own_role() -> None:
    @tool
    async def pay(input: str) -> str:
        """Pay."""
        return "paid"

    chief = agent("chief", calls("hand_off", agent="clerk"), role="boss", hands_off_to=["clerk"], tools=[pay])
    clerk = agent("clerk", calls("pay", input="x"), says("I may not."), role="clerk", tools=[pay])
    policy = Policy(tools={"pay": {"boss": "yes", "clerk": "no"}})
    atlas = Atlas([chief, clerk], policy=policy)
    result = await atlas.run("Pay it.")
    assert [(step.tool, step.status) for step in result.steps] == [("hand_off", "ok"), ("pay", "error")]


async def test_hand_off_to_an_unlisted_agent_is_refused() -> None:
    chief = agent("chief", calls("hand_off", agent="secret"), says("Then I answer."), hands_off_to=["money"])
    atlas = Atlas([chief, agent("money"), agent("secret", says("!"))])
    result = await atlas.run("Hm?")
    assert (result.answer, result.steps[0].status) == ("Then I answer.", "error")


async def test_number_of_handoffs_is_limited() -> None:
    ping = agent("ping", *[calls("hand_off", agent="pong")] * 6, says("Enough."), hands_off_to=["pong"])
    pong = agent("pong", *[calls("hand_off", agent="ping")] * 6, says("Enough."), hands_off_to=["ping"])
    atlas = Atlas([ping, pong])
    stream = atlas.send("Go.")
    hands = [event async for event in stream if isinstance(event, HandedOff)]
    assert len(hands) == 8


async def test_chain_passes_each_answer_on() -> None:
    writer, editor, critic = (
        agent("writer", says("Draft.")),
        agent("editor", says("Better.")),
        agent("critic", says("Best.")),
    )
    atlas = Atlas([writer, editor, critic]).route(chain("writer", "editor", "critic"))
    stream = atlas.send("Write.")
    seen = [(event.from_agent, event.to_agent) async for event in stream if isinstance(event, HandedOff)]
    assert seen == [("writer", "editor"), ("editor", "critic")]
    assert (await stream.reply()).text == "Best."
    assert [message.text for message in find_model(critic).requests[0].messages if message.role == "assistant"] == [
        "Draft.",
        "Better.",
    ]


async def test_only_the_last_agent_of_a_chain_has_the_output_schema() -> None:
    writer, editor = agent("writer", says("Seven.")), agent("editor", says("7"))
    atlas = Atlas([writer, editor]).route(chain("writer", "editor"))
    stream = atlas.send("How many?", output=int)
    await stream.reply()
    assert stream.output == 7
    assert "schema" not in find_model(writer).requests[0].system


async def test_handoff_lasts_for_the_session() -> None:
    front = agent("front", calls("hand_off", agent="money"), hands_off_to=["money"])
    money = agent("money", says("Pay."), says("Still pay."))
    atlas = Atlas([front, money]).route(last_speaker("front", hands_to=["money"]))
    assert (await atlas.ask("Tax?", session="s")).text == "Pay."
    assert (await atlas.ask("Sure?", session="s")).text == "Still pay."


@pytest.mark.parametrize("store", [None, MemoryStore()])
async def test_agent_can_be_a_tool_of_another(store: Any) -> None:
    expert = agent("expert", says("Forty-two."))
    asker = agent("asker", calls("ask_expert", request="What is it?"), says("It is 42."))
    atlas = Atlas([asker, expert], store=store)
    asker.tools = [agent_tool(atlas, expert)]
    assert (await atlas.ask("Well?")).text == "It is 42."
    assert [message.text for message in find_model(expert).requests[0].messages] == ["What is it?"]
    assert find_model(asker).requests[1].messages[-1].tool_results[0].result == "Forty-two."


@pytest.mark.parametrize("through_atlas", [True, False])
async def test_agent_tool_at_the_round_limit_fails_with_the_text_so_far(through_atlas: bool) -> None:
    work = says("Looking.") + calls("look_up")
    expert = Agent("expert", model=Scripted(work, calls("look_up"), says("Cut", stop="length")), tools=[], max_rounds=1)
    asked = [calls("ask_expert", request="What?")] * 3
    asker = agent("asker", *asked, says("I see."))
    atlas = Atlas([asker, expert])
    asker.tools = [agent_tool(atlas, expert) if through_atlas else expert.as_tool()]
    result = await atlas.run("Well?")
    reason = "the turn reached its limit of rounds (max_rounds) before the model was done"
    assert [(step.status, step.output) for step in result.steps] == [
        ("error", f"expert did not finish: {reason}. Its text so far:\n\nLooking."),
        ("error", f"expert did not finish: {reason}."),
        ("ok", "Cut\n\n(The answer is incomplete: it reached the token limit.)"),
    ]


@pytest.mark.parametrize("store", [None, MemoryStore()])
async def test_usage_of_an_agent_that_is_a_tool_is_part_of_the_turn(store: Any) -> None:
    expert_model = Scripted(says("One two three."), fails("gone"), id="expert-model")
    expert = Agent("expert", model=expert_model, retry=RetryPolicy(retries=0))
    ask = calls("ask_expert", request="What is it?")
    asker = agent("asker", ask, says("Four words it is."), ask, says("Sorry."))
    atlas = Atlas([asker, expert], store=store, prices={"expert-model": Price(1_000_000, 0)})
    asker.tools = [agent_tool(atlas, expert)]
    stream = atlas.send("Well?", session="s")
    ended = [event async for event in stream if isinstance(event, StreamEnd)]
    assert (await stream.reply()).text == "Four words it is."
    expected = Usage(1 + 1 + 3, 0 + 3 + 4, cost=1)  # the question, the expert's question, and all three messages
    assert (stream.usage, ended[0].usage) == (expected, expected)
    failing = atlas.send("Again?", session="s")
    await failing.reply()
    assert failing.usage.cost is None
    if store is not None:  # the expert's turn has recorded its own
        rows = await atlas.usage()
        assert {row.agent_id: row.input_tokens for row in rows} == {"asker": 4 + 12, "expert": 1}


async def test_usage_of_all_agents_of_a_turn_is_its_usage() -> None:
    chief = agent("chief", calls("hand_off", agent="money"))
    stream = Atlas([chief, agent("money", says("Pay it."))]).route(supervisor("chief")).send("Tax?")
    await stream.reply()
    assert (stream.usage.input_tokens, stream.usage.output_tokens) == (1 + 3, 0 + 2)
    chained = Atlas([agent("one", says("a b")), agent("two", says("c d e"))]).route(chain("one", "two")).send("Go")
    await chained.reply()
    assert chained.usage.output_tokens == 5


async def test_handoff_plan_survives_a_restart(tmp_path: Path) -> None:
    """A turn interrupted after a hand-off resumes with the agent that took over."""

    def opened(*money: Reply) -> Atlas:
        chief = agent("chief", calls("hand_off", agent="money"))
        return Atlas([chief, agent("money", *money)], store=SqliteStore(tmp_path / "db"), retries=())

    first = opened()
    assert first.store is not None
    await first.store.open()
    first.route(supervisor("chief", "money"))
    stream = first.send("Tax?", session="s")
    async for event in stream:
        if isinstance(event, HandedOff):
            break
    await first.close()
    await first.store.close()

    second = opened(says("Pay."))
    assert second.store is not None
    await second.store.open()
    (resumed,) = await second.recover()
    assert (await resumed.reply()).text == "Pay."
    await second.close()
    await second.store.close()


async def test_strategy_with_an_unknown_agent_is_an_error() -> None:
    atlas = Atlas([agent("a", says("x"))]).route(chain("a", "b"))
    with pytest.raises(ConfigError, match="'b'"):
        await atlas.ask("Hi")


def test_strategy_that_is_no_plain_function_is_an_error() -> None:
    async def choose(message: Message, agents: Sequence[Agent]) -> HandoffPlan:
        return HandoffPlan("a")

    for strategy in (choose, "a"):
        given: Any = strategy
        with pytest.raises(ConfigError, match=r"takes a plain function \(def, not async def\)"):
            Atlas([agent("a")]).route(given)


async def test_strategy_that_returns_no_plan_is_an_error() -> None:
    def choose(message: Message, agents: Sequence[Agent]) -> Any:
        return "a"

    atlas = Atlas([agent("a", says("x"))]).route(choose)
    expected = r"the routing strategy returned 'a': expected a HandoffPlan, for example HandoffPlan\('agent id'\)"
    with pytest.raises(ConfigError, match=expected):
        await atlas.ask("Hi")
    with pytest.raises(ConfigError, match=expected):
        atlas.send("Hi")
    with pytest.raises(ConfigError, match=expected):
        await atlas.run("Hi")


async def test_registered_agent_does_not_become_the_default() -> None:
    atlas = Atlas([agent("a", says("a"))]).register_agent(agent("b", says("b")))
    assert (await atlas.ask("Hi")).text == "a"
    assert (await atlas.ask("Hi", agent_id="b")).text == "b"


def test_route_message_is_route() -> None:
    assert Atlas.route_message is Atlas.route


def _ask_each_other(*ids: str) -> list[Agent]:
    """Return agents of which each asks the next one, and the last one the first one."""
    others = zip(ids, [*ids[1:], ids[0]], strict=True)
    return [agent(id, calls(f"ask_{other}", request="?"), says("I do it.")) for id, other in others]


def _errors(agent: Agent) -> list[str]:
    """Return the results of failed calls that the agent's model received."""
    found = [result for message in find_model(agent).requests[-1].messages for result in message.tool_results]
    return [str(result.result) for result in found if result.status == "error"]


@pytest.mark.parametrize("ids", [("a", "b"), ("a",)])
async def test_agents_that_are_tools_of_each_other_do_not_call_each_other_without_end(ids: tuple[str, ...]) -> None:
    """An agent that waits for an answer is not asked, with and without an Atlas."""
    expected = "a is waiting for your result, so you cannot ask it: answer without it."
    async with asyncio.timeout(TIMEOUT):
        alone = _ask_each_other(*ids)
        for index, each in enumerate(alone):
            each.tools = [alone[(index + 1) % len(alone)].as_tool()]
        assert (await alone[0].run("Go.")).answer == "I do it."
        assert [len(find_model(each).requests) for each in alone] == [2] * len(alone)
        assert _errors(alone[-1]) == [expected]

        for store in (None, MemoryStore()):
            known = _ask_each_other(*ids)
            async with Atlas(known, store=store) as atlas:
                for index, each in enumerate(known):
                    each.tools = [agent_tool(atlas, known[(index + 1) % len(known)])]
                assert (await atlas.ask("Go.")).text == "I do it."
            assert [len(find_model(each).requests) for each in known] == [2] * len(known)
            assert _errors(known[-1]) == [expected]


@pytest.mark.parametrize("through_atlas", [True, False])
@pytest.mark.parametrize("stored", [True, False])
async def test_number_of_agents_that_ask_one_another_is_limited(stored: bool, through_atlas: bool) -> None:
    agents = _ask_each_other("a", "b", "c", "d")
    store = MemoryStore() if stored else None
    async with asyncio.timeout(TIMEOUT), Atlas(agents, store=store, delegation=Delegation(depth=2)) as atlas:
        for each, other in pairwise(agents):
            each.tools = [agent_tool(atlas, other) if through_atlas else other.as_tool()]
        assert (await atlas.ask("Go.")).text == "I do it."
    assert [len(find_model(each).requests) for each in agents] == [2, 2, 2, 0]
    assert _errors(agents[2]) == ["The delegation depth limit of 2 is reached: do the task yourself."]
