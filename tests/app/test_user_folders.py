"""Each user of a gateway works in a folder of their own, with every tool and in every sandbox."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import websockets
from gateway_with_tools import ApprovingClient, GatewayWithTools, approve, gateway_with_tools

from checks import TIMEOUT
from model_server import ModelRequest, Reply

pytestmark = pytest.mark.slow
SANDBOXES = ("bubblewrap", "landlock")
SECRET = "canary-4711"
TOKENS = {name: f"{name}-0123456789-abcdefghijklmnop" for name in ("alice", "bob")}


def call_named_tool(request: ModelRequest) -> Reply:
    """Make the call that the message describes as JSON."""
    last = request.body["messages"][-1]
    return Reply("done") if last["role"] == "tool" else Reply(calls=(tuple(json.loads(last["content"])),))


def write_tokens(home: Path) -> None:
    home.mkdir()
    scopes = ["read", "write", "approve"]
    entries = {name: {"token": token, "scopes": scopes} for name, token in TOKENS.items()}
    (home / "tokens.json").write_text(json.dumps(entries))


@asynccontextmanager
async def gateway_of_two_users(home: Path, **flags: Any) -> AsyncGenerator[GatewayWithTools]:
    write_tokens(home)
    async with gateway_with_tools(home, call_named_tool, **flags) as gateway:
        yield gateway


async def call_as(gateway: GatewayWithTools, user: str, tool: str, **arguments: Any) -> str:
    """Return the result of a tool call of this user, as text."""
    async with websockets.connect(gateway.serving.url.replace("http", "ws"), max_size=None) as socket:
        token = gateway.serving.token.reveal() if user == "owner" else TOKENS[user]
        await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
        assert json.loads(await socket.recv())["ok"] is True
        (result,) = await ApprovingClient(socket, approve).turn(json.dumps([tool, arguments]))
        return json.dumps(result["result"])


PATHS = ("notes.txt", "../alice/notes.txt", "users/alice/notes.txt", "../users/alice/notes.txt", "{alice}/notes.txt")


async def test_file_tools_reach_only_the_files_of_the_calling_user(tmp_path: Path) -> None:
    async with gateway_of_two_users(tmp_path / "home") as gateway:
        alice = gateway.home / "users" / "alice"
        await call_as(gateway, "alice", "file_write", path="notes.txt", content=SECRET)
        assert (alice / "notes.txt").read_text() == SECRET
        assert SECRET in await call_as(gateway, "alice", "file_read", path="notes.txt")
        assert SECRET in await call_as(gateway, "alice", "file_search", query="canary")
        for user in ("bob", "owner"):
            for path in (each.format(alice=alice) for each in PATHS):
                assert SECRET not in await call_as(gateway, user, "file_read", path=path)
            for path in (".", "..", "users", str(alice)):
                assert "notes.txt" not in await call_as(gateway, user, "file_list", path=path, depth=5)
                assert "canary-" not in await call_as(gateway, user, "file_search", query="canary", path=path)
            await call_as(gateway, user, "file_edit", path="../alice/notes.txt", old=SECRET, new="changed")
        assert (alice / "notes.txt").read_text() == SECRET


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_commands_reach_only_the_files_of_the_calling_user(sandbox: str, tmp_path: Path) -> None:
    async with gateway_of_two_users(tmp_path / "home", sandbox=sandbox) as gateway:
        alice = gateway.home / "users" / "alice"
        await call_as(gateway, "alice", "bash", command=f"echo {SECRET} > notes.txt")
        assert (alice / "notes.txt").read_text() == f"{SECRET}\n"
        for user in ("bob", "owner"):
            paths = [each.format(alice=alice) for each in PATHS]
            command = "; ".join(f"cat {path}; echo x > {path}" for path in paths)
            shown = await call_as(gateway, user, "bash", command=f"{command}; echo tried")
            assert SECRET not in shown and "tried" in shown
            assert "outside" in await call_as(gateway, user, "bash", command="cat notes.txt", cwd="../alice")
        assert (alice / "notes.txt").read_text() == f"{SECRET}\n"


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_code_reaches_only_the_files_of_the_calling_user(sandbox: str, tmp_path: Path) -> None:
    async with gateway_of_two_users(tmp_path / "home", sandbox=sandbox) as gateway:
        alice = gateway.home / "users" / "alice"
        await call_as(gateway, "alice", "code_interpreter", code=f"open('notes.txt', 'w').write('{SECRET}')")
        (file,) = alice.rglob("notes.txt")
        assert file.read_text() == SECRET
        read = (
            "from pathlib import Path\nfor p in {paths!r}:\n  try: print(Path(p).read_text())\n  except OSError: pass"
        )
        paths = [str(file), "notes.txt", *("../" * up + str(file.relative_to(gateway.home)) for up in range(1, 6))]
        for user in ("bob", "owner"):
            assert SECRET not in await call_as(gateway, user, "code_interpreter", code=read.format(paths=paths))


async def test_users_share_one_folder_if_the_settings_say_so(tmp_path: Path) -> None:
    async with gateway_of_two_users(tmp_path / "home", shared_folder=True) as gateway:
        await call_as(gateway, "alice", "file_write", path="notes.txt", content=SECRET)
        assert (gateway.workspace / "notes.txt").read_text() == SECRET
        for user in ("bob", "owner"):
            assert SECRET in await call_as(gateway, user, "file_read", path="notes.txt")


async def test_folders_of_users_can_be_below_the_folder_of_the_owner(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    async with gateway_of_two_users(tmp_path / "home", folder=files, user_folders=files / "people") as gateway:
        await call_as(gateway, "alice", "file_write", path="notes.txt", content=SECRET)
        assert (files / "people" / "alice" / "notes.txt").read_text() == SECRET
        assert SECRET not in await call_as(gateway, "owner", "file_read", path="people/alice/notes.txt")
        assert SECRET not in await call_as(gateway, "owner", "bash", command="cat people/alice/notes.txt")


async def test_approval_shows_the_folder_of_the_calling_user(tmp_path: Path) -> None:
    async with gateway_of_two_users(tmp_path / "home") as gateway:
        url = gateway.serving.url.replace("http", "ws")
        async with asyncio.timeout(TIMEOUT), websockets.connect(url, max_size=None) as socket:
            await socket.send(json.dumps({"type": "auth", "token": TOKENS["bob"], "protocol": 1}))
            assert json.loads(await socket.recv())["ok"] is True
            client = ApprovingClient(socket, approve)
            await client.turn(json.dumps(["bash", {"command": "pwd"}]))
        assert f"Folder: {gateway.home / 'users' / 'bob'}" in client.questions[0]["preview"]
