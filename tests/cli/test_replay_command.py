"""`atlas replay`: replays stored runs of the home folder and of own code, and saves them as tests."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from atlas_command import PROGRAM, Home

import fork_server
from model_server import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PYTEST = str(Path(__file__).parent / "pytest_program.py")

MODULE = '''\
"""Agents of a shop."""

from pathlib import Path

from atlas_agents import Agent, Atlas, tool
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, calls, says


@tool
async def find_order(number: int, password: str) -> str:
    """Find an order."""
    Path("ran").write_text("yes")
    return "Paid with the key sk-live-9f8e7d6c5b4a39281706f5e4d3c2b1a0."


model = Scripted(calls("find_order", number=7, password="tiger-in-the-7-woods"), says("Order 7 was paid."))
clerk = Agent("clerk", model=model, tools=[find_order], system_prompt="You are the clerk.\\nBe polite.")
atlas = Atlas([clerk], store=SqliteStore("shop.db"))
'''
RECORD = """\
import asyncio
from shop import atlas

async def main():
    await atlas.store.open()
    stream = atlas.send("Was order 7 paid? My password is tiger-in-the-7-woods, and otter-Zx81-pond.", session="ana")
    await stream.reply()
    print(stream.stream_id)
    await atlas.close()
    await atlas.store.close()

