"""An approval of an MCP server covers the program that it runs, which agents cannot change and which is confined."""

import importlib.util
import json
import os
import py_compile
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_workspace import approve, build_registry, load_servers, write_config

from atlas_agents import Agent, Atlas, Policy, Question, Tool
from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.core.errors import ConfigError, Transient
from atlas_agents.mcp.config import read_servers
from atlas_agents.mcp.programs import describe_program
from atlas_agents.mcp.servers import Servers
from atlas_agents.testing import Environment, Scripted, calls, in_memory_atlas, says
from checks import linux_only, wait_until

pytestmark = linux_only

# A server with one tool, which evaluates an expression.
SERVER = """
import json, os, socket, sys
def reply(message):
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "probe", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            schema = {"type": "object", "properties": {"code": {"type": "string"}}}
            return {"tools": [{"name": "run", "description": "Run code.", "inputSchema": schema}]}
        case "tools/call":
            try:
                text = str(eval(message["params"]["arguments"]["code"]))
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            return {"content": [{"type": "text", "text": text}]}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = reply(message)
        error = {"error": {"code": -32601, "message": "Method not found"}}
        body = error if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
"""
EVIL = "open({path!r}, 'w').write('ran')\n"


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def write_server(folder: Path, name: str = "server.py", text: str = SERVER) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def python_entry(*arguments: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": list(arguments), "confirm": False, **more}


async def approved(workspace: Path, entry: dict[str, Any], variables: dict[str, str] | None = None) -> Servers:
    """Return servers with one approved server `s` that is not running."""
    servers = load_servers(write_config(workspace, s=entry), variables)
    await approve(servers)
    await servers.close()
    assert servers.state("s") == "approved"
    return servers


async def run_code(servers: Servers, code: str, tools: list[Tool] | None = None) -> str:
    async with Atlas([Agent("a", tools=tools or list(build_registry(servers)))]) as atlas:
        return str((await atlas.invoke("s/run", {"code": code})).result)


# Which program an approval covers


async def test_same_configuration_in_another_workspace_is_not_approved(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    entry = python_entry("tools/server.py")
    for folder in (ours, other):
        write_server(folder, "tools/server.py")
    servers = await approved(ours, entry)
    home = ours / "home"
    write_server(other, "tools/server.py", EVIL.format(path=str(tmp_path / "canary")))
    foreign = Servers(write_config(other, s=entry), home, Environment({}, dotenv=None))
    assert foreign.state("s") == "not approved" and foreign.approved_tools() == []
    assert servers.state("s") == "approved"
    await approve(servers)
    foreign.approved.approve(foreign.configs["s"], [], servers.approvals["s"].program)  # even with a forged program
    foreign.load()
    assert foreign.state("s") == "changed since it was approved"
    servers.load()
    assert servers.state("s") == "approved", "an approval of one workspace does not replace that of another"
    await servers.close()


async def test_approval_without_a_program_turns_all_servers_off(tmp_path: Path) -> None:
    write_server(tmp_path)
    await approved(tmp_path, python_entry("server.py"))
    path = tmp_path / "home" / "mcp" / "approved.json"
    (approval,) = json.loads(path.read_text()).values()
    del approval["program"]
    path.write_text(json.dumps({f"{tmp_path}/s": approval}))
    servers = load_servers(tmp_path)
    assert servers.configs == {} and servers.approved_tools() == []
    assert re.search(r"missing required field `program`.*approve the servers again", servers.config_error)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["tools/server.py"], "tools/server.py"),
        (["-u", "./tools/server.py", "data.db"], "tools/server.py"),
        (["tools/server.py"], "tools/helper.py"),
        (["tools/server.py"], "tools/json.py"),
        (["tools/server.py"], "tools/lib/deep.py"),
        (["tools/server.py"], "tools/json/__init__.py"),
        (["tools/server.py"], "tools/sitecustomize.pyc"),
        (["tools/server.py"], "tools/settings.json"),
        (["server.py"], "json.py"),
        (["server.py"], "json/__init__.py"),
        (["-m", "pack.server"], "pack/server.py"),
        (["-m", "pack.server"], "pack/other.py"),
    ],
)
async def test_changed_or_new_file_of_the_program_disables_the_server(
    arguments: list[str], changed: str, tmp_path: Path
) -> None:
    for name in ("tools/server.py", "server.py", "pack/server.py"):
        write_server(tmp_path, name)
    write_server(tmp_path, "tools/helper.py", "")
    write_server(tmp_path, "pack/__init__.py", "")
    (tmp_path / "data.db").write_text("1")
    # Modules of a package in the workspace are readable by their own package only.
    servers = await approved(tmp_path, python_entry(*arguments))
    (tmp_path / "data.db").write_text("2")
    (tmp_path / "notes.md").write_text("The server does not run this.")
    assert servers.state("s") == "approved"
    write_server(tmp_path, changed, EVIL.format(path=str(tmp_path / "canary")))
    assert servers.state("s") == "changed since it was approved" and servers.approved_tools() == []
    assert servers.changes("s")[0].startswith(str(tmp_path))
    with pytest.raises(Transient, match="has changed since it was approved"):
        await (await servers.connect(servers.configs["s"])).tools()
    assert not (tmp_path / "canary").exists()
    await approve_again(servers)


