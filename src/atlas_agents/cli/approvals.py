"""`atlas approvals list | approve | deny`: questions that wait, and their answers."""

import sys
import time

from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import one_of, quiet, run
from atlas_agents.cli.reach import within_reach
from atlas_agents.core.exact import exact


def list_approvals(*, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            found = (await here.client.call("approvals.list"))["approvals"]
        if as_json:
            show.as_json(found)
            return
        rows = [
            (
                each["approvalId"],
                each.get("agentId", ""),
                f"{max(0, each['expiresAt'] / 1000 - time.time()):.0f} s",
                f"{each['toolName']}({', '.join(f'{name}={exact(value)}' for name, value in each['details'].items())})",
            )
            for each in found
        ]
        show.table(("question", "agent", "time left", "call"), rows, "Nobody asks anything.")

    quiet()
    return run(work)


def answer(start: str, decision: str, reason: str) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            found = (await here.client.call("approvals.list"))["approvals"]
            id = one_of(start, [each["approvalId"] for each in found], "approval")
            await here.client.call("approvals.resolve", approval_id=id, decision=decision, reason=reason)
        print(f"{id}: {decision}.", file=sys.stderr)

    quiet()
    return run(work)
