"""`atlas audit …`: the log of all tool calls, read, followed and checked."""

import sys
from typing import Any

from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import DONE, NO_ANSWER, quiet, run
from atlas_agents.cli.reach import TENANT, Here, within_reach
from atlas_agents.cli.when import moment
from atlas_agents.cli.words import one_line
from atlas_agents.config.open import open_store
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.protocol.events import AuditAdded
from atlas_agents.tools.audit import AuditRecord, StoreAudit, what_if
from atlas_agents.tools.policy import Policy

_LEVELS = (None, "info", "warn", "error")


def list_audit(limit: int, filters: dict[str, str | None], *, as_json: bool) -> int:
    async def work() -> None:
        if filters.get("level") not in _LEVELS:
            raise ConfigError(f"--level: it must be info, warn or error, not {filters['level']!r}")
        async with within_reach(given.settings(), idle=True) as here:
            found = (await here.client.call("audit.list", limit=limit, **filters))["entries"]
        if as_json:
            show.as_json(found)
            return
        heads = ("line", "when", "agent", "tool", "came of it")
        show.table(heads, [_row(each) for each in found], "No tool was called.")

    quiet()
    return run(work)


def follow(*, as_json: bool) -> int:
    quiet()
    return run(lambda: _follow(as_json=as_json))


async def _follow(*, as_json: bool) -> None:
    """New lines; those that were written while the line was broken are looked up."""
    async with within_reach(given.settings()) as here:
        print("Waiting for calls; Ctrl-C ends it.", file=sys.stderr, flush=True)
        newest = await _newest(here)
        while True:
            news = here.client.news()
            await here.client.call("audit.subscribe")
            for entry in reversed(await _since(here, newest)):
                newest = max(newest, entry["seq"])
                _print(entry, as_json=as_json)
            async for event in news:
                if isinstance(event, AuditAdded) and event.entry.seq > newest:
                    newest = event.entry.seq
                    entry = {"seq": event.entry.seq, "entry": event.entry.entry, "hash": event.entry.hash}
                    _print(entry, as_json=as_json)


async def _newest(here: Here) -> int:
    found = (await here.client.call("audit.list", limit=1))["entries"]
    return found[0]["seq"] if found else 0


async def _since(here: Here, seq: int) -> list[dict[str, Any]]:
    found = (await here.client.call("audit.list", limit=500))["entries"]
    return [each for each in found if each["seq"] > seq]


def check(*, as_json: bool) -> int:
    async def work() -> int:
        async with within_reach(given.settings(), idle=True) as here:
            found = await here.client.call("audit.verify")
        lines, problem = found["rows"], found.get("problem")
        if as_json:
            show.as_json({"lines": lines, "whole": problem is None, "problem": problem})
        else:
            print(f"The chain is whole: {lines} lines." if problem is None else f"The chain is broken: {problem}.")
        return DONE if problem is None else NO_ANSWER

    quiet()
    return run(work)


def compare(path: str, *, as_json: bool) -> int:
    async def work() -> None:
        policy = Policy.load(path)
        changes = what_if(await _records(), policy)
        if as_json:
            show.as_json(changes)
            return
        rows = [(each.seq, each.agent_id, each.tool, each.before, each.after, each.rule) for each in changes]
        show.table(
            ("line", "agent", "tool", "was", "would be", "because of"),
            rows,
            "Nothing would have been judged otherwise.",
        )

    return run(work)


async def _records() -> list[AuditRecord]:
    """The whole log, to be judged here: the policy is a file of this place, and no gateway need know it."""
    store = open_store(given.settings())
    await store.open()
    try:
        return list(await StoreAudit(store).records(TENANT))
    finally:
        await store.close()


def _row(line: dict[str, Any]) -> tuple[object, ...]:
    entry = line["entry"]
    return line["seq"], moment(entry["timestamp"]), entry["actorExternalId"], entry["entityId"], _came(entry)


def _came(entry: dict[str, Any]) -> str:
    return f"{'ok' if entry['success'] else entry['level']}: {one_line(entry['message'], 300)}"


def _print(line: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show.as_json(line)
    else:
        seq, when, agent, tool, came = _row(line)
        print(f"{seq}  {when}  {agent}  {tool}  {came}")
    sys.stdout.flush()