asyncio.run(main())
"""


@pytest.fixture
def shop(bare: Home) -> tuple[Home, str]:
    """A folder with a module of agents, and the id of a run that they made."""
    (bare.folder / "shop.py").write_text(MODULE)
    (bare.folder / "record.py").write_text(RECORD)
    done = _program(bare, str(bare.folder / "record.py"))
    (bare.folder / "record.py").unlink()
    assert done.returncode == 0, done.stderr
    (bare.folder / "ran").unlink()
    return bare, done.stdout.strip()


def _program(home: Home, *command: str) -> "subprocess.CompletedProcess[str]":
    environment = home.environment(PYTHONPATH=os.pathsep.join([str(home.folder), str(home.folder / "plugins")]))
    return fork_server.run(*command, env=environment, cwd=home.folder)


def _pytest(home: Home, file: str) -> "subprocess.CompletedProcess[str]":
    """Run a saved test. The plugin of langsmith, which other tests use, takes longer to import than the rest."""
    return _program(home, PYTEST, "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", file)


def _atlas(home: Home, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return _program(home, PROGRAM, *arguments)


def _change(home: Home, before: str, after: str) -> None:
    """Change the module, and delete its bytecode: Python compares only the size and the second of the change."""
    path = home.folder / "shop.py"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    for bytecode in path.parent.rglob("__pycache__/shop.*.pyc"):
        bytecode.unlink()


def _add_prompt(home: Home) -> None:
    agents = next(home.folder.rglob("AGENTS.md"))
    described = "Description: Answers.\n"
    agents.write_text(agents.read_text().replace(described, f"{described}Prompt:\n\nAlways rhyme.\n"))


def test_run_of_the_home_folder_is_replayed_and_a_changed_prompt_is_named(home: Home, server: ModelServer) -> None:
    assert home.run("ask", "What time is it?", "-s", "clock").returncode == 0
    asked = len(server.requests)
    same = home.run("replay", "clock")
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.endswith(" is the same: 2 rounds, done.\n")
    run = same.stdout.split()[1]
    assert home.run("replay", run).stdout == same.stdout
    _add_prompt(home)
    changed = home.run("replay", run)
    assert changed.returncode == 1
    assert changed.stdout.startswith(f"Run {run} differs in round 1: the system prompt has changed (request)\n")
    assert "+Always rhyme." in changed.stdout
    report = json.loads(home.run("replay", run, "--json").stdout)
    assert report["same"] is False and report["differences"][0]["kind"] == "request"
    assert len(server.requests) == asked


def test_run_that_cannot_be_replayed_is_named(home: Home) -> None:
    unknown = home.run("replay", "nope")
    assert unknown.returncode == 2 and unknown.stderr.startswith("atlas: not found: run or session 'nope'; the ids of")
    missing = home.run("replay", "nope.json")
    assert missing.returncode == 2 and "cannot read the recorded run nope.json" in missing.stderr
    home.run("ask", "Hello", "-s", "hall")
    with closing(sqlite3.connect(next(home.path.glob("*.db")))) as database, database:
        database.execute("UPDATE journal_rows SET payload = CAST('{' AS BLOB) WHERE kind = 'reply'")
    damaged = home.run("replay", "hall")
    assert damaged.returncode == 2 and "was changed after it was written" in damaged.stderr
    agents = home.run("replay", "hall", "--agents", "nothing.here:atlas")
    assert agents.returncode == 2 and "no installed module 'nothing.here'" in agents.stderr


def test_run_of_own_agents_is_replayed_without_side_effects(shop: tuple[Home, str]) -> None:
    home, run = shop
    database = home.folder / "shop.db"
    before = database.read_bytes()
    same = _atlas(home, "replay", run, "--agents", "./shop.py:atlas")
    assert (same.returncode, same.stdout) == (0, f"Run {run} is the same: 2 rounds, done.\n"), same.stderr
    assert not (home.folder / "ran").exists() and database.read_bytes() == before
    _change(home, "number: int, password: str", "number: str, password: str")
    changed = _atlas(home, "replay", "ana", "--agents", "./shop.py:atlas")
    assert changed.returncode == 1 and changed.stderr == ""
    assert "the parameters of the tool 'find_order' have changed" in changed.stdout
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM audit")
    without_verdicts = _atlas(home, "replay", run, "--agents", "./shop.py:atlas")
    assert without_verdicts.stderr == "Not compared: policy verdicts: the audit log has no rows of the run's calls.\n"


def test_exit_code_tells_which_tool_or_agent_is_missing(shop: tuple[Home, str]) -> None:
    home, run = shop
    _change(home, "tools=[find_order]", "tools=[]")
    tool = _atlas(home, "replay", run, "--agents", "./shop.py:atlas")
    assert tool.returncode == 1 and "Traceback" not in tool.stderr, tool.stderr
    assert "differs in round 1: the tool 'find_order' is missing (request)" in tool.stdout
    _change(home, 'Agent("clerk"', 'Agent("cook"')
    agent = _atlas(home, "replay", run, "--agents", "./shop.py:atlas")
    assert agent.returncode == 2 and "Traceback" not in agent.stderr
    assert "is of the agent 'clerk', which is not given (given: cook)" in agent.stderr
    assert not (home.folder / "ran").exists()


DAMAGED = {
    "UPDATE journal_rows SET payload = CAST('{' AS BLOB) WHERE kind = 'outcome'": "was changed after it was written",
    "UPDATE messages SET body = CAST('{' AS BLOB)": "cannot be read; run: atlas store check",
    "DELETE FROM journal_rows": "has no journal",
}


def test_damaged_row_is_named_with_exit_code_2(shop: tuple[Home, str]) -> None:
    home, run = shop
    path = home.folder / "shop.db"
    whole = path.read_bytes()
    for statement, shown in DAMAGED.items():
        path.write_bytes(whole)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)
        done = _atlas(home, "replay", run, "--agents", "./shop.py:atlas")
        assert done.returncode == 2 and done.stdout == "", statement
        assert done.stderr.startswith("atlas: ") and shown in done.stderr and done.stderr.count("\n") == 1


def test_run_is_saved_as_a_test_that_names_a_changed_prompt(shop: tuple[Home, str]) -> None:
    home, run = shop
    home.path.mkdir(exist_ok=True)
    (home.path / "secrets.json").write_text('{"providers": {"http": {"key": "otter-Zx81-pond"}}}')
    saved = _atlas(home, "replay", run, "--agents", "./shop.py:atlas", "--save", "tests/test_order.py")
    assert saved.returncode == 0, saved.stderr
    data = (home.folder / "tests" / "test_order.json").read_text()
    texts = ("sk-live", "tiger-in-the", "otter-Zx81-pond", "Order 7 was paid.")
    assert [text for text in texts if text in data] == ["Order 7 was paid."]
    again = _atlas(home, "replay", run, "--agents", "./shop.py:atlas", "--save", "tests/test_order.py")
    assert again.returncode == 2 and "exists already" in again.stderr
    forced = _atlas(home, "replay", run, "--agents", "./shop.py:atlas", "--save", "tests/test_order.py", "--force")
    assert forced.returncode == 0
    (home.folder / "shop.db").unlink()
    passed = _pytest(home, "tests/test_order.py")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    _change(home, "Be polite.", "Be rude.")
    failed = _pytest(home, "tests/test_order.py")
    assert failed.returncode == 1
    assert "differs in round 1: the system prompt has changed (request)" in failed.stdout
    assert "-Be polite." in failed.stdout and "+Be rude." in failed.stdout
    assert not (home.folder / "ran").exists()


def test_current_folder_replaces_no_modules_and_is_used_only_if_it_is_named(shop: tuple[Home, str]) -> None:
    home, run = shop
    installed, folder = home.folder / "installed", home.folder / "cloned"
    for each in (installed, folder):
        each.mkdir()
    (home.folder / "shop.py").rename(installed / "shop.py")
    trap = "from pathlib import Path\nPath(__file__).with_name('owned').write_text('yes')\n"
    (folder / "sqlite3.py").write_text(trap)
    (folder / "mine.py").write_text((installed / "shop.py").read_text().replace("shop.db", "../shop.db"))
    (folder / "shop.db").symlink_to(home.folder / "shop.db")

    def atlas(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = home.environment(PYTHONPATH=str(installed))
        command = [str(Path(sys.executable).with_name("atlas")), "replay", run, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    found = atlas("--agents", "shop:atlas")
    assert found.returncode == 0, found.stderr
    hidden = atlas("--agents", "mine:atlas")
    assert hidden.returncode == 2 and "name the file instead: ./mine.py:…" in hidden.stderr
    saved = atlas("--agents", "./mine.py:atlas", "--save", "tests/test_order.py")
    assert saved.returncode == 0, saved.stderr
    assert not (folder / "owned").exists()
    passed = _pytest(home, "cloned/tests/test_order.py")
    assert passed.returncode == 0, passed.stdout + passed.stderr


def test_run_of_the_workspace_is_saved_as_a_test(home: Home) -> None:
    home.run("ask", "What time is it?", "-s", "clock")
    wrong = home.run("replay", "clock", "--save", "clock.py")
    assert wrong.returncode == 2 and "expected a name such as tests/test_refund.py" in wrong.stderr
    saved = home.run("replay", "clock", "--save", "tests/test_clock.py")
    assert saved.returncode == 0, saved.stderr
    next(home.path.glob("*.db")).unlink()
    assert home.run("replay", "tests/test_clock.json").returncode == 0
    passed = _pytest(home, "tests/test_clock.py")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    _add_prompt(home)
    failed = _pytest(home, "tests/test_clock.py")
    assert failed.returncode == 1 and "the system prompt has changed" in failed.stdout


def test_saved_test_of_a_workspace_leaves_nothing_behind(home: Home) -> None:
    home.run("ask", "What time is it?", "-s", "clock")
    assert home.run("replay", "clock", "--save", "tests/test_clock.py").returncode == 0
    elsewhere = home.folder / "elsewhere"
    elsewhere.mkdir()
    environment = {**home.environment(), "ATLAS_HOME": str(elsewhere / "home"), "HOME": str(elsewhere)}
    environment["PYTHONPATH"] = str(home.folder / "plugins")

    def run_test() -> "subprocess.CompletedProcess[str]":
        plugins = ("-p", "no:cacheprovider", "-p", "no:langsmith_plugin")
        return fork_server.run(PYTEST, "-q", *plugins, "tests/test_clock.py", env=environment, cwd=home.folder)

    before = _files(home)
    passed = run_test()
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert _files(home) == before and not [*elsewhere.iterdir()]
    next(home.folder.rglob("AGENTS.md")).parent.rename(home.folder / "moved")
    before = _files(home)
    missing = run_test()
    assert missing.returncode == 1 and "not found: workspace" in missing.stdout
    assert _files(home) == before and not [*elsewhere.iterdir()]


def _files(home: Home) -> list[Path]:
    return sorted([path for path in home.folder.rglob("*") if "__pycache__" not in path.parts])


def test_damaged_or_hostile_file_is_refused_or_shown_without_control_characters(home: Home) -> None:
    home.run("ask", "Hello", "-s", "hall")
    unwritable = home.run("replay", "hall", "--save", "/proc/nowhere/test_hall.py")
    assert unwritable.returncode == 2 and "cannot write /proc/nowhere/test_hall.py" in unwritable.stderr
    assert home.run("replay", "hall", "--save", "test_hall.py").returncode == 0
    file = home.folder / "test_hall.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "id": "run\x1b]0;owned\x07"}))
    shown = home.run("replay", "test_hall.json")
    assert shown.returncode == 0 and shown.stdout.startswith("Run run"), shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr and "\x07" not in shown.stdout + shown.stderr
    file.write_text(json.dumps({**whole, "steps": []}))
    for option in ((), ("--list",)):
        damaged = home.run("replay", "test_hall.json", *option)
        assert damaged.returncode == 2 and "has no end" in damaged.stderr


def test_run_is_listed_and_forked(home: Home, server: ModelServer) -> None:
    home.run("ask", "What time is it?", "-s", "clock")
    listed = home.run("replay", "clock", "--list").stdout.splitlines()
    assert listed[0].split() == ["STEP", "TIME", "KIND", "CONTENT"]
    steps = json.loads(home.run("replay", "clock", "--list", "--json").stdout)
    last = next(each["number"] for each in reversed(steps) if each["kind"] == "reply")
    messages = home.run("sessions", "export", "clock").stdout
    (home.folder / "prompt.md").write_text("Always rhyme.\n")
    asked = len(server.requests)
    forked = home.run("replay", "clock", "--fork", str(last), "--model", "http/rules-2", "--prompt", "prompt.md")
    assert forked.returncode == 0 and forked.stdout, forked.stderr
    assert "current_time" in forked.stderr and "(recorded)" in forked.stderr
    (request,) = server.requests[asked:]
    assert request.body["model"] == "rules-2" and "Always rhyme." in str(request.body)
    assert home.run("sessions", "export", "clock").stdout == messages
    early = home.run("replay", "clock", "--fork", "2", "--json")
    assert [each["source"] for each in json.loads(early.stdout)["calls"]] == ["simulated"]
    (home.folder / "ask.toml").write_text('[tools.current_time]\nask = ["*"]\n')
    asks = home.run("replay", "clock", "--fork", "2", "--allow-tools", "current_time", "--policy", "ask.toml")
    assert "current_time needs an approval, and was refused: standard input is not a terminal" in asks.stderr
    useless = home.run("replay", "clock", "--model", "http/rules-2")
    assert useless.returncode == 2 and "--model needs --fork STEP" in useless.stderr
    far = home.run("replay", "clock", "--fork", "99")
    assert far.returncode == 2 and "invalid step 99" in far.stderr
