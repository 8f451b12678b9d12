"""A copy of a SQLite database made while it is in use, looked at before it is trusted; and the way back."""

import contextlib
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from atlas_agents.core.errors import Conflict, StoreBusy, StoreError, StoreFull
from atlas_agents.core.store import AuditRow
from atlas_agents.stores.chain import broken_audit
from atlas_agents.stores.migrations import SQLITE, pending
from atlas_agents.stores.sqlite_file import OURS, fault

Told: TypeAlias = Callable[[int, int], object]
"""Is told how many bytes are done, of how many."""
_PAGES = 1024
_PATIENCE = 5.0
_COUNTS = {
    "sessions": "SELECT count(*) FROM sessions",
    "messages": "SELECT count(*) FROM messages",
    "audit": "SELECT count(*) FROM audit",
    "open_runs": "SELECT count(*) FROM runs WHERE status IN ('queued', 'running', 'waiting')",
}
_OPEN_JOBS = "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')"
_HOLDS = (
    "SELECT EXISTS (SELECT 1 FROM sessions) OR EXISTS (SELECT 1 FROM audit) OR EXISTS (SELECT 1 FROM records)"
    " OR EXISTS (SELECT 1 FROM documents) OR EXISTS (SELECT 1 FROM usage_sums)"
)
_WITH_JOBS = 4
"""The schema that has jobs first."""


class Content(msgspec.Struct, frozen=True):
    """What is in a database that is whole; `broken` says where its audit log is not."""

    schema: int
    size: int
    sessions: int
    messages: int
    audit: int
    open_runs: int
    open_jobs: int = 0
    broken: str | None = None


def back_up(source: Path, target: Path, told: Told | None = None) -> Content:
    """Copy a database as it is at this moment, whoever writes to it meanwhile; the copy is whole, and one file."""
    if not source.is_file():
        raise StoreError(f"there is no database {source}")
    if target.exists():
        raise Conflict(f"{target} is there already: a backup is written over nothing")
    with _beside(target) as fresh:
        try:
            _copy(source, fresh, told)
        except sqlite3.Error as error:
            problem = fault(error, source)
            raise fault(error, target) if isinstance(problem, StoreFull) else problem from error
        content = look_into(fresh)
        _sync(fresh)
        fresh.rename(target)
        _sync(target.parent)
    return content


def restore(
    backup: Path, target: Path, *, replace: bool = False, unverified: bool = False
) -> tuple[Content, Path | None]:
    """Put a copy in a database's place, once the copy was looked at; (what is in it, where the old one is now).

    `Conflict` if there is something in the old one and it is not to be replaced; `StoreBusy` if it is in use.
    """
    if not backup.is_file() or not os.access(backup, os.R_OK):
        raise StoreError(f"{backup} cannot be read" if backup.exists() else f"there is no backup {backup}")
    if backup.resolve() == target.resolve():
        raise Conflict(f"{backup} is the database itself")
    _make_sure(target, replace=replace)
    with _beside(target) as fresh:
        _check_alone(backup)
        shutil.copyfile(backup, fresh)
        content = look_into(fresh, called=backup)
        if content.broken and not unverified:
            raise StoreError(f"{backup}: {content.broken}; nothing was changed")
        _sync(fresh)
        old = _set_aside(target)
        fresh.rename(target)
        _sync(target.parent)
    return content, old


def look_into(path: Path, *, called: Path | None = None) -> Content:
    """Read all of a database that nobody writes to: ours, not too new, whole in every page, its audit log a chain."""
    name = called or path
    _check_alone(path)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as found:
            ours, schema = (
                found.execute(f"PRAGMA {each}").fetchone()[0] for each in ("application_id", "user_version")
            )
            if ours != OURS:
                raise StoreError(f"{name} is no database of Atlas Agents")
            pending(schema, str(name), SQLITE)
            whole: str = found.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if whole != "ok":
                raise StoreError(f"{name} is damaged: {' '.join(whole.split())}")
            counts = {each: found.execute(sql).fetchone()[0] for each, sql in _COUNTS.items()}
            if schema >= _WITH_JOBS:
                counts["open_jobs"] = found.execute(_OPEN_JOBS).fetchone()[0]
            return Content(schema, path.stat().st_size, **counts, broken=_broken(found))
    except sqlite3.Error as error:
        raise fault(error, name) from error


