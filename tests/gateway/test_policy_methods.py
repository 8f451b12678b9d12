"""Methods that edit permissions: what applies, what-if over recorded calls, saving, widening and conflicts."""

from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, connect_client
from test_agent_methods import TOKENS, serve_workspace

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.trust import Trust, read_files
from atlas_agents.tools.policy import Cell, edit_cells

AGENTS = """## archy
Tools: current_time, bash, file_write, remember
Model: demo

## binky
Role: finance
Tools: current_time, file_write
Model: demo
"""
POLICY = """# Ours, since 2024.
[groups]
readers = ["archy"]

[tools.file_write]  # documents
yes = [
    "finance",  # they know
]
ask = ["*"]

[grants]
finance = ["file:*"]
"""


def change(tool: str, subject: str, cell: str | None) -> dict[str, Any]:
    return {"tool": tool, "subject": subject, "cell": cell}


async def save(client: Client, *changes: dict[str, Any], **params: Any) -> dict[str, Any]:
    return await client.request("policy.put", changes=list(changes), **params)


def cell(policy: dict[str, Any], tool: str, subject: str) -> tuple[str, str]:
    found = policy["effective"][tool][subject]
    return found["cell"], found.get("inherited", "")


async def test_change_to_the_default_policy_is_saved_applied_and_inherited(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path, AGENTS) as gateway, connect_client(gateway) as client:
        policy = await client.get("policy.get")
        assert [each["id"] for each in policy["subjects"]] == ["*", "finance", "archy", "binky"]
        assert cell(policy, "file_write", "archy") == ("ask", "*") and "version" not in policy
        assert cell(policy, "current_time", "archy") == ("yes", "")
        changes = [change("file_write", "finance", "no"), change("current_time", "archy", "ask")]
        tried = (await save(client, *changes, dryRun=True))["result"]
        assert "+[tools.file_write]" in tried["diff"] and not (tmp_path / "permissions.toml").exists()

        saved = (await save(client, *changes))["result"]
        assert cell(saved["policy"], "file_write", "binky") == ("no", "finance")
        assert cell(saved["policy"], "file_write", "archy") == ("ask", "*")
        assert cell(saved["policy"], "current_time", "archy") == ("ask", "")
        assert cell(saved["policy"], "current_time", "binky") == ("yes", "*")
        file = (tmp_path / "permissions.toml").read_text()
        assert file == '[tools.file_write]\nno = ["finance"]\n\n[tools.current_time]\nyes = ["*"]\nask = ["archy"]\n'
        rows = {row["agentId"]: row["cells"] for row in (await client.get("tools.matrix"))["rows"]}
        assert rows["binky"]["file_write"] == "no" and rows["archy"]["current_time"] == "ask"
        (entry,) = (await client.get("audit.list"))["entries"]
        assert entry["entry"]["message"] == "owner created the permissions"

        back = (await save(client, change("file_write", "finance", None), expectedVersion=saved["version"]))["error"]
        assert "this allows more than now (file_write for finance); confirm it with allowWider" in back["message"]
        version = saved["version"]
        done = await save(client, change("file_write", "finance", None), expectedVersion=version, allowWider=True)
        assert cell(done["result"]["policy"], "file_write", "binky") == ("ask", "*")
        unknown = (await save(client, change("bash", "zoe", "no"), expectedVersion=done["result"]["version"]))["error"]
        assert unknown["message"] == "unknown agent, role or group 'zoe'"


@pytest.mark.parametrize(("tool", "chosen"), [("current_time", "no"), ("url_fetch", "ask")])
async def test_inheriting_after_a_change_restores_what_applied_before(tmp_path: Path, tool: str, chosen: str) -> None:
    async with serve_workspace(tmp_path, AGENTS) as gateway, connect_client(gateway) as client:
        before = (await client.get("policy.get"))["effective"][tool]
        saved = (await save(client, change(tool, "*", chosen)))["result"]
        assert cell(saved["policy"], tool, "archy")[0] == chosen
        back = await save(client, change(tool, "*", None), expectedVersion=saved["version"], allowWider=True)
        assert back["result"]["policy"]["effective"][tool] == before
        assert "[tools." not in (tmp_path / "permissions.toml").read_text()


async def test_unknown_tool_is_refused_with_the_known_tools(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path, AGENTS) as gateway, connect_client(gateway) as client:
        for method in ("policy.put", "policy.simulate"):
            for chosen in ("yes", None):
                refused = await client.request(method, changes=[change("nosuch", "*", chosen)])
                assert refused["error"]["message"].startswith("unknown tool 'nosuch'; tools: "), refused
                assert "bash" in refused["error"]["message"]
        assert not (tmp_path / "permissions.toml").exists()


async def test_policy_file_is_edited_and_the_rest_stays_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    home = tmp_path / "home"
    async with serve_workspace(home, AGENTS, policy=path) as gateway, connect_client(gateway) as client:
        policy = await client.get("policy.get")
        assert cell(policy, "file_write", "binky") == ("yes", "finance")
        saved = await save(client, change("file_write", "archy", "no"), expectedVersion=policy["version"])
        assert cell(saved["result"]["policy"], "file_write", "archy") == ("no", "")
        assert path.read_text() == POLICY.replace('ask = ["*"]\n', 'ask = ["*"]\nno = ["archy"]\n')
        path.write_text(POLICY.replace("[tools.file_write]", "[tools]\nfile_write.no = ['*']\n[tools.bash]"))
        version = (await client.get("policy.get"))["version"]
        refused = (await save(client, change("file_write", "archy", "no"), expectedVersion=version))["error"]
        assert "write the entry as a table [tools.file_write]" in refused["message"]