@pytest.mark.parametrize(
    ("entry", "existing", "changed"),
    [
        ({"command": "{python}", "args": ["-m", "json.tool"], "sandbox": False}, "notes.md", "argparse.py"),
        ({"command": "{python}", "args": ["-m", "json.tool"], "sandbox": False}, "notes.md", "json/__init__.py"),
        ({"command": "{python}", "args": ["-m", "json.tool"]}, "notes.md", "json/tool.py"),
        ({"command": "{python}", "args": ["t/a.py"], "env": {"PYTHONPATH": "lib"}}, "lib/b.py", "lib/json.py"),
        ({"command": "node", "args": ["t/a.js"], "env": {"NODE_OPTIONS": "-r ./x.cjs"}}, "x.cjs", "x.cjs"),
        ({"command": "node", "args": ["--import=./x.mjs", "t/a.js"]}, "x.mjs", "x.mjs"),
        ({"command": "node", "args": ["t/a.js"]}, "node_modules/z/index.js", "node_modules/z/index.js"),
        ({"command": "node", "args": ["t/a.js"]}, "package.json", "t/node_modules/z/index.js"),
        ({"command": "npx", "args": ["-y", "z@1.0.0"]}, "node_modules/y/a.js", "node_modules/z/a.js"),
        ({"command": "npx", "args": ["-y", "z@1.0.0"]}, "notes.md", "node_modules/z/a.js"),
        ({"command": "sh", "args": ["-c", "cd t && exec python3 a.py"]}, "t/b.py", "t/a.py"),
        ({"command": "env", "args": ["-i", "{python}", "t/a.py"]}, "t/b.py", "t/c.py"),
        ({"command": "timeout", "args": ["-k", "5", "60", "{python}", "t/a.py"]}, "t/b.py", "t/c.py"),
        ({"command": "{python}", "args": ["-W", "ignore", "t/run"]}, "t/run", "t/run"),
        ({"command": "node", "args": ["-r", "./x.cjs", "t/run"]}, "t/run", "t/run"),
        ({"command": "sh", "args": ["-c", ". ./run"]}, "run", "run"),
    ],
)
def test_everything_that_a_program_loads_from_the_workspace_is_covered(
    entry: dict[str, Any], existing: str, changed: str, tmp_path: Path
) -> None:
    for name in (existing, "t/a.py", "t/a.js"):
        write_server(tmp_path, name, "")
    text = json.dumps(entry).replace("{python}", sys.executable)
    server = read_servers(write_config(tmp_path, s=json.loads(text)))["s"]
    environment = Environment({}, dotenv=None)
    program = describe_program(server, environment)
    write_server(tmp_path, "unrelated/notes.md", "")
    assert describe_program(server, environment) == program
    write_server(tmp_path, changed, "evil")
    assert program.changes(describe_program(server, environment)) != []


async def approve_again(servers: Servers) -> None:
    """Approve what the server runs now, unless it does not answer any more."""
    servers.approvals.clear()
    try:
        await approve(servers)
    except Transient:
        return
    finally:
        await servers.close()
    assert servers.state("s") == "approved"


