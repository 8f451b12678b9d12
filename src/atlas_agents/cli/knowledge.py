"""`atlas knowledge …`: add, list, search, refresh and remove the documents that agents can search."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from atlas_agents.cli.command import EXIT_FAILED, EXIT_OK, Argument, Group, JsonFlag, Option, YesFlag, command, confirm
from atlas_agents.cli.connect import GatewayCall, GatewaySession, call, connect, open_calls
from atlas_agents.cli.output import format_age, one_line, plural, print_json, print_table, printable, rewrite_line
from atlas_agents.core.errors import ConfigError

app = Group()
_COUNTS = ("added", "changed", "unchanged", "removed", "duplicates")
_EXCERPT = 300
_PAGE = 500
CategoryOption = Annotated[
    str | None, Option("--category", "-c", metavar="NAME", help="Only documents of this category.")
]


@command(app)
async def add(
    source: Annotated[str, Argument(metavar="SOURCE", help="A folder, a file or a URL.")],
    category: Annotated[
        str | None,
        Option("--category", "-c", metavar="NAME", help="The category of the documents; general for a new source."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Add Markdown, text, HTML, PDF and Word files, or a web page.

    Run it again with the same source to read only changed documents.
    """
    from atlas_agents.knowledge.library import canonical_source

    return await _ingest("knowledge.add", as_json=as_json, source=canonical_source(source), category=category)


@command(app, "list")
def list_documents(category: CategoryOption = None, as_json: JsonFlag = False) -> None:
    """List the documents."""
    with open_calls() as gateway:
        found = _read_documents(gateway, category)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["id"],
            each["category"],
            each["passages"],
            format_age(each["addedAt"]),
            each["title"],
            each["source"] if each.get("complete", True) else f"{each['source']} (truncated)",
        )
        for each in found
    ]
    headers = ("document", "category", "passages", "added", "title", "source")
    print_table(headers, rows, "There are no documents. Add some with: atlas knowledge add SOURCE")


@command(app)
def search(
    query: Annotated[str, Argument(metavar="QUERY", help="A question or keywords.")],
    category: CategoryOption = None,
    limit: Annotated[int, Option(metavar="N", min=1, max=50, help="Maximum number of passages.")] = 5,
    as_json: JsonFlag = False,
) -> int:
    """Search the documents as an agent does."""
    results = call("knowledge.search", query=query, category=category, max_results=limit)["results"]
    if as_json:
        print_json(results)
    elif not results:
        print("No results.", file=sys.stderr)
    for each in () if as_json else results:
        location: str = " ".join(piece for piece in (each["name"], each["position"]) if piece)
        print(f"{each['score']:.2f}  {printable(each['heading'] or each['title'])}  ({printable(location)})")
        print(f"      {one_line(each['text'], _EXCERPT)}")
    return EXIT_OK if results else EXIT_FAILED


@command(app)
async def refresh(
    source: Annotated[
        str | None, Argument(metavar="SOURCE", help="A source that was added; by default all of them.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Read changed documents again and remove those that no longer exist."""
    from atlas_agents.knowledge.library import canonical_source

    return await _ingest("knowledge.refresh", as_json=as_json, source=source and canonical_source(source))


@command(app)
def remove(
    source: Annotated[str, Argument(metavar="SOURCE", help="A document id, a document's source, or a folder.")],
    yes: YesFlag = False,
) -> None:
    """Remove a document, or all documents of a source."""
    from atlas_agents.knowledge.library import canonical_source

    full_source = canonical_source(source)
    with open_calls() as gateway:
        documents = _read_documents(gateway)
        matching = [
            each for each in documents if {each["id"], each["source"], each.get("root")} & {source, full_source}
        ]
        if not matching:
            from atlas_agents.core.text import list_known

            known = list_known("documents", [each["source"] for each in documents])
            raise ConfigError(f"document not found: {source!r}; {known}; run: atlas knowledge list")
        shown = plural(len(matching), "document") if len(matching) != 1 else printable(matching[0]["source"])
        if not yes and not confirm(f"Remove {shown}?"):
            print("Nothing was removed.", file=sys.stderr)
            return
        target = source if any(each["id"] == source for each in matching) else full_source
        removed = gateway("knowledge.remove", source=target)["removed"]
    print(f"{removed} removed.", file=sys.stderr)


def _read_documents(gateway: GatewayCall, category: str | None = None) -> list[dict[str, Any]]:
    """Return all documents, or those of a category, by source."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = gateway("knowledge.list", category=category, limit=_PAGE, cursor=cursor)
        found += page["documents"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return sorted(found, key=lambda each: each["source"])


async def _ingest(method: str, *, as_json: bool, **params: Any) -> int:
    async with connect() as gateway, _progress(gateway):
        report = await gateway.client.call(method, **params)
    counts = [f"{report[name]} {name}" for name in _COUNTS if report[name]]
    if as_json:
        print_json(report)
    else:
        print(f"{', '.join(counts) or 'nothing to do'}; {plural(report['passages'], 'passage')} written.")
        for each in report.get("skipped", ()):
            print(f"skipped: {printable(each['source'])}: {printable(each['reason'])}", file=sys.stderr)
    return EXIT_FAILED if report.get("skipped") and not counts else EXIT_OK


@asynccontextmanager
async def _progress(gateway: GatewaySession) -> AsyncGenerator[None, None]:
    """Progress line; silent when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(_show_progress(gateway))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        rewrite_line("")


async def _show_progress(gateway: GatewaySession) -> None:
    from atlas_agents.gateway.protocol.events import KnowledgeProgress

    async for event in gateway.client.server_events():
        if isinstance(event, KnowledgeProgress):
            counts = f"{event.done} of {event.total} documents, {event.passages} passages"
            rewrite_line(f"{counts}  {printable(event.current)}")
