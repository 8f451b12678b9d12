"""Contexts: inherited metadata, rules, tools and messages; created in O(1), read on access."""

import gc
import statistics
import time
from collections.abc import Callable

import pytest

from atlas_agents import Agent, Atlas, Context, ContextCycle, DuplicateTool, Metadata, Rule, Tool, system, tool, user
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import cpu_factor


@tool
async def search(query: str) -> str:
    """Search the web."""
    return "web"


@tool(name="search")
async def search_here(query: str) -> str:
    """Search this folder."""
    return "here"


@tool
async def count(of: str) -> int:
    """Count something."""
    return 1


def texts(context: Context) -> tuple[list[str], list[str]]:
    return [rule.label for rule in context.rules], [message.text for message in context.messages]


def cost(make: Callable[[], object], times: int = 300) -> float:
    """Return the median CPU time of one call in seconds, without garbage collection."""
    taken: list[float] = []
    gc.disable()
    try:
        for _ in range(times):
            start = time.process_time()
            make()
            taken.append(time.process_time() - start)
    finally:
        gc.enable()
    return statistics.median(taken)


# Inheritance


def test_child_inherits_from_its_parent() -> None:
    parent = Context(metadata={"a": 1, "b": 1}, rules=["P"], tools=[search, count], messages=[user("p")])
    child = Context(parent, metadata={"b": 2}, rules=["C"], tools=[search_here], messages=[user("c")])
    assert child.metadata.all() == {"a": 1, "b": 2}
    assert texts(child) == (["P", "C"], ["p", "c"])
    assert {each.name: each.description for each in child.tools} == {
        "search": "Search this folder.",
        "count": "Count something.",
    }
    assert texts(parent) == (["P"], ["p"])
    assert child.parents == (parent,)


def test_first_of_several_parents_wins() -> None:
    first = Context(metadata={"k": "first"}, rules=["1"], tools=[search], messages=[user("1")])
    second = Context(metadata={"k": "second", "l": 2}, rules=["2"], tools=[search_here], messages=[user("2")])
    child = Context(first, second, rules=["3"])
    assert child.metadata.all() == {"k": "first", "l": 2}
    assert texts(child) == (["1", "2", "3"], ["1", "2"])
    assert [each.description for each in child.tools] == ["Search the web."]


def test_shared_ancestor_counts_once() -> None:
    top = Context(rules=["top"], messages=[user("top")], tools=[search], metadata={"k": "top"})
    left = Context(top, rules=["left"], tools=[search_here])
    right = Context(top, rules=["right"], metadata={"k": "right"})
    bottom = Context(left, right, rules=["bottom"])
    assert texts(bottom) == (["top", "left", "right", "bottom"], ["top"])
    assert [each.description for each in bottom.tools] == ["Search this folder."]
    assert bottom.metadata.get("k") == "top"
    assert [context.rules[-1].text for context in bottom.lineage()] == ["top", "left", "right", "bottom"]


def test_later_change_of_a_parent_is_visible() -> None:
    parent = Context()
    child = Context(Context(parent))
    assert texts(child) == ([], [])
    assert (child.tools, child.metadata.get("k")) == ((), None)
    parent.rules = ["new"]
    parent.tools = [search]
    parent.messages = [user("new")]
    parent.metadata.set("k", 1)
    assert texts(child) == (["new"], ["new"])
    assert (child.tools, child.metadata.get("k")) == ((search,), 1)
    parent.metadata = {"k": 2}
    assert child.metadata.get("k") == 2
    parent.metadata = Metadata(values={"k": 3})
    assert child.metadata.get("k") == 3


def test_assigned_metadata_overrides_the_parents() -> None:
    shared = Metadata(values={"a": "shared", "b": "shared"})
    given = Metadata(shared, values={"b": "given"})
    child = Context(Context(metadata={"a": "parent", "c": "parent"}), metadata=given)
    assert child.metadata.all() == {"a": "shared", "b": "given", "c": "parent"}
    shared.set("a", "changed")
    assert child.metadata.get("a") == "changed"


def test_child_assignment_does_not_change_its_parent() -> None:
    parent = Context(rules=["P"], metadata={"k": "p"})
    child = Context(parent)
    child.rules = ["C"]
    child.metadata.set("k", "c")
    child.messages = [user("c")]
    assert texts(parent) == (["P"], [])
    assert parent.metadata.get("k") == "p"
    assert texts(child) == (["P", "C"], ["c"])


def test_duplicate_tool_names_in_a_context_are_rejected() -> None:
    with pytest.raises(DuplicateTool, match="duplicate tool name 'search'"):
        Context(tools=[search, search_here])


# Cycles and depth


def test_context_cycle_is_rejected() -> None:
    top = Context(name="top")
    middle = Context(top, name="middle")
    bottom = Context(middle, name="bottom")
    with pytest.raises(ContextCycle, match=r"Context\('top'\) cannot inherit from Context\('bottom'\)"):
        top.inherit(bottom)
    with pytest.raises(ContextCycle):
        top.inherit(top)
    assert top.parents == ()
    assert bottom.inherit(Context(rules=["later"])) is bottom
    assert texts(bottom) == (["later"], [])


