"""`atlas audit …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Calls of this agent.")]
ToolName = Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Calls of this tool.")]
Level = Annotated[str | None, typer.Option("--level", metavar="LEVEL", help="info, warn or error.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=500, help="How many.")] = 20,
    agent: Agent = None,
    tool: ToolName = None,
    level: Level = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Calls of this run.")] = None,
    as_json: Json = False,
) -> None:
    """List calls, the latest first."""
    from atlas_agents.cli.audit import list_audit

    filters = {"agent_id": agent, "tool": tool, "level": level, "run_id": run}
    raise typer.Exit(list_audit(limit, filters, as_json=as_json))


@app.command()
def follow(as_json: Annotated[bool, typer.Option("--json", help="A JSON object for each.")] = False) -> None:
    """Show calls as they are made. Ctrl-C ends it."""
    from atlas_agents.cli.audit import follow

    raise typer.Exit(follow(as_json=as_json))


@app.command()
def verify(as_json: Json = False) -> None:
    """Check that no line was changed or removed.

    Exit codes: 0 the chain is whole, 1 it is not.
    """
    from atlas_agents.cli.audit import check

    raise typer.Exit(check(as_json=as_json))


@app.command("what-if")
def what_if(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Another policy file.")], as_json: Json = False
) -> None:
    """List the recorded calls that another policy would have judged otherwise."""
    from atlas_agents.cli.audit import compare

    raise typer.Exit(compare(policy, as_json=as_json))
