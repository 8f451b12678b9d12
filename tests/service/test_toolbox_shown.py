"""The toolbox at work, through a real gateway: an agent searches, reads, reckons, draws, writes and reports, a person
is asked on the way, and every step stands in the audit log."""

import json
from pathlib import Path
from typing import Any

import pytest
from shown_stage import KEY, House, Step, follows, house_of, picture_of, small_web

from atlas_agents.app.tools import HOUSE_RULES, known_tools
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
async def test_an_agent_searches_reads_reckons_draws_writes_and_reports_and_all_of_it_is_in_the_audit(
    tmp_path: Path,
) -> None:
    web: dict[str, tuple[str, str]] = {}
    with small_web(web) as host:
        web |= pages(host)
        mind = follows(steps(host), lambda asked: f"It is done: {asked.results[-1]}")
        given: dict[str, Any] = {"search": "searxng", "search_url": f"http://{host}", "fetch_hosts": host}
        async with house_of(tmp_path / "home", mind, **given) as house:
            results = await house.desk.turn("How much does it rain in Porto?")
            rows = await house.desk.rows()
            verified = await house.desk.get("audit.verify")
            history = await house.desk.get("chat.history", sessionKey="work")
    names = [name for name, _ in steps(host)]
    assert [result["name"] for result in results] == names
    assert [result["status"] for result in results] == ["error" if name == "post_to_x" else "ok" for name in names]
    check_what_came_of_it(house, host, [result["result"] for result in results])
    assert "3 rain.md" in json.dumps(history["messages"][-1])
    check_who_was_asked(house.desk.questions)
    check_the_log(rows, names)
    assert "broken" not in verified and verified["rows"] >= len(names)
    everything = json.dumps([rows, house.desk.frames])
    assert KEY not in everything and (tmp_path / "home" / "token").read_text().strip() not in everything


def check_what_came_of_it(house: House, host: str, told: list[Any]) -> None:
    assert told[0]["results"][0]["url"] == f"http://{host}/rain"
    assert "158, 140, 90" in told[1]
    assert told[2]["value"] == "648"
    assert told[3]["value"] == "108.0"
    assert picture_of(told[3]).startswith(PNG)
    assert "On average 108 mm." in told[6]
    assert "3 rain.md" in told[7]
    # A picture is never told to a model as words.
    heard = [message for message in house.model.asked[-1].body["messages"] if message["role"] == "tool"]
    assert len(heard) == len(told) and told[3]["images"][0]["data"][:200] not in json.dumps(heard)


def check_who_was_asked(questions: list[dict[str, Any]]) -> None:
    """A person was asked about what acts, and saw what it would do."""
    assert [each["toolName"] for each in questions] == ["code_interpreter", "code_interpreter", "file_write", "bash"]
    assert "+On average 108 mm." in questions[2]["preview"]
    assert "wc -l rain.md" in questions[3]["preview"] and "confined by" in questions[3]["preview"]


def check_the_log(rows: list[dict[str, Any]], names: list[str]) -> None:
    """Every step in its order, with who agreed and what held it; what was refused, too."""
    calls = [row for row in rows if row["entityId"] in names]
    assert [row["entityId"] for row in calls] == names
    for row in calls:
        name, meta = row["entityId"], row["meta"]
        assert row["success"] is (name != "post_to_x")
        assert bool(meta.get("approved_by")) is (name in ("code_interpreter", "file_write", "bash"))
        held = meta.get("notes", {}).get("sandbox") in ("bubblewrap", "landlock")
        assert held is (name in ("code_interpreter", "bash"))


def test_the_page_of_the_toolbox_names_every_tool_with_its_effect_and_whether_it_asks(tmp_path: Path) -> None:
    environment = Environment({"ATLAS_HOME": str(tmp_path), "HOME": str(tmp_path)}, dotenv=None)
    lines: dict[str, tuple[str, str]] = {}
    for line in PAGE_OF_TOOLS.read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            lines[cells[0].strip("`")] = (cells[2], cells[3])
    actor = Actor("assistant")
    for tool in known_tools(load({}, environment, tmp_path)):
        cell = HOUSE_RULES.verdict(tool.name, actor, acts=tool.effect != "pure").cell
        asks = "denied without a policy" if cell == "no" else "yes" if cell == "ask" or tool.confirm is True else "no"
        assert lines.pop(tool.name) == (tool.effect, asks), tool.name
    assert not lines
