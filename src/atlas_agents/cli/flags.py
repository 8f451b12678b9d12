"""Options that many commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def group(help: str) -> typer.Typer:
    """A command that has commands of its own."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)
