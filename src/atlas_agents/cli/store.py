"""`atlas store …`: check the database, prune it, back it up, restore it, and end the turns that a backup left open."""

import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from atlas_agents.cli import command as cli
from atlas_agents.cli.connect import TENANT, load_settings
from atlas_agents.cli.output import plural, print_json, progress_line
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.app.store_maintenance import RetentionPolicy
    from atlas_agents.config.settings import Settings
    from atlas_agents.core.store import Prunable, Pruned, Store
    from atlas_agents.storage.sqlite.files import DatabaseSummary

app = cli.Group()
_PG_DUMP = 'pg_dump --format=custom --schema=atlas --file=FILE "$ATLAS_DATABASE_URL"'
_PG_RESTORE = 'pg_restore --no-owner --single-transaction --dbname="$ATLAS_DATABASE_URL" FILE'
_END_REASON = "it was running when the backup was made"
_PAGE = 200


@cli.command(app)
async def check(
    repair: Annotated[
        bool, cli.Option("--repair", help="Save unreadable rows to a file and isolate them. Stop the gateway first.")
    ] = False,
    as_json: cli.JsonFlag = False,
) -> int:
    """Find rows that cannot be read, and isolate them.

    A gateway tolerates such rows: a turn with one fails, and a message is shown as a note. With --repair, their bytes
    are saved to a file, messages are replaced by a note, turns are ended, and schedules and users are removed.

    Exit codes: 0 everything can be read, 1 something cannot, 2 invalid options or settings.
    """
    from contextlib import nullcontext

    from atlas_agents.app.home_lock import lock_home
    from atlas_agents.app.store_maintenance import find_unreadable, isolate
    from atlas_agents.config.open import open_home

    settings = load_settings()
    saved = settings.home / f"unreadable-{time.strftime('%Y%m%dT%H%M%S')}.jsonl"
    with lock_home(open_home(settings)) if repair else nullcontext():
        async with _open_store(settings) as store:
            found = [each async for each in find_unreadable(store, await _all_tenants(store))]
            if found and repair:
                await isolate(store, found, saved)
    repaired = bool(found) and repair
    if as_json:
        print_json({"unreadable": [str(each) for each in found], "saved": str(saved) if repaired else None})
    else:
        for each in found:
            print(each)
        print(f"{plural(len(found), 'row')} cannot be read." if found else "Every row can be read.")
        if found:
            print(f"Isolated; their bytes are in {saved}." if repaired else "Run: atlas store check --repair")
    return cli.EXIT_FAILED if found and not repair else cli.EXIT_OK


@cli.command(app)
async def prune(
    events: Annotated[
        int | None,
        cli.Option(metavar="DAYS", min=0, help="Keep the events of turns for this many days; 0 keeps them forever."),
    ] = None,
    journals: Annotated[
        int | None,
        cli.Option(metavar="DAYS", min=0, help="Keep the steps of turns for this many days; 0 keeps them forever."),
    ] = None,
    dry_run: Annotated[bool, cli.Option("--dry-run", help="Only count.")] = False,
    as_json: cli.JsonFlag = False,
) -> None:
    """Remove expired events and steps of finished turns, and counters of past budget periods, now.

    A gateway does the same every hour. It may be running. Messages, the audit log, approvals and usage are kept.
    """
    from atlas_agents.app.store_maintenance import RetentionPolicy

    settings = load_settings()
    policy = RetentionPolicy(
        settings.keep_events if events is None else events, settings.keep_journals if journals is None else journals
    )
    async with _open_store(settings) as store:
        pruned = await _prune(store, policy, dry_run=dry_run)
    if as_json:
        print_json({"dryRun": dry_run, **pruned})
        return
    for kind, removed in pruned.items():
        print(_describe_pruned(kind, removed, "would be removed" if dry_run else "removed"))


