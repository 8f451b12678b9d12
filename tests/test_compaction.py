"""Compaction: older messages become a summary before the conversation exceeds the context window."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Compaction,
    ConfigError,
    History,
    Message,
    ProviderError,
    Request,
    ToolCall,
    ToolResult,
    assistant,
    register_model,
    tool_message,
    user,
)
from atlas_agents.agents.history import apply_summary, read_summary
from atlas_agents.core.events import SessionCompacted, Usage
from atlas_agents.core.messages import Conversation
from atlas_agents.core.store import Store
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, TextChunk, ToolCallChunk
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from checks import is_paired

WINDOW = 3000
GOOD = "<summary>The user plans a trip to Lima. Open: book the hotel.</summary>"


class Model:
    """A model that answers with its number, or with a summary where one is requested."""

    def __init__(self, *summaries: str | ProviderError, answer: str = "ok", tools: int = 0) -> None:
        self.id = "model"
        self.summaries = list(summaries)
        self.answer = answer
        self.tools = tools
        self.rounds: dict[str, int] = {}
        self.requests: list[Request] = []
        self.summary_requests: list[Request] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if "You compress the history" in request.system:
            self.summary_requests.append(request)
            given = self.summaries.pop(0) if self.summaries else GOOD
            if isinstance(given, ProviderError):
                raise given
            yield TextChunk(given)
            yield DoneChunk(Usage(characters(request) // 4, 10))
            return
        self.requests.append(request)
        asked = next(each.text for each in reversed(request.messages) if each.role == "user" and not each.metadata)
        self.rounds[asked] = results = self.rounds.get(asked, -1) + 1
        if results < self.tools:
            yield ToolCallChunk(ToolCall("", "look", {"path": f"notes/{results}.md"}))
        else:
            yield TextChunk(self.answer)
        yield DoneChunk(Usage(0, 5))


def look(path: str) -> str:
    """Read a file."""
    return path + " " + "z" * 3000


def compacting(**settings: Any) -> History:
    return History(compaction=Compaction(window=WINDOW, **settings))


def past(turns: int, size: int = 600) -> list[Message]:
    return [each for n in range(turns) for each in (user(f"q{n} " + "x" * size), assistant(f"a{n} " + "y" * size))]


def characters(request: Request) -> int:
    return sum([len(message.to_json()) for message in request.messages])


async def open_memory() -> Store:
    store = MemoryStore()
    await store.open()
    return store


async def test_older_messages_become_a_summary() -> None:
    model, compacted = Model(), list[SessionCompacted]()
    conversation = Conversation(past(12))
    async with Atlas([Agent("a", model=model)], history=compacting()) as atlas:
        atlas.on("session:compacted", compacted.append)
        assert (await atlas.ask("and now?", session=conversation)).text == "ok"
    (request,) = model.requests
    first, *rest = request.messages
    assert first.text.endswith("Open: book the hotel.") and rest[-1].text == "and now?"
    assert len(rest) < 10 and characters(request) < 3 * WINDOW
    assert len(conversation) == 24 + 3
    (event,) = compacted
    assert event.messages + len(rest) == 25 and event.tokens_after < event.tokens_before


async def test_conversation_below_the_threshold_is_sent_whole() -> None:
    model = Model()
    async with Atlas([Agent("a", model=model)], history=compacting()) as atlas:
        await atlas.ask("and now?", session=Conversation(past(3)))
    assert len(model.requests[0].messages) == 7 and not model.summary_requests


async def test_later_turns_use_the_summary_and_summarise_it_again() -> None:
    model = Model(answer="y" * 600)
    async with Atlas([Agent("a", model=model)], history=compacting()) as atlas:
        for n in range(60):
            await atlas.ask(f"question {n} " + "x" * 600)
    assert 3 <= len(model.summary_requests) <= 20
    assert all("[earlier summary]" in request.messages[0].text for request in model.summary_requests[1:])
    assert max(characters(request) for request in model.requests) < 4.5 * WINDOW
    assert len(model.requests) == 60


async def test_summary_survives_a_restart(tmp_path: Path) -> None:
    stored = list[Message]()
    for number in range(2):
        model = Model(answer="y" * 600)
        store = SqliteStore(tmp_path / "a.db")
        await store.open()
        async with Atlas([Agent("a", model=model)], store=store, history=compacting()) as atlas:
            for n in range(7 if number == 0 else 1):
                await atlas.ask(f"question {n} " + "x" * 600, session="s")
            assert len(model.summary_requests) == (1 if number == 0 else 0)
            assert "Open: book the hotel." in model.requests[-1].messages[0].text
            stored = await atlas.sessions.history("s")
        await store.close()
    assert len([message for message in stored if message.role != "user" or not message.metadata]) == 16


async def test_summary_survives_fork_export_and_import() -> None:
    store = await open_memory()
    model = Model(answer="y" * 600)
    async with Atlas([Agent("a", model=model)], store=store, history=compacting()) as atlas:
        for n in range(7):
            await atlas.ask(f"question {n} " + "x" * 600, session="s")
        await atlas.sessions.fork("s", to="fork")
        lines = [line async for line in atlas.sessions.export("s")]
        await atlas.sessions.load(lines, key="copy")
        before = len(model.summary_requests)
        for session in ("fork", "copy"):
            await atlas.ask("go on", session=session)
            assert "Open: book the hotel." in model.requests[-1].messages[0].text
        early = next(each for each in await atlas.sessions.history("s") if each.role == "assistant")
        await atlas.sessions.fork("s", at=early.id, to="early")
        await atlas.ask("go on", session="early")
        assert [message.role for message in model.requests[-1].messages] == ["user", "assistant", "user"]
        assert len(model.summary_requests) == before
        await atlas.sessions.delete("s")
        await atlas.ask("go on", session="s")
        assert len(model.requests[-1].messages) == 1


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "no tags at all",
        "<summary>cut off",
        "<summary>  </summary>",
        f"<summary>{'too long ' * 2000}</summary>",
        ProviderError("down", "bad_request"),
    ],
)
async def test_summary_that_fails_or_is_malformed_replaces_nothing(bad: str | ProviderError) -> None:
    model, store = Model(bad, answer="y" * 600), await open_memory()
    async with Atlas([Agent("a", model=model)], store=store, history=compacting()) as atlas:
        for n in range(7):
            await atlas.ask(f"question {n} " + "x" * 600, session="s")
        failed = len(model.requests)
        assert len(model.summary_requests) == 1
        assert not any("Summary" in message.text for request in model.requests for message in request.messages)
        for n in range(3):
            await atlas.ask(f"question {n} " + "x" * 600, session="s")
        stored = await atlas.sessions.history("s")
    assert len(model.requests) == failed + 3
    assert len([message for message in stored if read_summary(message) is None]) == 20
    assert max(characters(request) for request in model.requests) < 5 * WINDOW


async def test_pinned_messages_file_names_and_the_question_survive() -> None:
    model = Model(tools=6)
    conversation = Conversation([user("Never use tabs.", pinned=True), assistant("Noted."), *past(8)])
    conversation.messages.append(user("Look at src/app/main.py and report.pdf."))
    conversation.messages.append(assistant("I did."))
    async with Atlas([Agent("a", model=model, tools=[look])], history=compacting(clear_results=False)) as atlas:
        await atlas.ask("THE QUESTION", session=conversation)
    assert model.summary_requests
    for request in model.requests:
        texts = [message.text for message in request.messages]
        assert "Never use tabs." in texts and "THE QUESTION" in texts
        assert is_paired(request.messages)
    summary = model.requests[-1].messages[0].text
    assert "src/app/main.py" in summary and "report.pdf" in summary


async def test_old_large_tool_results_are_cleared_before_anything_is_summarised() -> None:
    model = Model(tools=3)
    conversation = Conversation()
    async with Atlas([Agent("a", model=model, tools=[look])], history=compacting()) as atlas:
        for n in range(3):
            await atlas.ask(f"question {n}", session=conversation)
    assert not model.summary_requests
    results = [result.result for message in model.requests[-1].messages for result in message.tool_results]
    assert results[0] == (
        "[Result of look cleared to save space: 3,011 characters. Call the tool again if you need it.]"
    )
    assert results[-1].endswith("zzz")
    assert all(len(result.result) == 3011 for message in conversation.messages for result in message.tool_results)


async def test_summary_is_written_by_the_model_that_is_set() -> None:
    model, store = Model(), await open_memory()

    cheap, registry = Model(), Registry()
    registry.register("cheap", lambda environment: cheap)
    async with Atlas(
        [Agent("a", model=model)], store=store, registry=registry, history=compacting(model="cheap/small")
    ) as atlas:
        result = await atlas.run([*past(12), user("and now?")])
    assert len(cheap.summary_requests) == 1 and not model.summary_requests
    assert cheap.summary_requests[0].model == "small"
    assert result.usage.input_tokens > 1000


async def test_transcript_fits_the_model_that_writes_the_summary() -> None:
    cheap, registry = Model(), Registry()
    registry.register("cheap", lambda environment: cheap)
    register_model("tiny-summarizer", context_window=2000)
    history = History(compaction=Compaction(window=40_000, model="cheap/tiny-summarizer"))
    async with Atlas([Agent("a", model=Model())], registry=registry, history=history) as atlas:
        await atlas.ask("and now?", session=Conversation(past(100)))
    (request,) = cheap.summary_requests
    assert characters(request) < 2000 * 3.6


async def test_conversation_that_had_to_be_repaired_is_summarised_once() -> None:
    model = Model()
    broken = [*past(2), user("q"), assistant(ToolCall("1", "f", {})), *past(10)]
    async with Atlas([Agent("a", model=model)], history=compacting()) as atlas:
        conversation = Conversation(broken)
        for n in range(3):
            await atlas.ask(f"question {n}", session=conversation)
    assert len(model.summary_requests) == 1
    assert all(is_paired(request.messages) for request in model.requests)


async def test_tools_that_fill_the_window_do_not_cause_summaries() -> None:
    model = Model()
    agent = Agent("a", model=model, system_prompt="s" * 20_000)
    async with Atlas([agent], history=compacting()) as atlas:
        await atlas.ask("and now?", session=Conversation(past(4)))
    assert not model.summary_requests


async def test_usage_of_a_summary_counts_in_the_turn_and_in_the_store() -> None:
    store = await open_memory()
    model = Model(answer="y" * 600)
    async with Atlas([Agent("a", model=model)], store=store, history=compacting()) as atlas:
        used = 0
        for n in range(7):
            stream = atlas.send(f"question {n} " + "x" * 600, session="s")
            async for event in stream:
                if event.type == "stream:end":
                    used += event.usage.input_tokens
        rows = await store.usage("default")
    assert len(model.summary_requests) == 1
    assert sum(row.input_tokens for row in rows) == used > 1000


async def test_one_huge_turn_is_compacted_and_keeps_its_question() -> None:
    model = Model(tools=30)
    agent = Agent("a", model=model, tools=[look], max_rounds=40)
    async with Atlas([agent], history=compacting()) as atlas:
        assert (await atlas.ask("THE QUESTION")).text == "ok"
    for request in model.requests:
        assert any(message.text == "THE QUESTION" for message in request.messages) and is_paired(request.messages)
        assert characters(request) < 5 * WINDOW


async def test_tool_calls_and_results_stay_together_in_every_request() -> None:
    model = Model(tools=2, answer="y" * 300)
    conversation = Conversation()
    agent = Agent("a", model=model, tools=[look])
    async with Atlas([agent], history=compacting(clear_results=False)) as atlas:
        for n in range(15):
            await atlas.ask(f"question {n}", session=conversation)
    assert len(model.summary_requests) > 1
    assert all(is_paired(request.messages) for request in model.requests)


def test_unknown_or_malformed_summaries_are_ignored() -> None:
    messages = past(2)
    lost = user("lost", synthetic=True, summary={"through": "gone"})
    broken = user("broken", synthetic=True, summary="?")
    assert apply_summary([*messages, lost, broken]) == messages
    good = user("good", synthetic=True, summary={"through": messages[1].id})
    assert apply_summary([*messages, good, lost]) == [good, *messages[2:]]


def test_summary_keeps_results_with_their_calls() -> None:
    messages = [user("q"), assistant(ToolCall("1", "f", {})), tool_message(ToolResult("1", "ok", "r")), assistant("a")]
    for covered in messages:
        summary = user("s", synthetic=True, summary={"through": covered.id})
        assert is_paired(apply_summary([*messages, summary]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 2}, "threshold"),
        ({"keep": 0.9}, "keep"),
        ({"window": 10}, "window"),
        ({"model": "gpt"}, "invalid model reference"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Compaction(**settings)


async def test_queued_turns_share_the_summary() -> None:
    store, model = await open_memory(), Model(answer="y" * 600)
    async with Atlas([Agent("a", model=model)], store=store, history=compacting()) as atlas:
        streams = [atlas.send(f"question {n} " + "x" * 600, session="s") for n in range(16)]
        replies = [(await stream.reply()).text for stream in streams]
        stored = await atlas.sessions.history("s")
    assert replies == ["y" * 600] * 16
    asked = [message.text.split()[1] for message in stored if message.role == "user" and not message.metadata]
    assert asked == [str(n) for n in range(16)]
    summaries = [message for message in stored if read_summary(message) is not None]
    assert len(summaries) == len(model.summary_requests) > 1
    assert max(characters(request) for request in model.requests) < 5 * WINDOW
