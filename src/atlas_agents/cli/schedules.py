"""`atlas schedule …`: tasks that recur."""

import sys
from typing import Any

from atlas_agents.cli import options as given
from atlas_agents.cli import show as shown
from atlas_agents.cli.border import quiet, run
from atlas_agents.cli.reach import within_reach
from atlas_agents.cli.when import moment
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.store import PRIORITIES

_MISSED = ("once", "skip")


def add(name: str, cron: str, task: str, **more: Any) -> int:
    async def work() -> None:
        for option, known in (("missed", _MISSED), ("priority", PRIORITIES)):
            if more[option] not in known:
                raise ConfigError(f"--{option} is one of {', '.join(known)}, not {more[option]!r}")
        async with within_reach(given.settings(), idle=True) as here:
            made = await here.client.call("schedules.add", name=name, cron=cron, task=task, **more)
        print(f"{name} is due next at {moment(made['schedule']['nextAt'])}.", file=sys.stderr)

    quiet()
    return run(work)


def list_schedules(*, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            found = (await here.client.call("schedules.list"))["schedules"]
        if as_json:
            shown.as_json(found)
            return
        rows = [
            (each["name"], each["cron"], each["zone"], each["agentId"], _next(each), each["task"]) for each in found
        ]
        shown.table(("schedule", "cron", "zone", "agent", "next", "task"), rows, "There are no schedules.")

    quiet()
    return run(work)


def change(method: str, words: str, **params: Any) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            await here.client.call(method, **params)
        print(words, file=sys.stderr)

    quiet()
    return run(work)


def run_now(name: str) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            print((await here.client.call("schedules.run", name=name))["job"]["jobId"])

    quiet()
    return run(work)


def _next(schedule: dict[str, Any]) -> str:
    return moment(schedule["nextAt"]) if "nextAt" in schedule else "paused"
