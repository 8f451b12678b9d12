"""`atlas users …`, `atlas plans …`, `atlas tenants …`: who belongs here, and how much may be used."""

import sys
from typing import Any

from atlas_agents.cli import options as given
from atlas_agents.cli import show as shown
from atlas_agents.cli.border import quiet, run
from atlas_agents.cli.reach import within_reach
from atlas_agents.cli.when import ago

_LIMITS = ("tokens", "agents", "storage", "seats")


def list_users(*, as_json: bool) -> int:
    async def work() -> None:
        found = (await _asked("users.list"))["users"]
        if as_json:
            shown.as_json(found)
            return
        rows = [
            (each["name"], each["role"], each["status"], ago(each["lastActive"]) if "lastActive" in each else "never")
            for each in found
        ]
        shown.table(("user", "role", "status", "active"), rows, "There are no users.")

    quiet()
    return run(work)


def list_plans(*, as_json: bool) -> int:
    async def work() -> None:
        found = (await _asked("plans.list"))["plans"]
        if as_json:
            shown.as_json(found)
            return
        rows = [(each["name"], *(_limit(each, name) for name in _LIMITS)) for each in found]
        shown.table(("plan", "tokens a month", "agents", "bytes", "seats"), rows, "There are no plans.")

    quiet()
    return run(work)


def show(*, as_json: bool) -> int:
    async def work() -> None:
        found = await _asked("tenants.get")
        if as_json:
            shown.as_json(found)
            return
        print(f"{found['tenant']}, plan {found['plan']['name']}")
        rows = [(name, f"{found[name]:,}", _limit(found["plan"], name)) for name in _LIMITS]
        shown.table(("what", "used", "limit"), rows, "")

    quiet()
    return run(work)


def list_tenants(*, as_json: bool) -> int:
    async def work() -> None:
        found = (await _asked("tenants.list"))["tenants"]
        if as_json:
            shown.as_json(found)
            return
        shown.table(("tenant",), [(each,) for each in found], "No tenant has a plan of its own.")

    quiet()
    return run(work)


def change(method: str, words: str, **params: Any) -> int:
    async def work() -> None:
        await _asked(method, **params)
        print(words, file=sys.stderr)

    quiet()
    return run(work)


async def _asked(method: str, **params: Any) -> Any:
    async with within_reach(given.settings(), idle=True) as here:
        return await here.client.call(method, **params)


def _limit(plan: dict[str, Any], name: str) -> str:
    return f"{plan[name]:,}" if plan.get(name) is not None else "no limit"
