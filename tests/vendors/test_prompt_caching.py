"""Prompt caching with Anthropic: the strict double counts cached tokens by prefix, as the vendor does."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, AnthropicProvider, Atlas, ModelSettings, RetryPolicy, Rule, tool
from atlas_agents.core import messages as m
from atlas_agents.core.messages import Message, ToolCall, ToolResult, memo
from atlas_agents.providers import base
from vendors.anthropic import AnthropicDouble
from vendors.common import KEY, Answer, Refusal

MODEL = "claude-opus-5-5"
PROMPT = "You are the assistant of a library. " * 60
ROUNDS = 20
LOOK = Answer(calls=(("look_up", {"title": "The Glass Bead Game"}),), thinking=("I look it up.",))
DONE = Answer("It is in.")
PRICES = {"input": 4.0, "write": 5.0, "write_1h": 8.0, "read": 0.2}
"""Dollars per million tokens of this model: a write costs 1.25 times the input, a read a twentieth."""


@tool
async def look_up(title: str) -> str:
    """Look up a book by its title."""
    return f"{title}: " + "stack 4, lent until Tuesday. " * 20


@asynccontextmanager
async def open_atlas(vendor: AnthropicDouble, model: str = MODEL, **options: Any) -> AsyncGenerator[Atlas]:
    provider = AnthropicProvider(model, base_url=vendor.url, api_key=KEY)
    options = {"tools": [look_up], "system_prompt": PROMPT, "max_rounds": ROUNDS + 5, **options}
    retry = RetryPolicy(backoff=0.001)
    async with Atlas([Agent("assistant", providers=[provider], retry=retry, **options)]) as atlas:
        yield atlas


def count_marks(body: dict[str, Any]) -> int:
    return json.dumps(body).count('"cache_control"')


def bill(usage: list[dict[str, Any]]) -> dict[str, float]:
    """Sum the input of several requests, and what it costs."""
    plain = sum(each["input_tokens"] for each in usage)
    read = sum(each["cache_read_input_tokens"] for each in usage)
    written = sum(each["cache_creation"]["ephemeral_5m_input_tokens"] for each in usage)
    written_1h = sum(each["cache_creation"]["ephemeral_1h_input_tokens"] for each in usage)
    dollars = plain * PRICES["input"] + read * PRICES["read"]
    dollars += written * PRICES["write"] + written_1h * PRICES["write_1h"]
    return {"plain": plain, "read": read, "written": written + written_1h, "dollars": dollars / 1e6}


async def run_long_turn(cache: Any) -> dict[str, float]:
    async with (
        AnthropicDouble(*[LOOK] * (ROUNDS - 1), DONE) as vendor,
        open_atlas(vendor, settings=ModelSettings(cache=cache)) as atlas,
    ):
        await atlas.ask("Where are my books?")
        assert vendor.refusals == []
        assert len(vendor.usage) == ROUNDS
        return bill(vendor.usage)


async def test_a_turn_of_twenty_rounds_costs_a_fraction_with_caching() -> None:
    plain, cached, hour = [await run_long_turn(cache) for cache in ("off", None, "1h")]
    assert (plain["read"], plain["written"]) == (0, 0)
    total = plain["plain"]
    assert cached["plain"] + cached["read"] + cached["written"] == pytest.approx(total, rel=0.01)
    assert cached["read"] > 0.8 * total
    assert cached["dollars"] < 0.25 * plain["dollars"]
    assert cached["dollars"] < hour["dollars"] < 0.35 * plain["dollars"]
    page = (Path(__file__).parents[2] / "docs/guide/prompt-caching.md").read_text(encoding="utf-8")
    for name, row in (("`off`", plain), ("`5m` (default)", cached), ("`1h`", hour)):
        counts = " | ".join(f"{row[key]:,}" for key in ("plain", "written", "read"))
        assert f"| {name} | {counts} | ${row['dollars']:.3f} |" in page


async def test_each_round_reads_what_the_round_before_wrote() -> None:
    async with AnthropicDouble(*[LOOK] * 5, DONE, DONE) as vendor, open_atlas(vendor) as atlas:
        await atlas.ask("Where are my books?")
        await atlas.ask("And the others?")
        assert max(count_marks(body) for body in vendor.bodies) == 4
        for before, after in zip(vendor.usage, vendor.usage[1:], strict=False):
            assert after["cache_read_input_tokens"] == sum(
                before[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            )


async def test_a_round_with_more_blocks_than_the_vendor_looks_back_is_still_read() -> None:
    many = Answer(calls=tuple(("look_up", {"title": str(number)}) for number in range(15)))
    async with AnthropicDouble(LOOK, many, many, DONE) as vendor, open_atlas(vendor) as atlas:
        await atlas.ask("Where are my books?")
        assert vendor.refusals == []
        first, *others = [each["cache_read_input_tokens"] for each in vendor.usage]
        assert first == 0
        assert others == sorted(set(others))
        assert all(each["input_tokens"] == 0 for each in vendor.usage)


async def test_a_new_session_reads_tools_and_prompt_of_another() -> None:
    async with AnthropicDouble(DONE, DONE) as vendor, open_atlas(vendor) as atlas:
        await atlas.ask("Where is my book?", session="one")
        await atlas.ask("Are you open?", session="two")
        assert vendor.usage[1]["cache_read_input_tokens"] > 500


async def test_a_conditional_rule_does_not_displace_the_prompt_from_the_cache() -> None:
    on: list[bool] = []
    rule = Rule("Whisper.", when=lambda _: bool(on))
    async with AnthropicDouble(DONE, DONE) as vendor, open_atlas(vendor, rules=[rule, "Be kind."]) as atlas:
        await atlas.ask("Where is my book?")
        on.append(True)
        await atlas.ask("Where is my book?")
        system = vendor.bodies[1]["system"]
        assert [("cache_control" in block, block["text"][-8:]) for block in system] == [
            (True, "Be kind."),
            (False, "Whisper."),
        ]
        assert vendor.usage[1]["cache_read_input_tokens"] > 500


async def test_an_empty_result_of_a_tool_can_be_the_end_of_the_history() -> None:
    @tool
    async def silent() -> str:
        """Do something."""
        return ""

    async with (
        AnthropicDouble(Answer(calls=(("silent", {}),)), DONE) as vendor,
        open_atlas(vendor, tools=[silent]) as atlas,
    ):
        assert (await atlas.ask("Do it.")).text == "It is in."
        assert vendor.refusals == []


@pytest.mark.parametrize(
    ("settings", "marks"),
    [
        (ModelSettings(), 3),
        (ModelSettings(cache="1h"), 3),
        (ModelSettings(cache="off"), 0),
        (ModelSettings(extra_body={"cache_control": {"type": "ephemeral", "ttl": "1h"}}), 1),
    ],
)
async def test_there_are_never_more_marks_than_the_vendor_accepts(settings: ModelSettings, marks: int) -> None:
    async with AnthropicDouble(DONE) as vendor, open_atlas(vendor, settings=settings) as atlas:
        await atlas.ask("Where is my book?")
        assert vendor.refusals == []
        assert count_marks(vendor.bodies[0]) == marks


async def test_a_server_that_refuses_marks_gets_none() -> None:
    refusal = Refusal("system.0.cache_control: Extra inputs are not permitted")
    async with AnthropicDouble(refusal, then=DONE) as vendor, open_atlas(vendor) as atlas:
        for _ in range(2):
            assert (await atlas.ask("Where is my book?")).text == "It is in."
        assert [count_marks(body) for body in vendor.bodies] == [3, 0, 0]


async def test_marks_do_not_encode_the_history_again() -> None:
    call = Message("assistant", (ToolCall("c1", "look_up", {"title": "X"}),))
    history = [m.user("Where?"), call, m.tool(ToolResult("c1", "ok", "here"))]
    async with AnthropicDouble(then=DONE) as vendor:
        provider = AnthropicProvider(MODEL, base_url=vendor.url, api_key=KEY)
        request = base.Request(history, system="S", tools=(look_up.spec,))
        await base.complete(provider, request)
        encoded = [memo(message)["anthropic_bytes"] for message in history]
        await base.complete(provider, request)
        await provider.close()
        assert count_marks(vendor.bodies[1]) == 4
    assert all(memo(message)["anthropic_bytes"] is piece for message, piece in zip(history, encoded, strict=True))
    assert not any(b"cache_control" in piece for piece in encoded)


async def test_a_changed_prompt_is_reported_with_its_position(caplog: pytest.LogCaptureFixture) -> None:
    on: list[bool] = []

    @tool
    async def turn_on() -> str:
        """Turn it on."""
        on.append(True)
        return "on"

    rule = Rule("Whisper.", when=lambda _: bool(on))
    async with (
        AnthropicDouble(Answer(calls=(("turn_on", {}),)), DONE, DONE) as vendor,
        open_atlas(vendor, tools=[turn_on], rules=[rule]) as atlas,
    ):
        await atlas.ask("Turn it on.")
        await atlas.ask("And now?")
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text for text in texts if "prefix" in text] == [
        f"prompt prefix changed, the vendor's cache does not apply after it: part=system at={len(PROMPT)}"
    ]


async def test_a_changed_message_is_reported_with_its_position(caplog: pytest.LogCaptureFixture) -> None:
    history = [m.user("One"), m.assistant("1"), m.user("Two"), m.assistant("2"), m.user("Three")]
    changed = [*history[:2], m.user("Zwei"), *history[3:], m.assistant("3"), m.user("Four")]
    for messages in (history, history, changed):
        base.check_prefix(base.Request(tuple(messages)), "anthropic/claude")
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["part=messages at=2"]


async def test_a_stable_prompt_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with AnthropicDouble(LOOK, LOOK, DONE, LOOK, DONE) as vendor, open_atlas(vendor) as atlas:
        await atlas.ask("Where are my books?")
        await atlas.ask("And the others?")
    assert "prefix" not in caplog.text


async def test_usage_counts_what_was_read_and_written() -> None:
    async with AnthropicDouble(LOOK, DONE) as vendor, open_atlas(vendor) as atlas:
        usage = (await atlas.run("Where is my book?")).usage
        assert usage.cached_tokens == sum(each["cache_read_input_tokens"] for each in vendor.usage)
        assert usage.cache_write_tokens == sum(each["cache_creation_input_tokens"] for each in vendor.usage)
        assert usage.saved is not None
        assert usage.saved > 0
        assert usage.cost is not None


async def test_writes_for_an_hour_are_counted_apart() -> None:
    settings = ModelSettings(cache="1h")
    async with AnthropicDouble(DONE) as vendor, open_atlas(vendor, settings=settings) as atlas:
        usage = (await atlas.run("Where is my book?")).usage
        assert usage.cache_write_1h_tokens == usage.cache_write_tokens > 0
        assert usage.saved is not None
        assert usage.saved < 0, "the first request pays for those that follow"
