"""The `atlas` command: reads its options and hands over. What a command needs is imported when it runs."""

from typing import Annotated

import typer

from atlas_agents.cli.all_commands import AllCommands
from atlas_agents.cli.flags import Json

app = typer.Typer(cls=AllCommands, pretty_exceptions_enable=False, rich_markup_mode=None)
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="REF", help="Talk to this model alone: anthropic/…, openai/…, http/…, or demo."),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="An OpenAI-compatible server; without --model its first model answers."),
]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The instruction for a model alone.")]
Toys = Annotated[bool, typer.Option(help="Give a model alone the clock, the dice and the adding machine.")]
Session = Annotated[str | None, typer.Option("--session", "-s", metavar="KEY", help="The session to talk in.")]
AgentId = Annotated[str | None, typer.Option("--agent", "-a", metavar="ID", help="The agent that is to answer.")]


@app.callback(invoke_without_command=True)
def atlas(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Talk to LLM agents, serve them, and look after what they do."""
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"atlas {version_of('atlas-agents')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="The port; 0 is any that is free.")] = None,
    workspace: Annotated[str | None, typer.Option(metavar="FOLDER", help="The folder with AGENTS.md.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="REF", help="For agents that name no model, or whose key is not set.")
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="Who may call what.")] = None,
    home: Annotated[str | None, typer.Option(metavar="FOLDER", help="The folder for state and token.")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A settings file, not ./atlas.toml.")] = None,
    role: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="alone; or with others on one Postgres: gateway, worker or all."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None,
) -> None:
    """Serve the agents of the workspace: the gateway with its page.

    It listens on this machine only, unless --host says otherwise, and says where to look. Ctrl-C ends it.
    """
    from atlas_agents.cli.serve import serve

    flags = {"host": host, "port": port, "workspace": workspace, "model": model, "policy": policy, "home": home}
    flags |= {"config": config, "role": role, "log_level": log_level, "log_format": log_format}
    raise typer.Exit(serve(flags))


@app.command()
def chat(
    session: Session = None,
    latest: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the latest session.")] = False,
    agent: AgentId = None,
    model: Model = None,
    base_url: BaseUrl = None,
    system: System = None,
    tools: Toys = True,
) -> None:
    """Have a conversation in the terminal.

    An agent of the workspace answers, in a session that is kept: through the gateway that runs, or without one. With
    --model or --base-url a model answers alone, and nothing is kept.
    """
    from atlas_agents.cli.chat import chat
    from atlas_agents.cli.options import Talking

    raise typer.Exit(chat(Talking(session, agent, latest, model, base_url, system, tools)))


@app.command()
def ask(
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="What to answer. '-' takes it from standard input.")
    ] = None,
    session: Session = None,
    agent: AgentId = None,
    yes_to: Annotated[
        list[str] | None, typer.Option(metavar="TOOL", help="Allow the calls of this tool that need a yes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer, usage, runId and steps as JSON.")] = False,
    model: Model = None,
    base_url: BaseUrl = None,
    system: System = None,
    tools: Toys = True,
) -> None:
    """Get one answer.

    The answer goes to standard output, everything else to standard error. A call that needs a person's yes is denied.

    Exit codes: 0 done, 1 no answer, 2 wrong options or settings, 130 stopped by Ctrl-C.
    """
    from atlas_agents.cli.ask import ask
    from atlas_agents.cli.options import Talking

    talking = Talking(session, agent, False, model, base_url, system, tools)
    raise typer.Exit(ask(message, talking, yes_to=tuple(yes_to or ()), as_json=as_json))


@app.command()
def agents(as_json: Json = False) -> None:
    """List the agents, their models and their tools."""
    from atlas_agents.cli.house import list_agents

    raise typer.Exit(list_agents(as_json=as_json))


@app.command()
def tools(agent: AgentId = None, as_json: Json = False) -> None:
    """List the tools, and who may use them."""
    from atlas_agents.cli.house import list_tools

    raise typer.Exit(list_tools(agent, as_json=as_json))


@app.command()
def usage(
    since: Annotated[str | None, typer.Option("--from", metavar="DAY", help="The first day, as 2026-11-01.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day.")] = None,
    by: Annotated[str, typer.Option(metavar="NAME", help="agent, model, session or day.")] = "agent",
    as_json: Json = False,
) -> None:
    """Sum up tokens and cost."""
    from atlas_agents.cli.house import sum_usage

    raise typer.Exit(sum_usage(since, until, by, as_json=as_json))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Find what is wrong with this installation, and say how to mend it.

    Exit codes: 0 nothing is broken, 1 something is.
    """
    from atlas_agents.cli.doctor import doctor

    raise typer.Exit(doctor(as_json=as_json))


@app.command()
def init(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to put the files.")] = ".",
) -> None:
    """Write a workspace, settings and a policy to begin with; nothing that exists is changed."""
    from atlas_agents.cli.init import init

    raise typer.Exit(init(folder))


def main() -> None:
    """Run the command and exit with its code."""
    try:
        app(prog_name="atlas")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("atlas_agents"):
            raise
        typer.echo(f"atlas: {error.name} is not installed: say pip install 'atlas-agents[gateway]'", err=True)
        raise SystemExit(2) from None
