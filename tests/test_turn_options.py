"""Options of a turn: refusing approvals, sampling, and how options are stored."""

from atlas_agents import Approvals, Message, Question, Text, Tool, ToolCall, user
from atlas_agents.agents.options import HandoffPlan, SamplingOptions, TurnOptions
from atlas_agents.agents.run import decode_options, encode_run_request
from atlas_agents.core.store import Chain, RunRow
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


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


async def test_sampling_options_apply_within_the_agents_settings() -> None:
    model = Scripted(*[says("Yes.")] * 3)
    async with in_memory_atlas(model, agent={"max_tokens": 100}) as atlas:
        for sampling in (SamplingOptions(0.5, 40), SamplingOptions(max_tokens=400), None):
            await atlas.send("Hello", sampling=sampling).reply()
    asked = [(request.settings.temperature, request.settings.max_tokens) for request in model.requests]
    assert asked == [(0.5, 40), (None, 100), (None, 100)]
    assert (
        SamplingOptions(0.5)
        .apply_to(in_memory_atlas(model, agent={"temperature": 0.0}).agents[0].settings)
        .model_settings.temperature
        == 0.0
    )


def test_options_are_stored_with_the_keys_of_the_first_release() -> None:
    message = Message("user", (Text("hi"),), id="m", created_at=5)
    stored = encode_run_request([message], TurnOptions(when_busy="reject", idempotency_key="k"))
    first = b'{"role":"user","parts":[{"type":"text","text":"hi"}],"id":"m","created_at":5,"metadata":{}}'
    defaults = b'"output":null,"model":"","asks":true,"mode":"","team":{},"chain":{},"wishes":null'
    assert stored == b'{"messages":[' + first + b"]," + defaults + b"}"


def test_options_survive_storage() -> None:
    options = TurnOptions(
        model="openai/x",
        asks=False,
        mode="plan",
        team=HandoffPlan("a", hands_to=("b",), stays=True),
        chain=Chain("root", ("a",), "job", 5, 2),
        call=ToolCall("c", "note", {"input": "x"}),
        sampling=SamplingOptions(0.5, 7),
        max_rounds=3,
    )
    row = RunRow("r", "s", "a", "queued", request=encode_run_request([user("hi")], options))
    assert decode_options(row) == options
    assert decode_options(RunRow("r", "s", "a", "queued", request=user("hi").to_json())) == TurnOptions()
