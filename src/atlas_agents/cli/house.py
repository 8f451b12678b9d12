"""`atlas agents`, `atlas tools`, `atlas usage`: what there is, and what it cost."""

from typing import Any

from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import quiet, run
from atlas_agents.cli.reach import within_reach
from atlas_agents.cli.who import model_name, pick
from atlas_agents.cli.words import for_people
from atlas_agents.core.errors import ConfigError

_NAMES = ("agent", "model", "session", "day")


async def asked(method: str, **params: Any) -> Any:
    """The result of one method, from the gateway that runs or from one for this moment."""
    async with within_reach(given.settings(), idle=True) as here:
        return await here.client.call(method, **params)


def list_agents(*, as_json: bool) -> int:
    async def work() -> None:
        found = (await asked("agents.list"))["agents"]
        if as_json:
            show.as_json(found)
            return
        rows = [
            (
                f"{agent['id']}{' *' if agent.get('default') else ''}",
                model_name(agent["model"]),
                ", ".join(agent["tools"]) or "none",
                for_people(agent.get("notice", "")) or agent["description"],
            )
            for agent in found
        ]
        show.table(("agent", "model", "tools", "about"), rows, "There are no agents.")

    quiet()
    return run(work)


def list_tools(agent_id: str | None, *, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            if agent_id is not None:
                pick((await here.client.call("agents.list"))["agents"], agent_id)
            found = (await here.client.call("tools.list", agent_id=agent_id))["tools"]
        if as_json:
            show.as_json(found)
            return
        rows = [(tool["name"], tool.get("agentId", ""), _may(tool), tool["description"]) for tool in found]
        show.table(("tool", "agent", "allowed", "about"), rows, "There are no tools.")

    quiet()
    return run(work)


def _may(tool: dict[str, Any]) -> str:
    if not tool["allowed"]:
        return "no"
    return "ask" if tool["requiresApproval"] else "yes"


def sum_usage(since: str | None, until: str | None, by: str, *, as_json: bool) -> int:
    async def work() -> None:
        if by not in _NAMES:
            raise ConfigError(f"--by: it must be {', '.join(_NAMES[:-1])} or {_NAMES[-1]}, not {by!r}")
        rows = (await asked("usage.summary", from_=since, to=until, group_by=by))["rows"]
        if as_json:
            show.as_json(rows)
            return
        heads = (by, "turns", "tokens in", "cached", "tokens out", "cost $")
        show.table(heads, [_sum(row) for row in rows], "Nothing was used.")

    quiet()
    return run(work)


def _sum(row: dict[str, Any]) -> tuple[object, ...]:
    cost = f"{row['costMicrocents'] / 1e8:.4f}"
    return (
        row["name"],
        row["turns"],
        f"{row['inputTokens']:,}",
        f"{row['cachedTokens']:,}",
        f"{row['outputTokens']:,}",
        cost,
    )
