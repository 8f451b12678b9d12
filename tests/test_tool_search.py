"""Tool search: an agent with many tools sees a search tool; what it finds stays for the session."""

from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Policy, Tool
from atlas_agents.providers.failover import request_tokens
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, calls, says
from atlas_agents.tools.registry import FOUND_TOOLS, rank_tools

AREAS = {
    "mail": "e-mail messages",
    "calendar": "events of the calendar",
    "invoice": "invoices of customers",
    "ticket": "support tickets",
    "wiki": "pages of the wiki",
    "branch": "branches of a git repository",
    "server": "virtual machines of the cloud",
    "employee": "employee records",
    "shipment": "parcels and their tracking",
    "survey": "customer surveys",
}
VERBS = {
    "list": "List",
    "get": "Return one of the",
    "create": "Create one of the",
    "update": "Change one of the",
    "delete": "Delete one of the",
    "search": "Search the",
}


def make_tool(name: str, description: str) -> Tool:
    async def work(**arguments: Any) -> dict[str, Any]:
        return {"did": name}

    text = {"type": "string", "description": "Its identifier, as returned by the list."}
    properties = {
        "id": text,
        "query": {"type": "string", "description": "Words that must occur."},
        "limit": {"type": "integer", "description": "Most results to return.", "minimum": 1, "maximum": 100},
    }
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return Tool(name, work, description=description, parameters=parameters, effect="pure")


def many_tools() -> list[Tool]:
    return [
        make_tool(f"{verb}_{area}", f"{does} {what}. Requires access to the workspace of the user.")
        for area, what in AREAS.items()
        for verb, does in VERBS.items()
    ]


def offered(model: Scripted) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in model.requests]


def searching(*replies: Any, **more: Any) -> tuple[Agent, Scripted]:
    model = Scripted(*replies)
    given: dict[str, Any] = {"tools": many_tools(), "tool_search": 20, **more}
    return Agent("a", model=model, **given), model


async def test_found_tools_can_be_called_and_stay_for_the_session() -> None:
    agent, model = searching(
        calls("search_tools", query="invoices of a customer"),
        calls("get_invoice", id="7"),
        *[says("Done."), says("Yes."), says("Other.")],
    )
    async with Atlas([agent]) as atlas:
        await atlas.ask("Show invoice 7", session="s")
        await atlas.ask("And?", session="s")
        await atlas.ask("Hello", session="other")
        search, call = await atlas.audit.records("default")
    first, second, third, later, other = offered(model)
    assert first == other == ["search_tools"]
    assert second[0] == "search_tools" and "get_invoice" in second and len(second) == 6
    assert third == later == second
    result = model.requests[1].messages[-1].tool_results[0].result
    assert {each["name"] for each in result["tools"]} == set(second[1:])
    assert model.requests[2].messages[-1].tool_results[0].result == {"did": "get_invoice"}
    assert (search.entry.entity_id, call.entry.entity_id) == ("search_tools", "get_invoice") and call.entry.success
    assert search.entry.meta["arguments"] == {"query": "invoices of a customer"}


async def test_found_tools_survive_a_restart(tmp_path: Path) -> None:
    async def turn(*replies: Any) -> list[list[str]]:
        agent, model = searching(*replies)
        store = SqliteStore(tmp_path / "atlas.db")
        await store.open()
        async with Atlas([agent], store=store) as atlas:
            await atlas.ask("go", session="s")
            assert "create_wiki" in atlas.conversation("s").metadata[FOUND_TOOLS]
        await store.close()
        return offered(model)

    found = (await turn(calls("search_tools", query="create a page in the wiki"), says("Done.")))[1]
    assert await turn(says("Hello.")) == [found] and "create_wiki" in found


async def test_agent_with_few_tools_sees_all_of_them() -> None:
    agent, model = searching(says("Hello."), tools=many_tools()[:20])
    async with Atlas([agent]) as atlas:
        await atlas.ask("Hi")
    assert len(offered(model)[0]) == 20 and "search_tools" not in offered(model)[0]


