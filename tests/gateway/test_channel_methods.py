"""Channel methods: a bot token is tested and stored, and people are paired by code without a restart."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_client import Client, connect_client

from atlas_agents.app.serve import private_gateway
from atlas_agents.builtin_tools.telegram import NAME
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from bot_double import TOKEN, BotDouble, bot_double
from checks import TIMEOUT, wait_until


@asynccontextmanager
async def serve_channel(home: Path) -> AsyncGenerator[tuple[BotDouble, Client]]:
    """Serve a gateway whose channel runs against a double of Telegram."""
    async with asyncio.timeout(TIMEOUT), bot_double() as bot:
        values = {"ATLAS_HOME": str(home), "HOME": str(home), "ATLAS_TELEGRAM_URL": bot.url}
        environment = Environment(values, dotenv=None)
        settings = load({"model": "demo", "embeddings": "none"}, environment, home.parent)
        async with (
            private_gateway(settings, environment=environment) as served,
            connect_client(served.gateway, served.token.reveal()) as owner,
        ):
            served.telegram.start(served.gateway.hub.tokens, served.url)
            yield bot, owner
            await served.telegram.close()


async def test_bot_token_is_tested_stored_and_never_returned(tmp_path: Path) -> None:
    secrets = tmp_path / "home" / "secrets.json"
    async with serve_channel(tmp_path / "home") as (_, owner):
        assert await owner.get("channels.list") == {"channels": [{"id": "telegram"}]}
        wrong = await owner.get("channels.test", id="telegram", token="7000001:wrong")
        assert not wrong["ok"] and wrong["error"]
        refused = await owner.request("channels.put", id="telegram", token="7000001:wrong")
        assert refused["error"]["code"] == -32602 and not secrets.exists()
        assert await owner.get("channels.test", id="telegram", token=TOKEN) == {"ok": True, "bot": "atlas_test_bot"}
        preview = await owner.get("channels.put", id="telegram", token=TOKEN, dryRun=True)
        assert "-bot: none\n+bot: @atlas_test_bot" in preview["diff"] and not secrets.exists()
        channel = (await owner.get("channels.put", id="telegram", token=TOKEN))["channel"]
        assert (channel["source"], channel["running"], channel["bot"]) == ("stored", True, "atlas_test_bot")
        assert TOKEN in secrets.read_text() and secrets.stat().st_mode & 0o077 == 0
        removed = (await owner.get("channels.put", id="telegram", token=""))["channel"]
        assert removed == {"id": "telegram"} and TOKEN not in secrets.read_text()
        assert TOKEN not in json.dumps([channel, await owner.get("audit.list")])


async def test_person_is_paired_and_unpaired_without_a_restart(tmp_path: Path) -> None:
    async with serve_channel(tmp_path / "home") as (bot, owner):
        await owner.get("channels.put", id="telegram", token=TOKEN)
        mara = bot.person(42, "Mara")
        mara.says("/start")
        await wait_until(lambda: bool(mara.sees))
        code = mara.sees[0].text.rpartition(" ")[2].strip()
        bad = await owner.request("channels.pair", id="telegram", code="WRONG")
        assert "unknown or expired" in bad["error"]["message"]
        person = (await owner.get("channels.pair", id="telegram", code=code))["person"]
        assert (person["id"], person["name"]) == ("42", "Mara")
        await wait_until(lambda: any("You are paired" in each.text for each in mara.sees))
        (channel,) = (await owner.get("channels.list"))["channels"]
        assert [each["name"] for each in channel["paired"]] == ["Mara"]
        preview = await owner.get("channels.unpair", id="telegram", person="42", dryRun=True)
        assert preview["warnings"] == ["Mara can no longer chat with your agents"]
        await owner.get("channels.unpair", id="telegram", person="42")
        assert "paired" not in (await owner.get("channels.list"))["channels"][0]
        kinds = {each["entry"]["entityType"] for each in (await owner.get("audit.list"))["entries"]}
        assert kinds == {"channel", "channel-person"}


async def test_agents_send_with_the_bot_of_the_page(tmp_path: Path) -> None:
    async with serve_channel(tmp_path / "home") as (bot, owner):
        (agent,) = [each["id"] for each in (await owner.get("agents.list"))["agents"]]
        assert NAME not in {each["name"] for each in (await owner.get("tools.list", agentId=agent))["tools"]}
        await owner.get("channels.put", id="telegram", token=TOKEN)
        assert NAME in {each["name"] for each in (await owner.get("tools.list", agentId=agent))["tools"]}
        mara = bot.person(42, "Mara")
        mara.says("/start")
        await wait_until(lambda: bool(mara.sees))
        await owner.get("channels.pair", id="telegram", code=mara.sees[0].text.rpartition(" ")[2].strip())
        invoked = {"name": NAME, "agentId": agent, "arguments": {"message": "The report is ready."}}
        await owner.send(id="sending", method="tools.invoke", params=invoked)

        async def pending_approvals() -> Any:
            return (await owner.get("approvals.list"))["approvals"]

        (asked,) = await wait_until(pending_approvals)
        await owner.get("approvals.resolve", approvalId=asked["approvalId"], decision="allow-once")
        while not (sent := [frame for frame in owner.frames if frame.get("id") == "sending"]):
            await owner.next()
        assert sent[0]["result"]["result"]["chat_id"] == "42", "without chat_id, the only paired person receives it"
        assert any("The report is ready." in each.text for each in mara.sees)
        await owner.get("channels.put", id="telegram", token="")
        assert NAME not in {each["name"] for each in (await owner.get("tools.list", agentId=agent))["tools"]}