async def test_change_of_the_file_that_waits_for_agreement_is_not_shown_as_in_use(tmp_path: Path) -> None:
    path, home = tmp_path / "policy.toml", tmp_path / "home"
    path.write_text(POLICY)
    Trust(home).trust_folder(tmp_path, read_files([path]))
    async with serve_workspace(home, AGENTS, policy=path) as gateway, connect_client(gateway) as client:
        before = await client.get("policy.get")
        path.write_text(f'{POLICY}\n[tools.current_time]\nno = ["*"]\n')
        shown = await client.get("policy.get")
        notice = "policy.toml has changed, and the change is not used until you agree; run: atlas trust"
        assert shown == {**before, "notice": notice}
        assert cell(shown, "current_time", "archy") == ("yes", "")
        tried = await client.get("policy.simulate", changes=[change("current_time", "*", "yes")])
        assert tried["wider"] == []
        refused = (await save(client, change("file_write", "archy", "no"), expectedVersion=shown["version"]))["error"]
        assert refused["message"] == "policy.toml has changed and waits for your agreement; run: atlas trust"


async def test_recorded_calls_are_decided_again_before_saving(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path, AGENTS) as gateway, connect_client(gateway) as client:
        for _ in range(3):
            await client.get("tools.invoke", name="current_time", agentId="archy")
        await client.get("tools.invoke", name="current_time", agentId="binky")
        found = await client.get(
            "policy.simulate", changes=[change("current_time", "*", "ask"), change("current_time", "binky", "no")]
        )
        assert [found[key] for key in ("allow", "ask", "deny", "checked")] == [0, 3, 1, 4]
        (first, *_) = found["calls"]
        assert (first["agentId"], first["before"], first["after"]) == ("binky", "yes", "no")
        assert first["rule"] == "default policy: tools.current_time, no for binky"
        assert found["wider"] == [] and cell(found, "current_time", "archy") == ("ask", "*")
        none = await client.get("policy.simulate", changes=[change("bash", "*", "no")])
        assert (none["ask"], none["deny"], none["calls"]) == (0, 0, [])
        wider = await client.get("policy.simulate", changes=[change("post_to_x", "archy", "yes")])
        assert wider["wider"] == [change("post_to_x", "archy", "yes")]


async def test_two_people_edit_permissions_and_no_edit_is_lost(tmp_path: Path) -> None:
    async with (
        serve_workspace(tmp_path, AGENTS) as gateway,
        connect_client(gateway, TOKENS["mara"]["token"]) as mara,
        connect_client(gateway) as owner,
    ):
        assert "result" in await save(mara, change("bash", "archy", "no"))
        event = await owner.until("resource.updated")
        assert (event["kind"], event["by"]) == ("policy", "mara")
        refused = (await save(owner, change("remember", "*", "ask")))["error"]
        current = refused["data"]["current"]
        assert (refused["code"], current["changedBy"]) == (-32005, "mara")
        assert current["value"]["cells"]["bash"] == {"*": "yes", "archy": "no"}
        both = (await save(owner, change("remember", "*", "ask"), expectedVersion=current["version"]))["result"]
        assert cell(both["policy"], "bash", "archy") == ("no", "") and cell(both["policy"], "remember", "*") == (
            "ask",
            "",
        )


@pytest.mark.parametrize(
    ("content", "cells", "expected"),
    [
        ("", {"*": "ask"}, '[tools.bash]\nask = ["*"]\n'),
        ("[tools.bash]\r\nno = ['*']\r\n", {"*": "yes"}, '[tools.bash]\r\nyes = ["*"]\r\n'),
        ("[tools.'bash']\nno = ['*'] # all\n", {"*": "no"}, "[tools.'bash']\nno = ['*'] # all\n"),
        ("[tools.bash]\nno = ['*']", {}, ""),
        ("# Ours\n\n[tools.bash]\nno = ['*']\n", {}, "# Ours\n"),
        ("[tools.bash]\n# why\nno = ['*']\n\n[tools.x]\nno = ['*']\n", {}, "# why\n\n[tools.x]\nno = ['*']\n"),
        ("[tools.bash]\nwhen_tainted = 'ask'\nno = ['*']\n", {}, "[tools.bash]\nwhen_tainted = 'ask'\n"),
    ],
)
def test_cells_of_a_tool_are_edited(content: str, cells: dict[str, Cell], expected: str) -> None:
    assert edit_cells(content.encode(), "bash", cells).decode() == expected


@pytest.mark.parametrize(("entry", "cells"), [("{ yes = ['*'] }", {"*": "no"}), ("{}", {})])
def test_file_with_other_rules_than_permissions_is_refused(entry: str, cells: dict[str, Cell]) -> None:
    with pytest.raises(ConfigError, match="cannot be edited here"):
        edit_cells(f"[tools]\nbash = {entry}\n".encode(), "bash", cells)
