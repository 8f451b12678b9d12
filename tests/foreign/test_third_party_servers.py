"""Third-party MCP servers from PyPI and npm, over stdio and HTTP, under our permissions."""

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_workspace import BIN, open_atlas, write_config
from node_servers import script

from atlas_agents import Atlas, Policy
from atlas_agents.core.errors import Transient
from atlas_agents.providers import anthropic
from atlas_agents.providers.base import Request
from atlas_agents.testing import Scripted, calls, says
from checks import TIMEOUT, wait_until
from npm_packages import NODE

pytestmark = pytest.mark.slow


def python_server(name: str, *arguments: str, **more: Any) -> dict[str, Any]:
    return {"command": str(BIN / name), "args": list(arguments), "confirm": False, **more}


def node_server(name: str, *arguments: str, **more: Any) -> dict[str, Any]:
    return {"command": str(NODE), "args": [script(name), *arguments], "confirm": False, **more}


async def call(atlas: Atlas, name: str, /, **arguments: Any) -> Any:
    result = await atlas.invoke(name, arguments)
    assert result.status == "ok", result
    return result.result


async def test_fetch(tmp_path: Path) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<html><body><article><h1>News</h1><p>It rains in Lima.</p></article></body></html>"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1", 0) as site:
        url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/"
        no_node = {"PATH": "/nowhere"}  # with Node.js it would install packages next to its own, which are read-only
        options = ("--ignore-robots-txt", "--allow-private-ips")
        entry = python_server("mcp-server-fetch", *options, network=True, env=no_node)
        async with open_atlas(write_config(tmp_path, fetch=entry)) as (atlas, servers):
            assert "It rains in Lima." in str(await call(atlas, "fetch/fetch", url=url))
            names = [each.tool.name for each in servers.approved_tools()]
            assert names == ["fetch", "list_prompts", "get_prompt"]
            (prompt,) = await call(atlas, "fetch/list_prompts")
            assert prompt["name"] == "fetch"


async def test_filesystem(tmp_path: Path) -> None:
    folder = Path(os.path.realpath(tmp_path)) / "files"  # noqa: ASYNC240
    folder.mkdir()
    pure = ["read_text_file", "list_directory"]
    entry = node_server("filesystem", str(folder), pure=pure, folders={str(folder): "write"})
    async with open_atlas(write_config(tmp_path, files=entry)) as (atlas, servers):
        note = folder / "note.txt"
        path = str(note)
        await call(atlas, "files/write_file", path=path, content="Buy milk.")
        assert note.read_text() == "Buy milk."
        assert "Buy milk." in str(await call(atlas, "files/read_text_file", path=path))
        outside = await atlas.invoke("files/read_text_file", {"path": "/etc/passwd"})
        assert outside.status == "error" and "root:" not in outside.result
        effects = {each.tool.name: each.tool.effect for each in servers.approved_tools()}
        assert effects["read_text_file"] == "pure" and effects["write_file"] == "unsafe"


async def test_everything_over_stdio(tmp_path: Path) -> None:
    model = Scripted(calls("all__get-tiny-image"), says("A logo."))
    policy = Policy(tools={"all/*": {"*": "yes"}})
    workspace = write_config(tmp_path, all=node_server("everything", "stdio"))
    async with open_atlas(workspace, model=model, policy=policy) as (atlas, servers):
        await atlas.ask("Show me the image.")
        sent = json.loads(anthropic.encode_request(Request(model.requests[-1].messages), "claude"))["messages"][-1]
        kinds = [block["type"] for block in sent["content"][0]["content"]]
        assert kinds == ["text", "image"], "the model sees the image"
        assert "hello" in await call(atlas, "all/echo", message="hello")
        progress: list[str] = []
        atlas.on("tool:progress", lambda event: progress.append(event.message))
        names = {each.tool.name for each in servers.approved_tools()}
        long = next(name for name in names if "long" in name)
        await call(atlas, f"all/{long}", duration=0.4, steps=2)
        assert progress and re.match(r"\d of 2", progress[0])
        assert {"list_resources", "read_resource", "list_prompts", "get_prompt"} <= names
        listed = await call(atlas, "all/list_resources")
        uri = next(each["uri"] for each in listed if "uri" in each)
        assert "uri" in await call(atlas, "all/read_resource", uri=uri)
        prompts = await call(atlas, "all/list_prompts")
        plain = next(each["name"] for each in prompts if not each.get("arguments"))
        assert (await call(atlas, "all/get_prompt", name=plain))[0]["role"] == "user"


@asynccontextmanager
async def everything_over_http(folder: Path, port: int) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    process = await asyncio.create_subprocess_exec(
        NODE,
        script("everything"),
        "streamableHttp",
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_everything_over_http_is_restarted_during_a_call(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    entry = {"url": f"http://127.0.0.1:{port}/mcp", "confirm": False, "timeout": 120}
    workspace = write_config(tmp_path, all=entry)
    async with everything_over_http(tmp_path, port) as process, open_atlas(workspace) as (atlas, servers):
        assert "hello" in await call(atlas, "all/echo", message="hello")
        long = next(each.tool.name for each in servers.approved_tools() if "long" in each.tool.name)
        stream = await atlas.begin_call(f"all/{long}", {"duration": 20, "steps": 40})
        async for event in stream:
            if event.type == "tool:progress":
                process.kill()
                break
        (result,) = (await asyncio.wait_for(stream.reply(), TIMEOUT)).tool_results
        assert result.status == "unknown" and "may have happened" in result.result
        gone = await atlas.invoke("all/echo", {"message": "anybody?"})
        assert gone.status == "error" and "is unreachable" in gone.result
        with pytest.raises(Transient):
            await (await servers.connect(servers.configs["all"])).tools()

        async def back() -> Any:
            result = await atlas.invoke("all/echo", {"message": "back"})
            return result.result if result.status == "ok" else None

        async with everything_over_http(tmp_path, port):
            assert "back" in await wait_until(back, 0.3)