async def test_tools_that_are_not_permitted_are_neither_named_nor_found() -> None:
    denied = [tool.name for tool in many_tools() if tool.name.endswith("_employee")]
    policy = Policy(tools={name: {"*": "no"} for name in denied})
    agent, model = searching(
        calls("search_tools", query="employee records list_employee"), calls("get_employee", id="1"), says("Done.")
    )
    async with Atlas([agent], policy=policy) as atlas:
        await atlas.ask("go")
    found, called = [model.requests[number].messages[-1].tool_results[0] for number in (1, 2)]
    assert not set(denied) & {each["name"] for each in found.result["tools"]}
    assert "employee" not in model.requests[0].tools[0].description and called.error == "not_permitted"


async def test_policy_that_hides_enough_tools_makes_the_search_unnecessary() -> None:
    names = [tool.name for tool in many_tools()]
    agent, model = searching(says("Hello."))
    async with Atlas([agent], policy=Policy(tools={name: {"*": "no"} for name in names[5:]})) as atlas:
        await atlas.ask("Hi")
    assert offered(model) == [names[:5]]


async def test_tool_that_was_called_before_or_is_forced_is_offered() -> None:
    agent, model = searching(
        calls("list_survey"), says("Done."), says("Hello."), tool_choice="list_survey", reset_tool_choice=True
    )
    async with Atlas([agent]) as atlas:
        await atlas.ask("go", session="s")
        await atlas.ask("again", session="s")
    assert offered(model)[0] == offered(model)[2] == ["search_tools", "list_survey"]


async def test_search_without_a_match_says_what_to_try() -> None:
    agent, model = searching(calls("search_tools", query="xyzzy"), says("Sorry."))
    async with Atlas([agent]) as atlas:
        await atlas.ask("go")
    result = model.requests[1].messages[-1].tool_results[0].result
    assert result == {"tools": [], "hint": "No tool matches. Try other words, or the name of a tool."}


async def test_agent_that_takes_over_searches_among_its_own_tools() -> None:
    first = Agent("a", model=Scripted(calls("hand_off", agent="b")), hands_off_to=["b"])
    model = Scripted(calls("search_tools", query="parcel tracking"), says("Done."))
    second = Agent("b", model=model, tools=many_tools(), tool_search=20)
    async with Atlas([first, second]) as atlas:
        await atlas.ask("go", agent_id="a")
    assert offered(model)[0] == ["search_tools"] and "get_shipment" in offered(model)[1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("delete an e-mail message", "delete_mail"),
        ("search in support tickets", "search_ticket"),
        ("search_wiki", "search_wiki"),
        ("new calendar event", "create_calendar"),
        ("track a parcel", "list_shipment"),
        ("change virtual machines", "update_server"),
    ],
)
def test_best_tools_come_first(query: str, expected: str) -> None:
    assert expected in [tool.name for tool in rank_tools(query, many_tools())[:5]]


async def test_search_saves_most_of_the_tokens_of_the_tools() -> None:
    tokens: list[int] = []
    for above in (None, 20):
        replies = [calls("search_tools", query="invoice"), says("Done.")] if above else [says("Done.")]
        agent, model = searching(*replies, tool_search=above)
        async with Atlas([agent]) as atlas:
            await atlas.ask("go")
        tokens += [request_tokens(request) for request in model.requests[:2]]
    everything, before, after = tokens[0], *tokens[-2:]
    assert before < everything / 10 and after < everything / 4


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="agent 'a': tool_search must be at least 1, got 0"):
        Agent("a", tool_search=0)


async def test_own_tool_of_the_same_name_is_a_mistake() -> None:
    tools = [*many_tools(), make_tool("search_tools", "Search tools.")]
    async with Atlas([Agent("a", model=Scripted(), tools=tools, tool_search=20)]) as atlas:
        with pytest.raises(ConfigError, match="has a tool named 'search_tools', which tool_search adds"):
            await atlas.ask("go")
