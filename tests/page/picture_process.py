"""A house with something to show, for pictures: `picture_process.py HOME [PORT]`."""

import asyncio
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from page_process import Rounds, Staged
from page_process import serve as serve_house
from picture_jobs import NOTE, add_jobs

from atlas_agents import Agent, Price, tool
from atlas_agents.core.json import encode
from atlas_agents.core.store import AddAudit, AddUsage, UsageRow, Write
from atlas_agents.gateway.server import run
from atlas_agents.stores.sqlite import SqliteStore

REPORT = """\
Bookings rose by **18 %** over the month, and nearly all of it came from two regions.

| Region | Orders | Change |
|---|---:|---:|
| North | 1,284 | +31 % |
| West | 968 | +24 % |
| South | 702 | +3 % |

The query I used, so that you can check it:

```sql
SELECT region, count(*) AS orders
FROM orders
WHERE placed_at >= date('now', '-30 days')
GROUP BY region ORDER BY orders DESC;
```

Shall I draft the note to the team?
"""
SCRIPTS: dict[str, Rounds] = {
    "How did orders do this month?": [
        [
            ["think", "I need the orders of the last thirty days by region, and the month before for comparison."],
            ["say", "I shall look at the orders of the last thirty days, and at the month before."],
            ["call", "query_orders", {"days": 30, "group_by": "region"}],
            ["call", "query_orders", {"days": 60, "group_by": "region"}],
        ],
        [["say", REPORT]],
    ],
    "Send the weekly report to the team": [
        [["say", "The report is ready. I shall look up the list first."], ["call", "find_list", {"name": "team"}]],
        [
            ["call", "run_command", {"command": "mail -s 'Weekly report' team@example.org < report.md", "seconds": 30}],
        ],
    ],
    "Clean up the old builds": [
        [
            ["say", "There are 14 builds older than a week."],
            ["call", "run_command", {"command": "rm -r builds/2026-10-*", "seconds": 60}],
        ],
    ],
    NOTE: [[["pause", 3600]]],
    "Plan the release": [[["pace", 0.05], ["say", "Three things are left: the notes, the tag and the announcement."]]],
    "What does the policy say about refunds?": [[["say", "Refunds are possible within 30 days, with the receipt."]]],
}


@tool(effect="pure")
async def query_orders(days: int, group_by: str = "region") -> list[dict[str, Any]]:
    """Count orders of the last days, by region or by product."""
    await asyncio.sleep(0.4 + days / 200)
    return [{"region": "North", "orders": 1284}, {"region": "West", "orders": 968}, {"region": "South", "orders": 702}]


@tool(effect="pure")
async def find_list(name: str) -> str:
    """Find a list of people by its name."""
    await asyncio.sleep(0.3)
    return f"{name}@example.org, 12 people"


@tool(confirm=True)
async def run_command(command: str, seconds: int = 60) -> str:
    """Run a command on this machine."""
    await asyncio.sleep(0.2)
    return "done"


def agents() -> list[Agent]:
    analyst = Staged(SCRIPTS, id="claude-sonnet-4", pace=0.012)
    writer = Staged(SCRIPTS, id="gpt-4.1-mini", pace=0.012)
    about = "Answers questions about the business, with numbers you can check."
    return [
        Agent(
            "analyst", model=analyst, tools=[query_orders, find_list, run_command], name="Analyst", description=about
        ),
        Agent("writer", model=writer, tools=[find_list], name="Writer", description="Turns notes into letters."),
    ]


async def before(store: SqliteStore) -> None:
    """Thirteen days that went by, the oldest first."""
    writes: list[Write] = []
    midnight = time.time() // 86_400 * 86_400
    for back in range(13, 0, -1):
        at = midnight - back * 86_400
        busy = 0.4 if time.gmtime(at).tm_wday > 4 else 1.0 + 0.4 * math.sin(back)
        for agent, model, size in (("analyst", "claude-sonnet-4", 61_000), ("writer", "gpt-4.1-mini", 27_000)):
            used, said = int(size * busy), int(size * busy / 7)
            cost = int((used * 3 + said * 15) / 1_000_000 * 100_000_000) if agent == "analyst" else int(used / 25 * 10)
            day = time.strftime("%Y-%m-%d", time.gmtime(at))
            writes.append(AddUsage(UsageRow(day, "past", agent, model, used, said, used // 3, cost, int(18 * busy))))
        calls = int(len(PAST) * busy)
        for number in range(calls):
            writes.append(AddAudit(encode(_line(at + 28_800 + number * 32_000 / calls, number))))
    if not await store.audit("default", limit=1):
        await store.commit("default", writes)
        await add_jobs(store.path)


PAST: list[tuple[str, dict[str, Any], float]] = [
    ("query_orders", {"days": 7, "group_by": "region"}, 435.2),
    ("find_list", {"name": "team"}, 301.8),
    ("run_command", {"command": "git push --force", "seconds": 30}, 0.4),
    ("query_orders", {"days": 30, "group_by": "product"}, 551.0),
    ("query_orders", {"days": 1, "group_by": "region"}, 405.4),
    ("run_command", {"command": "make report", "seconds": 60}, 2210.5),
    ("find_list", {"name": "partners"}, 298.1),
    ("query_orders", {"days": 90, "group_by": "region"}, 851.7),
    ("query_orders", {"days": 14, "group_by": "product"}, 470.9),
    ("find_list", {"name": "board"}, 305.3),
    ("query_orders", {"days": 60, "group_by": "region"}, 702.6),
]
"""What was called on an ordinary day, in this order."""


def _line(at: float, number: int) -> dict[str, Any]:
    name, arguments, took = PAST[number % len(PAST)]
    declined = took < 1
    meta = {"arguments": arguments, "duration_ms": took + at % 37, "error": "declined" if declined else None}
    line: dict[str, Any] = {"tenantId": "default", "actorExternalId": "analyst", "entityId": name, "meta": meta}
    line |= {"level": "warn" if declined else "info", "message": f"Agent analyst called {name}"}
    return line | {"success": not declined, "timestamp": int(at * 1000), "action": "TOOL_CALL"}


def shown_folder(path: Any, real: Any = os.path.realpath) -> str:
    """The folder that a question names: this one's is new each time, and tells nobody anything."""
    return "/home/ana/notes" if path == os.curdir else real(path)


if __name__ == "__main__":
    os.path.realpath = shown_folder
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    prices = {"claude-sonnet-4": Price(3, 15), "gpt-4.1-mini": Price(0.4, 1.6)}
    run(serve_house(Path(sys.argv[1]), port, agents(), before=before, prices=prices))
