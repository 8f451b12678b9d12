"""Methods that edit agents: they write AGENTS.md, new turns use it at once, and no edit is lost."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_client import Client, connect_client

from atlas_agents.app.serve import private_gateway
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from atlas_agents.gateway.server import Gateway

FILE = """# Agents

Ours, since 2024.

## archy
Model: anthropic/claude-opus-4-6
Description: Reads.
Temperature: 0.3
Hands off to: binky

## binky
Tools: none
Prompt: You are Binky.
"""
TOKENS = {
    "mara": {"token": "mara-0123456789abcdefghijklmnopqrstuvwxyz", "scopes": ["read", "write", "admin"]},
    "guest": {"token": "guest-0123456789abcdefghijklmnopqrstuvwxyz", "scopes": ["read", "write"]},
}


@asynccontextmanager
async def serve_workspace(home: Path, text: str = FILE, **flags: Any) -> AsyncGenerator[Gateway, None]:
    """Serve the gateway of a workspace, whose default model is the scripted demo."""
    (home / "workspace").mkdir(parents=True)
    (home / "workspace" / "AGENTS.md").write_text(text)
    (home / "tokens.json").write_text(json.dumps(TOKENS))
    environment = Environment({"ATLAS_HOME": str(home), "HOME": str(home), "ATLAS_MODEL": "demo"}, dotenv=None)
    settings = load(flags, environment, home.parent)
    async with private_gateway(settings, environment=environment, idle=True) as served:
        yield served.gateway


def agents_file(home: Path) -> str:
    return (home / "workspace" / "AGENTS.md").read_text()


async def read_agent(client: Client, id: str = "archy") -> tuple[dict[str, Any], str]:
    found = await client.get("agents.get", agentId=id)
    return found["draft"], found["version"]


async def test_agent_is_read_changed_and_used_without_a_restart(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path) as gateway, connect_client(gateway) as client:
        found = await client.get("agents.get", agentId="archy")
        assert found["agent"]["needsKey"] is True and found["agent"]["handsOffTo"] == ["binky"]
        assert found["draft"] == {
            "id": "archy",
            "description": "Reads.",
            "model": "anthropic/claude-opus-4-6",
            "handsOffTo": ["binky"],
            "tools": ["*"],
        }
        draft = {**found["draft"], "model": "demo", "name": "Archy", "effort": "high", "tools": ["current_time"]}
        draft["instructions"] = "You are Archy.\n\n### Rules\nBe short."
        tried = await client.get("agents.put", agent=draft, expectedVersion=found["version"], dryRun=True)
        assert "agent" not in tried and "+Effort: high" in tried["diff"] and "-Model: anthropic" in tried["diff"]
        assert agents_file(tmp_path) == FILE

        saved = await client.get("agents.put", agent=draft, expectedVersion=found["version"])
        event = next(frame["data"] for frame in client.events() if frame["event"] == "resource.updated")
        assert event == {"kind": "agent", "id": "archy", "version": saved["version"], "by": "owner"}
        assert saved["draft"] == draft and saved["changedBy"] == "owner" and saved["version"] != found["version"]
        assert (saved["agent"]["model"], saved["agent"]["tools"]) == ("demo", ["current_time"])
        assert saved["diff"] == tried["diff"]
        section = "Model: demo\nDescription: Reads.\nTemperature: 0.3\nHands off to: binky\nName: Archy\nEffort: high\n"
        prompt = "Tools: current_time\n\nPrompt:\nYou are Archy.\n\n### Rules\nBe short.\n\n## binky"
        before, after = FILE.split("## archy\n")[0], FILE.split("## binky")[1]
        assert agents_file(tmp_path) == f"{before}## archy\n{section}{prompt}{after}"
        agent = gateway.hub.agent("archy")
        assert agent is not None and agent.models == ("demo",)
        assert "### Rules" in str(agent.system_prompt)


async def test_two_people_edit_the_same_agent_and_no_edit_is_lost(tmp_path: Path) -> None:
    async with (
        serve_workspace(tmp_path) as gateway,
        connect_client(gateway, TOKENS["mara"]["token"]) as mara,
        connect_client(gateway) as owner,
    ):
        draft, version = await read_agent(owner)
        hers = {**draft, "description": "Reads and writes."}
        await mara.get("agents.put", agent=hers, expectedVersion=version)
        assert (await owner.until("resource.updated"))["by"] == "mara"
        mine = {**draft, "name": "Archy"}
        refused = (await owner.request("agents.put", agent=mine, expectedVersion=version))["error"]
        assert (refused["code"], refused["data"]["kind"]) == (-32005, "CONFLICT")
        assert refused["message"] == "mara changed agent 'archy' since you opened it; nothing was saved"
        current = refused["data"]["current"]
        assert (current["changedBy"], current["value"]) == ("mara", hers)
        assert "Reads and writes." in agents_file(tmp_path) and "Name:" not in agents_file(tmp_path)
        binky, binky_version = await read_agent(owner, "binky")
        await owner.get("agents.put", agent={**binky, "name": "Binky"}, expectedVersion=binky_version)
        both = {**current["value"], "name": "Archy"}
        await owner.get("agents.put", agent=both, expectedVersion=current["version"])
        assert "Reads and writes." in agents_file(tmp_path) and "Name: Archy" in agents_file(tmp_path)
        again = (await owner.request("agents.put", agent={"id": "archy"}, expectedVersion=None))["error"]
        assert again["message"] == "agent 'archy' exists already; nothing was saved"
        rows = [row["entry"]["message"] for row in (await owner.get("audit.list"))["entries"]]
        assert rows == [
            "owner changed agent archy",
            "owner changed agent binky",
            "mara changed agent archy",
        ]


async def test_agent_is_created_removed_and_its_schedules_are_paused(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path) as gateway, connect_client(gateway) as client:
        made = await client.get("agents.put", agent={"id": "cleo", "tools": [], "model": "demo"})
        assert agents_file(tmp_path) == FILE + "\n## cleo\n\nModel: demo\nTools: none\n"
        assert [agent["id"] for agent in (await client.get("agents.list"))["agents"]] == ["archy", "binky", "cleo"]
        await client.get("agents.remove", agentId="cleo", expectedVersion=made["version"])
        assert agents_file(tmp_path) == FILE
        await client.get("schedules.add", name="daily", cron="@daily", task="Count.", agentId="binky")
        version = (await read_agent(client, "binky"))[1]
        effects = await client.get("agents.remove", agentId="binky", expectedVersion=version, dryRun=True)
        assert effects["warnings"] == [
            "the schedule 'daily' uses it and will be paused",
            "archy no longer hands off to it",
        ]
        assert "-Hands off to: binky" in effects["diff"] and agents_file(tmp_path) == FILE
        await client.get("agents.remove", agentId="binky", expectedVersion=version)
        assert "binky" not in agents_file(tmp_path)
        (schedule,) = (await client.get("schedules.list"))["schedules"]
        assert schedule["paused"] is True
        version = (await read_agent(client, "archy"))[1]
        last = await client.get("agents.remove", agentId="archy", expectedVersion=version)
        assert last["warnings"][0] == "it is the only agent; the built-in assistant replaces it"
        gone = (await client.request("agents.put", agent={"id": "archy"}, expectedVersion=version))["error"]
        assert gone["message"] == "owner removed agent 'archy'; nothing was saved"
        assert "value" not in gone["data"]["current"]


async def test_first_agent_that_replaces_the_built_in_assistant_is_announced(tmp_path: Path) -> None:
    warning = "it replaces the built-in assistant, also in existing chats"
    async with serve_workspace(tmp_path, "Be polite.\n") as gateway, connect_client(gateway) as client:
        (built_in,) = (await client.get("agents.list"))["agents"]
        own = await client.get("agents.put", agent={"id": built_in["id"], "model": "demo"}, dryRun=True)
        assert "warnings" not in own
        full = await client.get("agents.put", agent={"id": "helper", "tools": ["*"]}, dryRun=True)
        assert full["warnings"] == [warning]
        made = await client.get("agents.put", agent={"id": "helper", "tools": []})
        assert made["warnings"] == [f"{warning}, and it has no tools"]
        assert [agent["id"] for agent in (await client.get("agents.list"))["agents"]] == ["helper"]
        assert "warnings" not in await client.get("agents.put", agent={"id": "other", "tools": []})


async def test_selecting_a_model_keeps_the_fallbacks_and_an_omitted_effort(tmp_path: Path) -> None:
    text = "## multi\nModel: openai/gpt-5.2, anthropic/claude-opus-4-6, demo\nEffort: high\n"
    async with serve_workspace(tmp_path, text) as gateway, connect_client(gateway) as client:
        selected = await client.get("models.select", agentId="multi", model="demo")
        assert selected["effort"] == "high"
        assert agents_file(tmp_path) == "## multi\nModel: demo, anthropic/claude-opus-4-6\nEffort: high\n"
        await client.get("models.select", agentId="multi", model="demo", effort="low")
        assert agents_file(tmp_path) == "## multi\nModel: demo, anthropic/claude-opus-4-6\nEffort: low\n"
        await client.get("models.select", agentId="multi", model="")
        assert agents_file(tmp_path) == "## multi\nTools: *\n"


async def test_invalid_drafts_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path) as gateway, connect_client(gateway) as client:
        draft, version = await read_agent(client)
        for change, message in (
            ({"tools": ["no_such"]}, "unknown tool 'no_such'"),
            ({"model": "gpt"}, "invalid model reference 'gpt'"),
            ({"model": "", "fallbacks": ["demo"]}, "agent 'archy' has fallbacks (demo), but no model; choose a model"),
            ({"handsOffTo": ["zoe"]}, "unknown agent 'zoe'"),
            ({"effort": "extreme\n## evil"}, "invalid effort"),
            ({"instructions": "## evil\nTools: *"}, "begins another agent"),
        ):
            answer = await client.request("agents.put", agent={**draft, **change}, expectedVersion=version)
            assert message in answer["error"]["message"], answer
            assert answer["error"]["data"]["kind"] == "INVALID_PARAMS"
        answer = await client.request("agents.put", agent={"id": "a\n## b"})
        assert "invalid agent id" in answer["error"]["message"]
        assert agents_file(tmp_path) == FILE
        assert (await client.get("audit.list"))["entries"] == []


async def test_draft_is_tried_with_tools_that_change_nothing_and_is_not_stored(tmp_path: Path) -> None:
    async with (
        serve_workspace(tmp_path, budgets=("tenant tokens=1000000 per=day",)) as gateway,
        connect_client(gateway) as client,
    ):
        draft = {"id": "zoe", "model": "demo", "tools": ["current_time", "file_write", "bash"]}
        history = [{"role": "user", "text": "Hi."}, {"role": "assistant", "text": "Hello."}]
        answer = await client.get(
            "agents.tryDraft", draft=draft, message="What can you do?", history=history, trialId="t1"
        )
        assert answer["text"] and answer["model"] == "demo"
        assert sorted(answer["withheld"]) == ["bash", "file_write"]
        pieces = [frame["data"] for frame in client.events() if frame["event"] == "agents.trial"]
        assert "".join(piece["text"] for piece in pieces) == answer["text"]
        assert (await client.get("sessions.list"))["sessions"] == []
        assert (await client.get("runs.list"))["runs"] == []
        (used,) = (await client.get("usage.summary", groupBy="agent"))["rows"]
        assert used["name"] == "zoe" and used["inputTokens"] > 0 and used["turns"] == 1
        (status,) = (await client.get("limits.get"))["budgets"]
        assert status["used"] == used["inputTokens"] + used["outputTokens"]
        assert agents_file(tmp_path) == FILE and gateway.hub.agent("zoe") is None
        known = {tool["name"]: tool for tool in (await client.get("tools.list", all=True))["tools"]}
        assert known["current_time"]["pure"] is True and known["bash"]["requiresApproval"] is True


async def test_guest_sees_no_instructions_and_not_who_edits(tmp_path: Path) -> None:
    async with (
        serve_workspace(tmp_path) as gateway,
        connect_client(gateway, TOKENS["guest"]["token"]) as guest,
        connect_client(gateway) as owner,
    ):
        assert set(await guest.get("agents.get", agentId="binky")) == {"agent"}
        draft, version = await read_agent(owner)
        await owner.get("agents.put", agent={**draft, "name": "Archy"}, expectedVersion=version)
        assert "by" not in await guest.until("resource.updated")


async def test_model_that_was_not_chosen_is_not_saved_by_an_edit_of_the_default_agent(tmp_path: Path) -> None:
    from atlas_agents.workspace.files import default_text

    text = default_text("AGENTS.md")
    async with serve_workspace(tmp_path, text) as gateway, connect_client(gateway) as client:
        draft, version = await read_agent(client, "assistant")
        assert "model" not in draft
        saved = await client.get("agents.put", agent={**draft, "name": "Ada"}, expectedVersion=version)
        assert saved["agent"]["model"] == "demo" and "anthropic" not in agents_file(tmp_path)
    (tmp_path / "other").mkdir()
    async with serve_workspace(tmp_path / "other", text) as gateway, connect_client(gateway) as client:
        made = await client.get("agents.put", agent={"id": "cleo", "tools": []})
        assert "-Model: anthropic" in made["diff"] and "anthropic" not in agents_file(tmp_path / "other")
