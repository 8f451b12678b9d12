"""`atlas store backup`, `restore` and `end-turns`: a copy of the database, the way back, and what is open in it."""

import sys
from pathlib import Path

import msgspec

from atlas_agents.app.home_lock import lock_home
from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import DONE, NO_ANSWER, complain, confirmed, guarded, quiet, run
from atlas_agents.cli.moving import moving
from atlas_agents.cli.store import every_tenant, opened
from atlas_agents.config.open import database_files, open_home
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import encode
from atlas_agents.core.store import OPEN_JOB, AddJournal, ClaimRun, SetJob, SetRun, Store
from atlas_agents.stores.sqlite_files import DatabaseSummary, back_up
from atlas_agents.stores.sqlite_files import restore as put_back

_DUMP = 'pg_dump --format=custom --schema=atlas --file=FILE "$ATLAS_DATABASE_URL"'
_LOAD = 'pg_restore --no-owner --single-transaction --dbname="$ATLAS_DATABASE_URL" FILE'
_WHY = "it was under way when the backup was made"
_PAGE = 200


def backup(file: str, *, as_json: bool) -> int:
    def work() -> int:
        source, target = _file(given.settings(), _DUMP), _path(file)
        with moving() as tell:
            content = back_up(source, target, lambda done, all: tell(f"{done / 1e6:.0f} of {all / 1e6:.0f} MB"))
        if as_json:
            show.as_json({"file": str(target), **_plain(content)})
        else:
            print(f"{target} has {_words(content)}, {content.size / 1e6:.1f} MB, and is whole.")
        if content.broken:
            complain(f"the copy is as the database is, and {content.broken}: keep it, and find out who changed it")
        return NO_ANSWER if content.broken else DONE

    return guarded(work)


def restore(file: str, *, replace: bool, unverified: bool, as_json: bool) -> int:
    def work() -> None:
        settings, backup = given.settings(), _path(file)
        target = _file(settings, _LOAD)
        with lock_home(open_home(settings)):
            content, old = put_back(backup, target, replace=replace, unverified=unverified)
        if as_json:
            show.as_json({"file": str(target), "replaced": None if old is None else str(old), **_plain(content)})
            return
        print(f"{target} has {_words(content)}, as {backup} had.")
        if old is not None:
            print(f"What was there before is {old}.")
        if content.open_runs or content.open_jobs:
            print(
                f"{_count(content.open_runs, 'turn')} and {_count(content.open_jobs, 'job')} were under way when it was"
                " made. The next start goes on with them; if they went on since, say `atlas store end-turns` first.",
                file=sys.stderr,
            )

    return guarded(work)


def end_turns(*, yes: bool, as_json: bool) -> int:
    async def work() -> None:
        settings = given.settings()
        with lock_home(open_home(settings)):
            async with opened(settings) as store:
                if not yes and not confirmed("End all open turns and jobs?"):
                    print("Nothing was changed.", file=sys.stderr)
                    return
                jobs, turns = await _end_jobs(store), await _end_runs(store)
        if as_json:
            show.as_json({"turns": turns, "jobs": jobs})
        else:
            print(f"{_count(turns, 'turn')} and {_count(jobs, 'job')} ended.")

    quiet()
    return run(work)


async def _end_jobs(store: Store) -> int:
    ended = 0
    for tenant in await every_tenant(store):
        while found := await store.jobs(tenant, states=OPEN_JOB, limit=_PAGE):
            await store.commit(tenant, [SetJob(job.id, "cancelled", error=_WHY) for job in found])
            ended += len(found)
    return ended


async def _end_runs(store: Store) -> int:
    """As their owner, so that whoever was it before can write nothing more."""
    rows = await store.open_runs()
    for row in rows:
        epoch = row.epoch + 1
        last = AddJournal(row.id, epoch, "ended", "", encode({"status": "failed", "error": _WHY}))
        await store.commit(row.tenant, [ClaimRun(row.id), last, SetRun(row.id, epoch, "failed", _WHY)])
    return len(rows)


def _file(settings: Settings, instead: str) -> Path:
    """Where the SQLite database is; of another database it is said how its own programs do this."""
    files = database_files(settings)
    if not files:
        raise ConfigError(f"this command is for SQLite; for Postgres say {instead}")
    return files[0]


def _path(file: str) -> Path:
    return Path(file).expanduser().absolute()


def _plain(content: DatabaseSummary) -> dict[str, object]:
    names = {"open_runs": "openTurns", "open_jobs": "openJobs", "audit": "auditLines"}
    return {names.get(name, name): value for name, value in msgspec.structs.asdict(content).items()}


def _words(content: DatabaseSummary) -> str:
    lines = _count(content.audit, "line")
    return f"{_count(content.sessions, 'session')}, {_count(content.messages, 'message')}, {lines} of the audit log"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
