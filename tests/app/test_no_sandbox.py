"""A machine on which no sandbox works, such as one without Linux: `bash` and `code_interpreter` are not offered, the
page and `atlas doctor` say what is missing, and only `sandbox = "none"` runs them."""

from pathlib import Path
from typing import Any

import pytest
from gateway_with_tools import GatewayWithTools, gateway_with_tools, scripted_model

from atlas_agents.builtin_tools import sandbox as sandboxes
from atlas_agents.cli.doctor_checks import CheckResult, check_sandbox
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from checks import wait_until

NAMES = {"bash", "code_interpreter"}
REASON = "bubblewrap and Landlock need Linux"
RUN = [("bash", {"command": "echo unconfined"}), ("code_interpreter", {"code": "6 * 7"})]


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The sandboxes that work here: none, until a test adds one."""
    probes: dict[str, Any] = {}
    monkeypatch.setattr(sandboxes, "_PROBES", probes)
    return probes


async def offered(gateway: GatewayWithTools) -> set[str]:
    """Return which of the two tools the model is offered in a turn, which must be those that clients see."""
    await gateway.client.turn("hello", session=f"s{len(gateway.model.requests)}")
    shown = await gateway.client.get("tools.list", agentId="analyst")
    (agent,) = (await gateway.client.get("agents.list"))["agents"]
    names = NAMES & set(gateway.model.requests[-1].tools)
    assert names == NAMES & {tool["name"] for tool in shown["tools"]} == NAMES & set(agent["tools"])
    return names


async def notice_of(gateway: GatewayWithTools) -> str:
    """Return what the page shows about the agent."""
    (agent,) = (await gateway.client.get("agents.list"))["agents"]
    return agent.get("notice", "")


@pytest.mark.parametrize("kind", ["auto", "landlock"])
async def test_tools_that_need_a_sandbox_are_not_offered_and_the_page_says_why(
    kind: str, tmp_path: Path, working: dict[str, Any]
) -> None:
    script = scripted_model([], lambda request: "done")
    async with gateway_with_tools(tmp_path / "home", script, sandbox=kind) as gateway:
        assert await offered(gateway) == set()
        assert "file_read" in gateway.model.requests[-1].tools
        notice = await notice_of(gateway)
    assert notice.startswith(
        f"Not available: bash, code_interpreter, because no sandbox works here ({REASON}). To fix: "
    )
    assert 'run Atlas on Linux; or set sandbox = "none" to run them with all your permissions.' in notice


async def test_agent_that_names_the_tools_is_built_without_them(tmp_path: Path, working: dict[str, Any]) -> None:
    script = scripted_model([], lambda request: "done")
    async with gateway_with_tools(tmp_path / "home", script) as gateway:
        draft = {"id": "coder", "model": "openai/rules-1", "tools": ["bash", "file_read"]}
        added = await gateway.client.get("agents.put", agent=draft)
        assert any(
            f"Not available: bash, because no sandbox works here ({REASON})" in each for each in added["warnings"]
        )
        agents = {agent["id"]: agent for agent in (await gateway.client.get("agents.list"))["agents"]}
    assert agents["coder"]["tools"] == ["file_read"]


async def test_model_that_calls_a_tool_anyway_runs_nothing(tmp_path: Path, working: dict[str, Any]) -> None:
    async with gateway_with_tools(tmp_path / "home", scripted_model(RUN, lambda request: "done")) as gateway:
        results = await gateway.client.turn("run it")
    assert [result["status"] for result in results] == ["error", "error"]
    assert gateway.client.questions == []


async def test_person_can_choose_to_run_without_a_sandbox(tmp_path: Path, working: dict[str, Any]) -> None:
    script = scripted_model(RUN, lambda request: "done")
    async with gateway_with_tools(tmp_path / "home", script, sandbox="none") as gateway:
        results = await gateway.client.turn("run it")
        questions = list(gateway.client.questions)
        assert await offered(gateway) == NAMES and await notice_of(gateway) == ""
    assert [result["status"] for result in results] == ["ok", "ok"]
    assert "unconfined" in str(results[0]["result"]) and "42" in str(results[1]["result"])
    assert [question["sandbox"] for question in questions] == ["none", "none"]
    assert all(question["preview"].startswith("No sandbox: ") for question in questions)


async def test_tools_are_offered_once_a_sandbox_works(
    tmp_path: Path, working: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe() -> sandboxes.Sandbox:
        return sandboxes.Landlock()

    monkeypatch.setattr("atlas_agents.app.agents._SANDBOX_SECONDS", 0.05)
    script = scripted_model([], lambda request: "done")
    async with gateway_with_tools(tmp_path / "home", script) as gateway:
        assert await offered(gateway) == set()
        monkeypatch.setattr(sandboxes, "_working", {})
        working["landlock"] = probe

        async def is_available() -> bool:
            return await notice_of(gateway) == ""

        await wait_until(is_available)
        assert await offered(gateway) == NAMES


async def check(kind: str, tmp_path: Path) -> CheckResult:
    environment = Environment({"ATLAS_HOME": str(tmp_path), "HOME": str(tmp_path)}, dotenv=None)
    (found,) = [each async for each in check_sandbox(load({"sandbox": kind}, environment, tmp_path))]
    return found


async def test_doctor_says_what_is_missing_and_what_to_do(tmp_path: Path, working: dict[str, Any]) -> None:
    missing = f"none works, so bash and code_interpreter are not offered: {REASON}"
    remedy = 'run Atlas on Linux; or set sandbox = "none" to run without one'
    assert await check("auto", tmp_path) == CheckResult("sandbox", "notice", missing, remedy)
    assert await check("bubblewrap", tmp_path) == CheckResult("sandbox", "broken", missing, remedy)
    assert (await check("none", tmp_path)).words == "disabled: code and commands run with your permissions"
