"""`atlas knowledge …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Category = Annotated[str | None, typer.Option("--category", "-c", metavar="NAME", help="Of this category only.")]


@app.command()
def add(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder, a file or an address.")],
    category: Annotated[
        str, typer.Option("--category", "-c", metavar="NAME", help="What to file it under.")
    ] = "general",
    as_json: Json = False,
) -> None:
    """Read Markdown, text, HTML, PDF and Word files, or a page of the web.

    Said again for the same source, only what has changed is read.
    """
    from atlas_agents.cli.knowledge import add

    raise typer.Exit(add(source, category, as_json=as_json))


@app.command("list")
def list_(category: Category = None, as_json: Json = False) -> None:
    """List the documents."""
    from atlas_agents.cli.knowledge import list_documents

    raise typer.Exit(list_documents(category, as_json=as_json))


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question, or key words.")],
    category: Category = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=50, help="How many passages.")] = 5,
    as_json: Json = False,
) -> None:
    """Search the documents as an agent would."""
    from atlas_agents.cli.knowledge import search

    raise typer.Exit(search(query, category, limit, as_json=as_json))


@app.command()
def refresh(
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help="What was added with it; else all.")] = None,
    as_json: Json = False,
) -> None:
    """Read again what has changed, and drop what is gone."""
    from atlas_agents.cli.knowledge import refresh

    raise typer.Exit(refresh(source, as_json=as_json))


@app.command()
def remove(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A document's id or source, or a folder.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a document, or all that was added with a source."""
    from atlas_agents.cli.knowledge import remove

    raise typer.Exit(remove(source, yes=yes))
