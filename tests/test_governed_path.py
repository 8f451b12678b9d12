"""One table of cases through every entry point, for every kind of tool: the same verdicts and audit rows."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, Limits, MemoryAudit, Policy, Tool, ToolFailed, ToolResult, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

EntryPoint = Callable[[Atlas], Awaitable[object]]
_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def _by_send(atlas: Atlas) -> object:
    return await atlas.send("go").reply()


ENTRY_POINTS: dict[str, EntryPoint] = {
    "ask": lambda atlas: atlas.ask("go"),
    "send": _by_send,
    "run": lambda atlas: atlas.run("go"),
}


def _note(trace: str, n: int) -> None:
    with Path(trace).open("a") as file:
        file.write(f"{n}\n")


def _noted(trace: str) -> str:
    return Path(trace).read_text() if Path(trace).exists() else ""


def _behave(what: str, trace: str, n: int) -> str:
    _note(trace, n)
    if what == "failing":
        raise ToolFailed("the shop is shut")
    if what == "crashing":
        raise KeyError("a detail that no model should read")
    if what == "timed out":
        threading.Event().wait(30)
    return f"did {n}"


def _tool(shape: str, what: str, trace: str) -> Tool:
    terms: dict[str, Any] = {
        "confirm": what == "declined",
        "timeout": (10 if shape == "sync" else 0.1) if what == "timed out" else 20,
    }
    if shape == "sync":

        def act(n: int) -> str:
            """Act on a number."""
            return _behave(what, trace, n)

        return tool(**terms)(act)

    if shape == "async":

        async def act_async(n: int) -> str:
            """Act on a number."""
            if what == "timed out":
                _note(trace, n)
                await asyncio.Event().wait()
            return _behave(what, trace, n)

        return tool(name="act", **terms)(act_async)

    async def handler(arguments: dict[str, Any], _: object) -> str:
        if what == "timed out":
            _note(trace, arguments["n"])
            await asyncio.Event().wait()
        return _behave(what, trace, arguments["n"])

    made = tool({"name": "act", "description": "Act on a number.", "parameters": _SCHEMA}, handler)
    return Tool("act", made.function, description=made.description, parameters=_SCHEMA, **terms)


EXPECTED: dict[str, tuple[str, str | None, object, bool]] = {
    "allowed": ("ok", None, "did 1", True),
    "denied": (
        "error",
        "not_permitted",
        "act is not permitted for assistant: policy: tools.act, no for assistant.",
        False,
    ),
    "invalid": ("error", "bad_arguments", 'n: "one" is not of type "integer"', False),
    "declined": ("error", "declined", {"cancelled": True}, False),
    "over limit": (
        "error",
        "limit",
        "The daily limit of tool calls (1) is used up. Nothing was run; try again tomorrow.",
        False,
    ),
    "timed out": ("unknown", "timeout", "act took longer than {} s and was stopped; it may have happened", True),
    "failing": ("error", "failed", "the shop is shut", True),
    "crashing": (
        "error",
        "internal",
        "Tool execution failed. The error has been logged for investigation.",
        True,
    ),
}


def _combinations() -> Iterator[tuple[str, str, str]]:
    """Yield every case with every shape, every case with every entry point, and every shape with every entry point."""
    entry_points = list(ENTRY_POINTS)
    for case_number, case in enumerate(EXPECTED):
        for shape_number, shape in enumerate(("async", "sync", "mcp")):
            yield case, shape, entry_points[(case_number + shape_number) % len(entry_points)]


@pytest.mark.parametrize(("case", "shape", "entry_point"), list(_combinations()))
async def test_every_entry_point_gives_the_same_outcome_for_every_kind_of_tool(
    case: str, shape: str, entry_point: str, tmp_path: Path
) -> None:
    trace = str(tmp_path / "effects")
    act = _tool(shape, case, trace)
    arguments = {"n": "one" if case == "invalid" else 1}
    first = [calls("act", n=0)] if case == "over limit" else []
    model = Scripted(*first, calls("act", **arguments), says("Done."))
    policy = Policy(tools={"act": {"assistant": "no" if case == "denied" else "yes"}})
    limits = Limits(per_day=1) if case == "over limit" else Limits(per_day=100, per_tick=50, repeats=5)
    audit = MemoryAudit()
    async with in_memory_atlas(model, [act], policy=policy, limits=limits, audit=audit) as atlas:
        await ENTRY_POINTS[entry_point](atlas)
    status, error, words, acted = EXPECTED[case]
    words = words.format("10" if shape == "sync" else "0.1") if isinstance(words, str) else words
    results = [
        part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)
    ]
    assert [(result.status, result.error, result.result) for result in results[-1:]] == [(status, error, words)]
    assert _noted(trace).endswith("1\n") is acted
    rows = await audit.records()
    entry = rows[-1].entry
    assert len(rows) == len(first) + 1
    assert (entry.action, entry.entity_type, entry.entity_id, entry.actor_type) == ("TOOL_CALL", "tool", "act", "agent")
    assert (entry.actor_external_id, entry.success, entry.level) == (
        "assistant",
        status == "ok",
        "info" if status == "ok" else "error",
    )
    assert entry.meta["error"] == error
    assert entry.meta["arguments"] == arguments


async def test_standalone_agent_uses_the_same_pipeline(tmp_path: Path) -> None:
    act = _tool("async", "declined", str(tmp_path / "effects"))
    needs = tool(name="needs", permissions=["file:read"])(_never)
    model = Scripted(calls("act", n=1) + calls("needs") + calls("nothing"), says("Done."))
    agent = Agent("alone", model=model, tools=[act, needs])
    messages, success, _ = await agent.call("go")
    assert success
    assert [result.error for result in messages[2].tool_results] == ["declined", "not_permitted", "not_found"]


async def _never() -> str:
    """Never runs."""
    raise AssertionError
