"""Set-up of models through the gateway: keys, servers on this machine, the chosen model and downloads."""

import asyncio
import hashlib
import json
import logging
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import websockets
from aiohttp import web

from atlas_agents.app.app import open_scratch_runtime
from atlas_agents.app.serve import ServedGateway, private_gateway
from atlas_agents.config.load import load
from atlas_agents.core.paths import SECRETS_FILE, Environment
from atlas_agents.local.models import CATALOG, LocalModel, Url
from checks import TIMEOUT, linux_only
from model_server import ModelServer, Reply, run_model_server

KEY = "sk-test-0123456789abcdef4f2a"
DATA = b"GGUF" + bytes(range(256)) * 8000
BIG = "qwen2.5-coder-1.5b"


@pytest.fixture(autouse=True)
def no_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")


@pytest.fixture
def vendor() -> Generator[ModelServer]:
    with run_model_server(lambda request: Reply(f"{request.model} answers")) as server:
        server.key = KEY
        yield server


class SetupClient:
    """A client of the gateway; events that arrive between responses are kept."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.events: list[dict[str, Any]] = []

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        await self._socket.send(json.dumps({"id": 1, "method": method, "params": params}))
        while "id" not in (frame := json.loads(await self._socket.recv())):
            self.events.append(frame)
        return frame

    async def call(self, method: str, **params: Any) -> Any:
        frame = await self.request(method, **params)
        assert "result" in frame, frame
        return frame["result"]

    async def error(self, method: str, **params: Any) -> str:
        return (await self.request(method, **params))["error"]["message"]

    async def progress(self, state: str) -> dict[str, Any]:
        """Wait for the progress of a model in this state."""
        while True:
            for event in self.events:
                if event["event"] == "model.progress" and event["data"]["state"] == state:
                    self.events.clear()
                    return event["data"]
            self.events.append(json.loads(await self._socket.recv()))

    async def ask(self, text: str) -> str:
        sent = await self.call("chat.send", sessionKey="s", message=text)
        return json.dumps(await self.call("chat.wait", runId=sent["runId"], timeoutMs=120_000))


@asynccontextmanager
async def serve(home: Path, **variables: str) -> AsyncGenerator[tuple[ServedGateway, SetupClient], None]:
    """Serve a home folder. The ports at which model servers are looked for are closed unless a variable opens one."""
    servers = {f"{name}_BASE_URL": "http://127.0.0.1:9/v1" for name in ("OLLAMA", "LMSTUDIO", "VLLM", "LLAMACPP")}
    values = {"ATLAS_HOME": str(home), "HOME": str(home), **servers, **variables}
    environment = Environment(values, dotenv=None)
    settings = load({}, environment, home.parent)
    async with (
        asyncio.timeout(TIMEOUT),
        private_gateway(settings, environment=environment) as gateway,
        connect(gateway) as client,
    ):
        yield gateway, client


@asynccontextmanager
async def connect(gateway: ServedGateway) -> AsyncGenerator[SetupClient, None]:
    async with websockets.connect(gateway.url.replace("http", "ws")) as socket:
        await socket.send(json.dumps({"type": "auth", "token": gateway.token.reveal(), "protocol": 1}))
        await socket.recv()
        yield SetupClient(socket)


async def test_key_is_tested_before_it_is_stored(tmp_path: Path, vendor: ModelServer) -> None:
    variables = {"ANTHROPIC_BASE_URL": vendor.url, "GROQ_API_KEY": KEY}  # neither chooses a model
    async with serve(tmp_path / "home", **variables) as (gateway, client):
        hint = "Found GROQ_API_KEY. Choose a model in the web UI, or run: atlas init"
        assert gateway.runtime.setup.hint == hint
        status = await client.call("setup.status")
        assert status["done"] is False
        assert status["current"]["agentId"] == "assistant"
        assert status["current"]["model"] in ("local/smollm2-135m", "demo")  # the demo once the download has failed
        wrong = await client.call("providers.test", provider="http", key="sk-wrong", baseUrl=vendor.url)
        rejected = "OpenAI-compatible server rejected this key (401). Check that you copied all of it."
        assert wrong == {"ok": False, "error": rejected}
        gone = await client.call("providers.test", provider="http", key=KEY, baseUrl="http://127.0.0.1:9/v1")
        assert gone == {"ok": False, "error": "Couldn't reach 127.0.0.1:9."}
        tested = await client.call("providers.test", provider="http", key=f" {KEY}\n", baseUrl=vendor.url)
        assert tested == {"ok": True, "models": ["rules-1", "rules-2"]}
    assert not (tmp_path / "home" / SECRETS_FILE).exists()


async def test_secrets_of_variables_and_stored_files_are_redacted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "mcp").mkdir(parents=True)
    secrets = {"providers": {"groq": {"key": "first-1-key"}}, "telegram": {"token": "second-2-key"}}
    server = {"MCP_SHOP_TOKEN": "third-3-key", "MCP_SHOP_REGION": "eu-west-3"}
    (home / SECRETS_FILE).write_text(json.dumps({**secrets, "mcp": server}))
    (home / "x.json").write_text(json.dumps({"access_token": "fourth-4-key", "refresh_token": "fifth-5-key"}))
    login = home / "mcp" / "login-shop.json"
    login.write_text(json.dumps({"tokens": {"access_token": "sixth-6-key"}, "client": {"client_secret": "7th-7-key"}}))
    (tmp_path / ".env").write_text("SHOP_PASSWORD=eighth-8-key\n")
    (tmp_path / "database").write_text("postgresql://ana:ninth%2F9-key@db.example.org/atlas\n")
    values = {"ATLAS_HOME": str(home), "HOME": str(home), "ATLAS_DATABASE_URL_FILE": str(tmp_path / "database")}
    environment = Environment(values, dotenv=tmp_path / ".env")
    settings = load({}, environment, tmp_path)
    async with open_scratch_runtime(settings, environment) as runtime:
        stored = [
            "first-1",
            "second-2",
            "third-3",
            "fourth-4",
            "fifth-5",
            "sixth-6",
            "7th-7",
            "eighth-8",
            "ninth/9",
            "ninth%2F9",
        ]
        shown = {name: runtime.atlas.hide(f"It is {name}-key.") for name in stored}
        assert shown == dict.fromkeys(stored, "It is [REDACTED].")
        assert runtime.atlas.hide("It is in eu-west-3.") == "It is in eu-west-3."
        login.write_text(json.dumps({"tokens": {"access_token": "renewed-10-key", "refresh_token": None}}))
        (home / SECRETS_FILE).write_text(json.dumps({"mcp": {"MCP_SHOP_TOKEN": "other-11-key"}}))
        runtime.setup.refresh()
        assert runtime.atlas.hide("renewed-10-key, other-11-key") == "[REDACTED], [REDACTED]"


@linux_only
async def test_stored_key_is_used_without_a_restart_and_never_shown(
    tmp_path: Path, vendor: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    caplog.set_level(logging.DEBUG, "atlas_agents")
    async with serve(home) as (_, client):
        put = await client.call("secrets.put", provider="http", key=KEY, baseUrl=vendor.url)
        assert put["provider"].items() >= {"state": "connected", "source": "stored", "lastFour": "4f2a"}.items()
        assert oct((home / SECRETS_FILE).stat().st_mode & 0o777) == "0o600"
        selected = await client.call("models.select", model="http/rules-2", effort="low")
        assert selected == {"model": "http/rules-2", "title": "http/rules-2", "effort": "low", "agents": ["assistant"]}
        assert "rules-2 answers" in await client.ask("Hello")
        assert (await client.call("setup.status"))["done"] is True
        (agent,) = (await client.call("agents.list"))["agents"]
        assert (agent["model"], agent.get("notice", "")) == ("http/rules-2", "")
        audit = await client.call("audit.list")
        changed = [(row["entry"]["entityType"], row["entry"]["entityId"]) for row in audit["entries"]]
        assert changed == [("model", "default"), ("secret", "http")]
        providers = await client.call("providers.list")
        for shown in (audit, providers, await client.call("config.get"), await client.call("setup.status")):
            assert KEY not in json.dumps(shown)
    assert KEY not in "".join(each.getMessage() for each in caplog.records if each.name.startswith("atlas_agents"))


async def test_stored_key_and_choice_survive_a_restart_until_they_are_removed(
    tmp_path: Path, vendor: ModelServer
) -> None:
    home = tmp_path / "home"
    async with serve(home) as (_, client):
        await client.call("secrets.put", provider="http", key=KEY, baseUrl=vendor.url)
        await client.call("models.select", model="http/rules-2")
    async with serve(home) as (_, client):
        assert "rules-2 answers" in await client.ask("Hello again")
        await client.call("secrets.remove", provider="http")
        (agent,) = (await client.call("agents.list"))["agents"]
        assert agent["notice"] == "Using SmolLM2 135M: no OPENAI_BASE_URL."
        assert await client.error("secrets.remove", provider="http") == (
            "no key is stored for OpenAI-compatible server"
        )


async def test_replaced_key_keeps_the_address_unless_one_is_given(tmp_path: Path, vendor: ModelServer) -> None:
    async with serve(tmp_path / "home") as (_, client):
        await client.call("secrets.put", provider="openai", key="sk-old", baseUrl=vendor.url)
        assert (await client.call("providers.test", provider="openai", key=KEY))["ok"] is True
        replaced = await client.call("secrets.put", provider="openai", key=KEY)
        assert replaced["provider"]["baseUrl"] == vendor.url
        await client.call("models.select", model="openai/rules-1")
        assert "rules-1 answers" in await client.ask("Hello")
        removed = await client.call("secrets.put", provider="openai", key=KEY, baseUrl="")
        assert "baseUrl" not in removed["provider"]


async def test_keys_that_are_stored_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    providers = {"openai", "anthropic", "google"}

    async def store(gateway: ServedGateway, provider: str) -> None:
        async with connect(gateway) as client:
            await client.call("secrets.put", provider=provider, key=KEY)

    async with serve(tmp_path / "home") as (gateway, client):
        await asyncio.gather(*[store(gateway, each) for each in providers])
        listed = (await client.call("providers.list"))["providers"]
        assert {each["id"] for each in listed if each.get("source") == "stored"} == providers


async def test_key_in_the_environment_is_offered_and_cannot_be_replaced(tmp_path: Path, vendor: ModelServer) -> None:
    variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": vendor.url, "ATLAS_MODEL": "demo"}
    async with serve(tmp_path / "home", **variables) as (_, client):
        found = (await client.call("setup.status"))["found"]
        assert {"kind": "key", "provider": "openai", "label": "OpenAI", "source": "OPENAI_API_KEY"} in found
        assert await client.error("secrets.put", provider="openai", key="sk-other") == (
            "OPENAI_API_KEY sets the key of OpenAI; change it there"
        )
        assert (await client.call("providers.test", provider="openai"))["ok"] is True
        await client.call("models.select", model="openai/rules-1")
        assert "rules-1 answers" in await client.ask("Hello")
    async with serve(tmp_path / "home", **variables) as (_, client):  # the choice replaced this very ATLAS_MODEL
        assert (await client.call("setup.status"))["current"]["model"] == "openai/rules-1"
    async with serve(tmp_path / "home", **variables | {"ATLAS_MODEL": "openai/rules-2"}) as (_, client):
        assert (await client.call("setup.status"))["current"]["model"] == "openai/rules-2"


async def test_model_servers_are_found_on_this_machine_only(tmp_path: Path, vendor: ModelServer) -> None:
    vendor.key = ""
    elsewhere = "http://models.example.org/v1"
    async with serve(tmp_path / "home", OLLAMA_BASE_URL=vendor.url, VLLM_BASE_URL=elsewhere) as (_, client):
        (found,) = (await client.call("setup.status"))["found"]
        assert found["label"] == "Ollama"
        assert found["models"] == ["rules-1", "rules-2"]
        states = {each["id"]: each["state"] for each in (await client.call("providers.list"))["providers"]}
        assert (states["ollama"], states["vllm"], states["anthropic"]) == ("connected", "not_reachable", "needs_key")
        await client.call("models.select", model="ollama/rules-1")
        assert "rules-1 answers" in await client.ask("Hello")


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("secrets.put", {"provider": "acme", "key": KEY}, "unknown provider 'acme': expected one of anthropic, openai"),
    ("secrets.put", {"provider": "openai"}, "key: expected an API key, got a blank one"),
    ("secrets.put", {"provider": "openai", "key": "sk a"}, "key: contains a character that no API key has"),
    ("secrets.put", {"provider": "http", "key": KEY}, "baseUrl: expected the address of the server"),
    ("secrets.put", {"provider": "http", "baseUrl": "ftp://x"}, "baseUrl: invalid address 'ftp://x'"),
    ("models.select", {"model": "gpt"}, "invalid model reference 'gpt'"),
    ("models.select", {"model": "openai/gpt-5.2"}, "OpenAI API key missing"),
    ("models.select", {"model": f"local/{BIG}"}, "Qwen2.5 Coder 1.5B is not downloaded yet"),
    ("models.offer", {"models": ["gpt"]}, "invalid model reference 'gpt'"),
    ("models.offer", {"models": ["openai/gpt-5.2"]}, "OpenAI API key missing"),
    ("models.download", {"id": "llama"}, "unknown local model 'llama'"),
]


async def test_mistakes_change_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path / "home") as (_, client):
        for method, params, message in MISTAKES:
            assert message in await client.error(method, **params), (method, params)
    assert not (tmp_path / "home" / SECRETS_FILE).exists()
    assert not (tmp_path / "home" / "model.json").exists()


async def test_offered_models_can_be_chosen_in_chats(tmp_path: Path, vendor: ModelServer) -> None:
    home = tmp_path / "home"

    async def choices(client: SetupClient) -> set[str]:
        return {each["id"] for each in (await client.call("models.list"))["models"]}

    async with serve(home) as (_, client):
        await client.call("secrets.put", provider="http", key=KEY, baseUrl=vendor.url)
        await client.call("models.select", model="http/rules-2")
        assert "http/rules-1" not in await choices(client)
        preview = await client.call("models.offer", models=["http/rules-1"], dryRun=True)
        assert "+http/rules-1" in preview["diff"] and "http/rules-1" not in await choices(client)
        assert (await client.call("models.offer", models=["http/rules-1"]))["models"] == ["http/rules-1"]
        assert {"http/rules-1", "http/rules-2"} <= await choices(client)
        await client.call("models.select", model="http/rules-2", effort="low")
    async with serve(home) as (_, client):
        listed = {each["id"]: each for each in (await client.call("models.list"))["models"]}
        assert listed["http/rules-1"]["available"], "offered after a restart and another selection"
        (server,) = [each for each in (await client.call("providers.list"))["providers"] if each["id"] == "http"]
        assert server["offered"] == ["rules-1"]
        assert (await client.call("models.offer", models=["http/rules-1"], offered=False))["models"] == []
        assert "http/rules-1" not in await choices(client)
        kinds = [
            (row["entry"]["entityType"], row["entry"]["entityId"])
            for row in (await client.call("audit.list"))["entries"]
        ]
        assert kinds.count(("model", "offered")) == 2


async def test_model_of_one_agent_is_written_to_agents_md(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve(home) as (_, client):
        await client.call("models.select", agentId="assistant", model="demo", effort="high")
        assert (await client.call("agents.list"))["agents"][0]["model"] == "demo"
        written = (home / "workspace" / "AGENTS.md").read_text()
        assert "Model: demo\n" in written and "Effort: high\n" in written
        assert "unknown agent 'zoe'" in await client.error("models.select", agentId="zoe", model="demo")


class PausedFileServer:
    """Serves one file. The first request gets a part of it, and the rest waits until the client is gone."""

    def __init__(self) -> None:
        self.ranges: list[str | None] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        headers = {"Content-Length": str(len(DATA) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        await response.write(DATA[start:] if start else DATA[: len(DATA) // 2])
        if not start:
            await asyncio.Event().wait()
        return response


@pytest.fixture
async def files(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[PausedFileServer, None]:
    server, app = PausedFileServer(), web.Application()
    app.router.add_get("/model", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model = LocalModel(
        BIG, "Big Instruct", "better", "MIT", len(DATA), hashlib.sha256(DATA).hexdigest(), (Url(f"{site.name}/model"),)
    )
    monkeypatch.setitem(CATALOG, BIG, model)
    yield server
    await runner.cleanup()


async def test_download_is_paused_resumed_and_used(tmp_path: Path, files: PausedFileServer) -> None:
    home = tmp_path / "home"
    async with serve(home) as (_, client):
        started = (await client.call("models.download", id=BIG, use=True))["model"]
        assert started["state"] == "downloading"
        while (await client.progress("downloading"))["done"] == 0:
            pass
        paused = (await client.call("models.pause", id=BIG))["model"]
        assert paused["state"] == "paused"
        assert 0 < paused["done"] <= len(DATA) // 2
        assert (await client.progress("paused"))["done"] == paused["done"]
    async with serve(home) as (_, client):  # also after a restart
        (_, shape) = (await client.call("setup.status"))["local"]
        assert (shape["state"], shape["done"]) == ("paused", paused["done"])
        await client.call("models.download", id=BIG, use=True)
        assert (await client.progress("ready"))["id"] == BIG
        assert files.ranges == [None, f"bytes={paused['done']}-"]
        assert (await client.call("setup.status"))["current"]["model"] == f"local/{BIG}"


async def test_download_that_does_not_fit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(tmp_path / "home") as (_, client):
        usage = shutil.disk_usage(tmp_path)._replace(free=600_000_000)

        def almost_full(path: Path) -> Any:
            return usage

        monkeypatch.setattr(shutil, "disk_usage", almost_full)
        message = await client.error("models.download", id=BIG)
    assert message == "Not enough disk space: 1.2 GB needed, 0.6 GB free."


async def test_change_of_another_process_is_applied(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve(home) as (gateway, client):
        (home / "model.json").write_text('{"model": "demo"}')
        async with asyncio.timeout(TIMEOUT):
            while gateway.runtime.atlas.agents[0].models != ("demo",):
                await client.call("health.check")
