"""`atlas doctor` on installations with one problem each."""

import json
import os
import socket
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from atlas_command import Home, create_home, install_plugin

from model_server import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def diagnose(home: Home, **env: str) -> tuple[int, list[dict[str, Any]]]:
    done = home.run("doctor", "--json", **env)
    found = json.loads(done.stdout)
    assert found["healthy"] is (done.returncode == 0)
    assert "Traceback" not in done.stderr
    return done.returncode, found["findings"]


def test_healthy_installation_has_no_problems(home: Home) -> None:
    assert home.run("ask", "Hello").returncode == 0
    code, findings = diagnose(home)
    assert (code, [each for each in findings if each["state"] != "ok"]) == (0, [])
    assert {each["what"] for each in findings} >= {
        "python", "clock", "settings", "home", "disk", "token", "workspace", "policy", "keys", "models", "plugins",
        "sandbox", "database", "gateway",
    }  # fmt: skip
    assert {"what": "sandbox", "state": "ok", "words": "bubblewrap: works"} in findings
    shown = home.run("doctor")
    assert shown.returncode == 0
    assert shown.stdout.endswith("0 problems, 0 notices.\n")
    assert "\x1b" not in shown.stdout


def test_new_installation_has_notices_only(bare: Home) -> None:
    code, findings = diagnose(bare)
    assert code == 0
    assert {each["what"] for each in findings if each["state"] == "notice"} >= {"home", "token", "workspace"}
    assert not bare.path.exists(), "the doctor changes nothing"


def test_running_gateway_is_found(home: Home) -> None:
    with home.gateway() as gateway:
        code, findings = diagnose(home)
        (found,) = [each for each in findings if each["what"] == "gateway"]
        assert (code, found["state"]) == (0, "ok")
        assert f"running at {gateway.url}" in found["words"]


def _open_home(home: Home) -> None:
    home.path.chmod(0o755)


def _home_is_a_file(home: Home) -> None:
    home.env["ATLAS_HOME"] = str(home.folder / "policy.toml")
    home.env["ATLAS_WORKSPACE"] = str(home.path / "workspace")


def _open_token(home: Home) -> None:
    (home.path / "token").write_text("x" * 8 + "abcdefghijklmnopqrstuvwxyz0123456789\n")
    (home.path / "token").chmod(0o644)


def _blank_token(home: Home) -> None:
    (home.path / "token").write_text(" \n")
    (home.path / "token").chmod(0o600)


def _broken_tokens(home: Home) -> None:
    (home.path / "token").write_text("abcdefghijklmnopqrstuvwxyz0123456789ABCDEF\n")
    (home.path / "token").chmod(0o600)
    (home.path / "tokens.json").write_text("{not json")
    (home.path / "tokens.json").chmod(0o600)


def _weak_and_exposed(home: Home) -> None:
    home.env |= {"ATLAS_TOKEN": "secret", "ATLAS_HOST": "0.0.0.0"}


def _bad_setting(home: Home) -> None:
    (home.folder / "atlas.toml").write_text("prot = 1\n")


def _bad_agents(home: Home) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## a\nModel: nonsense\n")


def _unknown_tool(home: Home) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## a\nModel: http/x\nTools: hammer\n")


def _hidden(home: Home) -> None:
    (home.path / "workspace" / "SOUL.md").write_text("Be kind.\u200b\u202e\n")


def _bad_policy(home: Home) -> None:
    (home.folder / "policy.toml").write_text("[tools.x]\nyes = 'everyone'\n")


def _unknown_provider(home: Home) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## a\nModel: acme/x\n")


def _damaged_database(home: Home) -> None:
    (home.path / "atlas.db").write_bytes(b"SQLite format 3\0" + os.urandom(8192))


def _foreign_database(home: Home) -> None:
    with sqlite3.connect(home.path / "atlas.db") as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()


def _newer_database(home: Home) -> None:
    with sqlite3.connect(home.path / "atlas.db") as database:
        database.execute("PRAGMA application_id = 0x41544C53")
        database.execute("PRAGMA user_version = 900")
        database.execute("CREATE TABLE x (x)")
    database.close()


def _folder_for_database(home: Home) -> None:
    (home.path / "atlas.db").mkdir()


def _no_postgres(home: Home) -> None:
    home.env["ATLAS_DATABASE_URL"] = "postgresql://ana:hush@127.0.0.1:1/atlas"


def _no_redis(home: Home) -> None:
    home.env["ATLAS_REDIS_URL"] = "redis://:hush@127.0.0.1:1/0"


def _bad_plugin(home: Home) -> None:
    install_plugin(home.folder / "more", "raise RuntimeError('the plugin is ill')")
    home.env["PYTHONPATH"] = f"{home.folder / 'more'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


def _larger_model(home: Home) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## a\nModel: local/qwen2.5-coder-1.5b\n")


