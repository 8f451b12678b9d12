"""Toolsets: filtered, renamed and combined tools, and a choice of tools in each turn."""

from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    BadTool,
    Context,
    DuplicateTool,
    Policy,
    PromptFailed,
    Tool,
    Toolset,
    TurnContext,
    tool,
)
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.tool import Choose


@tool(effect="pure")
async def search(words: str) -> str:
    """Search."""
    return f"found {words}"


@tool
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


SHOP = Toolset([search, refund])


def names(tools: Any) -> list[str]:
    return [tool.name for tool in tools]


def test_toolset_is_filtered_prefixed_renamed_and_combined() -> None:
    assert SHOP.filter(lambda tool: tool.effect == "pure").names == ("search",)
    assert SHOP.prefix("shop_").names == ("shop_search", "shop_refund")
    assert SHOP.rename({"search": "find"}).names == ("find", "refund")
    both = SHOP + SHOP.prefix("other/") + Toolset([refund.named("third")])
    assert both.names == ("search", "refund", "other/search", "other/refund", "third")
    assert (len(both), SHOP.names, search.name) == (5, ("search", "refund"), "search")
    assert repr(SHOP) == "Toolset(search, refund)"


def test_toolset_is_accepted_wherever_tools_are() -> None:
    other = SHOP.prefix("other_")
    expected = ["search", "refund", "other_search", "other_refund"]
    assert names(Agent("a", model="openai/x", tools=SHOP).tools) == expected[:2]
    assert names(Agent("a", model="openai/x", tools=[SHOP, other]).tools) == expected
    assert names(Context(tools=[search, refund, other]).tools) == expected
    assert Toolset([search, Toolset([refund]), other]).names == tuple(expected)


def test_wrong_use_of_a_toolset_is_explained() -> None:
    with pytest.raises(DuplicateTool, match="duplicate tool name 'search' in a toolset: use `prefix` or `rename`"):
        _ = SHOP + SHOP
    with pytest.raises(BadTool, match="cannot rename 'serch': the toolset has search, refund"):
        SHOP.rename({"serch": "find"})


async def test_model_policy_and_audit_see_the_final_names() -> None:
    model = Scripted(calls("shop__find", words="tea") + calls("shop__refund", order=1), says("Done."))
    tools = SHOP.rename({"search": "find"}).prefix("shop/")
    policy = Policy(tools={"shop/find": {"clerk": "yes"}, "shop/refund": {"clerk": "no"}})
    agent = Agent("a", model=model, tools=tools, role="clerk")
    async with Atlas([agent], policy=policy) as atlas:
        result = await atlas.run("go")
        rows = await atlas.audit.records("default")
    assert names(model.requests[0].tools) == ["shop__find"]
    assert [(step.tool, step.status) for step in result.steps] == [("shop/find", "ok"), ("shop/refund", "error")]
    assert sorted(row.entry.entity_id for row in rows) == ["shop/find", "shop/refund"]


async def test_tools_are_chosen_in_each_turn() -> None:
    seen: list[str] = []

    async def for_user(context: TurnContext[Any]) -> list[str]:
        seen.append(context.user)
        return ["search", "refund"] if context.user == "admin" else ["search"]

    model = Scripted(says("Hi."), calls("refund", order=1), says("Hi."), says("Bye."))
    agent = Agent("a", model=model, tools=[SHOP.choose(for_user).prefix("shop_").rename({"shop_refund": "refund"})])
    async with Atlas([agent]) as atlas:
        await atlas.ask("hi", user="admin", session="1")
        await atlas.ask("hi", user="ana", session="2")
        refused = await atlas.invoke("refund", {"order": 1}, user="ana")
        allowed = await atlas.invoke("refund", {"order": 1}, user="admin")
    shown = [names(request.tools) for request in model.requests]
    assert shown == [["shop_search", "refund"], ["shop_search"], ["shop_search"]]
    (result,) = model.requests[2].messages[-1].tool_results
    assert (result.status, result.error) == ("error", "not_found")
    assert (refused.status, refused.error, allowed.status) == ("error", "not_found", "ok")
    assert seen == ["admin", "ana", "ana", "admin"]  # once in a turn, not in each round


async def test_agent_that_continues_a_turn_has_its_own_choice() -> None:
    first = Scripted(calls("hand_off", agent="b"))
    second = Scripted(says("Done."))
    tools = SHOP.choose(lambda context: context.agent_id == "a")
    agents = [
        Agent("a", model=first, tools=tools, hands_off_to=["b"]),
        Agent("b", model=second, tools=tools),
    ]
    async with Atlas(agents) as atlas:
        await atlas.ask("go")
    assert names(first.requests[0].tools) == ["search", "refund", "hand_off"]
    assert names(second.requests[0].tools) == []


async def test_found_tools_are_among_those_of_the_turn() -> None:
    def number(index: int) -> Tool:
        async def count(until: int) -> int:
            """Count to a number."""
            return until

        return tool(name=f"count_{index}")(count)

    tools = Toolset([number(index) for index in range(6)]).choose(lambda context: [f"count_{i}" for i in (1, 2, 3)])
    model = Scripted(calls("search_tools", query="count"), says("Done."))
    async with in_memory_atlas(model, tools, agent={"tool_search": 2}) as atlas:
        result = await atlas.run("go")
    assert "count_0" not in model.requests[0].tools[0].description
    assert [each["name"] for each in result.steps[0].output["tools"]] == ["count_1", "count_2", "count_3"]


BAD_CHOICES: list[tuple[Choose, str]] = [
    (lambda context: ["serch"], "returned 'serch': expected names of the toolset, which has refund, search"),
    (lambda context: None, "returned None: expected a bool, or names of tools"),
    (lambda context: 1 / 0, "failed: ZeroDivisionError"),
]


@pytest.mark.parametrize(("choice", "message"), BAD_CHOICES, ids=["unknown name", "nothing", "error"])
async def test_choice_that_fails_is_named(choice: Choose, message: str) -> None:
    async with in_memory_atlas(Scripted(says("Hi.")), [SHOP.choose(choice)]) as atlas:
        with pytest.raises(PromptFailed, match=f"the choice of tools '.*lambda.*' {message}"):
            await atlas.ask("hi")