@cli.command(app)
def backup(
    file: Annotated[str, cli.Argument(metavar="FILE", help="The file to create; it must not exist.")],
    as_json: cli.JsonFlag = False,
) -> int:
    """Back up the SQLite database and verify the copy.

    A gateway may be running. The backup is one file that only its owner can read. Use pg_dump for Postgres.

    Exit codes: 0 success, 1 failure or a broken audit log in the copy, 2 invalid options or settings.
    """
    from atlas_agents.config.open import open_audit_signer
    from atlas_agents.storage.sqlite.files import back_up

    settings = load_settings()
    source, target = _database_file(settings, _PG_DUMP), _absolute(file)
    keys = open_audit_signer(settings).row_keys
    with progress_line() as show:
        summary = back_up(source, target, lambda done, total: show(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"), keys)
    if as_json:
        print_json({"file": str(target), **_as_json(summary)})
    else:
        print(f"Backed up to {target}: {_describe(summary)}, {summary.size / 1e6:.1f} MB.")
    if summary.broken:
        cli.print_error(f"the backup is an exact copy, but {summary.broken}: keep it and find out what changed the log")
    return cli.EXIT_FAILED if summary.broken else cli.EXIT_OK


@cli.command(app)
def restore(
    file: Annotated[str, cli.Argument(metavar="FILE", help="A backup made by `atlas store backup`.")],
    replace: Annotated[
        bool, cli.Option("--replace", help="Replace a database that is not empty; the old one is renamed.")
    ] = False,
    unverified: Annotated[
        bool, cli.Option("--unverified", help="Restore even if the audit log of the backup is broken.")
    ] = False,
    as_json: cli.JsonFlag = False,
) -> None:
    """Verify a backup and restore the SQLite database from it.

    Stop the gateway first. Turns that were running when the backup was made resume at the next start; for an old
    backup, run `atlas store end-turns` before you start the gateway.
    """
    from atlas_agents.app.home_lock import lock_home
    from atlas_agents.config.open import open_audit_signer, open_home
    from atlas_agents.storage.sqlite import files as sqlite_files

    settings, source = load_settings(), _absolute(file)
    target = _database_file(settings, _PG_RESTORE)
    with lock_home(open_home(settings)):
        signer = open_audit_signer(settings)
        summary, old = sqlite_files.restore(
            source, target, replace=replace, unverified=unverified, audit_keys=signer.row_keys
        )
        signer.path.unlink(missing_ok=True)
        signer.reset(sqlite_files.audit_ends(target))
    if as_json:
        print_json({"file": str(target), "replaced": None if old is None else str(old), **_as_json(summary)})
        return
    print(f"Restored {target} from {source}: {_describe(summary)}.")
    if old is not None:
        print(f"The previous database is {old}.")
    if summary.open_runs or summary.open_jobs:
        print(
            f"{plural(summary.open_runs, 'turn')} and {plural(summary.open_jobs, 'job')} were running when the backup "
            "was made. They resume at the next start; if they have continued since, run: atlas store end-turns",
            file=sys.stderr,
        )


@cli.command(app, "end-turns")
async def end_turns(yes: cli.YesFlag = False, as_json: cli.JsonFlag = False) -> None:
    """End all open turns and jobs of a restored database, before the first start.

    The backup does not contain what they did after it was made: if they resumed, they could repeat side effects.
    """
    from atlas_agents.app.home_lock import lock_home
    from atlas_agents.config.open import open_home

    settings = load_settings()
    with lock_home(open_home(settings)):
        async with _open_store(settings) as store:
            if not yes and not cli.confirm("End all open turns and jobs?"):
                print("Nothing was changed.", file=sys.stderr)
                return
            jobs, turns = await _end_jobs(store), await _end_runs(store)
    if as_json:
        print_json({"turns": turns, "jobs": jobs})
    else:
        print(f"Ended {plural(turns, 'turn')} and {plural(jobs, 'job')}.")


async def _prune(store: "Store", policy: "RetentionPolicy", *, dry_run: bool) -> "dict[Prunable, Pruned]":
    """Prune every tenant, one after the other."""
    from atlas_agents.app.store_maintenance import KINDS, RetentionJob
    from atlas_agents.core.store import Pruned

    total = dict.fromkeys(KINDS, Pruned())
    for tenant in await _all_tenants(store):
        job = RetentionJob(store, tenant, policy)
        for kind in KINDS:
            if dry_run:
                total[kind] += await job.due(kind)
                continue
            describe = partial(_describe_pruned, kind, verb="removed")
            with progress_line() as show:
                total[kind] += await job.prune(
                    kind, on_progress=lambda removed, describe=describe: show(describe(removed))
                )
    return total


def _describe_pruned(kind: "Prunable", removed: "Pruned", verb: str) -> str:
    if kind == "counters":
        return f"{plural(removed.rows, 'counter')} of past days and months {verb}"
    name = "events" if kind == "events" else "steps"
    return f"{removed.rows:,} {name} of {plural(removed.runs, 'turn')} {verb}, {removed.size / 1e6:.1f} MB"


async def _end_jobs(store: "Store") -> int:
    from atlas_agents.core.store import OPEN_JOB, SetJob

    ended = 0
    for tenant in await _all_tenants(store):
        while jobs := await store.jobs(tenant, states=OPEN_JOB, limit=_PAGE):
            await store.commit(tenant, [SetJob(job.id, "cancelled", error=_END_REASON) for job in jobs])
            ended += len(jobs)
    return ended


async def _end_runs(store: "Store") -> int:
    """End the runs under a new owner epoch, so that their former owner can no longer write."""
    from atlas_agents.app.store_maintenance import end_run

    rows = await store.orphaned_runs()
    for row in rows:
        await end_run(store, row, _END_REASON)
    return len(rows)


async def _all_tenants(store: "Store") -> list[str]:
    """Return the default tenant and all that have a record."""
    return sorted({TENANT, *await store.tenants()})


@asynccontextmanager
async def _open_store(settings: "Settings") -> "AsyncGenerator[Store, None]":
    from atlas_agents.config.open import open_store

    store = open_store(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _database_file(settings: "Settings", postgres_command: str) -> Path:
    from atlas_agents.config.open import database_files

    files = database_files(settings)
    if not files:
        raise ConfigError(f"this command supports only SQLite; for Postgres, run: {postgres_command}")
    return files[0]


def _absolute(file: str) -> Path:
    return Path(file).expanduser().absolute()


def _as_json(summary: "DatabaseSummary") -> dict[str, object]:
    import msgspec

    names = {"open_runs": "openTurns", "open_jobs": "openJobs", "audit": "auditLines"}
    return {names.get(name, name): value for name, value in msgspec.structs.asdict(summary).items()}


def _describe(summary: "DatabaseSummary") -> str:
    sessions, messages = plural(summary.sessions, "session"), plural(summary.messages, "message")
    return f"{sessions}, {messages}, {plural(summary.audit, 'audit row')}"