@pytest.mark.parametrize(
    ("damage", "what", "message", "remedy"),
    [
        (_open_home, "home", "is accessible to other users (mode 755)", "run: chmod 700"),
        (_home_is_a_file, "home", "is not a folder", "set ATLAS_HOME to a folder"),
        (_open_token, "token", "is readable by other users (mode 644)", "run: chmod 600"),
        (_blank_token, "token", "is empty", "run: atlas token rotate"),
        (_broken_tokens, "token", "tokens.json", "fix the file"),
        (_weak_and_exposed, "token", "too weak to listen on 0.0.0.0", "22 random characters"),
        (_bad_setting, "settings", "unknown setting 'prot'; did you mean port?", "fix this first"),
        (_bad_agents, "workspace", "AGENTS.md:2: Model: invalid model reference 'nonsense'", "fix this line"),
        (_unknown_tool, "workspace", "unknown tool 'hammer'", "fix this line"),
        (_hidden, "workspace", "SOUL.md:1:9: hidden character U+200B ZERO WIDTH SPACE and 1 more", "remove it from"),
        (_bad_policy, "policy", "tools.x", "fix it"),
        (_unknown_provider, "models", "unknown provider 'acme'", "fix it"),
        (_damaged_database, "database", "damaged or not a database", "restore a backup"),
        (_foreign_database, "database", "belongs to another program", "set ATLAS_DATABASE_URL to another file"),
        (_newer_database, "database", "was written by a newer version (schema 900", "install the newer version"),
        (_folder_for_database, "database", "is not a file", "set ATLAS_DATABASE_URL"),
        (_no_postgres, "database", "postgresql://ana:…@127.0.0.1:1/atlas", "check that it is running"),
        (_no_redis, "redis", "no connection to redis://:…@127.0.0.1:1/0", "check that it is running"),
        (_bad_plugin, "plugins", "demo (tools) is disabled: RuntimeError: the plugin is ill", "fix or uninstall"),
        (_larger_model, "local model", "qwen2.5-coder-1.5b is not installed, 1117 MB", "run: atlas models pull qwen"),
    ],
)
def test_problem_is_found_with_its_remedy(
    home: Home, damage: Callable[[Home], None], what: str, message: str, remedy: str
) -> None:
    damage(home)
    code, findings = diagnose(home)
    broken = [each for each in findings if each["state"] == "broken"]
    assert code == 1
    assert {each["what"] for each in broken} == {what}
    assert any(message in each["words"] and remedy in each.get("remedy", "") for each in broken), broken
    assert "hush" not in json.dumps(findings)


def test_port_in_use_is_found(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, findings = diagnose(home, ATLAS_PORT=str(taken.getsockname()[1]))
    (found,) = [each for each in findings if each["what"] == "gateway"]
    assert (code, found["state"]) == (1, "broken")
    assert "Address already in use" in found["words"] and "atlas serve --port 0" in found["remedy"]


def test_hanging_gateway_is_found(home: Home) -> None:
    with home.gateway() as gateway:
        assert gateway.process is not None
        gateway.process.send_signal(19)
        try:
            code, findings = diagnose(home)
        finally:
            gateway.process.send_signal(18)
    (found,) = [each for each in findings if each["what"] == "gateway"]
    assert (code, found["state"]) == (1, "broken")
    assert f"process {gateway.process.pid}" in found["words"]


def test_keys_are_checked_but_not_shown(tmp_path: Path, server: ModelServer) -> None:
    home = create_home(tmp_path, server, agents="## a\nModel: openai/gpt-5.2\n")
    key = "sk-this-must-not-be-seen"
    (home.path / "secrets.json").write_text(json.dumps({"providers": {"google": {"key": key}}}))
    code, findings = diagnose(home, OPENAI_API_KEY=key, ANTHROPIC_API_KEY=key)
    assert code == 0
    (keys,) = [each for each in findings if each["what"] == "keys"]
    assert "ANTHROPIC_API_KEY is set, OPENAI_API_KEY is set, stored in the secret file: google" in keys["words"]
    assert key not in json.dumps(findings)


def test_password_of_a_base_url_is_not_shown(home: Home) -> None:
    _, findings = diagnose(home, OPENAI_BASE_URL="http://ana:hush@127.0.0.1:1/v1")
    (keys,) = [each for each in findings if each["what"] == "keys"]
    assert keys["words"] == "OPENAI_BASE_URL is http://ana:[REDACTED]@127.0.0.1:1/v1"
    assert "hush" not in json.dumps(findings)


def test_stored_secret_of_an_mcp_server_is_found(home: Home) -> None:
    with home.gateway():
        assert home.run("mcp", "add", "t4", "--env", "A=b", "--", "python3", "srv.py").returncode == 0
        _, findings = diagnose(home)
    assert "MCP_T4_" in (home.path / "secrets.json").read_text()
    assert [each["state"] for each in findings if each["what"] == "mcp"] == ["notice"], findings


def test_read_only_home_is_found(home: Home) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    home.path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    code, findings = diagnose(home)
    assert code == 1
    assert any(each["what"] == "home" and each["state"] == "broken" for each in findings)