async def test_rewritten_script_is_neither_called_nor_restarted(tmp_path: Path) -> None:
    script, canary = write_server(tmp_path, "tools/server.py"), tmp_path / "canary"
    servers = await approved(tmp_path, python_entry("tools/server.py"))
    async with Atlas([Agent("a", tools=list(build_registry(servers)))]) as atlas:
        assert (await atlas.invoke("s/run", {"code": "1 + 1"})).result == "2"
        script.write_text(EVIL.format(path=str(canary)))
        refused = await atlas.invoke("s/run", {"code": "1 + 1"})
        assert refused.status == "error" and "may no longer be used" in refused.result
        assert "atlas mcp approve s" in refused.result
        script.write_text(SERVER)
        assert (await atlas.invoke("s/run", {"code": "2 + 2"})).result == "4", "the same content is approved"
        connection = await servers.connect(servers.configs["s"])
        script.write_text(EVIL.format(path=str(canary)))
        connection._ended.set()  # as if the server had exited

        async def noticed() -> bool:
            return "has changed since it was approved" in connection.error

        assert await wait_until(noticed) and not canary.exists()
    await servers.close()


async def test_program_found_elsewhere_on_the_path_is_another_program(tmp_path: Path) -> None:
    write_server(tmp_path, "server.py")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "second" / "probe").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}/first:{tmp_path}/second:/usr/bin:/bin"}
    entry = {"command": "probe", "args": ["server.py"], "confirm": False, "env": env, "sandbox": False}
    servers = await approved(tmp_path, entry)
    other = tmp_path / "first" / "probe"
    other.write_text(f"#!/bin/sh\ntouch {tmp_path}/canary\n")
    other.chmod(0o755)
    assert servers.state("s") == "changed since it was approved"
    other.unlink()
    assert servers.state("s") == "approved"
    (tmp_path / "second" / "probe").unlink()
    shutil.copy("/bin/sh", tmp_path / "second" / "probe")
    assert servers.state("s") == "changed since it was approved"
    assert not (tmp_path / "canary").exists()


async def test_interpreter_of_a_script_is_covered(tmp_path: Path) -> None:
    interpreter = tmp_path / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.symlink_to(sys.executable)
    script = write_server(tmp_path, "tools/serve", f"#!{interpreter}\n{SERVER}")
    script.chmod(0o755)
    servers = await approved(tmp_path, {"command": "tools/serve", "confirm": False, "sandbox": False})
    interpreter.unlink()
    shutil.copy("/bin/sh", interpreter)
    assert servers.state("s") == "changed since it was approved"


@pytest.mark.parametrize(
    "entry",
    [{"command": sys.executable, "args": ["${WHICH}"]}, {"command": sys.executable, "args": ["-c", "${CODE}"]}],
)
async def test_variable_that_decides_what_runs_is_covered(entry: dict[str, Any], tmp_path: Path) -> None:
    write_server(tmp_path, "one.py")
    write_server(tmp_path, "two.py")
    servers = await approved(tmp_path, entry, {"WHICH": "one.py", "CODE": SERVER})
    other = load_servers(tmp_path, {"WHICH": "two.py", "CODE": f"{SERVER}#"})
    assert other.state("s") == "changed since it was approved"
    assert servers.state("s") == "approved"


async def test_address_with_another_variable_is_another_server(tmp_path: Path) -> None:
    write_config(tmp_path, s={"url": "${ADDRESS}/mcp"})
    servers = load_servers(tmp_path, {"ADDRESS": "https://one.example"})
    program = describe_program(servers.configs["s"], servers.environment)
    servers.approved.approve(servers.configs["s"], [], program)
    servers.load()
    assert servers.state("s") == "approved"
    assert load_servers(tmp_path, {"ADDRESS": "https://two.example"}).state("s") == "changed since it was approved"


