"""Commands that list, show and change stored data."""

import asyncio
import json
import os
import re
import sqlite3
import stat
import tomllib
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from atlas_command import ENTER, TIMEOUT, Home

from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from atlas_agents.core.store import AddJob, JobRow, PutSession, Write
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.tools.policy import Policy
from model_server import ModelServer, Reply, run_model_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def read(home: Home, *arguments: str) -> Any:
    """The JSON that a command prints."""
    done = home.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sessions_are_listed_shown_renamed_archived_and_deleted(home: Home) -> None:
    assert home.run("sessions", "list").stderr == "There are no sessions.\n"
    home.run("ask", "What time is it?", "-s", "clock")
    home.run("ask", "Hello", "-s", "hall")
    listed = home.run("sessions", "list").stdout.splitlines()
    assert listed[0].split() == ["SESSION", "CHANGED", "AGENT", "NAME"]
    assert [line.split()[0] for line in listed[1:]] == ["hall", "clock"]
    shown = home.run("sessions", "show", "clo").stdout
    assert "→ current_time()\n✓ current_time: " in shown
    assert [each["role"] for each in read(home, "sessions", "show", "hall")["messages"]] == ["user", "assistant"]
    assert home.run("sessions", "rename", "hall", "The hall").returncode == 0
    assert home.run("sessions", "archive", "clock").returncode == 0
    assert [(each["sessionKey"], each["label"]) for each in read(home, "sessions", "list")] == [("hall", "The hall")]
    assert [each["sessionKey"] for each in read(home, "sessions", "list", "--archived")] == ["clock"]
    refused = home.run("sessions", "delete", "hall")
    assert refused.returncode == 2 and "Pass --yes" in refused.stderr
    assert "Pass --yes" in home.run("sessions", "delete", "hal").stderr
    by_prefix = home.run("sessions", "delete", "hal", "--yes")
    assert by_prefix.returncode == 2
    assert by_prefix.stderr == "atlas: --yes requires the full key of the session: expected 'hall', got 'hal'\n"
    assert home.run("sessions", "delete", "hall", "--yes").returncode == 0
    gone = home.run("sessions", "show", "hall")
    assert gone.returncode == 2
    assert gone.stderr == "atlas: session not found: 'hall'; sessions: clock; run: atlas sessions list\n"


def commit(home: Home, *commits: Sequence[Write]) -> None:
    """Write to the database of a home folder."""

    async def write() -> None:
        store = SqliteStore(home.path / "atlas.db")
        await store.open()
        try:
            for writes in commits:
                await store.commit("default", writes)
        finally:
            await store.close()

    asyncio.run(write())


def test_session_behind_the_first_page_is_found_by_its_key_and_by_a_prefix(home: Home) -> None:
    names = ["mein chat ü", "oldest-of-all"]
    newer = [PutSession(f"newer-{number}") for number in range(505)]
    commit(home, [PutSession(name) for name in names], [*newer, PutSession("mein chat ü 2")])
    with sqlite3.connect(home.path / "atlas.db") as database:
        database.executemany("UPDATE sessions SET updated_at = 1 WHERE key = ?", [(name,) for name in names])
    database.close()
    assert home.run("sessions", "show", "oldest").stdout.startswith("oldest-of-all ")
    assert "ambiguous session 'mein'" in home.run("sessions", "show", "mein").stderr
    assert home.run("sessions", "delete", "mein chat ü", "-y").stderr == "mein chat ü: deleted.\n"
    assert home.run("sessions", "show", "mein chat ü 2").returncode == 0


def test_job_behind_the_first_page_is_cancelled_by_its_id_and_by_a_prefix(home: Home) -> None:
    ids = [f"{number:03}-job" for number in range(504)]
    commit(home, [AddJob(JobRow(id, "request", "assistant", "Wait.", session=f"jobs/{id}")) for id in ids])
    assert home.run("jobs", "cancel", "000-job").stderr == "000-job is cancelled.\n"
    assert home.run("jobs", "cancel", "001").stderr == "001-job is cancelled.\n"


def test_empty_key_names_no_session(home: Home) -> None:
    commit(home, [PutSession("only")])
    refused = home.run("sessions", "delete", "", "-y")
    assert refused.returncode == 2 and "invalid session ''" in refused.stderr
    assert home.run("sessions", "show", "only").returncode == 0


