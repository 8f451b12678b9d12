"""MCP servers that end, hang, babble and flood: what a call comes to, and that the next one works again."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mcp_house import acts, opened, scripted, servers_of, written

from atlas_agents import Atlas
from atlas_agents.core.errors import Transient
from atlas_agents.mcp import client, transports
from checks import until

ANSWER = len(json.dumps({"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": "done"}]}})) + 1


async def call(atlas: Atlas, name: str, **arguments: Any) -> tuple[str, Any]:
    result = await asyncio.wait_for(atlas.invoke(f"s/{name}", arguments), 20)
    return result.status, result.result


@pytest.mark.parametrize("cut", [*range(0, ANSWER - 1, 9), ANSWER - 2])
async def test_a_server_that_ends_in_the_middle_of_its_answer_leaves_an_unknown_outcome(
    cut: int, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    async with opened(written(tmp_path, s=scripted(folder, confirm=False))) as (atlas, _):
        status, words = await call(atlas, "cut", text="done", count=cut)
        assert status == "unknown" and "may have happened" in words
        assert len(acts(folder)) == 1


async def test_a_whole_answer_counts_although_the_server_ended_right_after_it(tmp_path: Path) -> None:
    async with opened(written(tmp_path, s=scripted(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "cut", text="done", count=10_000) == ("ok", "done")


async def test_a_pure_tool_is_tried_again_and_the_server_is_started_anew_after_a_pause(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with opened(written(tmp_path, s=scripted(folder, pure=["cut", "echo"]))) as (atlas, servers):
        began = time.monotonic()
        status, words = await call(atlas, "cut", text="done", count=7)
        assert status == "error" and "tried" in words
        assert len(acts(folder)) > 1
        assert time.monotonic() - began > 0.9
        await asyncio.sleep(2.1)
        assert await call(atlas, "echo", text="hi") == ("ok", "hi")
        assert len((folder / "starts").read_text().split()) == len(acts(folder))
        assert servers.state("s") == "approved"


async def test_pauses_grow_from_one_second_to_thirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "s"
    servers = servers_of(written(tmp_path, s=scripted(folder)))
    (folder / "broken").touch()
    slept: list[float] = []

    class Clock:
        time, monotonic, call_later = staticmethod(time.time), staticmethod(time.monotonic), None

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0 if len(slept) < 8 else 3600)

    reached = client.McpConnection(servers.configs["s"], servers._environment, tmp_path, clock=Clock())  # type: ignore
    with pytest.raises(Transient, match="I do not feel well"):
        await reached.tools()

    async def often_enough() -> bool:
        return len(slept) >= 8

    await until(often_enough)
    await reached.close()
    for seconds, expected in zip(slept, (1, 2, 4, 8, 16, 30, 30, 30), strict=False):
        assert expected * 0.75 <= seconds <= expected


async def test_a_hanging_server_is_left_at_the_timeout_and_the_outcome_is_unknown(tmp_path: Path) -> None:
    async with opened(written(tmp_path, s=scripted(tmp_path / "s", confirm=False, timeout=1))) as (atlas, _):
        status, words = await call(atlas, "hang")
        assert status == "unknown" and "longer than 1 s" in words


async def test_a_server_that_never_answers_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 0.5)
    folder = tmp_path / "s"
    servers = servers_of(written(tmp_path, s=scripted(folder)))
    (folder / "mute").touch()
    reached = await servers.connect(servers.configs["s"])
    with pytest.raises(Transient, match="no response within"):
        await reached.tools()
    await servers.close()
    pid = int((folder / "starts").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_garbage_on_standard_output_is_passed_over(tmp_path: Path) -> None:
    async with opened(written(tmp_path, s=scripted(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "noise", text="still here", count=200) == ("ok", "still here")


async def test_a_flood_of_garbage_ends_the_server_and_not_us(tmp_path: Path) -> None:
    async with opened(written(tmp_path, s=scripted(tmp_path / "s", confirm=False))) as (atlas, _):
        status, _ = await call(atlas, "flood")
        assert status == "unknown"


async def test_a_line_of_fifty_megabytes_fails_its_call_alone_and_takes_little_memory(tmp_path: Path) -> None:
    async with opened(written(tmp_path, s=scripted(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "echo", text="before") == ("ok", "before")
        before = _memory()
        status, words = await call(atlas, "huge", count=50)
        assert status == "error" and f"exceeds {transports.MAX_LINE:,} bytes" in words
        assert _memory() - before < 40_000_000
        assert await call(atlas, "echo", text="after") == ("ok", "after")


async def test_an_answer_that_is_no_mcp_fails_its_call_alone(tmp_path: Path) -> None:
    async with opened(written(tmp_path, s=scripted(tmp_path / "s", confirm=False))) as (atlas, _):
        status, words = await call(atlas, "odd")
        assert status == "error" and "invalid response from the server" in words
        assert await call(atlas, "echo", text="after") == ("ok", "after")


async def test_what_a_server_says_went_wrong_is_told(tmp_path: Path) -> None:
    async with opened(written(tmp_path, s=scripted(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "fail", text="no such file") == ("error", "no such file")


async def test_a_cancelled_turn_leaves_no_process_behind(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with opened(written(tmp_path, s=scripted(folder, confirm=False))) as (atlas, _):
        stream = await atlas.begin_call("s/hang", {})

        async def acted() -> list[str]:
            return acts(folder)

        await until(acted)
        stream.cancel()
    pid = int((folder / "starts").read_text().split()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    servers = servers_of(written(tmp_path, s={"command": "no-such-command-here"}))
    reached = await servers.connect(servers.configs["s"])
    with pytest.raises(Transient, match="'no-such-command-here': command not found"):
        await reached.tools()
    await servers.close()


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