def test_five_thousand_ancestors_cause_no_recursion_error() -> None:
    context = oldest = Context(rules=["first"], metadata={"k": "first"}, tools=[search], messages=[user("first")])
    for number in range(5000):
        context = Context(context, metadata={f"k{number}": number})
    context.rules = ["last"]
    assert texts(context) == (["first", "last"], ["first"])
    assert (context.metadata.get("k"), context.metadata.get("k0"), len(context.metadata.all())) == ("first", 0, 5001)
    assert context.tools == (search,)
    with pytest.raises(ContextCycle):
        oldest.inherit(context)


async def test_agent_works_with_a_long_chain_of_ancestors() -> None:
    context = Context(rules=["first"], tools=[count])
    for _ in range(5000):
        context = Context(context)
    model = Scripted(calls("count", of="x"), says("One."))
    async with Atlas([Agent("a", model=model, contexts=[context])]) as atlas:
        assert (await atlas.ask("How many?")).text == "One."
    assert model.requests[0].system == "Rules:\n- first"


# O(1)


def test_creating_a_context_costs_the_same_for_large_parents() -> None:
    parent = Context(
        rules=[Rule(f"rule {number}") for number in range(100_000)],
        metadata={f"k{number}": number for number in range(100_000)},
        messages=[user("hi")] * 100_000,
    )
    child = cost(lambda: Context(parent, metadata={"k": 1}))
    alone = cost(lambda: Context(metadata={"k": 1}))
    assert child < 10 * alone + 20e-6
    assert child < 400e-6 * cpu_factor()


def test_creating_a_context_costs_the_same_at_any_depth() -> None:
    deep = Context()
    for _ in range(5000):
        deep = Context(deep)
    assert cost(lambda: Context(deep, metadata={"k": 1})) < 10 * cost(lambda: Context(metadata={"k": 1})) + 20e-6


def test_creating_an_agent_costs_the_same_for_large_contexts() -> None:
    big = Context(rules=[Rule(f"rule {number}") for number in range(100_000)])
    with_it = cost(lambda: Agent("a", model="openai/x", contexts=[big], rules=["mine"]))
    assert with_it < 10 * cost(lambda: Agent("a", model="openai/x", rules=["mine"])) + 20e-6


# What the model receives


async def test_agent_inherits_from_its_contexts() -> None:
    model = Scripted(calls("search", query="x"), says("ok"))
    company = Context(rules=["Be polite."], tools=[search], metadata={"company": "Acme"}, messages=[system("Acme.")])
    team = Context(company, rules=["Be quick."])
    agent = Agent("a", model=model, contexts=[team], rules=["Be brief."], tools=[search_here])
    async with Atlas([agent]) as atlas:
        result = await atlas.run("find it")
    assert model.requests[0].system == "Rules:\n- Be polite.\n- Be quick.\n- Be brief.\n\nAcme."
    assert result.steps[0].output == "here"
    assert agent.metadata.get("company") == "Acme"


async def test_turn_keeps_the_tools_it_started_with() -> None:
    context = Context(tools=[count])

    async def take_away(of: str) -> int:
        context.tools = []
        return 1

    context.tools = [Tool("count", take_away, parameters={"of": str})]
    model = Scripted(calls("count", of="x"), calls("count", of="y"), says("done"))
    async with in_memory_atlas(model, agent={"contexts": [context]}) as atlas:
        result = await atlas.run("go")
    assert [step.status for step in result.steps] == ["ok", "ok"]


# explain


async def test_explain_names_origins_and_overrides() -> None:
    company = Context(name="company", rules=["Be polite."], tools=[search, count], metadata={"tone": "calm", "n": 1})
    night = Rule("Whisper.", when=lambda context: bool(context.metadata.get("night")))
    team = Context(company, name="team", rules=[night], tools=[search_here], metadata=Metadata(values={"tone": "loud"}))
    found = await Context(team, rules=["Be brief."]).explain()
    assert [(rule.text, rule.source, rule.applies, rule.conditional) for rule in found.rules] == [
        ("Be polite.", "company", True, False),
        ("Whisper.", "team", False, True),
        ("Be brief.", "this context", True, False),
    ]
    assert [(origin.name, origin.value, origin.source, origin.hides) for origin in found.tools] == [
        ("search", search_here, "team", ("company",)),
        ("count", count, "company", ()),
    ]
    assert [(origin.name, origin.value, origin.source, origin.hides) for origin in found.metadata] == [
        ("tone", "loud", "team", ("company",)),
        ("n", 1, "company", ()),
    ]
    assert str(found) == "\n".join(
        [
            "rules:",
            "  'Be polite.' from company",
            "  'Whisper.' from team (not applied: its `when` was false)",
            "  'Be brief.' from this context",
            "tools:",
            "  search from team, over company",
            "  count from company",
            "metadata:",
            "  tone = 'loud' from team, over company",
            "  n = 1 from company",
        ]
    )


async def test_explain_numbers_unnamed_contexts() -> None:
    found = await Context(Context(rules=["a"]), Context(rules=["b"]), rules=["c"]).explain()
    assert [rule.source for rule in found.rules] == ["context 1", "context 2", "this context"]
