"""`atlas agents`, `atlas tools` and `atlas usage`: what is configured, and what it cost."""

from datetime import UTC, datetime
from typing import Annotated, Any

from atlas_agents.cli.command import AgentOption, Group, JsonFlag, Option, command
from atlas_agents.cli.connect import call, find_agent, model_label, open_calls
from atlas_agents.cli.output import print_json, print_table, without_code_hints
from atlas_agents.core.errors import ConfigError

app = Group()
_GROUPINGS = ("agent", "model", "session", "day")


@command(app)
def agents(as_json: JsonFlag = False) -> None:
    """List the agents, their models and their tools."""
    found = call("agents.list")["agents"]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            f"{agent['id']}{' *' if agent.get('default') else ''}",
            model_label(agent["model"]),
            ", ".join(agent["tools"]) or "none",
            without_code_hints(agent.get("notice", "")) or agent["description"],
        )
        for agent in found
    ]
    print_table(("agent", "model", "tools", "about"), rows, "There are no agents.")


@command(app)
def tools(agent: AgentOption = None, as_json: JsonFlag = False) -> None:
    """List the tools and which agents may use them."""
    with open_calls() as gateway:
        if agent is not None:
            find_agent(gateway("agents.list")["agents"], agent)
        found = gateway("tools.list", agent_id=agent)["tools"]
    if as_json:
        print_json(found)
        return
    rows = [(tool["name"], tool.get("agentId", ""), _permission(tool), tool["description"]) for tool in found]
    print_table(("tool", "agent", "allowed", "about"), rows, "There are no tools.")


def _permission(tool: dict[str, Any]) -> str:
    if not tool["allowed"]:
        return "no"
    return "ask" if tool["requiresApproval"] else "yes"


@command(app)
def usage(
    since: Annotated[str | None, Option("--from", metavar="DAY", help="First day, as 2026-11-01.")] = None,
    until: Annotated[str | None, Option("--to", metavar="DAY", help="Last day.")] = None,
    by: Annotated[str, Option(metavar="NAME", help="Group by agent, model, session or day.")] = "agent",
    as_json: JsonFlag = False,
) -> None:
    """Show token usage and cost, and what is left of the budgets."""
    if by not in _GROUPINGS:
        raise ConfigError(f"invalid --by {by!r}: expected agent, model, session or day")
    rows = call("usage.summary", from_=since, to=until, group_by=by)["rows"]
    if as_json:
        print_json(rows)
        return
    headers = (by, "turns", "tokens in", "cached", "tokens out", "cost $")
    print_table(headers, [_usage_row(row) for row in rows], "No usage was recorded.")
    if budgets := call("limits.get").get("budgets"):
        print()
        print_table(("budget", "limit", "used", "left", "starts again"), [_budget_row(each) for each in budgets], "")


def _budget_row(budget: dict[str, Any]) -> tuple[object, ...]:
    from atlas_agents.core.budgets import format_amount

    left = max(0, budget["limit"] - budget["used"] - budget["reserved"])
    amounts = [format_amount(budget["measure"], amount) for amount in (budget["limit"], budget["used"], left)]
    subject = f" {budget['subject']}" if budget["subject"] else ""
    per = f" per {budget['per']}" if budget.get("per") else ""
    resets_at = datetime.fromtimestamp(budget["resetsAt"] / 1000, UTC) if "resetsAt" in budget else None
    return (budget["scope"] + subject + per, *amounts, f"{resets_at:%Y-%m-%d}" if resets_at else "never")


def _usage_row(row: dict[str, Any]) -> tuple[object, ...]:
    tokens = (f"{row[name]:,}" for name in ("inputTokens", "cachedTokens", "outputTokens"))
    return (row["name"], row["turns"], *tokens, f"{row['costMicrocents'] / 1e8:.4f}")
