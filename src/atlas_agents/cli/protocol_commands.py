"""`atlas protocol …`: the gateway's protocol as a document."""

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command()
def schema() -> None:
    """Print it as JSON Schema."""
    _print("schema")


@app.command()
def asyncapi() -> None:
    """Print it as AsyncAPI."""
    _print("asyncapi")


@app.command()
def typescript() -> None:
    """Print it as TypeScript types."""
    _print("typescript")


def _print(form: str) -> None:
    from atlas_agents.gateway.protocol.__main__ import document

    typer.echo(document(form), nl=False)
