"""Forced tools: a model that obeys `tool_choice` calls the tool once and then answers."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from atlas_agents import Agent, Atlas, OpenAIProvider, Request
from atlas_agents.providers.base import Chunk
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Environment, Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT
from model_server import ModelRequest, Reply, run_model_server


def look(n: int = 0) -> str:
    """Look something up."""
    return f"seen {n}"


def obey(request: ModelRequest) -> Reply:
    """Call the tool whenever a call is forced, as the vendors' models do."""
    forced = request.body.get("tool_choice") not in (None, "auto", "none")
    return Reply(calls=(("look", {"n": len(request.body["messages"])}),)) if forced else Reply("Done.")


@pytest.mark.parametrize("choice", ["required", "look"])
async def test_model_that_obeys_a_forced_tool_answers_after_its_call(choice: str) -> None:
    with run_model_server(obey) as server:
        model = OpenAIProvider("rules-1", base_url=server.url, api_key="key", environment=Environment({}))
        async with Atlas([Agent("a", model=model, tools=[look], tool_choice=choice)]) as atlas:
            for _ in range(2):
                assert (await atlas.ask("Look.", session="s")).text == "Done."
    assert len(server.requests) == 4


async def test_tool_is_forced_in_every_round_if_the_agent_says_so() -> None:
    model = Scripted(calls("look"), calls("look", n=1), says("Done."))
    agent = {"tool_choice": "look", "reset_tool_choice": False}
    async with in_memory_atlas(model, [look], agent=agent) as atlas:
        await atlas.ask("Look.")
    assert [request.tool_choice for request in model.requests] == ["look"] * 3


async def test_forbidden_tools_stay_forbidden() -> None:
    model = Scripted(calls("look"), says("Done."))
    async with in_memory_atlas(model, [look], agent={"tool_choice": "none"}) as atlas:
        await atlas.ask("Look.")
    assert [request.tool_choice for request in model.requests] == ["none", "none"]


async def test_agent_that_takes_over_has_its_own_forced_tool_once() -> None:
    first = Scripted(calls("hand_off", agent="b"))
    second = Scripted(calls("look"), says("Done."))
    agents = [
        Agent("a", model=first, hands_off_to=["b"], tool_choice="hand_off"),
        Agent("b", model=second, tools=[look], tool_choice="required"),
    ]
    async with Atlas(agents, "a") as atlas:
        assert (await atlas.ask("Look.")).text == "Done."
    assert [request.tool_choice for request in second.requests] == ["required", "auto"]


async def test_resumed_turn_does_not_force_the_tool_again() -> None:
    store, waiting, later = MemoryStore(), asyncio.Event(), Scripted(says("Done."))
    await store.open()

    class Hanging(Scripted):
        async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
            if self.requests:
                waiting.set()
                await asyncio.Event().wait()
            async for chunk in super().stream(request):
                yield chunk

    async with asyncio.timeout(TIMEOUT):
        atlas = Atlas([Agent("a", model=Hanging(calls("look")), tools=[look], tool_choice="required")], store=store)
        atlas.send("Look.", session="s")
        await waiting.wait()
        await atlas.close()
        async with Atlas([Agent("a", model=later, tools=[look], tool_choice="required")], store=store) as atlas:
            (resumed,) = await atlas.recover()
            assert (await resumed.reply()).text == "Done."
    assert [request.tool_choice for request in later.requests] == ["auto"]