async def test_compiled_module_beside_its_source_is_covered(tmp_path: Path) -> None:
    script = write_server(tmp_path, "tools/server.py", f"import helper\n{SERVER}")
    helper = write_server(tmp_path, "tools/helper.py", "value = 1\n")
    servers = await approved(tmp_path, python_entry(str(script)))
    old = list(build_registry(servers))
    poisoned = tmp_path / "poisoned.py"
    poisoned.write_text("value = 666\n")
    py_compile.compile(str(poisoned), str(tmp_path / "poisoned.pyc"), doraise=True)
    content = (tmp_path / "poisoned.pyc").read_bytes()
    info = helper.stat()
    header = content[:8] + int(info.st_mtime).to_bytes(4, "little") + info.st_size.to_bytes(4, "little")
    (tmp_path / "tools" / "__pycache__").mkdir()
    target = tmp_path / "tools" / "__pycache__" / os.path.basename(importlib.util.cache_from_source("helper.py"))
    assert await run_code(servers, "helper.value") == "1" and servers.state("s") == "approved"
    target.write_bytes(header + content[16:])
    assert servers.state("s") == "changed since it was approved"
    assert "may no longer be used" in await run_code(servers, "helper.value", old)
    await servers.close()


# Agents cannot change the program


def allow(question: Question) -> bool:
    return True


@pytest.mark.parametrize(
    "attack",
    [
        "echo evil > tools/server.py",
        "rm tools/server.py",
        "mv tools/server.py x",
        "ln tools/server.py x && echo evil > x",
        "ln -s tools/server.py x; echo evil > x",
        "truncate -s 0 tools/server.py",
        "chmod 777 tools/server.py; echo evil >> tools/server.py",
        "python3 -c \"import os; os.rename('/etc/hostname', 'tools/server.py')\"",
        "mkdir new; echo evil > new/server.py; mv -T new tools",
        "cp /dev/null tools/server.py; echo evil | tee tools/server.py",
        "mkdir tools/json; echo evil > tools/json/__init__.py",
    ],
)
async def test_command_cannot_change_the_program_of_an_approved_server(
    attack: str, backend: Any, tmp_path: Path
) -> None:
    script = write_server(tmp_path, "tools/server.py")
    servers = await approved(tmp_path, python_entry("tools/server.py"))
    bash = bash_tool(tmp_path, sandbox=backend, guarded=servers.program_paths)
    model = Scripted(calls("bash", command=f"{attack}; echo evil > tools/json.py; ls"), says("ok"))
    async with in_memory_atlas(model, [bash], approve=allow) as atlas:
        await atlas.ask("go")
    assert script.read_text() == SERVER and servers.state("s") == "approved"


async def test_writing_the_program_of_an_approved_server_needs_approval(tmp_path: Path) -> None:
    script = write_server(tmp_path, "tools/server.py")
    servers = await approved(tmp_path, python_entry("tools/server.py"))
    asked: list[str] = []

    def decline(question: Question) -> bool:
        asked.append(question.tool)
        return False

    tools = file_tools(tmp_path, guarded=servers.program_paths)
    policy = Policy(tools={"file_write": {"*": "yes"}}, grants={"*": ["file:*"]})
    model = Scripted(
        calls("file_write", path="tools/server.py", content="evil"),
        calls("file_write", path="tools/json.py", content="evil"),
        calls("file_write", path="notes.txt", content="fine"),
        says("ok"),
    )
    async with in_memory_atlas(model, tools, policy=policy, approve=decline) as atlas:
        await atlas.ask("go")
    assert asked == ["file_write", "file_write"] and script.read_text() == SERVER
    assert (tmp_path / "notes.txt").read_text() == "fine"


# The sandbox


async def test_server_sees_neither_files_nor_the_network(backend: Any, tmp_path: Path) -> None:
    write_server(tmp_path, "tools/server.py")
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    servers = await approved(tmp_path, python_entry("tools/server.py"))
    servers.sandbox = backend
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        tries = {
            f"open({str(secret)!r}).read()": "Error",
            f"open({str(tmp_path / 'home' / 'mcp' / 'approved.json')!r}).read()": "Error",
            f"open({str(tmp_path / 'canary')!r}, 'w').write('x')": "",  # possible in a private /tmp
            f"open({str(tmp_path / 'tools' / 'server.py')!r}, 'a')": "Error",
            f"os.listdir({str(tmp_path / 'home')!r}).index('token')": "Error",
            "open('/etc/shadow')": "Error",
            f"socket.create_connection(('127.0.0.1', {port}), 2)": "Error",
            f"os.kill({os.getpid()}, 0)": "Error",
            "open(os.path.join(os.environ['HOME'], 'note'), 'w').write('kept')": "4",
            "open(os.path.join(os.environ['HOME'], 'note')).read()": "kept",
        }
        results: dict[str, tuple[str, str]] = {}
        for code, expected in tries.items():
            results[code] = await run_code(servers, code), expected
    await servers.close()
    assert [each for each in results.items() if each[1][1] not in each[1][0]] == []
    assert not (tmp_path / "canary").exists()
    (note,) = (tmp_path / "home" / "mcp" / "data").glob("*/note")
    assert note.read_text() == "kept"