def test_session_is_forked_exported_and_imported(home: Home, tmp_path: Path) -> None:
    home.run("ask", "One", "-s", "first")
    home.run("ask", "Two", "-s", "first")
    messages = read(home, "sessions", "show", "first")["messages"]
    copy = home.run("sessions", "fork", "first", "--at", messages[1]["id"])
    assert copy.returncode == 0
    assert len(read(home, "sessions", "show", copy.stdout.strip())["messages"]) == 2
    exported = home.run("sessions", "export", "first")
    assert len(exported.stdout.splitlines()) == 5
    (tmp_path / "first.jsonl").write_text(exported.stdout)
    taken = home.run("sessions", "import", "first.jsonl")
    assert taken.returncode == 1 and "session 'first' already exists" in taken.stderr
    assert home.run("sessions", "import", "first.jsonl", "--key", "second").stdout == "second\n"
    piped = home.run("sessions", "import", "-", "--key", "third", stdin=exported.stdout)
    assert piped.stdout == "third\n"
    assert home.run("sessions", "export", "third").stdout.splitlines()[1:] == exported.stdout.splitlines()[1:]
    assert home.run("sessions", "import", "nowhere.jsonl").returncode == 2
    assert home.run("sessions", "import", "-", stdin="nonsense").returncode == 2
    home.run("ask", "Three", "-s", "third")
    assert len(read(home, "sessions", "show", "third")["messages"]) == 6


def test_reading_command_does_not_resume_open_turns(home: Home, server: ModelServer) -> None:
    with home.terminal("chat", "--session", "s") as person:
        person.expect(r"\n>$")
        person.type("a story" + ENTER)
        person.expect("word 9")
    asked = len(server.requests)
    assert [each["sessionKey"] for each in read(home, "sessions", "list")] == ["s"]
    assert len(server.requests) == asked


def test_agents_and_tools_are_listed(home: Home) -> None:
    agents = read(home, "agents")
    assert [(each["id"], each["model"]) for each in agents] == [("assistant", "http/rules-1"), ("poet", "http/rules-2")]
    line = home.run("agents").stdout.splitlines()[1]
    assert line.startswith("assistant *  http/rules-1  current_time, ") and "demo/act, " in line
    tools = {(each["agentId"], each["name"]): each for each in read(home, "tools")}
    assert {agent for agent, _ in tools} == {"assistant", "poet"}
    assert tools["poet", "demo/act"]["requiresApproval"] is True
    table = home.run("tools", "--agent", "poet").stdout.splitlines()
    cells = {line.split()[0]: line.split()[2] for line in table[1:]}
    assert (cells["current_time"], cells["demo/act"], cells["demo/fail"]) == ("yes", "ask", "yes")
    assert cells["delegate_task"] == "no", "the policy of this home does not name it"
    assert home.run("tools", "--agent", "none").returncode == 2


def test_usage_is_grouped_and_filtered(home: Home) -> None:
    assert home.run("usage").stderr == "No usage was recorded.\n"
    home.run("ask", "Hello", "-s", "a")
    home.run("ask", "Hello", "-s", "b", "--agent", "poet")
    assert {row["name"]: row["turns"] for row in read(home, "usage")} == {"assistant": 1, "poet": 1}
    assert {row["name"] for row in read(home, "usage", "--by", "session")} == {"a", "b"}
    assert read(home, "usage", "--from", "2020-01-01", "--to", "2020-12-31") == []
    assert home.run("usage", "--by", "mood").returncode == 2
    wrong = home.run("usage", "--from", "yesterday")
    assert wrong.returncode == 1 and len(wrong.stderr.splitlines()) == 1
    shown = home.run("usage", ATLAS_BUDGETS="tenant tokens=1000000 requests=9 per=month, agent tool_calls=5").stdout
    headers, *budgets = [line.split() for line in shown.partition("\n\n")[2].splitlines()]
    assert headers == ["BUDGET", "LIMIT", "USED", "LEFT", "RESETS"]
    assert [budget[0] for budget in budgets] == ["tenant", "tenant", "agent", "agent"], budgets


