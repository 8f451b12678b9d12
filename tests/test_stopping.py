"""Timeouts stop tools; failed tools are retried only if that is safe."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import AtlasStream, ToolResult, Transient, tool
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from atlas_agents.tools.tool import Effect
from checks import TIMEOUT, cpu_factor, wait_until


def _results(model: Scripted) -> list[ToolResult]:
    return [part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)]


async def test_sync_tool_is_dead_before_its_timeout_is_reported(tmp_path: Path) -> None:
    file, clock = tmp_path / "process", VirtualClock()

    @tool(timeout=5)
    def slow(path: str) -> None:
        """Never end."""
        Path(path).write_text(str(os.getpid()))
        threading.Event().wait()

    model = Scripted(calls("slow", path=str(file)), says("It timed out."))

    async def check_process(stream: AtlasStream) -> None:
        async for event in stream:
            if event.type == "tool:result":
                with pytest.raises(ProcessLookupError):
                    os.kill(int(file.read_text()), 0)

    async with in_memory_atlas(model, [slow], clock=clock) as atlas:
        checking = asyncio.create_task(check_process(atlas.send("go")))
        await wait_until(lambda: file.exists() and file.read_text())
        await clock.advance(6)
        await asyncio.wait_for(checking, TIMEOUT)
    assert [(result.status, result.error) for result in _results(model)] == [("unknown", "timeout")]


async def test_blocking_sync_tool_does_not_block_the_event_loop(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    @tool
    def block(path: str) -> str:
        """Block until the test writes into a named pipe."""
        return Path(path).read_text()

    def opened_for_writing() -> int | None:
        """Return the other end of the pipe once the tool has opened its own."""
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    model = Scripted(calls("block", path=str(pipe)), says("ok"))
    async with in_memory_atlas(model, [block]) as atlas:
        stream = atlas.send("go")
        end = await wait_until(opened_for_writing)
        os.write(end, b"written by the loop")
        os.close(end)
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
    assert [result.result for result in _results(model)] == ["written by the loop"]


class Flaky:
    """Fails a given number of times, then succeeds."""

    def __init__(self, effect: Effect, *errors: Exception) -> None:
        self.tried: list[str] = []
        left = list(errors)

        async def act() -> str:
            """Act."""
            self.tried.append("tried")
            if left:
                raise left.pop(0)
            return "done"

        self.tool = tool(effect=effect)(act)


class HttpError(Exception):
    """An error as HTTP clients raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


async def _run(flaky: Flaky) -> tuple[ToolResult, list[float]]:
    clock = VirtualClock()
    model = Scripted(calls("act"), says("ok"))
    async with in_memory_atlas(model, [flaky.tool], clock=clock) as atlas:
        stream = atlas.send("go")
        async with asyncio.timeout(TIMEOUT):
            for _ in range(60):
                await clock.advance(1)
            await stream.reply()
    return _results(model)[0], []


@pytest.mark.parametrize(
    ("effect", "error", "tries", "outcome"),
    [
        ("unsafe", Transient("busy"), 2, ("ok", None)),
        ("pure", TimeoutError("slow"), 2, ("ok", None)),
        ("keyed", ConnectionResetError("gone"), 2, ("ok", None)),
        ("unsafe", TimeoutError("slow"), 1, ("unknown", "unknown")),
        ("unsafe", ConnectionResetError("gone"), 1, ("unknown", "unknown")),
        ("unsafe", HttpError(429), 2, ("ok", None)),
        ("unsafe", HttpError(503), 2, ("ok", None)),
        ("pure", HttpError(404), 1, ("error", "failed")),
        ("pure", HttpError(401), 1, ("error", "failed")),
        ("pure", ValueError("a bug"), 1, ("error", "internal")),
    ],
)
async def test_retry_depends_on_the_error_and_the_effect(
    effect: Effect, error: Exception, tries: int, outcome: tuple[str, str | None]
) -> None:
    flaky = Flaky(effect, error)
    result, _ = await _run(flaky)
    assert (len(flaky.tried), (result.status, result.error)) == (tries, outcome)


async def test_error_after_three_retries_suggests_another_approach() -> None:
    flaky = Flaky("pure", *(HttpError(503) for _ in range(9)))
    result, _ = await _run(flaky)
    assert len(flaky.tried) == 4
    assert result.result == "HTTP 503 (tried 4 times; try again later, or use another approach)"


async def test_pure_tool_that_times_out_is_retried() -> None:
    clock, tried = VirtualClock(), list[float]()

    @tool(effect="pure", timeout=2)
    async def sometimes() -> str:
        """Hang the first time."""
        tried.append(clock.monotonic())
        if len(tried) == 1:
            await asyncio.Event().wait()
        return "done"

    model = Scripted(calls("sometimes"), says("ok"))
    async with in_memory_atlas(model, [sometimes], clock=clock) as atlas:
        stream = atlas.send("go")
        for _ in range(8):
            await clock.advance(1)
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
    assert len(tried) == 2
    assert _results(model)[0].result == "done"


async def test_idempotency_key_is_the_same_for_every_try() -> None:
    from atlas_agents import ToolContext

    keys: list[str] = []

    @tool(effect="keyed")
    async def pay(context: ToolContext) -> str:
        """Pay."""
        keys.append(context.idempotency_key)
        if len(keys) == 1:
            raise TimeoutError
        return "paid"

    clock, model = VirtualClock(), Scripted(calls("pay"), says("ok"))
    async with in_memory_atlas(model, [pay], clock=clock) as atlas:
        stream = atlas.send("go")
        for _ in range(4):
            await clock.advance(1)
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
    assert len(keys) == 2
    assert keys[0] == keys[1] == f"{stream.stream_id}:{_results(model)[0].call_id}"


def _nothing(**_: object) -> str:
    return "x"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/s.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}},
        {
            "type": "object",
            "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(25)} | {"d25": {}},
            "properties": {"a": {"$ref": "#/$defs/d0"}},
        },
        {
            "type": "object",
            "properties": {f"field{n}": {"type": "string", "description": "x" * 50} for n in range(2000)},
        },
    ],
    ids=["remote ref", "file ref", "lookahead", "reference bomb", "too large"],
)
def test_schema_that_could_hang_or_fetch_is_rejected(schema: dict[str, Any]) -> None:
    from atlas_agents import BadTool, Tool

    begun = time.process_time()
    with pytest.raises(BadTool):
        Tool("odd", _nothing, parameters=schema)
    assert time.process_time() - begun < 5 * cpu_factor()


def test_catastrophic_regex_pattern_is_matched_fast() -> None:
    from atlas_agents import BadArguments, Tool

    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    odd = Tool("odd", _nothing, parameters=schema)
    begun = time.process_time()
    with pytest.raises(BadArguments):
        odd.check({"a": "a" * 5000 + "!"})
    assert time.process_time() - begun < 5 * cpu_factor()


async def test_delays_between_retries_are_configurable() -> None:
    clock, tried = VirtualClock(), list[float]()

    @tool
    async def busy() -> str:
        """Be busy."""
        tried.append(clock.monotonic())
        raise Transient("busy")

    model = Scripted(calls("busy"), says("ok"))
    async with in_memory_atlas(model, [busy], clock=clock, retries=(10, 20)) as atlas:
        stream = atlas.send("go")
        for _ in range(50):
            await clock.advance(1)
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
    first, second, third = tried
    assert first == 0
    assert 10 <= second <= 12
    assert 20 <= third - second <= 24