def _broken(connection: sqlite3.Connection) -> str | None:
    for (tenant,) in connection.execute("SELECT DISTINCT tenant FROM audit ORDER BY tenant").fetchall():
        line = broken_audit(_rows(connection, tenant))
        if line is not None:
            return f"the audit log of the tenant {tenant!r} is broken at line {line}"
    return None


def _rows(connection: sqlite3.Connection, tenant: str) -> Iterator[AuditRow]:
    asked = "SELECT seq, CAST(entry AS BLOB), previous, hash FROM audit WHERE tenant = ? ORDER BY seq"
    for row in connection.execute(asked, (tenant,)):
        yield AuditRow(*row)


def _copy(source: Path, target: Path, told: Told | None) -> None:
    """One reading transaction around all steps: they see one moment, and nobody who writes makes them begin again."""

    def progress(_: int, remaining: int, total: int) -> None:
        if told is not None:
            told((total - remaining) * size, total * size)

    with (
        contextlib.closing(sqlite3.connect(source, timeout=_PATIENCE, isolation_level=None)) as there,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as here,
    ):
        there.execute("PRAGMA query_only = ON")
        there.execute("BEGIN")
        size: int = there.execute("PRAGMA page_size").fetchone()[0]
        if there.execute("PRAGMA application_id").fetchone()[0] != OURS:
            raise StoreError(f"{source} is no database of Atlas Agents")
        there.backup(here, pages=_PAGES, progress=progress)
        here.execute("PRAGMA journal_mode = DELETE")  # all of it in one file


def _make_sure(target: Path, *, replace: bool) -> None:
    """Nobody uses it, and nothing is in it unless that may go."""
    if not target.exists() or target.stat().st_size == 0:
        return
    try:
        with contextlib.closing(sqlite3.connect(target, timeout=0.5, isolation_level=None)) as found:
            tables: int = found.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables and found.execute("PRAGMA application_id").fetchone()[0] != OURS:
                raise StoreError(f"{target} is a database of another program; it was left as it is")
            # Only who has it alone can change this; and what was in a log beside it is in the file then.
            found.execute("PRAGMA journal_mode = DELETE")
            holds = bool(tables) and bool(found.execute(_HOLDS).fetchone()[0])
    except sqlite3.DatabaseError as error:
        if isinstance(fault(error, target), StoreBusy):
            raise StoreBusy(f"the database {target} is in use: end the gateway first") from error
        holds = True  # damaged, or of a schema that is older than some of this
    if holds and not replace:
        raise Conflict(f"the database {target} is not empty: say --replace, and it is set aside")


def _check_alone(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        raise StoreError(
            f"{path} is not all: {log.name} beside it belongs to it. Make a copy with `atlas store backup`"
        )


def _set_aside(target: Path) -> Path | None:
    """The old file, and what lies beside it, under another name."""
    if not target.exists():
        return None
    old = target.with_name(f"{target.name}.replaced-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}")
    for end in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            target.with_name(target.name + end).rename(f"{old}{end}")
    return old


@contextlib.contextmanager
def _beside(target: Path) -> Generator[Path, None, None]:
    """A file for its owner alone, in the same folder; if it was not renamed in the end, it is gone."""
    fresh = target.with_name(f".{target.name}-{secrets.token_hex(8)}")
    try:
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield fresh
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                fresh.with_name(fresh.name + end).unlink()


def _sync(path: Path) -> None:
    """On the disk, its name as well if it is a folder."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
