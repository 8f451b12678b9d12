"""`atlas audit …`: list, follow and verify the audit log of tool calls, and test a policy against it."""

import sys
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli.command import EXIT_FAILED, EXIT_OK, Argument, Group, JsonFlag, Option, YesFlag, command, confirm
from atlas_agents.cli.connect import TENANT, GatewaySession, call, connect, load_settings
from atlas_agents.cli.output import format_time, one_line, print_json, print_table, rewrite_line
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from atlas_agents.tools.audit import AuditRecord

app = Group()
_LEVELS = (None, "info", "warn", "error")
_PAGE = 1000
_NO_MATCH = "No entry matches these filters."


@command(app, "list")
def list_entries(
    limit: Annotated[int, Option(metavar="N", min=1, max=500, help="Maximum number of calls.")] = 20,
    agent: Annotated[str | None, Option("--agent", metavar="ID", help="Only calls of this agent.")] = None,
    tool: Annotated[str | None, Option("--tool", metavar="NAME", help="Only calls of this tool.")] = None,
    level: Annotated[
        str | None, Option("--level", metavar="LEVEL", help="Only this level: info, warn or error.")
    ] = None,
    run: Annotated[str | None, Option(metavar="ID", help="Only calls of this run.")] = None,
    user: Annotated[
        str | None, Option("--user", metavar="NAME", help="Only actions, requests and decisions of this person.")
    ] = None,
    since: Annotated[str | None, Option("--since", metavar="DATE", help="First day, as 2026-11-01.")] = None,
    until: Annotated[str | None, Option("--until", metavar="DATE", help="Last day, which is included.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List tool calls and changes of settings, most recent first. Days are those of the local time zone."""
    if level not in _LEVELS:
        raise ConfigError(f"invalid --level {level!r}: expected info, warn or error")
    filters = {"agent_id": agent, "tool": tool, "level": level, "run_id": run, "user": user}
    found = call("audit.list", limit=limit, **filters, **_time_range(since, until))["entries"]
    if as_json:
        print_json(found)
        return
    headers = ("line", "time", "agent", "tool", "result")
    filtered = any((since, until, *filters.values()))
    print_table(headers, [_row(each) for each in found], _NO_MATCH if filtered else "No tool calls were recorded.")


@command(app)
async def follow(
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per call.")] = False,
) -> None:
    """Print tool calls as they are made. Stop with Ctrl-C."""
    from atlas_agents.gateway.protocol.events import AuditAdded

    async with connect(idle=False) as gateway:
        print("Waiting for tool calls; press Ctrl-C to stop.", file=sys.stderr, flush=True)
        newest = await _newest(gateway)
        while True:  # the event stream ends when the connection is lost: subscribe again and print what was missed
            events = gateway.client.server_events()
            await gateway.client.call("audit.subscribe")
            for entry in reversed(await _entries_after(gateway, newest)):
                newest = max(newest, entry["seq"])
                _print_entry(entry, as_json=as_json)
            async for event in events:
                if isinstance(event, AuditAdded) and event.entry.seq > newest:
                    newest = event.entry.seq
                    entry = {"seq": event.entry.seq, "entry": event.entry.entry, "hash": event.entry.hash}
                    _print_entry(entry, as_json=as_json)


@command(app)
def verify(as_json: JsonFlag = False) -> int:
    """Verify the hash chain and its signatures: no entry was changed or removed, not even at the end.

    Exit codes: 0 the chain is intact, 1 it is broken.
    """
    found = _verify_with_progress() if sys.stderr.isatty() else call("audit.verify")
    lines, problem = found["rows"], found.get("problem")
    if as_json:
        print_json({"lines": lines, "whole": problem is None, "problem": problem})
    else:
        print(f"The chain is intact: {lines} entries." if problem is None else f"The chain is broken: {problem}.")
        if signed := found.get("signedFrom"):
            print(f"Signed from entry {signed} on.", file=sys.stderr)
        elif lines:
            print("No entry is signed; with Postgres, set audit_key to sign new ones.", file=sys.stderr)
    return EXIT_OK if problem is None else EXIT_FAILED


def _verify_with_progress() -> dict[str, Any]:
    """Verify the log and show the progress on stderr."""
    import asyncio
    from contextlib import suppress

    from atlas_agents.gateway.protocol.events import AuditProgress

    async def show_progress(gateway: GatewaySession) -> None:
        async for event in gateway.client.server_events():
            if isinstance(event, AuditProgress):
                rewrite_line(f"{event.rows:,} of {event.total:,} entries verified")

    async def verify_log() -> dict[str, Any]:
        async with connect() as gateway:
            shown = asyncio.create_task(show_progress(gateway))
            try:
                return await gateway.client.call("audit.verify")
            finally:
                shown.cancel()
                with suppress(asyncio.CancelledError):
                    await shown
                rewrite_line("")

    return asyncio.run(verify_log())


@command(app)
async def accept(yes: YesFlag = False) -> None:
    """Accept the audit log as it is now, after you found out why `verify` reports missing entries.

    Stop the gateway first. Changed entries are still reported.
    """
    from atlas_agents.app.home_lock import lock_home
    from atlas_agents.config.open import open_home, open_store
    from atlas_agents.storage.sql.reads import SqlReads

    settings = load_settings()
    if not yes and not confirm("Entries that are missing now will no longer be reported. Accept the audit log?"):
        return
    with lock_home(open_home(settings)):
        store = open_store(settings)
        await store.open()
        try:
            if not isinstance(store, SqlReads) or store.audit_signer is None:
                raise ConfigError("the audit log of this database is not signed")
            store.audit_signer.reset(await store.audit_ends())
        finally:
            await store.close()
    print("Accepted the audit log as it is.", file=sys.stderr)


@command(app, "what-if")
async def compare_policy(
    policy: Annotated[str, Argument(metavar="POLICY", help="The policy file to test.")], as_json: JsonFlag = False
) -> None:
    """List the recorded calls that another policy would have decided differently."""
    from atlas_agents.tools.audit import what_if
    from atlas_agents.tools.policy import Policy

    tested = Policy.load(policy)
    changes = [change async for records in _read_records() for change in what_if(records, tested)]
    if as_json:
        print_json(changes)
        return
    rows = [(each.seq, each.agent_id, each.tool, each.before, each.after, each.rule) for each in changes]
    headers = ("line", "agent", "tool", "decision", "would be", "because of")
    print_table(headers, rows, "The policy would have decided every recorded call the same way.")


async def _read_records() -> "AsyncGenerator[Sequence[AuditRecord], None]":
    """Yield the log in parts, from the store: the policy is a local file that the gateway does not know."""
    from atlas_agents.config.open import open_store
    from atlas_agents.tools.audit import StoreAudit

    store = open_store(load_settings())
    await store.open()
    try:
        after = 0
        while records := await StoreAudit(store).records(TENANT, after=after, limit=_PAGE):
            yield records
            after = records[-1].seq
            if sys.stderr.isatty():
                rewrite_line(f"{after:,} entries read")
        if sys.stderr.isatty():
            rewrite_line("")
    finally:
        await store.close()


async def _newest(gateway: GatewaySession) -> int:
    found = (await gateway.client.call("audit.list", limit=1))["entries"]
    return found[0]["seq"] if found else 0


async def _entries_after(gateway: GatewaySession, seq: int) -> list[dict[str, Any]]:
    found = (await gateway.client.call("audit.list", limit=500))["entries"]
    return [each for each in found if each["seq"] > seq]


def _time_range(since: str | None, until: str | None) -> dict[str, int | None]:
    """Return the parameters `from` and `to` for a first and a last day."""
    start, end = _parse_day("--since", since), _parse_day("--until", until, days=1)
    if start is not None and end is not None and start >= end:
        raise ConfigError(f"invalid range: --since {since} is later than --until {until}")
    return {"from_": start, "to": end}


def _parse_day(option: str, day: str | None, *, days: int = 0) -> int | None:
    """Return the time when a local day starts, or one some days later, in milliseconds since 1970."""
    if day is None:
        return None
    try:
        start = datetime.combine(date.fromisoformat(day) + timedelta(days=days), time.min)
        return int(start.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(f"invalid {option} {day!r}: expected a date such as 2026-11-30") from None


def _row(line: dict[str, Any]) -> tuple[object, ...]:
    entry = line["entry"]
    result = f"{'ok' if entry['success'] else entry['level']}: {one_line(entry['message'], 300)}"
    return line["seq"], format_time(entry["timestamp"]), entry["actorExternalId"], entry["entityId"], result


def _print_entry(line: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(line)
    else:
        print("  ".join(one_line(str(cell), 2000) for cell in _row(line)))
    sys.stdout.flush()