def test_audit_log_is_listed_verified_and_compared_with_a_policy(home: Home, tmp_path: Path) -> None:
    home.run("ask", "act ls", "--yes-to", "demo/act")
    home.run("ask", "What time is it?", "--agent", "poet")
    assert [line["entry"]["entityId"] for line in read(home, "audit", "list")] == ["current_time", "demo/act"]
    assert [line["seq"] for line in read(home, "audit", "list", "--agent", "poet")] == [2]
    assert home.run("audit", "list", "--level", "loud").returncode == 2
    at = read(home, "audit", "list")[0]["entry"]["timestamp"] / 1000
    first, last = (str(date.fromtimestamp(at) + timedelta(days=days)) for days in (-1, 1))
    owner = ("audit", "list", "--user", "owner")
    assert len(read(home, *owner, "--since", first, "--until", last)) == 2
    assert home.run(*owner, "--until", first).stderr == "No entry matches these filters.\n"
    wrong = home.run(*owner, "--since", "yesterday")
    expected = "atlas: invalid --since 'yesterday': expected a date such as 2026-11-30\n"
    assert (wrong.returncode, wrong.stderr) == (2, expected)
    wrong = home.run(*owner, "--since", last, "--until", first)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        f"atlas: invalid range: --since {last} is later than --until {first}\n",
    )
    (tmp_path / "strict.toml").write_text('[tools."demo/act"]\nno = ["*"]\n')
    assert [(each["seq"], each["before"], each["after"]) for each in read(home, "audit", "what-if", "strict.toml")] == [
        (1, "ask", "no")
    ]
    assert home.run("audit", "what-if", "nowhere.toml").returncode == 2
    assert read(home, "audit", "verify") == {"lines": 2, "whole": True, "problem": None}
    with sqlite3.connect(home.path / "atlas.db") as database:
        database.execute("UPDATE audit SET entry = replace(entry, 'poet', 'toad') WHERE seq = 2")
    database.close()
    broken = home.run("audit", "verify")
    assert (broken.returncode, broken.stdout) == (1, "The chain is broken: row 2 was changed after it was written.\n")


def test_audit_follow_prints_calls_as_they_are_made(home: Home) -> None:
    with home.gateway():
        follower = home.start("audit", "follow", "--json")
        assert follower.stdout is not None and follower.stderr is not None
        with follower:
            assert "Waiting" in follower.stderr.readline()
            home.run("ask", "What time is it?")
            line = json.loads(follower.stdout.readline())
            assert (line["seq"], line["entry"]["entityId"]) == (1, "current_time")
            follower.send_signal(2)
            assert follower.wait(TIMEOUT) == 130


