"""A gateway with sample data for the screenshots: `screenshot_gateway.py HOME [PORT]`."""

import asyncio
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from page_gateway import serve
from page_model import PageModel, Rounds
from screenshot_jobs import RUNNING_TASK, add_jobs

from atlas_agents import Agent, Price, tool
from atlas_agents.core.json import encode
from atlas_agents.core.store import AddAudit, AddUsage, UsageRow, Write
from atlas_agents.gateway.server import run
from atlas_agents.storage.sqlite import SqliteStore

REPORT = """\
Bookings rose by **18 %** over the month, and nearly all of it came from two regions.

| Region | Orders | Change |
|---|---:|---:|
| North | 1,284 | +31 % |
| West | 968 | +24 % |
| South | 702 | +3 % |

I used this query:

```sql
SELECT region, count(*) AS orders
FROM orders
WHERE placed_at >= date('now', '-30 days')
GROUP BY region ORDER BY orders DESC;
```

Should I draft a note to the team?
"""
SCRIPTS: dict[str, Rounds] = {
    "How did orders do this month?": [
        [
            ["reasoning", "I need the orders of the last thirty days by region, and the month before for comparison."],
            ["text", "I'll compare the orders of the last thirty days with the month before."],
            ["call", "query_orders", {"days": 30, "group_by": "region"}],
            ["call", "query_orders", {"days": 60, "group_by": "region"}],
        ],
        [["text", REPORT]],
    ],
    "Send the weekly report to the team": [
        [["text", "The report is ready. I'll look up the recipients first."], ["call", "find_list", {"name": "team"}]],
        [
            ["call", "run_command", {"command": "mail -s 'Weekly report' team@example.org < report.md", "seconds": 30}],
        ],
    ],
    "Clean up the old builds": [
        [
            ["text", "There are 14 builds older than a week."],
            ["call", "run_command", {"command": "rm -r builds/2026-10-*", "seconds": 60}],
        ],
    ],
    RUNNING_TASK: [[["pause", 3600]]],
    "Plan the release": [[["pace", 0.05], ["text", "Three things are left: the notes, the tag and the announcement."]]],
    "What does the policy say about refunds?": [[["text", "Refunds are possible within 30 days, with the receipt."]]],
}


@tool(effect="pure")
async def query_orders(days: int, group_by: str = "region") -> list[dict[str, Any]]:
    """Count orders of the last days, by region or by product."""
    await asyncio.sleep(0.4 + days / 200)
    return [{"region": "North", "orders": 1284}, {"region": "West", "orders": 968}, {"region": "South", "orders": 702}]


@tool(effect="pure")
async def find_list(name: str) -> str:
    """Find a mailing list by name."""
    await asyncio.sleep(0.3)
    return f"{name}@example.org, 12 people"


@tool(confirm=True)
async def run_command(command: str, seconds: int = 60) -> str:
    """Run a command on this machine."""
    await asyncio.sleep(0.2)
    return "done"


def make_agents() -> list[Agent]:
    analyst = PageModel(SCRIPTS, id="claude-sonnet-4", pace=0.012)
    writer = PageModel(SCRIPTS, id="gpt-4.1-mini", pace=0.012)
    description = "Answers questions about the business, with numbers you can check."
    return [
        Agent(
            "analyst",
            model=analyst,
            tools=[query_orders, find_list, run_command],
            name="Analyst",
            description=description,
        ),
        Agent("writer", model=writer, tools=[find_list], name="Writer", description="Turns notes into letters."),
    ]


async def add_history(store: SqliteStore) -> None:
    """Store usage and audit entries of the last thirteen days, oldest first, and jobs."""
    writes: list[Write] = []
    midnight = time.time() // 86_400 * 86_400
    for days_ago in range(13, 0, -1):
        at = midnight - days_ago * 86_400
        busy = 0.4 if time.gmtime(at).tm_wday > 4 else 1.0 + 0.4 * math.sin(days_ago)
        for agent, model, size in (("analyst", "claude-sonnet-4", 61_000), ("writer", "gpt-4.1-mini", 27_000)):
            tokens_in, tokens_out = int(size * busy), int(size * busy / 7)
            expensive = int((tokens_in * 3 + tokens_out * 15) / 1_000_000 * 100_000_000)
            cost = expensive if agent == "analyst" else int(tokens_in / 25 * 10)
            day = time.strftime("%Y-%m-%d", time.gmtime(at))
            row = UsageRow(day, "past", agent, model, tokens_in, tokens_out, tokens_in // 3, cost, int(18 * busy))
            writes.append(AddUsage(row))
        calls = int(len(PAST_CALLS) * busy)
        for number in range(calls):
            writes.append(AddAudit(encode(_audit_entry(at + 28_800 + number * 32_000 / calls, number))))
    if not await store.audit("default", limit=1):
        await store.commit("default", writes)
        await add_jobs(store.path)


PAST_CALLS: list[tuple[str, dict[str, Any], float]] = [
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
"""Tool calls of an ordinary day, in order: tool, arguments and milliseconds."""


def _audit_entry(at: float, number: int) -> dict[str, Any]:
    name, arguments, duration = PAST_CALLS[number % len(PAST_CALLS)]
    declined = duration < 1
    meta = {"arguments": arguments, "duration_ms": duration + at % 37, "error": "declined" if declined else None}
    entry: dict[str, Any] = {"tenantId": "default", "actorExternalId": "analyst", "entityId": name, "meta": meta}
    entry |= {"level": "warn" if declined else "info", "message": f"Agent analyst called {name}"}
    return entry | {"success": not declined, "timestamp": int(at * 1000), "action": "TOOL_CALL"}


def fixed_working_directory(path: Any, *, strict: bool = False, real: Any = os.path.realpath) -> str:
    """Return a fixed working directory: the real one is temporary, and would change every screenshot."""
    return "/home/ana/notes" if path == os.curdir else real(path, strict=strict)


if __name__ == "__main__":
    os.path.realpath = fixed_working_directory  # pyrefly: ignore[bad-assignment] - patched, for text only
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    prices = {"claude-sonnet-4": Price(3, 15), "gpt-4.1-mini": Price(0.4, 1.6)}
    run(serve(Path(sys.argv[1]), port, make_agents(), prepare=add_history, prices=prices))
