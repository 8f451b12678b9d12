"""Operations: status, backups, checks and the log of a gateway that is served from settings."""

import json
import logging
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway_client import connect_client, serve_gateway
from test_mcp_methods import fail, serve_workspace

from atlas_agents.core.paths import Secret
from atlas_agents.gateway.telemetry import MAX_MESSAGE


async def test_status_backup_and_log_of_a_gateway(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve_workspace(home) as client:
        status = await client.get("ops.status")
        storage = status["storage"]
        assert status["uptime"] > 0 and status["clients"] == 1 and status["python"].startswith("3.")
        assert storage["home"] == str(home) and storage["database"] == str(home / "atlas.db")
        assert storage["databaseSize"] > 0 and 0 < storage["diskFree"] <= storage["diskTotal"]
        assert "backups" not in storage

        made = (await client.get("ops.backup"))["backup"]
        check_backup(home, made)
        (backup,) = (await client.get("ops.status"))["storage"]["backups"]
        assert (backup["file"], backup["size"]) == (made["file"], made["size"])
        (row,) = (await client.get("audit.list"))["entries"]
        assert row["entry"]["message"] == f"owner created backup {made['file'].rpartition('/')[2]}"

        logging.getLogger("atlas_agents.test").warning("something\nhappened")
        (line,) = (await client.get("ops.logs", level="warning", limit=1))["lines"]
        assert (line["level"], line["source"], line["text"]) == ("warning", "test", "something\\u000ahappened")


async def test_backup_that_another_process_removes_does_not_break_the_status(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve_workspace(home) as client:
        made = (await client.get("ops.backup"))["backup"]
        (home / "backups" / "atlas-20260101-000000.db").symlink_to(tmp_path / "removed")
        (backup,) = (await client.get("ops.status"))["storage"]["backups"]
    assert backup["file"] == made["file"]


def check_backup(home: Path, backup: dict[str, Any]) -> None:
    """Check that a backup is a database that only its owner can read."""
    file = Path(backup["file"])
    assert file.parent == home / "backups" and "problem" not in backup and file.stat().st_size == backup["size"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with closing(sqlite3.connect(file)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_log_hides_secrets(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        gateway.atlas.keep_secret(Secret("hunter2-hunter2"))
        logging.getLogger("atlas_agents.test").warning("key hunter2-hunter2")
        (line,) = (await client.get("ops.logs", level="warning", limit=1))["lines"]
        assert "hunter2" not in line["text"] and line["text"].startswith("key ")


async def test_secret_at_the_end_of_a_long_log_line_is_hidden(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        gateway.atlas.keep_secret(Secret("hunter2-hunter2"))
        logging.getLogger("atlas_agents.test").warning("%shunter2-hunter2", "x" * (MAX_MESSAGE - 8))
        (line,) = (await client.get("ops.logs", level="warning", limit=1))["lines"]
        assert "hunter" not in line["text"] and len(line["text"]) == MAX_MESSAGE


async def test_token_with_its_own_sessions_sees_neither_log_nor_status(tmp_path: Path) -> None:
    """They are about the turns and budgets of all users."""
    token = "carl-0123456789abcdefghijklmnop"
    (tmp_path / "tokens.json").write_text(json.dumps({"carl": {"token": token, "scopes": ["read", "admin"]}}))
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway, token=token) as client:
        for method in ("ops.logs", "ops.status"):
            assert (await fail(client, method))["data"]["kind"] == "FORBIDDEN"


async def test_checks_are_those_of_the_command(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve_workspace(home) as client:
        checks = {each["what"]: each for each in (await client.get("ops.doctor"))["checks"]}
        assert checks["home"]["state"] == "ok" and str(home) in checks["home"]["words"]
        assert {"database", "models", "sandbox", "gateway"} <= set(checks)


async def test_gateway_of_a_program_has_no_installation_to_back_up(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        for method in ("ops.status", "ops.backup", "ops.doctor"):
            assert "embedded in a program" in (await fail(client, method))["message"]
