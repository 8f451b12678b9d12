"""The `atlas` command: reads its options and hands over. What a command needs is imported when it runs."""

from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def atlas(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Talk to LLM agents from the terminal."""
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"atlas {version_of('atlas-agents')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def chat(
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE", help="Answer this once and leave. '-' takes it from standard input."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="REF", help="The model that answers: anthropic/…, openai/…, http/…, or demo."),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The instruction that the model is given.")] = None,
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An OpenAI-compatible server; without --model its first model answers."),
    ] = None,
    tools: Annotated[bool, typer.Option(help="Let the model use the clock, the dice and the adding machine.")] = True,
) -> None:
    """Have a conversation, or get one answer.

    Without --model and --base-url, the first of these decides who answers: ATLAS_MODEL, ANTHROPIC_API_KEY,
    OPENAI_BASE_URL, OPENAI_API_KEY, in the environment or in .env. With none of them a scripted demo does.

    Exit codes: 0 done, 1 no answer, 2 wrong options or settings, 130 stopped by Ctrl-C.
    """
    from atlas_agents.cli.chat import Options, chat

    raise typer.Exit(chat(Options(message, model, system, base_url, tools)))


def main() -> None:
    """Run the command and exit with its code."""
    app(prog_name="atlas")