async def test_server_can_use_the_folders_that_it_was_granted(backend: Any, tmp_path: Path) -> None:
    write_server(tmp_path, "tools/server.py")
    for name in ("docs", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs" / "a.txt").write_text("text")
    (tmp_path / "out" / ".env").write_text("KEY=secret")
    (tmp_path / "out" / "AGENTS.md").write_text("be good")
    entry = python_entry("tools/server.py", folders={"docs": "read", "${OUT}": "write"})
    servers = load_servers(write_config(tmp_path, s=entry), {"OUT": "out"})
    servers.sandbox = backend
    await approve(servers)
    assert await run_code(servers, f"open({str(tmp_path / 'docs' / 'a.txt')!r}).read()") == "text"
    assert await run_code(servers, f"open({str(tmp_path / 'out' / 'b.txt')!r}, 'w').write('b')") == "1"
    for path, mode in (("docs/a.txt", "a"), ("out/AGENTS.md", "a"), ("mcp.json", "r"), ("home/mcp/approved.json", "r")):
        result = await run_code(servers, f"open({str(tmp_path / path)!r}, {mode!r}).read()")
        assert "Error" in result, (path, result)
    assert "secret" not in await run_code(servers, f"open({str(tmp_path / 'out' / '.env')!r}).read()")
    await servers.close()
    assert (tmp_path / "out" / "b.txt").read_text() == "b"
    assert (tmp_path / "out" / "AGENTS.md").read_text() == "be good"


async def test_folder_with_too_many_files_to_protect_is_not_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.builtin_tools.bash._MAX_ENTRIES", 3)
    write_server(tmp_path, "tools/server.py")
    for name in "abcd":
        (tmp_path / "out" / name).mkdir(parents=True)
    servers = load_servers(write_config(tmp_path, s=python_entry("tools/server.py", folders={"out": "write"})))
    with pytest.raises(Transient, match=r"folders: .*out has more than 3 files"):
        await (await servers.connect(servers.configs["s"])).tools()
    await servers.close()


async def test_server_can_use_the_network_if_it_was_granted(tmp_path: Path) -> None:
    write_server(tmp_path, "tools/server.py")
    servers = await approved(tmp_path, python_entry("tools/server.py", network=True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        assert await run_code(servers, f"bool(socket.create_connection({address}, 2))") == "True"
    await servers.close()
    servers.sandbox = "landlock"
    with pytest.raises(Transient, match="Landlock cannot allow network access; install bubblewrap"):
        await (await servers.connect(servers.configs["s"])).tools()
    await servers.close()


async def test_server_does_not_start_without_a_sandbox_unless_the_entry_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.builtin_tools.sandbox._PROBES", {})
    write_server(tmp_path, "tools/server.py")
    servers = load_servers(write_config(tmp_path, s=python_entry("tools/server.py")))
    with pytest.raises(Transient, match='"sandbox": false'):
        await (await servers.connect(servers.configs["s"])).tools()
    await servers.close()
    servers = await approved(tmp_path, python_entry("tools/server.py", sandbox=False))
    assert await run_code(servers, f"open({str(tmp_path / 'made')!r}, 'w').write('x')") == "1"
    await servers.close()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"url": "https://x.example", "network": True}, "apply to a command, not to a url"),
        ({"command": "x", "folders": {"a": "write", "b": "write"}}, "a server can write to one folder"),
        ({"command": "x", "folders": {"a": "all"}}, "Invalid enum value 'all'"),
        ({"command": "x", "folders": ["a"]}, "Expected `object`"),
    ],
)
def test_invalid_grant_is_reported(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_config(tmp_path, s=entry)
    with pytest.raises(ConfigError, match=message):
        read_servers(tmp_path)
