"""The `bash` tool: output, sandbox, limits, and killing all processes of a command."""

import asyncio
import os
import re
import secrets
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from calling_tools import Person, call

from atlas_agents import Policy
from atlas_agents.builtin_tools.bash import ProgressReporter, bash_tool
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT, is_running, linux_only, wait_until

YES = Policy(tools={"bash": {"*": "yes"}})


async def run_bash(folder: Path, sandbox: Any = "auto", **arguments: Any) -> str:
    result = await call([bash_tool(folder, sandbox=sandbox)], "bash", Person(), YES, **arguments)
    assert result.status == "ok", result
    return str(result.result)


def unique_sleep() -> str:
    """Return a unique command that sleeps for longer than any test."""
    return f"sleep 600.{secrets.randbelow(10**9):09}"


async def is_gone(command: str, within: float = TIMEOUT) -> bool:
    """Return whether all processes of this command end soon."""
    try:
        return await wait_until(lambda: not is_running(command), seconds=within)
    except TimeoutError:
        return False


@pytest.mark.parametrize("sandbox", [pytest.param("bubblewrap", marks=linux_only), "none"])
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({"command": "echo out; echo err >&2; exit 3"}, "out\nerr\n[exit code 3, "),
        ({"command": "pwd", "cwd": "sub"}, "{folder}/sub\n[exit code 0, "),
        ({"argv": ["cat", "sub/f"]}, "content\n[exit code 0, "),
        ({"command": "true"}, "(no output)\n[exit code 0, "),
        ({"command": "kill -TERM $$"}, "(no output)\n[ended by SIGTERM, "),
        ({"command": "cat"}, "(no output)\n[exit code 0, "),
    ],
)
async def test_result_has_output_and_exit_status(
    sandbox: Any, arguments: dict[str, Any], output: str, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/f").write_text("content\n")
    assert (await run_bash(tmp_path, sandbox, **arguments)).startswith(output.replace("{folder}", str(tmp_path)))


@linux_only
async def test_long_output_is_cut_and_endless_output_killed(tmp_path: Path) -> None:
    text = await run_bash(tmp_path, command="seq 1 100000")
    assert text.startswith("1\n2\n") and text.split("\n")[-2] == "100000" and len(text) < 21_000
    assert "bytes left out" in text
    flood = await run_bash(tmp_path, command="yes")
    assert "it wrote too much output" in flood and len(flood) < 21_000


@linux_only
async def test_environment_has_no_api_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    for sandbox in ("bubblewrap", "none"):
        text = await run_bash(tmp_path, sandbox, command="env; cat /proc/self/environ")
        assert "canary" not in text and "PATH=" in text


@linux_only
async def test_protected_files_cannot_be_changed_and_secrets_not_read(tmp_path: Path) -> None:
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
    command = "; ".join(
        f"cat {path}; echo x > {path}; rm -f {path}"
        for path in ("AGENTS.md", "atlas.toml", ".git/config", "deep/er/TOOLS.md", "rules")
    )
    command += "; mv .git .tig; touch .git/hooks; echo done > plain"
    tool = bash_tool(tmp_path, sandbox="bubblewrap", private=[home], guarded=[tmp_path / "rules"])
    result = await call([tool], "bash", Person(), YES, command=command)
    assert str(result.result).count("canary") == 5
    for path in ("AGENTS.md", "atlas.toml", ".git/config", "deep/er/TOOLS.md", ".env", "rules"):
        assert (tmp_path / path).read_text() == "canary", path
    assert (tmp_path / "plain").read_text() == "done\n" and os.listdir(tmp_path / ".git") == ["config"]
    hidden = await call([tool], "bash", Person(), YES, command="cat .env key.pem home/token; ls home")
    assert "canary" not in str(hidden.result) and "token" not in str(hidden.result).replace("home/token", "")


@linux_only
async def test_network_is_blocked_unless_enabled(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
    for network, reached in ((False, False), (True, True)):
        tool = bash_tool(tmp_path, sandbox="bubblewrap", network=network)
        result = await call([tool], "bash", Person(), YES, command=command)
        assert ("reached" in str(result.result)) is reached
    server.close()


@linux_only
async def test_audit_row_names_the_sandbox(tmp_path: Path) -> None:
    model = Scripted(calls("bash", command="true"), says("ok"))
    async with in_memory_atlas(model, [bash_tool(tmp_path, sandbox="bubblewrap")], approve=Person()) as atlas:
        await atlas.ask("go")
        (row,) = await atlas.audit.records("default")
    assert row.entry.meta["notes"] == {"sandbox": "bubblewrap"} and row.entry.meta["approval"]


@linux_only
async def test_output_is_reported_as_progress(tmp_path: Path) -> None:
    messages: list[str] = []
    model = Scripted(calls("bash", command="echo one; until [ -e go ]; do sleep 0.02; done; echo two"), says("ok"))
    async with in_memory_atlas(model, [bash_tool(tmp_path)], approve=Person()) as atlas:

        def on_progress(event: Any) -> None:
            messages.append(event.message)
            (tmp_path / "go").touch()

        atlas.on("tool:progress", on_progress)
        async with asyncio.timeout(TIMEOUT):
            await atlas.ask("go")
    assert messages == ["one\n", "two\n"]


# Killing commands


@pytest.mark.parametrize("sandbox", [pytest.param("bubblewrap", marks=linux_only), "none"])
@pytest.mark.parametrize(
    "shape",
    ["{sleep}", "{sleep} & {sleep}", "setsid {sleep} & {sleep}", "trap '' TERM; {sleep} & while :; do sleep 0.1; done"],
)
async def test_timeout_kills_all_processes_of_a_command(sandbox: Any, shape: str, tmp_path: Path) -> None:
    sleep = unique_sleep()
    text = await run_bash(tmp_path, sandbox, command=shape.replace("{sleep}", sleep), timeout=1)
    found = re.search(r"\[killed after 1 s with all its child processes; .*, ([0-9.]+) s\]$", text)
    assert found and float(found[1]) < TIMEOUT
    assert await is_gone(sleep)


@pytest.mark.parametrize("sandbox", [pytest.param("bubblewrap", marks=linux_only), "none"])
async def test_background_process_does_not_delay_the_result(sandbox: Any, tmp_path: Path) -> None:
    sleep = unique_sleep()
    text = await run_bash(tmp_path, sandbox, command=f"({sleep} &) ; {sleep} & echo started")
    assert text.startswith("started\n[exit code 0")
    assert await is_gone(sleep)


@pytest.mark.parametrize("sandbox", [pytest.param("bubblewrap", marks=linux_only), "none"])
async def test_cancelled_turn_kills_its_command(sandbox: Any, tmp_path: Path) -> None:
    sleep = unique_sleep()
    model = Scripted(calls("bash", command=f"touch begun; {sleep} & {sleep}"), says("ok"))
    async with in_memory_atlas(model, [bash_tool(tmp_path, sandbox=sandbox)], approve=Person()) as atlas:
        stream = atlas.send("go")
        async with asyncio.timeout(TIMEOUT):
            await wait_until((tmp_path / "begun").exists)
            stream.cancel()
            async for _ in stream:
                pass
        assert await is_gone(sleep)


@linux_only
@pytest.mark.parametrize("seconds", [0, -1, 601])
async def test_timeout_out_of_range_is_rejected(seconds: int, tmp_path: Path) -> None:
    result = await call([bash_tool(tmp_path)], "bash", Person(), YES, command="true", timeout=seconds)
    assert result.error == "bad_arguments" or seconds == 0


@pytest.mark.parametrize("cwd", ["..", "/etc", "../..", "link", "missing", "file"])
async def test_working_directory_must_be_in_the_folder(cwd: str, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/link").symlink_to("..")
    (tmp_path / "w/file").touch()
    person = Person()
    result = await call([bash_tool(tmp_path / "w")], "bash", person, YES, command="pwd", cwd=cwd)
    assert result.status == "error" and person.questions == []


async def test_progress_of_much_output_is_throttled() -> None:
    reports: list[str] = []
    reporter = ProgressReporter(reports.append)
    for _ in range(1000):
        reporter.add("stdout", b"x" * 8000)
        reporter.flush()
    assert len(reports[0]) == 4001 and len(reports[-1]) == 201
    assert sum(map(len, reports)) < 500_000


@linux_only
async def test_secrets_are_masked_in_a_folder_inside_a_private_one(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".env").write_text("canary")
    tool = bash_tool(tmp_path / "work", sandbox="bubblewrap", private=[tmp_path], guarded=[tmp_path])
    result = await call([tool], "bash", Person(), YES, command="cat .env; echo tried")
    assert "tried" in str(result.result) and "canary" not in str(result.result)


async def test_private_database_named_in_a_command_keeps_its_locks(tmp_path: Path) -> None:
    database = tmp_path / "private.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("BEGIN EXCLUSIVE")
        tool = bash_tool(tmp_path, sandbox="bubblewrap", private=[database])
        await call(
            [tool, *file_tools(tmp_path, private=[database])], "bash", Person(), YES, command="cat private.db; true"
        )
        await call(file_tools(tmp_path, private=[database]), "file_read", path="private.db")
        other = f"import sqlite3; sqlite3.connect({str(database)!r}, timeout=0).execute('SELECT * FROM t')"
        tried = await asyncio.create_subprocess_exec(sys.executable, "-c", other, stderr=asyncio.subprocess.PIPE)
        _, stderr = await tried.communicate()
    assert b"database is locked" in stderr


@linux_only
async def test_command_can_name_an_unreadable_file(tmp_path: Path) -> None:
    text = await run_bash(tmp_path, command="cat /proc/1/mem /proc/1/environ > /dev/null; echo went on")
    assert "went on" in text


@linux_only
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock", "none"])
@pytest.mark.parametrize("keep", [True, False])
async def test_disk_that_a_command_writes_is_limited(tmp_path: Path, sandbox: Any, keep: bool) -> None:
    """Also if it deletes what it wrote, so that the folder stays empty."""
    script = "for i in $(seq 200); do head -c 8000000 /dev/zero > file$i; DELETE; done; echo all".replace(
        "DELETE", ":" if keep else "rm file$i"
    )
    tool = bash_tool(tmp_path, sandbox=sandbox, max_written=50_000_000)
    result = await call([tool], "bash", Person(), YES, command=script)
    assert "killed because it wrote too much to disk, or the disk is almost full" in str(result.result)
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) < 1_000_000_000


@linux_only
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock", "none"])
async def test_size_of_a_file_is_limited(tmp_path: Path, sandbox: Any) -> None:
    tool = bash_tool(tmp_path, sandbox=sandbox, max_written=50_000_000)
    await call([tool], "bash", Person(), YES, command="truncate -s 60000000 large; truncate -s 40000000 small; true")
    assert {entry.name: entry.stat().st_size for entry in os.scandir(tmp_path)} == {"large": 0, "small": 40_000_000}


@linux_only
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
async def test_sockets_of_other_programs_in_the_folder_cannot_be_reached(tmp_path: Path, sandbox: Any) -> None:
    """A socket of a database or a container engine would be a way out of the sandbox."""
    (tmp_path / "run").mkdir()
    for name in ("engine.sock", "run/engine.sock"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / name))
            listener.listen()
            code = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r}); print('reached')"
            output = await run_bash(tmp_path, sandbox, argv=["python3", "-c", code])
        assert "reached\n" not in output and "[exit code 1," in output
