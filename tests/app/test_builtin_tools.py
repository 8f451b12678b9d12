"""Built-in tools through a real gateway: search, fetch, code, files and `bash`, with approvals and the audit log."""

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_with_tools import KEY, GatewayWithTools, Step, decode_image, gateway_with_tools, scripted_model, static_web

from atlas_agents.app.tools import DEFAULT_POLICY, build_tool_registry
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from atlas_agents.tools.policy import Actor

PAGE = "<html><title>Rain</title><body><article><p>Rain in Porto, in mm: 158, 140, 90, 116, 98, 46.</p></body></html>"
DRAW = """\
import matplotlib.pyplot as plt
rain = [158, 140, 90, 116, 98, 46]
plt.bar(range(1, 7), rain)
plt.show()
sum(rain) / len(rain)"""
PNG = b"\x89PNG\r\n\x1a\n"
PAGE_OF_TOOLS = Path(__file__).parents[2] / "docs" / "guide" / "toolbox.md"


def pages(host: str) -> dict[str, tuple[str, str]]:
    found = {"results": [{"title": "Rain in Porto", "url": f"http://{host}/rain", "content": "Half a year of rain."}]}
    return {"/search": ("application/json", json.dumps(found)), "/rain": ("text/html", PAGE)}


def steps(host: str) -> list[Step]:
    return [
        ("web_search", {"query": "rain in Porto"}),
        ("url_fetch", {"url": f"http://{host}/rain"}),
        ("code_interpreter", {"code": "sum([158, 140, 90, 116, 98, 46])", "session": True}),
        ("code_interpreter", {"code": DRAW}),
        ("post_to_x", {"content": "It rains."}),
        ("file_write", {"path": "rain.md", "content": "# Rain\n\nOn average 108 mm.\n"}),
        ("file_read", {"path": "rain.md"}),
        ("bash", {"command": "wc -l rain.md"}),
    ]


@pytest.mark.slow
async def test_agent_uses_all_tools_and_every_call_is_audited(
    tmp_path: Path,
) -> None:
    web: dict[str, tuple[str, str]] = {}
    with static_web(web) as host:
        web |= pages(host)
        model_script = scripted_model(steps(host), lambda request: f"It is done: {request.results[-1]}")
        options: dict[str, Any] = {"search": "searxng", "search_url": f"http://{host}", "fetch_hosts": host}
        async with gateway_with_tools(tmp_path / "home", model_script, **options) as gateway:
            results = await gateway.client.turn("How much does it rain in Porto?")
            rows = await gateway.client.rows()
            verified = await gateway.client.get("audit.verify")
            history = await gateway.client.get("chat.history", sessionKey="work")
    names = [name for name, _ in steps(host)]
    assert [result["name"] for result in results] == names
    assert [result["status"] for result in results] == ["error" if name == "post_to_x" else "ok" for name in names]
    check_results(gateway, host, [result["result"] for result in results])
    assert "3 rain.md" in json.dumps(history["messages"][-1])
    check_approval_requests(gateway.client.questions)
    check_audit_log(rows, names)
    assert "broken" not in verified and verified["rows"] >= len(names)
    everything = json.dumps([rows, gateway.client.frames])
    assert KEY not in everything and (tmp_path / "home" / "token").read_text().strip() not in everything


def check_results(gateway: GatewayWithTools, host: str, results: list[Any]) -> None:
    assert results[0]["results"][0]["url"] == f"http://{host}/rain"
    assert "158, 140, 90" in results[1]
    assert results[2]["value"] == "648"
    assert results[3]["value"] == "108.0"
    assert decode_image(results[3]).startswith(PNG)
    assert "On average 108 mm." in results[6]
    assert "3 rain.md" in results[7]
    # An image is never sent to a model as text.
    tool_messages = [message for message in gateway.model.requests[-1].body["messages"] if message["role"] == "tool"]
    assert len(tool_messages) == len(results) and results[3]["images"][0]["data"][:200] not in json.dumps(tool_messages)


def check_approval_requests(questions: list[dict[str, Any]]) -> None:
    """Tools with effects needed approval, with a preview."""
    assert [each["toolName"] for each in questions] == ["code_interpreter", "code_interpreter", "file_write", "bash"]
    assert "+On average 108 mm." in questions[2]["preview"]
    assert "wc -l rain.md" in questions[3]["preview"] and "Sandbox:" in questions[3]["preview"]


def check_audit_log(rows: list[dict[str, Any]], names: list[str]) -> None:
    """Every call is logged in order with approver and sandbox, denied ones too."""
    calls = [row for row in rows if row["entityId"] in names]
    assert [row["entityId"] for row in calls] == names
    for row in calls:
        name, meta = row["entityId"], row["meta"]
        assert row["success"] is (name != "post_to_x")
        assert bool(meta.get("approved_by")) is (name in ("code_interpreter", "file_write", "bash"))
        sandboxed = meta.get("notes", {}).get("sandbox") in ("bubblewrap", "landlock")
        assert sandboxed is (name in ("code_interpreter", "bash"))


def test_docs_table_lists_every_builtin_tool(tmp_path: Path) -> None:
    environment = Environment({"ATLAS_HOME": str(tmp_path), "HOME": str(tmp_path)}, dotenv=None)
    lines: dict[str, tuple[str, str]] = {}
    for line in PAGE_OF_TOOLS.read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            lines[cells[0].strip("`")] = (cells[2], cells[3])
    actor = Actor("assistant")
    for tool in build_tool_registry(load({}, environment, tmp_path)):
        cell = DEFAULT_POLICY.verdict(tool.name, actor, acts=tool.effect != "pure").cell
        asks = "denied without a policy" if cell == "no" else "yes" if cell == "ask" or tool.confirm is True else "no"
        assert lines.pop(tool.name) == (tool.effect, asks), tool.name
    assert not lines
