"""Live figures of a gateway, and alerts to a webhook and to Telegram."""

import asyncio
import json
import tomllib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gateway_client import Client, connect_client, serve_gateway
from test_mcp_methods import serve_workspace

from atlas_agents import Agent, Atlas, ProviderError, RetryPolicy
from atlas_agents.app.serve import private_gateway
from atlas_agents.builtin_tools.telegram_api import BotAccount
from atlas_agents.builtin_tools.web.download import download
from atlas_agents.builtin_tools.web.ssrf import Hosts
from atlas_agents.config.load import load
from atlas_agents.core.alert_rules import parse_alert_rules
from atlas_agents.core.errors import ConfigError, ToolFailed
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.core.store import PutRecord, Store
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.monitor import AlertOptions, AlertSender, Monitor, TelegramSender, WebhookSender
from atlas_agents.gateway.protocol.admin import StorageStatus
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.providers.failover import RecentValues
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, fails, says
from bot_double import TOKEN, bot_double
from checks import wait_until

SECRET = "T0K3N-T0K3N-T0K3N"
BROKEN = fails(ProviderError("the server failed", "server"))


class Webhook:
    """A webhook on loopback that rejects the first requests if asked to."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.rejects = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{SECRET}"

    async def receive(self, request: web.Request) -> web.Response:
        if self.rejects:
            self.rejects -= 1
            return web.Response(status=500)
        self.received.append(json.loads(await request.text()))
        return web.Response()

    async def redirect(self, request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(self.url)

    def sender(self) -> WebhookSender:
        return WebhookSender(Secret(self.url))


@pytest.fixture
async def webhook() -> AsyncGenerator[Webhook]:
    found, app = Webhook(), web.Application()
    app.router.add_post(f"/{SECRET}", found.receive)
    app.router.add_post(f"/moved/{SECRET}", found.redirect)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.port = runner.addresses[0][1]
    yield found
    await runner.cleanup()


@asynccontextmanager
async def alerting_gateway(
    home: Path, replies: Sequence[Reply], rule: str, senders: Mapping[str, AlertSender], store: Store | None = None
) -> AsyncGenerator[tuple[Gateway, Client]]:
    agent = Agent("assistant", model=Scripted(*replies), retry=RetryPolicy(retries=0))
    atlas = Atlas([agent], store=store or MemoryStore())
    services = GatewayServices(alerts=AlertOptions(parse_alert_rules([rule]), senders))
    async with serve_gateway(home, atlas, services=services) as gateway, connect_client(gateway) as client:
        yield gateway, client


async def ask(client: Client, text: str) -> None:
    await client.get("sessions.subscribe", sessionKey="main")
    await client.get("chat.send", sessionKey="main", message=text)
    await client.until("chat.final", "chat.error")


async def test_status_shows_turns_models_and_latencies(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path / "home") as client:
        live = (await client.get("ops.status"))["live"]
        assert live["queue"]["open"] == live["queue"]["running"] == 0
        await ask(client, "Add 2 and 40")
        live = (await client.get("ops.status"))["live"]
        assert live["ended"] == {"done": 1, "failed": 0, "cancelled": 0}
        assert live["firstOutput"]["count"] == live["duration"]["count"] == 1
        assert 0 < live["firstOutput"]["p50"] <= live["duration"]["p95"]
        (model,) = live["models"]
        assert model["requests"] >= 1 and model["failures"] == 0 and model["firstChunk"]["p50"] >= 0
        (member,) = live["members"]
        assert member["role"] == "alone" and member["uptime"] > 0


async def test_failed_turns_and_models_are_counted(tmp_path: Path) -> None:
    async with alerting_gateway(tmp_path, [BROKEN, says("Hi.")], "error_rate > 99%", {}) as (gateway, client):
        await ask(client, "One")
        await ask(client, "Two")
        live = await gateway.hub.monitor.live()
    assert (live.ended.done, live.ended.failed) == (1, 1)
    (model,) = live.models
    assert (model.requests, model.failures, model.last_error) == (2, 1, "server")


async def test_alert_is_sent_once_and_resolved_once(tmp_path: Path, webhook: Webhook) -> None:
    rule = "error_rate > 60% for 0s to webhook"
    senders = {"webhook": webhook.sender()}
    replies = [BROKEN, says("Hi."), says("Hi.")]
    async with alerting_gateway(tmp_path, replies, rule, senders) as (gateway, client):
        monitor = gateway.hub.monitor
        await monitor.check()
        assert [each.state for each in (await monitor.live()).alerts] == ["ok"]
        await ask(client, "One")
        for _ in range(3):
            await monitor.check()
        await wait_until(lambda: webhook.received)
        assert [each.state for each in (await monitor.live()).alerts] == ["firing"]
        await ask(client, "Two")
        for _ in range(3):
            await monitor.check()
        await wait_until(lambda: len(webhook.received) == 2)
        (shape,) = (await monitor.live()).alerts
    assert [each["status"] for each in webhook.received] == ["firing", "resolved"]
    assert webhook.received[0]["text"] == f"[firing] {rule}: error_rate is 1"
    assert webhook.received[0]["threshold"] == 0.6 and webhook.received[1]["value"] == 0.5
    assert shape.state == "ok" and shape.sent_at and not shape.error


async def test_restarted_gateway_does_not_repeat_an_alert(tmp_path: Path, webhook: Webhook) -> None:
    store, rule, senders = MemoryStore(), "error_rate > 60% for 0s", {"webhook": webhook.sender()}
    for number in (1, 2):
        async with alerting_gateway(tmp_path, [BROKEN], rule, senders, store) as (gateway, client):
            await ask(client, f"Message {number}")
            await gateway.hub.monitor.check()
            await wait_until(lambda: webhook.received)
            assert [each.state for each in (await gateway.hub.monitor.live()).alerts] == ["firing"]
    assert len(webhook.received) == 1


async def test_rejected_alert_is_sent_again(tmp_path: Path, webhook: Webhook) -> None:
    webhook.rejects = 1
    async with alerting_gateway(tmp_path, [BROKEN], "error_rate > 60% for 0s", {"webhook": webhook.sender()}) as (
        gateway,
        client,
    ):
        await ask(client, "One")
        await gateway.hub.monitor.check()
        await wait_until(lambda: webhook.received)
    assert len(webhook.received) == 1


async def test_alert_that_no_attempt_could_send_is_sent_when_the_target_is_back(
    tmp_path: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.gateway.monitor._ATTEMPTS", 1)
    monkeypatch.setattr("atlas_agents.gateway.monitor._CONFIRM_INTERVAL", 0.0)
    webhook.rejects = 3
    rule, senders = "error_rate > 60% for 0s", {"webhook": webhook.sender()}
    async with alerting_gateway(tmp_path, [BROKEN, says("Hi.")], rule, senders) as (gateway, client):

        async def check() -> int:
            await gateway.hub.monitor.check()
            return len(webhook.received)

        await ask(client, "One")
        await wait_until(check)
        assert [each["status"] for each in webhook.received] == ["firing"]
        webhook.rejects = 3
        await ask(client, "Two")
        await wait_until(check)

        async def is_resolved() -> bool:
            return await check() == 2

        await wait_until(is_resolved)
    assert [each["status"] for each in webhook.received] == ["firing", "resolved"]


async def test_alert_of_a_gateway_that_stopped_before_it_could_send_is_sent_by_the_next(
    tmp_path: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, rule, senders = MemoryStore(), "error_rate > 60% for 0s", {"webhook": webhook.sender()}
    webhook.rejects = 1000
    async with alerting_gateway(tmp_path, [BROKEN], rule, senders, store) as (gateway, client):
        await ask(client, "One")
        await gateway.hub.monitor.check()
        await wait_until(lambda: webhook.rejects < 1000)
    webhook.rejects = 0
    async with alerting_gateway(tmp_path, [BROKEN], rule, senders, store) as (gateway, client):
        await ask(client, "Two")
        monkeypatch.setattr("atlas_agents.gateway.monitor._STALE", 0.0)
        await gateway.hub.monitor.check()
        await wait_until(lambda: webhook.received)
        await gateway.hub.monitor.check()
    assert [each["status"] for each in webhook.received] == ["firing"]


async def test_target_that_does_not_answer_does_not_delay_the_others(tmp_path: Path, webhook: Webhook) -> None:
    async def hang(text: str, fields: Mapping[str, Any]) -> None:
        await asyncio.Event().wait()

    senders = {"telegram": hang, "webhook": webhook.sender()}
    async with alerting_gateway(tmp_path, [BROKEN], "error_rate > 60% for 0s", senders) as (gateway, client):
        await ask(client, "One")
        await gateway.hub.monitor.check()
        await wait_until(lambda: webhook.received)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:{port}/moved/{secret}", "webhook: 127.0.0.1 answered HTTP 307"),
        ("http://127.0.0.1:{port}/?token={secret}", "webhook: 127.0.0.1 answered HTTP 404"),
        ("http://127.0.0.1:1/{secret}", "webhook: cannot connect to 127.0.0.1"),
        ("http://:{port}/{secret}", "webhook: invalid URL"),
        ("http://user:{secret}@127.0.0.1:{port}/", "webhook: the URL contains a user name or password"),
    ],
)
async def test_alert_that_cannot_be_sent_is_shown_without_its_secret(
    url: str,
    problem: str,
    tmp_path: Path,
    webhook: Webhook,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("atlas_agents.gateway.monitor._ATTEMPTS", 1)
    caplog.set_level("DEBUG")
    senders = {"webhook": WebhookSender(Secret(url.format(port=webhook.port, secret=SECRET)))}
    async with alerting_gateway(tmp_path, [BROKEN], "error_rate > 60% for 0s", senders) as (gateway, client):
        await ask(client, "One")
        await gateway.hub.monitor.check()

        async def error() -> str:
            return (await gateway.hub.monitor.live()).alerts[0].error

        found = await wait_until(error)
        shown = str([await gateway.hub.monitor.live(), gateway.hub.log.latest(1000, 0)])
    assert found.startswith(problem) and found in shown
    assert not webhook.received, "a redirect was followed"
    assert SECRET not in shown and SECRET not in caplog.text


async def test_webhook_in_a_private_network_is_not_open_to_tools(webhook: Webhook) -> None:
    await webhook.sender()("One", {"text": "One"})
    assert webhook.received == [{"text": "One"}]
    with pytest.raises(ToolFailed, match="not on the public internet"):
        await download(webhook.url, hosts=Hosts(), check_type=lambda url, media_type: None)


class UnreadableStorage:
    """An installation whose storage cannot be read the first time, and later once it is repaired."""

    def __init__(self) -> None:
        self.reads = 0
        self.repaired = asyncio.Event()

    async def storage(self) -> StorageStatus:
        self.reads += 1
        if self.reads == 1:
            raise FileNotFoundError("atlas-20261117-120000.db")
        await self.repaired.wait()
        return StorageStatus("home", "atlas.db", 1, disk_free=1, disk_total=100)

    async def cluster(self) -> None:
        return None


async def test_error_of_one_check_is_shown_and_does_not_end_the_alerts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("atlas_agents.gateway.monitor.CHECK_INTERVAL", 0.01)
    sent: list[str] = []

    async def send(text: str, fields: Mapping[str, Any]) -> None:
        sent.append(text)

    async with Atlas([Agent("assistant", model=Scripted())], store=MemoryStore()) as atlas:
        options = AlertOptions(parse_alert_rules(["disk_used > 90% for 0s"]), {"webhook": send})
        installation = UnreadableStorage()
        monitor = Monitor(atlas, Metrics(), options, installation)
        checks = asyncio.create_task(monitor.run())

        async def error() -> str:
            return (await monitor.live()).alerts[0].error

        assert await wait_until(error) == "not checked: FileNotFoundError: atlas-20261117-120000.db"
        installation.repaired.set()
        await wait_until(lambda: sent)
        assert not await error() and not checks.done()
        checks.cancel()
    assert caplog.text.count("alert rules not checked") == 1


async def test_damaged_record_of_alerts_is_replaced(tmp_path: Path, webhook: Webhook) -> None:
    store, rule, senders = MemoryStore(), "error_rate > 60% for 0s", {"webhook": webhook.sender()}
    await store.commit("default", [PutRecord("chore", "alerts", b'{"error_rate > 60% for 0s": 7}', 0)])
    async with alerting_gateway(tmp_path, [BROKEN], rule, senders, store) as (gateway, client):
        await ask(client, "One")
        await gateway.hub.monitor.check()
        await wait_until(lambda: webhook.received)


async def test_alert_reaches_a_telegram_chat(tmp_path: Path) -> None:
    async with bot_double() as bot:
        bot.person(42, "Ann")
        account = BotAccount(Secret(TOKEN), tmp_path, bot.url)
        senders = {"telegram": TelegramSender(account, "42")}
        async with alerting_gateway(tmp_path, [BROKEN], "error_rate > 60% for 0s", senders) as (gateway, client):
            await ask(client, "One")
            await gateway.hub.monitor.check()
            await wait_until(lambda: bot.chats[42])
    (message,) = bot.chats[42]
    assert message.text.startswith("[firing] error_rate > 60%")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("errors", "invalid alert rule 'errors': expected one like"),
        ("errors > 5", "unknown metric 'errors' in 'errors > 5': expected one of error_rate,"),
        ("error_rate > 5% to pager", "unknown target 'pager' in 'error_rate > 5% to pager'"),
        ("error_rate > 5% for 5 days", "invalid alert rule"),
    ],
)
def test_invalid_rule_is_explained(rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_alert_rules([rule])


def test_rules_of_the_guide_are_valid() -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "operations_alerts.toml"
    assert len(parse_alert_rules(tomllib.loads(example.read_text())["alerts"])) == 3


async def test_rule_without_a_target_stops_the_start(tmp_path: Path) -> None:
    environment = Environment({"ATLAS_HOME": str(tmp_path), "HOME": str(tmp_path)}, dotenv=None)
    flags = {"model": "demo", "embeddings": "none", "sandbox": "none", "alerts": ("queue_lag > 30",)}
    settings = load(flags, environment, tmp_path)
    with pytest.raises(ConfigError, match="alerts: 'queue_lag > 30' has no target; set alert_webhook"):
        async with private_gateway(settings, environment=environment):
            pass


def test_rule_has_units() -> None:
    (rule,) = parse_alert_rules([" turn_p95 > 2.5 for 2m to telegram "])
    assert (rule.metric, rule.threshold, rule.hold, rule.target) == ("turn_p95", 2.5, 120.0, "telegram")
    (share,) = parse_alert_rules(["disk_used > 90%"])
    assert (share.threshold, share.hold, share.target) == (0.9, 60.0, None)


def test_percentiles_are_of_the_last_15_minutes() -> None:
    values = RecentValues()
    values.add(0.0, 1000.0)
    for number in range(1, 101):
        values.add(1000.0, number / 10)
    found = values.percentiles(1001.0)
    assert (found.count, found.p50, found.p95, found.p99) == (100, 5.0, 9.5, 9.9)
    assert values.percentiles(3000.0).count == 0


def test_error_rate_counts_all_turns_of_the_window() -> None:
    turns = Metrics().turns
    for number in range(20_000):
        turns.end(f"r{number}", "failed" if number % 50 == 0 else "done")
    assert turns.ended() == {"done": 19_600, "failed": 400, "cancelled": 0}
