"""Configuration and usage: `atlas agents`, `policy`, `tools`, `usage`, `config` and `protocol`."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from atlas_agents.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    AgentOption,
    Argument,
    Group,
    JsonFlag,
    Option,
    YesFlag,
    command,
    confirm,
)
from atlas_agents.cli.connect import call, find_agent, load_settings, model_label, open_calls
from atlas_agents.cli.output import print_json, print_table, without_code_hints
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.config.settings import Settings

app = Group()
agents = Group(default="list")
policy = Group(default="show")
config = Group()
protocol = Group()
_GROUPINGS = ("agent", "model", "session", "day")


AgentId = Annotated[str, Argument(metavar="ID", help="The id of the agent.")]
NameOption = Annotated[str | None, Option("--name", metavar="TEXT", help="The name that people see.")]
DescriptionOption = Annotated[str | None, Option("--description", metavar="TEXT", help="Description of its purpose.")]
AgentModelOption = Annotated[
    str | None, Option("--model", metavar="REF", help="Model of the agent; empty for the default.")
]
FallbackOption = Annotated[
    list[str] | None,
    Option("--fallback", metavar="REF", help="A model to use if the first fails, or none. Repeatable."),
]
AgentEffortOption = Annotated[str | None, Option("--effort", metavar="LEVEL", help="Reasoning effort of its model.")]
FileOption = Annotated[
    str | None, Option("--instructions", "-i", metavar="FILE", help="File with its instructions; - reads from stdin.")
]
ToolOption = Annotated[
    list[str] | None, Option("--tool", metavar="NAME", help="A tool of the agent, * for all, or none. Repeatable.")
]
RoleOption = Annotated[str | None, Option("--role", metavar="NAME", help="Role that policies see.")]
HandoffOption = Annotated[
    list[str] | None, Option("--hand-off", metavar="ID", help="An agent that it may hand off to, or none. Repeatable.")
]
DryRunFlag = Annotated[bool, Option("--dry-run", help="Show what would change and change nothing.")]


@command(agents, "list")
def list_agents(as_json: JsonFlag = False) -> None:
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


@command(agents)
def show(id: AgentId, as_json: JsonFlag = False) -> None:
    """Show the editable fields of an agent."""
    found = call("agents.get", agent_id=id)
    if as_json:
        print_json(found)
        return
    draft: dict[str, Any] = found.get("draft", found["agent"])
    for key, value in draft.items():
        if key != "instructions":
            print(f"{key}: {', '.join(cast(list[str], value)) if isinstance(value, list) else value}")
    if found.get("changedBy"):
        print(f"changed by: {found['changedBy']}")
    if draft.get("instructions"):
        print(f"\n{draft['instructions']}")


@command(agents)
def put(
    id: AgentId,
    name: NameOption = None,
    description: DescriptionOption = None,
    model: AgentModelOption = None,
    fallback: FallbackOption = None,
    effort: AgentEffortOption = None,
    instructions: FileOption = None,
    tool: ToolOption = None,
    role: RoleOption = None,
    hand_off: HandoffOption = None,
    dry_run: DryRunFlag = False,
) -> None:
    """Create an agent, or change the given fields. New chats use it at once."""
    given = {
        "name": name,
        "description": description,
        "model": model,
        "fallbacks": _listed(fallback),
        "effort": effort,
        "instructions": _read_instructions(instructions) if instructions is not None else None,
        "tools": _listed(tool),
        "role": role,
        "handsOffTo": _listed(hand_off),
    }
    with open_calls() as gateway:
        exists = any(agent["id"] == id for agent in gateway("agents.list")["agents"])
        found: dict[str, Any] = gateway("agents.get", agent_id=id) if exists else {}
        draft: dict[str, Any] = {"id": id, "tools": [], **found.get("draft", {})}
        draft |= {key: value for key, value in given.items() if value is not None}
        edited = gateway("agents.put", agent=draft, expected_version=found.get("version"), dry_run=dry_run)
    _print_edit(edited, "Nothing was changed." if dry_run else f"{id}: saved. New chats use it now.")


def _listed(values: list[str] | None) -> list[str] | None:
    """Return the values of a repeatable option; None if it was not given."""
    return [] if values == ["none"] else values or None


@command(agents)
def remove(id: AgentId, dry_run: DryRunFlag = False, yes: YesFlag = False) -> int:
    """Remove an agent. Its chats stay, and its schedules are paused."""
    with open_calls() as gateway:
        version = gateway("agents.get", agent_id=id).get("version")
        effects = gateway("agents.remove", agent_id=id, expected_version=version, dry_run=True)
        _print_edit(effects, "")
        if dry_run or not (yes or confirm(f"Remove the agent {id}?")):
            print("Nothing was changed.", file=sys.stderr)
            return EXIT_OK if dry_run else EXIT_FAILED
        gateway("agents.remove", agent_id=id, expected_version=version)
    print(f"{id}: removed.", file=sys.stderr)
    return EXIT_OK


@command(agents, "try")
def try_agent(
    id: AgentId,
    message: Annotated[str, Argument(metavar="MESSAGE", help="The message to the agent.")],
    model: AgentModelOption = None,
    instructions: FileOption = None,
) -> None:
    """Ask an agent, with another model or other instructions, without saving anything.

    It has only tools that change nothing and need no approval.
    """
    with open_calls() as gateway:
        draft: dict[str, Any] = gateway("agents.get", agent_id=id).get("draft", {"id": id})
        draft |= {"model": model} if model is not None else {}
        draft |= {"instructions": _read_instructions(instructions)} if instructions is not None else {}
        answer = gateway("agents.tryDraft", draft=draft, message=message)
    print(answer["text"])
    if answer.get("withheld"):
        print(f"Not available in a trial: {', '.join(answer['withheld'])}.", file=sys.stderr)


def _read_instructions(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --instructions {path}: {error}") from error


def _print_edit(edited: dict[str, Any], done: str) -> None:
    """Print the diff and the warnings of an edit."""
    if edited.get("diff"):
        print(edited["diff"])
    for warning in edited.get("warnings", ()):
        print(f"Note: {warning.rstrip('.')}.", file=sys.stderr)
    if done:
        print(done, file=sys.stderr)


@command(policy, "show")
def show_policy(as_json: JsonFlag = False) -> None:
    """Show the permissions of everyone, roles, groups and agents. A dot marks inherited ones."""
    found = call("policy.get")
    if as_json:
        print_json(found)
        return
    subjects = [subject["id"] for subject in found["subjects"]]
    rows = [
        (tool, *(f"{'' if each in found['cells'].get(tool, {}) else '.'}{row[each]['cell']}" for each in subjects))
        for tool, row in sorted(found["effective"].items())
    ]
    print_table(("tool", *subjects), rows, "There are no tools.")
    if notice := found.get("notice"):
        print(f"Note: {notice}.", file=sys.stderr)


@command(policy, "set")
def set_permission(
    tool: Annotated[str, Argument(metavar="TOOL", help="The name of the tool.")],
    subject: Annotated[str, Argument(metavar="WHO", help="An agent, a role, a group, or * for everyone.")],
    cell: Annotated[str, Argument(metavar="CELL", help="yes, ask, no, or inherit.")],
    days: Annotated[int, Option(metavar="N", help="Days of recorded calls to check.", min=1, max=365)] = 7,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
) -> int:
    """Change a permission, after showing its effect on the recorded calls."""
    if cell not in ("yes", "ask", "no", "inherit"):
        raise ConfigError(f"invalid permission {cell!r}: expected yes, ask, no or inherit")
    changes = [{"tool": tool, "subject": subject, "cell": None if cell == "inherit" else cell}]
    with open_calls() as gateway:
        version = gateway("policy.get").get("version")
        effect = gateway("policy.simulate", changes=changes, days=days)
        for each in effect["calls"]:
            print(f"{each['seq']}  {each['tool']} by {each['agentId']}: {each['before']} -> {each['after']}")
        counts = f"{effect['allow']} would be allowed, {effect['ask']} would ask, {effect['deny']} would be denied"
        print(f"Of {effect['checked']} calls in the last {days} days, {counts}.", file=sys.stderr)
        asks = bool(effect["wider"]) and not dry_run and not yes
        if asks and not confirm(f"This allows {subject} more than now. Save it?"):
            print("Nothing was changed.", file=sys.stderr)
            return EXIT_FAILED
        edited = gateway(
            "policy.put", changes=changes, expected_version=version, dry_run=dry_run, allow_wider=bool(effect["wider"])
        )
    _print_edit({**edited, "warnings": ()}, "Nothing was changed." if dry_run else f"{tool}: {cell} for {subject}.")
    return EXIT_OK


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
    """Show token usage and cost, and the remaining budgets."""
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
        print_table(("budget", "limit", "used", "left", "resets"), [_budget_row(each) for each in budgets], "")


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


@command(config, "show")
def show_settings(as_json: JsonFlag = False) -> None:
    """Show every setting. Secrets are hidden."""
    settings = load_settings()
    _print_notices(settings)
    values = {each.key: each.value for each in settings.explain()}
    if as_json:
        print_json(values)
        return
    print_table(("setting", "value"), list(values.items()), "")


@command(config, "explain")
def explain_settings(as_json: JsonFlag = False) -> None:
    """Show every setting with its meaning and where its value comes from."""
    from atlas_agents.config.settings import SETTINGS

    settings = load_settings()
    _print_notices(settings)
    rows = [(each.key, each.value, each.origin, SETTINGS[each.key]) for each in settings.explain()]
    if as_json:
        print_json(
            [
                {
                    "key": key,
                    "value": value,
                    "origin": origin,
                    "variable": setting.variable,
                    "takes": setting.takes,
                    "about": setting.description,
                }
                for key, value, origin, setting in rows
            ]
        )
        return
    lines = [
        (key, value, origin, f"{setting.description} ({setting.variable})") for key, value, origin, setting in rows
    ]
    print_table(("setting", "value", "origin", "about"), lines, "")


@command(config, "path")
def show_paths(as_json: JsonFlag = False) -> None:
    """Show the files and folders in use and whether they exist."""
    paths = _settings_paths(load_settings())
    if as_json:
        print_json([{"what": name, "path": str(path), "exists": path.exists()} for name, path in paths])
        return
    rows = [(name, "yes" if path.exists() else "no", path) for name, path in paths]
    print_table(("file or folder", "exists", "path"), rows, "")


def _settings_paths(settings: "Settings") -> list[tuple[str, Path]]:
    from atlas_agents.core.paths import Environment, user_config

    return [
        ("environment file", Path.cwd() / ".env"),
        ("project settings", settings.config or Path.cwd() / "atlas.toml"),
        ("user settings", user_config(Environment())),
        *([("policy", settings.policy)] if settings.policy else []),
        ("workspace", settings.workspace),
        ("home", settings.home),
        ("token", settings.home / "token"),
        ("other tokens", settings.home / "tokens.json"),
        ("models", settings.home / "models"),
    ]


def _print_notices(settings: "Settings") -> None:
    for notice in settings.notices:
        print(f"atlas: {notice}", file=sys.stderr)


@command(protocol)
def schema() -> None:
    """Print it as JSON Schema."""
    _print_document("schema")


@command(protocol)
def asyncapi() -> None:
    """Print it as AsyncAPI."""
    _print_document("asyncapi")


@command(protocol)
def typescript() -> None:
    """Print it as TypeScript types."""
    _print_document("typescript")


def _print_document(form: str) -> None:
    from atlas_agents.gateway.protocol.documents import document

    print(document(form), end="")