def test_local_models_are_listed_and_a_failed_download_is_explained(bare: Home) -> None:
    models = {each["id"]: each for each in read(bare, "models", "list")}
    assert models["smollm2-135m"]["installed"] is False
    assert models["qwen2.5-coder-1.5b"]["bytes"] > 1e9
    assert cells(bare.run("models", "list").stdout)[0] == ["MODEL", "SIZE", "INSTALLED", "ABOUT"]
    opus = models["anthropic/claude-opus-5-5"]
    assert (opus["price"]["input"], opus["price"]["cacheWrite"], opus["contextWindow"]) == (4, 5, 1_000_000)
    assert (opus["keySet"], opus["outputLimit"], opus["efforts"][-1]) == (False, 128_000, "max")
    haiku = bare.run("models", "list", "haiku-5-5", ANTHROPIC_API_KEY="sk-ant-0123456789").stdout
    assert cells(haiku)[1][:4] == ["anthropic/claude-haiku-5-5", "yes", "0.1+", "0.5+"]
    assert f"list prices of {opus['pricesOf']}" in haiku
    bare.path.mkdir(0o700)
    (bare.path / "secrets.json").write_text('{"providers": {"anthropic": {"key": "sk-ant-0123456789"}}}')
    stored = {each["id"]: each.get("keySet") for each in read(bare, "models", "list", "opus")}
    assert stored["anthropic/claude-opus-5-5"] is True
    assert len(read(bare, "models", "list", "--all")) > len(models) + 100
    assert "No models match." in bare.run("models", "list", "gpt-17").stderr
    unknown = bare.run("models", "pull", "gpt-17")
    assert unknown.returncode == 1 and "unknown local model 'gpt-17'" in unknown.stderr
    asks = bare.run("models", "pull", "qwen2.5-coder-1.5b")
    assert asks.returncode == 2 and "1117 MB" in asks.stderr and "Pass --yes" in asks.stderr
    fails = bare.run("models", "pull", "smollm2-135m")
    assert fails.returncode == 1 and "cannot download the model" in fails.stderr
    assert bare.run("models", "remove", "smollm2-135m").returncode == 0


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_tokens_are_shown_created_listed_and_revoked(home: Home) -> None:
    first = home.run("token", "show").stdout.strip()
    assert first == (home.path / "token").read_text().strip()
    with home.gateway() as gateway:
        made = home.run("token", "create", "ben", "--scopes", "read,write")
        assert made.returncode == 0
        assert "shown only once" in made.stderr
        ben = made.stdout.strip()
        assert ben not in (home.path / "tokens.json").read_text()
        assert stat.S_IMODE((home.path / "tokens.json").stat().st_mode) == 0o600
        assert home.run("token", "create", "ben").returncode == 2
        assert home.run("token", "create", "Ben!").returncode == 2
        assert home.run("token", "create", "eve", "--scopes", "root").returncode == 2
        assert [(each["id"], each["scopes"]) for each in read(home, "token", "list")][1:] == [
            ("ben", ["read", "write"])
        ]
        asked = home.run("ask", "Hello", ATLAS_TOKEN=ben)
        assert asked.returncode == 0, asked.stderr
        assert home.run("token", "revoke", "ben").returncode == 0
        assert home.run("token", "revoke", "ben").returncode == 2
        assert home.run("ask", "Hello", ATLAS_TOKEN=ben).returncode == 1
        assert home.run("token", "rotate").returncode == 0
        second = home.run("token", "show").stdout.strip()
        assert second != first
        assert home.run("ask", "Hello").returncode == 0
        assert home.run("ask", "Hello", ATLAS_TOKEN=first).returncode == 1
        assert gateway.process is not None and gateway.process.poll() is None
    assert home.run("token", "rotate", ATLAS_TOKEN="mine-is-my-own").returncode == 2


def test_settings_are_shown_without_secrets(home: Home) -> None:
    secret = {"ATLAS_TOKEN": "a-secret-of-mine", "ATLAS_DATABASE_URL": "postgresql://ana:hush@localhost/atlas"}
    for command in ("show", "explain", "path"):
        for form in ([], ["--json"]):
            done = home.run("config", command, *form, **secret)
            assert done.returncode == 0
            assert "a-secret-of-mine" not in done.stdout and "hush" not in done.stdout
    explained = {each["key"]: each for each in read(home, "config", "explain")}
    assert explained["policy"]["origin"] == f"{home.folder / 'atlas.toml'}:1"
    assert explained["port"]["origin"] == "environment ATLAS_PORT"
    assert home.run("config", "show", ATLAS_PRT="1").stderr.startswith("atlas: unknown environment variable ATLAS_PRT;")
    places = {each["what"]: each for each in read(home, "config", "path")}
    assert places["workspace"]["exists"] is True


@pytest.mark.parametrize("form", ["schema", "asyncapi", "typescript"])
def test_protocol_is_printed(bare: Home, form: str) -> None:
    done = bare.run("protocol", form)
    assert done.returncode == 0
    assert "chat.send" in done.stdout
    if form != "typescript":
        json.loads(done.stdout)


def test_init_creates_missing_files_and_keeps_existing_ones(bare: Home) -> None:
    folder = bare.folder / "project"
    first = bare.run("init", "project")
    assert first.returncode == 0
    assert first.stderr.count("created") == 4
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        ".env.example",
        "atlas.toml",
        "policy.toml",
        "workspace/AGENTS.md",
        "workspace/SOUL.md",
        "workspace/TOOLS.md",
    }
    settings = load({}, Environment({"ATLAS_HOME": str(bare.path)}, dotenv=None), folder)
    assert settings.workspace == folder / "workspace"
    assert settings.policy is not None
    Policy.load(settings.policy)
    assert len(_check_commented_lines(folder / "atlas.toml", bare)) > 50
    (folder / "atlas.toml").write_text("port = 1\n")
    os.remove(folder / "policy.toml")
    second = bare.run("init", "project")
    assert (folder / "atlas.toml").read_text() == "port = 1\n"
    assert (second.stderr.count("kept"), second.stderr.count("created")) == (3, 1)
    assert bare.run("init", "/proc/nowhere").returncode == 2


