"""A house with something to show, for pictures: `picture_process.py HOME [PORT]`."""

import asyncio
import math
import sys
import time
from pathlib import Path
from typing import Any

from page_process import Rounds, Staged
from page_process import serve as serve_house

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
    """Thirteen days that went by."""
    writes: list[Write] = []
    for back in range(1, 14):
        at = time.time() - back * 86_400
        day = time.strftime("%Y-%m-%d", time.gmtime(at))
        busy = 0.4 if time.gmtime(at).tm_wday > 4 else 1.0 + 0.4 * math.sin(back)
        for agent, model, size in (("analyst", "claude-sonnet-4", 61_000), ("writer", "gpt-4.1-mini", 27_000)):
            used, said = int(size * busy), int(size * busy / 7)
            cost = int((used * 3 + said * 15) / 1_000_000 * 100_000_000) if agent == "analyst" else int(used / 25 * 10)
            writes.append(AddUsage(UsageRow(day, "past", agent, model, used, said, used // 3, cost, int(18 * busy))))
        for name, calls in (("query_orders", 9), ("find_list", 4), ("run_command", 3)):
            for number in range(int(calls * busy)):
                fails = name == "run_command" and number == 2
                meta: dict[str, Any] = {
                    "arguments": {},
                    "duration_ms": 180.0 + 40 * number,
                    "error": "declined" if fails else None,
                }
                line: dict[str, Any] = {
                    "tenantId": "default",
                    "actorExternalId": "analyst",
                    "entityId": name,
                    "meta": meta,
                }
                line |= {"level": "warn" if fails else "info", "message": f"Agent analyst called {name}"}
                line |= {"success": not fails, "timestamp": int(at * 1000), "action": "TOOL_CALL"}
                writes.append(AddAudit(encode(line)))
    if not await store.audit("default", limit=1):
        await store.commit("default", writes)


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    prices = {"claude-sonnet-4": Price(3, 15), "gpt-4.1-mini": Price(0.4, 1.6)}
    run(serve_house(Path(sys.argv[1]), port, agents(), before=before, prices=prices))
