"""Turns in which nobody can be asked, and sampling options that apply where an agent leaves room."""

from atlas_agents import Approvals, Question, Tool
from atlas_agents.engine.options import SamplingOptions, options_of
from atlas_agents.stores.memory import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


async def _noted(input: str) -> str:
    return f"noted {input}"


def _always(question: Question) -> str:
    return "always"


async def test_where_nobody_can_be_asked_the_model_is_told_that_a_call_needs_approval() -> None:
    model = Scripted(calls("note", input="x"), says("Not done."))
    tool = Tool("note", _noted, confirm=True)
    async with in_memory_atlas(model, [tool], store=MemoryStore(), approve=Approvals(wait=True)) as atlas:
        stream = atlas.send("Note x.", session="main", asks=False)
        assert (await stream.reply()).text == "Not done."
        assert await atlas.pending() == []
    (result,) = model.requests[-1].messages[-1].tool_results
    words = "note requires approval, and no one can be asked in this turn"
    assert (result.status, result.error, result.result) == ("error", "declined", words)


async def test_a_turn_that_goes_on_after_a_sudden_end_still_asks_nobody() -> None:
    store = MemoryStore()
    async with in_memory_atlas(Scripted(says("Yes.")), store=store) as atlas:
        run_id = (await atlas.send("Hello", session="main", asks=False).accepted()).run_id
        row = await store.run("default", run_id)
    assert row is not None and options_of(row).asks is False


async def test_what_was_allowed_for_good_needs_nobody() -> None:
    model = Scripted(calls("note", input="x"), says("One."), calls("note", input="x"), says("Two."))
    tool = Tool("note", _noted, confirm=True)
    async with in_memory_atlas(model, [tool], store=MemoryStore(), approve=_always) as atlas:
        await atlas.ask("Note x.", session="main")
        await atlas.send("Again.", session="main", asks=False).reply()
    (result,) = model.requests[-1].messages[-1].tool_results
    assert result.result == "noted x"


async def test_sampling_options_fill_what_an_agent_leaves_open_and_only_lower_its_limit() -> None:
    model = Scripted(*[says("Yes.")] * 3)
    async with in_memory_atlas(model, agent={"max_tokens": 100}) as atlas:
        for sampling in (SamplingOptions(0.5, 40), SamplingOptions(max_tokens=400), None):
            await atlas.send("Hello", sampling=sampling).reply()
    asked = [(request.temperature, request.max_tokens) for request in model.requests]
    assert asked == [(0.5, 40), (None, 100), (None, 100)]
    assert SamplingOptions(0.5).apply_to(in_memory_atlas(model, agent={"temperature": 0.0}).agents[0].settings).temperature == 0.0
