"""Commands that run: what is read of them, what holds them, and that they end with all that they started."""

import asyncio
import os
import re
import secrets
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from calling_tools import Person, call

from atlas_agents import Policy
from atlas_agents.builtin_tools.bash import Telling, bash_tool
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import until

YES = Policy(tools={"bash": {"*": "yes"}})


async def said(folder: Path, sandbox: Any = "auto", **arguments: Any) -> str:
    result = await call([bash_tool(folder, sandbox=sandbox)], "bash", Person(), YES, **arguments)
    assert result.status == "ok", result
    return str(result.result)


def nap() -> str:
    """A command that sleeps for a minute, and nobody else runs."""
    return f"sleep 60.{secrets.randbelow(10**9):09}"


async def gone(words: str, within: float = 2.0) -> bool:
    """Whether no process of this command is left soon."""
    try:
        return await until(lambda: not _running(words), patience=within)
    except TimeoutError:
        return False


def _running(words: str) -> bool:
    wanted = words.replace(" ", "\0").encode()
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and wanted in (each / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({"command": "echo out; echo err >&2; exit 3"}, "out\nerr\n[exit code 3, "),
        ({"command": "pwd", "cwd": "sub"}, "{folder}/sub\n[exit code 0, "),
        ({"argv": ["cat", "sub/f"]}, "content\n[exit code 0, "),
        ({"command": "true"}, "(it wrote nothing)\n[exit code 0, "),
        ({"command": "kill -TERM $$"}, "(it wrote nothing)\n[ended by SIGTERM, "),
        ({"command": "cat"}, "(it wrote nothing)\n[exit code 0, "),
    ],
)
async def test_what_is_read_of_a_command(sandbox: Any, arguments: dict[str, Any], output: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/f").write_text("content\n")
    assert (await said(tmp_path, sandbox, **arguments)).startswith(output.replace("{folder}", str(tmp_path)))


async def test_of_long_output_head_and_tail_are_kept_and_a_flood_is_ended(tmp_path: Path) -> None:
    text = await said(tmp_path, command="seq 1 100000")
    assert text.startswith("1\n2\n") and text.split("\n")[-2] == "100000" and len(text) < 21_000
    assert "bytes left out" in text
    began = time.monotonic()
    flood = await said(tmp_path, command="yes")
    assert time.monotonic() - began < 30 and "it wrote too much" in flood and len(flood) < 21_000


async def test_the_environment_holds_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    for sandbox in ("bubblewrap", "none"):
        text = await said(tmp_path, sandbox, command="env; cat /proc/self/environ")
        assert "canary" not in text and "PATH=" in text


async def test_prompts_and_git_cannot_be_changed_and_secrets_not_be_seen(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for path in (
        "AGENTS.md",
        "atlas.toml",
        ".git/config",
        "deep/er/TOOLS.md",
        ".env",
        "key.pem",
        "rules",
        "home/token",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("canary")
    words = "; ".join(
        f"cat {path}; echo x > {path}; rm -f {path}"
        for path in ("AGENTS.md", "atlas.toml", ".git/config", "deep/er/TOOLS.md", "rules")
    )
    words += "; mv .git .tig; touch .git/hooks; echo done > plain"
    tool = bash_tool(tmp_path, sandbox="bubblewrap", private=[home], guarded=[tmp_path / "rules"])
    result = await call([tool], "bash", Person(), YES, command=words)
    assert str(result.result).count("canary") == 5
    for path in ("AGENTS.md", "atlas.toml", ".git/config", "deep/er/TOOLS.md", ".env", "rules"):
        assert (tmp_path / path).read_text() == "canary", path
    assert (tmp_path / "plain").read_text() == "done\n" and os.listdir(tmp_path / ".git") == ["config"]
    hidden = await call([tool], "bash", Person(), YES, command="cat .env key.pem home/token; ls home")
    assert "canary" not in str(hidden.result) and "token" not in str(hidden.result).replace("home/token", "")


async def test_there_is_no_network_unless_it_is_given(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    words = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
    for network, reached in ((False, False), (True, True)):
        tool = bash_tool(tmp_path, sandbox="bubblewrap", network=network)
        result = await call([tool], "bash", Person(), YES, command=words)
        assert ("reached" in str(result.result)) is reached
    server.close()


async def test_the_backend_stands_in_the_audit_row(tmp_path: Path) -> None:
    model = Scripted(calls("bash", command="true"), says("ok"))
    async with in_memory_atlas(model, [bash_tool(tmp_path, sandbox="bubblewrap")], approve=Person()) as atlas:
        await atlas.ask("go")
        (row,) = await atlas.audit.records("default")
    assert row.entry.meta["notes"] == {"sandbox": "bubblewrap"} and row.entry.meta["approval"]


async def test_output_is_told_while_it_is_written(tmp_path: Path) -> None:
    heard: list[str] = []
    model = Scripted(calls("bash", command="echo one; until [ -e go ]; do sleep 0.02; done; echo two"), says("ok"))
    async with in_memory_atlas(model, [bash_tool(tmp_path)], approve=Person()) as atlas:

        def hear(event: Any) -> None:
            heard.append(event.message)
            (tmp_path / "go").touch()

        atlas.on("tool:progress", hear)
        async with asyncio.timeout(20):
            await atlas.ask("go")
    assert heard == ["one\n", "two\n"]


# Ends


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
@pytest.mark.parametrize(
    "shape", ["{nap}", "{nap} & {nap}", "setsid {nap} & {nap}", "trap '' TERM; {nap} & while :; do sleep 0.1; done"]
)
async def test_a_command_that_takes_too_long_is_ended_whole(sandbox: Any, shape: str, tmp_path: Path) -> None:
    words = nap()
    text = await said(tmp_path, sandbox, command=shape.replace("{nap}", words), timeout=1)
    found = re.search(r"\[ended after 1 s with all it had started; .*, ([0-9.]+) s\]$", text)
    assert found and float(found[1]) < 20
    assert await gone(words)


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
async def test_a_child_in_the_background_does_not_hold_up_the_end(sandbox: Any, tmp_path: Path) -> None:
    words = nap()
    began = time.monotonic()
    text = await said(tmp_path, sandbox, command=f"({words} &) ; {words} & echo started")
    assert text.startswith("started\n[exit code 0") and time.monotonic() - began < 30
    assert await gone(words)


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
async def test_a_cancelled_turn_ends_its_command(sandbox: Any, tmp_path: Path) -> None:
    words = nap()
    model = Scripted(calls("bash", command=f"touch begun; {words} & {words}"), says("ok"))
    async with in_memory_atlas(model, [bash_tool(tmp_path, sandbox=sandbox)], approve=Person()) as atlas:
        stream = atlas.send("go")
        async with asyncio.timeout(20):
            await until((tmp_path / "begun").exists)
            stream.cancel()
            async for _ in stream:
                pass
        assert await gone(words)


@pytest.mark.parametrize("seconds", [0, -1, 601])
async def test_a_timeout_has_a_cap(seconds: int, tmp_path: Path) -> None:
    result = await call([bash_tool(tmp_path)], "bash", Person(), YES, command="true", timeout=seconds)
    assert result.error == "bad_arguments" or seconds == 0


@pytest.mark.parametrize("cwd", ["..", "/etc", "../..", "link", "missing", "file"])
async def test_a_command_runs_in_the_folder_only(cwd: str, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/link").symlink_to("..")
    (tmp_path / "w/file").touch()
    person = Person()
    result = await call([bash_tool(tmp_path / "w")], "bash", person, YES, command="pwd", cwd=cwd)
    assert result.status == "error" and person.questions == []


async def test_a_command_that_talks_for_long_is_told_less_and_less_of() -> None:
    told: list[str] = []
    telling = Telling(told.append)
    for _ in range(1000):
        telling.add("stdout", b"x" * 8000)
        telling.flush()
    assert len(told[0]) == 4001 and len(told[-1]) == 201
    assert sum(map(len, told)) < 500_000


async def test_a_folder_that_lies_in_a_private_one_is_looked_through_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".env").write_text("canary")
    tool = bash_tool(tmp_path / "work", sandbox="bubblewrap", private=[tmp_path], guarded=[tmp_path])
    result = await call([tool], "bash", Person(), YES, command="cat .env; echo tried")
    assert "tried" in str(result.result) and "canary" not in str(result.result)


async def test_a_database_that_is_named_in_a_command_is_not_opened_and_keeps_its_locks(tmp_path: Path) -> None:
    kept = tmp_path / "kept.db"
    with closing(sqlite3.connect(kept, isolation_level=None)) as mine:
        mine.execute("CREATE TABLE t (x)")
        mine.execute("BEGIN EXCLUSIVE")
        tool = bash_tool(tmp_path, sandbox="bubblewrap", private=[kept])
        await call([tool, *file_tools(tmp_path, private=[kept])], "bash", Person(), YES, command="cat kept.db; true")
        await call(file_tools(tmp_path, private=[kept]), "file_read", path="kept.db")
        other = f"import sqlite3; sqlite3.connect({str(kept)!r}, timeout=0).execute('SELECT * FROM t')"
        tried = await asyncio.create_subprocess_exec(sys.executable, "-c", other, stderr=asyncio.subprocess.PIPE)
        _, words = await tried.communicate()
    assert b"database is locked" in words


async def test_a_command_may_name_a_file_that_nobody_can_read(tmp_path: Path) -> None:
    text = await said(tmp_path, command="cat /proc/1/mem /proc/1/environ > /dev/null; echo went on")
    assert "went on" in text
