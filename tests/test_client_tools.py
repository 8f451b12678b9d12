"""Client tools: calls that the caller of a turn runs, from the offer to the posted result, also after a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Answer,
    Approvals,
    Atlas,
    AtlasStream,
    BadArguments,
    BadTool,
    ClientResult,
    ClientTool,
    ClientTools,
    ClientToolsCalled,
    Conflict,
    Message,
    NotFound,
    Policy,
    ProviderError,
    Question,
    ToolResult,
    tool,
)
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from checks import TIMEOUT, wait_until

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ClientTool("weather", "Weather of a city.", CITY)
CLOCK = ClientTool("clock", "The time.")
ASKED = calls("weather", city="Oslo")
BOTH = ASKED + calls("clock")


async def open_store() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


async def pending(stream: AtlasStream, count: int = 1) -> list[Question]:
    """Wait until a turn has announced calls for the n-th time, and return these calls."""
    async with asyncio.timeout(TIMEOUT):
        async for event in stream:
            if isinstance(event, ClientToolsCalled):
                count -= 1
                if not count:
                    return list(event.calls)
    raise AssertionError(f"no call was announced: {await stream.reply()}")


def results(model: Scripted) -> list[ToolResult]:
    return [part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)]


async def reply(stream: AtlasStream) -> Message:
    async with asyncio.timeout(TIMEOUT):
        return await stream.reply()


@pytest.mark.parametrize("stored", [True, False])
async def test_turn_waits_for_the_result_of_the_client(stored: bool) -> None:
    model = Scripted(ASKED, says("Rain."))
    async with in_memory_atlas(model, store=await open_store() if stored else None) as atlas:
        stream = atlas.send("weather?", session="s", user="ana", client_tools=[WEATHER])
        (call,) = await pending(stream)
        assert (call.tool, call.arguments, call.kind) == ("weather", {"city": "Oslo"}, "client_tool")
        assert call.id.startswith("call_") and await atlas.pending() == []
        assert [each.id for each in await atlas.pending_client_calls("s")] == [call.id]
        assert [spec.name for spec in model.requests[0].tools] == ["weather"]
        (posted,) = await atlas.post_results([ClientResult(call.id, {"sky": "rain"})], user="ana")
        assert posted.run_id == stream.stream_id
        assert (await reply(stream)).text == "Rain."
    (result,) = results(model)
    assert (result.status, result.result, result.untrusted) == ("ok", {"sky": "rain"}, "client: client/weather")
    assert await atlas.pending_client_calls("s") == []
    (row,) = list(await atlas.audit.records("default"))
    assert (row.entry.entity_id, row.entry.meta["user"], row.entry.meta["status"]) == ("client/weather", "ana", "ok")


async def test_result_counts_once() -> None:
    model = Scripted(ASKED, says("Rain."))
    async with in_memory_atlas(model, store=await open_store()) as atlas:
        stream = atlas.send("weather?", session="s", user="ana", client_tools=[WEATHER])
        (call,) = await pending(stream)
        for id, user in ((call.id, "bea"), ("call_0", "ana"), (call.id, "")):
            with pytest.raises(NotFound, match=f"not found: tool call '{id}' that waits"):
                await atlas.post_results([ClientResult(id, "rain")], user=user)
        with pytest.raises(NotFound):
            await atlas.answer(call.id, "once")
        await atlas.post_results([ClientResult(call.id, "rain")], user="ana")
        for _ in range(2):  # while the turn runs, and after it
            await atlas.post_results([ClientResult(call.id, "rain")], user="ana")
            with pytest.raises(Conflict, match="already answered with another result"):
                await atlas.post_results([ClientResult(call.id, "sun")], user="ana")
            await reply(stream)
    assert [result.result for result in results(model)] == ["rain"]
    assert len(model.requests) == 2


async def test_own_tools_run_before_the_calls_are_announced() -> None:
    ran: list[str] = []

    @tool
    async def look(what: str) -> str:
        """Look at something."""
        ran.append(what)
        return what

    model = Scripted(BOTH + calls("look", what="map"), says("Done."))
    async with in_memory_atlas(model, [look], store=await open_store()) as atlas:
        stream = atlas.send("go", session="s", client_tools=[WEATHER, CLOCK])
        first, second = await pending(stream)
        assert ran == ["map"] and [first.tool, second.tool] == ["weather", "clock"]
        await atlas.post_results([ClientResult(second.id, "noon")])
        assert [each.id for each in await atlas.pending_client_calls("s")] == [first.id]
        await atlas.post_results([ClientResult(first.id, "no network", error=True)])
        assert (await reply(stream)).text == "Done."
    found = [(result.status, result.result) for result in results(model)]
    assert found == [("error", "no network"), ("ok", "noon"), ("ok", "map")]
    assert ran == ["map"]


async def test_one_call_at_a_time() -> None:
    model = Scripted(BOTH, says("Done."))
    async with in_memory_atlas(model, store=await open_store()) as atlas:
        offer = ClientTools((WEATHER, CLOCK), parallel=False)
        stream = atlas.send("go", session="s", client_tools=offer)
        (call,) = await pending(stream)
        await atlas.post_results([ClientResult(call.id, "rain")])
        await reply(stream)
    assert [result.status for result in results(model)] == ["ok", "error"]


async def test_waiting_turn_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "atlas.db"
    first = SqliteStore(path)
    await first.open()
    atlas = in_memory_atlas(Scripted(BOTH), store=first)
    before = await pending(atlas.send("go", session="s", user="ana", client_tools=[WEATHER, CLOCK]))
    await atlas.post_results([ClientResult(before[0].id, "rain")], user="ana")
    await atlas.close()
    await atlas.post_results([ClientResult(before[1].id, "noon")], user="ana")  # no process waits for it
    await first.close()

    second = SqliteStore(path)
    await second.open()
    model = Scripted(says("Done."))
    async with in_memory_atlas(model, store=second) as atlas:
        (stream,) = await atlas.recover()
        assert (await reply(stream)).text == "Done."
        assert [result.result for result in results(model)] == ["rain", "noon"]
        assert len(list(await atlas.audit.records("default"))) == 2
    await second.close()


async def test_call_keeps_its_id_and_deadline_across_a_restart() -> None:
    store, clock = await open_store(), VirtualClock()
    atlas = in_memory_atlas(Scripted(ASKED), store=store, clock=clock)
    (before,) = await pending(atlas.send("go", session="s", client_tools=ClientTools((WEATHER,), deadline=60)))
    await atlas.close()
    model = Scripted(says("Too late."))
    async with in_memory_atlas(model, store=store, clock=clock, policy=Policy()) as atlas:
        (stream,) = await atlas.recover()
        assert [each.id for each in await pending(stream)] == [before.id]
        await clock.advance(61)
        assert (await reply(stream)).text == "Too late."
        with pytest.raises(Conflict, match="no longer accepts a result: the client posted none in time"):
            await atlas.post_results([ClientResult(before.id, "rain")])
    assert [(each.status, each.result) for each in results(model)] == [
        ("unknown", "the call of weather has no result: the client posted none in time; it may have happened")
    ]


async def test_turn_can_end_without_the_result() -> None:
    clock, model = VirtualClock(), Scripted(ASKED, says("Hello."))
    async with in_memory_atlas(model, store=await open_store(), clock=clock, agent={"max_rounds": 1}) as atlas:
        stream = atlas.send("go", session="s", client_tools=ClientTools((WEATHER,), deadline=60, unanswered="end"))
        await pending(stream)
        await clock.advance(61)
        asked = await reply(stream)
        assert asked.tool_calls and "max_rounds" not in asked.metadata, "the client ended the turn"
        assert (await atlas.ask("hi", session="s")).text == "Hello."
    assert len(model.requests) == 2


@pytest.mark.parametrize("stored", [True, False])
async def test_new_message_ends_the_wait(stored: bool) -> None:
    model = Scripted(ASKED, says("Never mind."), says("Hello."))
    async with in_memory_atlas(model, store=await open_store() if stored else None) as atlas:
        stream = atlas.send("go", session="s", client_tools=[WEATHER])
        (call,) = await pending(stream)
        assert (await atlas.ask("hi", session="s")).text == "Hello."
        assert (await reply(stream)).text == "Never mind."
        with pytest.raises(Conflict if stored else NotFound):
            await atlas.post_results([ClientResult(call.id, "rain")])
    assert [result.result for result in results(model)] == [
        "the call of weather was cancelled: a new message was sent before the result was posted; it may have happened"
    ]


async def test_steering_message_enters_the_waiting_turn() -> None:
    model = Scripted(ASKED, says("Hello."))
    async with in_memory_atlas(model, store=await open_store()) as atlas:
        stream = atlas.send("go", session="s", client_tools=[WEATHER])
        await pending(stream)
        assert (await atlas.ask("hi", session="s", when_busy="steer")).text == "Hello."
    assert len(model.requests) == 2


async def test_offer_that_is_posted_with_a_result_replaces_the_tools() -> None:
    store = await open_store()
    atlas = in_memory_atlas(Scripted(ASKED), store=store)
    forced = ClientTools((WEATHER,), tool_choice="weather")
    (call,) = await pending(atlas.send("go", session="s", client_tools=forced))
    await atlas.close()
    await atlas.post_results([ClientResult(call.id, "rain")], offer=ClientTools((CLOCK,), tool_choice="required"))
    model = Scripted(calls("clock"), says("Done."))
    async with in_memory_atlas(model, store=store) as atlas:
        (stream,) = await atlas.recover()
        (call,) = await pending(stream)
        assert call.tool == "clock"
        await atlas.post_results([ClientResult(call.id, "noon")])
        await reply(stream)
    shown = [([spec.name for spec in request.tools], request.tool_choice) for request in model.requests]
    assert shown == [(["clock"], "required"), (["clock"], "auto")]


async def test_forced_call_is_demanded_after_own_tools() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    model = Scripted(calls("look"), says("It rains."), calls("weather", city=7), ASKED, says("Done."))
    async with in_memory_atlas(model, [look], store=await open_store()) as atlas:
        stream = atlas.send("go", session="s", client_tools=ClientTools((WEATHER,), tool_choice="required"))
        (call,) = await pending(stream)
        assert [request.tool_choice for request in model.requests] == ["required"] * 4
        await atlas.post_results([ClientResult(call.id, "rain")])
        assert (await reply(stream)).text == "Done."
    assert stream.text == "Done."


async def test_model_that_refuses_a_forced_call_fails_the_turn() -> None:
    async with in_memory_atlas(Scripted(*[says("No.")] * 3)) as atlas:
        stream = atlas.send("go", client_tools=ClientTools((WEATHER, CLOCK), tool_choice="required"))
        with pytest.raises(ProviderError, match="requires a call of one of weather, clock"):
            await reply(stream)


async def test_policy_decides_about_client_tools() -> None:
    policy = Policy(tools={"client/*": {"*": "yes"}, "client/clock": {"*": "no"}, "client/weather": {"*": "ask"}})
    model = Scripted(ASKED, says("Rain."))
    async with in_memory_atlas(model, store=await open_store(), policy=policy, approve=Approvals(wait=True)) as atlas:
        stream = atlas.send("go", session="s", client_tools=[WEATHER, CLOCK])
        (question,) = await wait_until(atlas.pending)
        assert (question.tool, question.kind) == ("client/weather", "approval")
        await atlas.answer(question.id, Answer("once", by="ben"))
        (call,) = await pending(stream)
        await atlas.post_results([ClientResult(call.id, "rain")])
        await reply(stream)
        assert [spec.name for spec in model.requests[0].tools] == ["weather"]


def bad_offers() -> list[Any]:
    deep: dict[str, Any] = {"$ref": "https://example.org/schema.json"}
    return [
        (ClientTools((ClientTool("Lo\u212aup"),)), "invalid name"),
        (ClientTools((ClientTool("LOOK"),)), "client tool 'LOOK' has the name of the server-side tool 'look'"),
        (ClientTools((ClientTool("shop__buy"),)), "has the name of the server-side tool 'shop__buy'"),
        (ClientTools((ClientTool("Hand_Off"),)), "has the name of the server-side tool 'hand_off'"),
        (ClientTools((ClientTool("x"), ClientTool("X"))), "duplicate client tool 'X'"),
        (ClientTools(tuple(ClientTool(f"t{n}") for n in range(129))), "129 client tools were given"),
        (ClientTools((ClientTool("x", "y" * 70_000),)), "maximum is 65,536"),
        (ClientTools((ClientTool("x", parameters={"properties": {"a": deep}}),)), "only references inside"),
        (ClientTools((ClientTool("x", parameters={"type": "string"}),)), "JSON schema of an object"),
        (ClientTools((ClientTool("x"),), tool_choice="look"), "invalid tool_choice 'look'"),
        (ClientTools((ClientTool("x"),), allowed=("y",)), "'y': it is not among the tools"),
        (ClientTools((), tool_choice="required"), "needs at least one"),
        (ClientTools((ClientTool("x"),), deadline=8 * 86_400), "invalid deadline"),
        (ClientTools((), runs=("bash",), folder="/src"), "cannot run the server-side tool 'bash': expected file_read"),
        (ClientTools((), runs=("file_read",), folder="src"), "needs the absolute path of its folder, got 'src'"),
    ]


@pytest.mark.parametrize(("offer", "problem"), bad_offers())
async def test_offer_that_is_refused(offer: ClientTools, problem: str) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    @tool(name="shop/buy")
    async def buy() -> str:
        """Buy."""
        return "bought"

    agents = [Agent("a", providers=[Scripted(says("hi"))]), Agent("b", providers=[Scripted()], tools=[look, buy])]
    async with Atlas(agents) as atlas:
        with pytest.raises(BadTool, match=problem):
            atlas.send("go", client_tools=offer)


async def test_result_that_is_refused() -> None:
    async with in_memory_atlas(Scripted(ASKED, says("Rain.")), store=await open_store()) as atlas:
        stream = atlas.send("go", session="s", client_tools=[WEATHER])
        (call,) = await pending(stream)
        with pytest.raises(BadArguments, match="maximum is 1,048,576"):
            await atlas.post_results([ClientResult(call.id, "x" * 1_048_577)])
        with pytest.raises(BadArguments, match="not plain JSON"):
            await atlas.post_results([ClientResult(call.id, object())])
        await atlas.post_results([ClientResult(call.id, "rain")])
        await reply(stream)


# Server-side tools that the client runs


WRITING = calls("file_write", path="a.txt", content="new\n")


def editing(folder: Path, **more: Any) -> ClientTools:
    return ClientTools((), runs=("file_read", "file_write", "file_edit"), folder=str(folder), **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of tools with a project that the client has open, and files that it has no text of."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("old\n")
    (project / "data").write_bytes(bytes(range(256)))
    (project / ".env").write_text("KEY=1\n")
    (tmp_path / "outside.txt").write_text("outside\n")
    (project / "link.txt").symlink_to("../outside.txt")
    return tmp_path


async def test_client_runs_file_tools_of_this_side_under_their_policy(folder: Path) -> None:
    project, model = folder / "project", Scripted(WRITING, calls("file_read", path="a.txt"), says("Done."))
    policy = Policy(tools={"file_write": {"*": "ask"}})
    store, tools = await open_store(), file_tools(project)
    async with in_memory_atlas(model, tools, store=store, policy=policy, approve=Approvals(wait=True)) as atlas:
        stream = atlas.send("go", session="s", client_tools=editing(project))
        (question,) = await wait_until(atlas.pending)
        assert question.tool == "file_write" and question.preview.endswith("not saved\n+new")
        await atlas.answer(question.id, Answer("once", by="ben"))
        (call,) = await pending(stream)
        assert (call.tool, call.facts) == ("file_write", {"file": str(project / "a.txt")})
        await atlas.post_results([ClientResult(call.id, "wrote it")])
        (call,) = await pending(stream, 2)
        await atlas.post_results([ClientResult(call.id, "unsaved")])
        assert (await reply(stream)).text == "Done."
        rows = [row.entry for row in await atlas.audit.records("default")]
    assert (project / "a.txt").read_text() == "old\n"
    assert [(each.result, each.untrusted) for each in results(model)] == [
        ("wrote it", ""),
        ("unsaved", "file: file_read"),
    ]
    assert [(row.entity_id, row.meta["source"]) for row in rows] == [("file_write", "client"), ("file_read", "client")]
    assert "file_edit" not in [spec.name for spec in model.requests[0].tools]  # the policy does not allow it


async def test_calls_that_the_client_cannot_run_are_run_on_this_side(folder: Path) -> None:
    paths = ("../outside.txt", "link.txt", "outside.txt", "project/link.txt", "project/data", "project/.env", "a\0b")
    asked = [calls("file_read", path=path) for path in paths]
    model = Scripted(*asked, calls("file_read", path=5), says("Done."))
    async with in_memory_atlas(model, file_tools(folder), store=await open_store()) as atlas:
        stream = atlas.send("go", session="s", client_tools=editing(folder / "project"))
        assert (await reply(stream)).text == "Done."
    found = [str(each.result) for each in results(model)]
    assert "is outside the folder" in found[0] and "not found: link.txt" in found[1]
    assert "outside" in found[2] and "outside" in found[3] and "not text" in found[4] and "secrets" in found[5]
    assert "NUL" in found[6] and "path" in found[7]


async def test_file_tool_of_the_client_survives_a_restart_and_fails_after_its_deadline(folder: Path) -> None:
    project, clock, store = folder / "project", VirtualClock(), await open_store()
    atlas = in_memory_atlas(Scripted(WRITING), file_tools(project), store=store, clock=clock)
    (before,) = await pending(atlas.send("go", session="s", client_tools=editing(project, deadline=60)))
    await atlas.close()
    model = Scripted(WRITING, says("Too late."))
    async with in_memory_atlas(model, file_tools(project), store=store, clock=clock) as atlas:
        (stream,) = await atlas.recover()
        assert [each.id for each in await pending(stream)] == [before.id]
        await atlas.post_results([ClientResult(before.id, "wrote it")])
        (call,) = await pending(stream, 2)
        assert call.id != before.id
        await clock.advance(61)
        assert (await reply(stream)).text == "Too late."
    assert [each.status for each in results(model)] == ["ok", "unknown"]
    assert "the client posted none in time" in results(model)[1].result
    assert (project / "a.txt").read_text() == "old\n"
