"""MCP servers that exit, hang or write garbage: the result of the call, and that the next call works."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mcp_workspace import load_servers, open_atlas, recorded_calls, scripted_entry, server_processes, write_config

from atlas_agents import Atlas
from atlas_agents.core.errors import Transient
from atlas_agents.mcp import client, transports
from checks import TIMEOUT, linux_only, wait_until

pytestmark = linux_only

RESPONSE_SIZE = (
    len(json.dumps({"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": "done"}]}})) + 1
)


async def call(atlas: Atlas, name: str, **arguments: Any) -> tuple[str, Any]:
    result = await asyncio.wait_for(atlas.invoke(f"s/{name}", arguments), TIMEOUT)
    return result.status, result.result


@pytest.mark.parametrize("cut", [*range(0, RESPONSE_SIZE - 1, 9), RESPONSE_SIZE - 2])
async def test_server_exit_during_its_response_is_an_unknown_outcome(cut: int, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with open_atlas(write_config(tmp_path, s=scripted_entry(folder, confirm=False))) as (atlas, _):
        status, message = await call(atlas, "cut", text="done", count=cut)
        assert status == "unknown" and "may have happened" in message
        assert len(recorded_calls(folder)) == 1


async def test_complete_response_counts_although_the_server_exits(tmp_path: Path) -> None:
    async with open_atlas(write_config(tmp_path, s=scripted_entry(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "cut", text="done", count=10_000) == ("ok", "done")


async def test_pure_tool_is_retried_and_the_server_restarted_with_backoff(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with open_atlas(write_config(tmp_path, s=scripted_entry(folder, pure=["cut", "echo"]))) as (atlas, servers):
        began = time.monotonic()
        status, message = await call(atlas, "cut", text="done", count=7)
        assert status == "error" and "tried" in message
        assert len(recorded_calls(folder)) > 1
        assert time.monotonic() - began > 0.75, "the backoff of a second, less its jitter"

        async def echoes() -> bool:  # once the server was restarted
            return await call(atlas, "echo", text="hi") == ("ok", "hi")

        await wait_until(echoes, 0.2)
        assert len((folder / "starts").read_text().split()) == len(recorded_calls(folder))
        assert servers.state("s") == "approved"


async def test_backoff_grows_from_one_second_to_thirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "s"
    servers = load_servers(write_config(tmp_path, s=scripted_entry(folder)))
    (folder / "broken").touch()
    slept: list[float] = []

    class Clock:
        time, monotonic, call_later = staticmethod(time.time), staticmethod(time.monotonic), None

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0 if len(slept) < 8 else 3600)

    connection = client.McpConnection(servers.configs["s"], servers.environment, tmp_path, clock=Clock())  # type: ignore
    with pytest.raises(Transient, match="I do not feel well"):
        await connection.tools()

    async def often_enough() -> bool:
        return len(slept) >= 8

    await wait_until(often_enough)
    await connection.close()
    for seconds, expected in zip(slept, (1, 2, 4, 8, 16, 30, 30, 30), strict=False):
        assert expected * 0.75 <= seconds <= expected


async def test_hanging_call_times_out_with_an_unknown_outcome(tmp_path: Path) -> None:
    async with open_atlas(write_config(tmp_path, s=scripted_entry(tmp_path / "s", confirm=False, timeout=1))) as (
        atlas,
        _,
    ):
        status, message = await call(atlas, "hang")
        assert status == "unknown" and "longer than 1 s" in message


async def test_server_that_never_responds_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 0.5)
    folder = tmp_path / "s"
    servers = load_servers(write_config(tmp_path, s=scripted_entry(folder)))
    (folder / "mute").touch()
    connection = await servers.connect(servers.configs["s"])
    with pytest.raises(Transient, match="no response within"):
        await connection.tools()
    await servers.close()
    assert (folder / "starts").exists()
    await wait_until(lambda: server_processes(folder) == [])  # the kernel ends the killed processes


async def test_garbage_on_standard_output_is_ignored(tmp_path: Path) -> None:
    async with open_atlas(write_config(tmp_path, s=scripted_entry(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "noise", text="still here", count=200) == ("ok", "still here")


async def test_flood_of_garbage_ends_the_server(tmp_path: Path) -> None:
    async with open_atlas(write_config(tmp_path, s=scripted_entry(tmp_path / "s", confirm=False))) as (atlas, _):
        status, _ = await call(atlas, "flood")
        assert status == "unknown"


async def test_oversized_line_fails_only_its_call_and_needs_little_memory(tmp_path: Path) -> None:
    async with open_atlas(write_config(tmp_path, s=scripted_entry(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "echo", text="before") == ("ok", "before")
        before = _memory()
        status, message = await call(atlas, "huge", count=50)
        assert status == "error" and f"exceeds {transports.MAX_LINE:,} bytes" in message
        assert _memory() - before < 40_000_000
        assert await call(atlas, "echo", text="after") == ("ok", "after")


async def test_invalid_response_fails_only_its_call(tmp_path: Path) -> None:
    async with open_atlas(write_config(tmp_path, s=scripted_entry(tmp_path / "s", confirm=False))) as (atlas, _):
        status, message = await call(atlas, "odd")
        assert status == "error" and "invalid response from the server" in message
        assert await call(atlas, "echo", text="after") == ("ok", "after")


async def test_error_message_of_a_server_is_returned(tmp_path: Path) -> None:
    async with open_atlas(write_config(tmp_path, s=scripted_entry(tmp_path / "s", confirm=False))) as (atlas, _):
        assert await call(atlas, "fail", text="no such file") == ("error", "no such file")


async def test_cancelled_turn_leaves_no_process_behind(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with open_atlas(write_config(tmp_path, s=scripted_entry(folder, confirm=False))) as (atlas, _):
        stream = await atlas.begin_call("s/hang", {})

        async def acted() -> list[str]:
            return recorded_calls(folder)

        await wait_until(acted)
        stream.cancel()
    assert (folder / "starts").exists()
    await wait_until(lambda: server_processes(folder) == [])  # the kernel ends the killed processes


async def test_error_names_a_missing_command(tmp_path: Path) -> None:
    servers = load_servers(write_config(tmp_path, s={"command": "no-such-command-here"}))
    connection = await servers.connect(servers.configs["s"])
    with pytest.raises(Transient, match="'no-such-command-here': command not found"):
        await connection.tools()
    await servers.close()


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
