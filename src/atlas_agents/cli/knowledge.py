"""`atlas knowledge …`: the documents that agents know."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncGenerator
from typing import Any

from atlas_agents.cli import options as given
from atlas_agents.cli import show as shown
from atlas_agents.cli.border import DONE, NO_ANSWER, confirmed, quiet, run
from atlas_agents.cli.reach import Here, within_reach
from atlas_agents.cli.when import ago
from atlas_agents.cli.words import one_line, printable
from atlas_agents.gateway.protocol.events import KnowledgeProgress
from atlas_agents.knowledge.library import whole_source

_SHOWN = 300


def add(source: str, category: str, *, as_json: bool) -> int:
    whole = whole_source(source)
    return _ingest("knowledge.add", {"source": whole, "category": category}, as_json=as_json)


def refresh(source: str | None, *, as_json: bool) -> int:
    return _ingest("knowledge.refresh", {"source": source and whole_source(source)}, as_json=as_json)


def _ingest(method: str, params: dict[str, Any], *, as_json: bool) -> int:
    async def work() -> int:
        async with within_reach(given.settings(), idle=True) as here, _progress(here):
            report = await here.client.call(method, **params)
        if as_json:
            shown.as_json(report)
        else:
            _print(report)
        return NO_ANSWER if report.get("skipped") and not _any(report) else DONE

    quiet()
    return run(work)


def list_documents(category: str | None, *, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            found = (await here.client.call("knowledge.list", category=category))["documents"]
        if as_json:
            shown.as_json(found)
            return
        rows = [
            (each["id"], each["category"], each["passages"], ago(each["addedAt"]), each["title"], _source(each))
            for each in found
        ]
        heads = ("document", "category", "passages", "read", "title", "source")
        shown.table(heads, rows, "There are no documents: atlas knowledge add reads some.")

    quiet()
    return run(work)


def search(query: str, category: str | None, limit: int, *, as_json: bool) -> int:
    async def work() -> int:
        async with within_reach(given.settings(), idle=True) as here:
            found = await here.client.call("knowledge.search", query=query, category=category, max_results=limit)
        results = found["results"]
        if as_json:
            shown.as_json(results)
        elif not results:
            print("Nothing was found.", file=sys.stderr)
        for each in () if as_json else results:
            where = " ".join(piece for piece in (each["name"], each["position"]) if piece)
            print(f"{each['score']:.2f}  {printable(each['heading'] or each['title'])}  ({printable(where)})")
            print(f"      {one_line(each['text'], _SHOWN)}")
        return DONE if results else NO_ANSWER

    quiet()
    return run(work)


def remove(source: str, *, yes: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            found = (await here.client.call("knowledge.list"))["documents"]
            names = (source, whole_source(source))
            mine = [each for each in found if {each["id"], each["source"], each.get("root")} & set(names)]
            what = f"{len(mine)} documents" if len(mine) != 1 else printable(mine[0]["source"])
            if mine and not yes and not confirmed(f"Remove {what}?"):
                print("Nothing was removed.", file=sys.stderr)
                return
            which = source if any(each["id"] == source for each in mine) else whole_source(source)
            removed = (await here.client.call("knowledge.remove", source=which))["removed"]
        print(f"{removed} removed.", file=sys.stderr)

    quiet()
    return run(work)


@contextlib.asynccontextmanager
async def _progress(here: Here) -> AsyncGenerator[None, None]:
    """How far it is, in a line that moves; in a pipe, nothing."""
    if not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(_follow(here))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


async def _follow(here: Here) -> None:
    async for event in here.client.news():
        if isinstance(event, KnowledgeProgress):
            words = f"{event.done} of {event.total} documents, {event.passages} passages  {printable(event.current)}"
            sys.stderr.write(f"\r\x1b[K{words[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()


def _print(report: dict[str, Any]) -> None:
    names = ("added", "changed", "unchanged", "removed", "duplicates")
    counts = [f"{report[name]} {name}" for name in names if report[name]]
    print(f"{', '.join(counts) or 'nothing to do'}; {report['passages']} passages written.")
    for each in report.get("skipped", ()):
        print(f"left out: {printable(each['source'])}: {printable(each['reason'])}", file=sys.stderr)


def _any(report: dict[str, Any]) -> bool:
    return any(report[name] for name in ("added", "changed", "unchanged", "removed", "duplicates"))


def _source(each: dict[str, Any]) -> str:
    return each["source"] if each.get("complete", True) else f"{each['source']} (cut short)"