def _check_commented_lines(file: Path, home: Home) -> list[str]:
    """Load a settings file with each of its commented-out settings in turn; return their names."""
    whole, found = file.read_text(), list[str]()
    for match in re.finditer(r"^# (\w+) = .*$", whole, re.MULTILINE):
        uncommented = whole.replace(match[0], match[0].removeprefix("# "))
        file.write_text(uncommented)
        load({}, Environment({"ATLAS_HOME": str(home.path), "ATLAS_CONFIG": str(file)}, dotenv=None), file.parent)
        assert match[1] in tomllib.loads(uncommented)
        found.append(match[1])
    file.write_text(whole)
    return found


def test_init_asks_for_safety_a_model_and_a_first_question(bare: Home) -> None:
    with run_model_server(lambda request: Reply(f"{request.model} answers")) as vendor:
        vendor.key = "sk-test-0123456789abcdef"
        closed = "http://127.0.0.1:9/v1"
        with bare.terminal(
            *("init", "project"),
            OLLAMA_BASE_URL=closed,
            LMSTUDIO_BASE_URL=closed,
            VLLM_BASE_URL=closed,
            LLAMACPP_BASE_URL=closed,
        ) as terminal:
            terminal.expect("Step 1 of 3: model")
            number = re.findall(r"(\d+)  Paste an API key", terminal.expect("Not now"))
            terminal.type(f"{number[-1]}\r")
            number = re.findall(r"(\d+)  OpenAI-compatible server", terminal.expect("OpenAI-compatible server"))
            terminal.type(f"{number[-1]}\r")
            terminal.expect("Base URL:")
            terminal.type(f"{vendor.url}\r")
            terminal.expect("not shown")
            terminal.type(f"{vendor.key}\r")
            terminal.expect("Key works. 2 models available.")
            terminal.expect("Model, by number or name")
            terminal.type("2\r")
            terminal.expect("Now using http/rules-2.")
            terminal.expect("Step 2 of 3: safety")
            terminal.expect("3  Read only")
            terminal.type("3\r")
            terminal.expect("Step 3 of 3: try it")
            terminal.type("\r")
            terminal.expect("rules-2 answers")
            assert terminal.wait_for_exit() == 0
            assert vendor.key not in terminal.text
    assert 'no = ["*"]' in (bare.folder / "project" / "policy.toml").read_text()
    assert oct((bare.path / "secrets.json").stat().st_mode & 0o777) == "0o600"


def test_init_takes_the_model_and_the_safety_as_options(bare: Home) -> None:
    assert bare.run("init", "project", "--model", "demo", "--safety", "everything").returncode == 0
    assert json.loads((bare.path / "model.json").read_text()) == {"model": "demo"}
    assert "[tools.file_read]" in (bare.folder / "project" / "policy.toml").read_text()
    assert "--safety: expected ask, everything, read-only" in bare.run("init", "x", "--safety", "low").stderr


def test_table_is_shortened_for_a_terminal_but_not_for_a_pipe(home: Home) -> None:
    home.run("ask", "A question that is rather long, so that it does not fit", "-s", "x")
    assert "so that it does not fit" in home.run("sessions", "list").stdout
    with home.terminal("sessions", "list", columns=50) as person:
        assert person.wait_for_exit() == 0
    assert max(len(line) for line in person.text.splitlines()) <= 50
    assert "…" in person.text


def test_table_shows_control_characters(home: Home) -> None:
    home.run("ask", "Hello", "-s", "x")
    home.run("sessions", "rename", "x", "good\x1b[2K\u202elive")
    listed = home.run("sessions", "list").stdout
    assert "\x1b" not in listed and "\u202e" not in listed


def test_exported_session_escapes_control_characters(home: Home) -> None:
    text = "see \x9b31m \x7f \u202etxt"
    home.run("ask", text, "-s", "x")
    exported = home.run("sessions", "export", "x").stdout
    assert not {"\x9b", "\x7f", "\u202e"} & set(exported)
    assert text in [part["text"] for line in exported.splitlines() for part in json.loads(line).get("parts", ())]
