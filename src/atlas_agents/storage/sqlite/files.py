"""Files of the SQLite store: opening with checks, backup of a database in use, and restore.

A file that is missing, damaged, foreign or too new is rejected with a message that says so, and left unchanged.
"""

import atexit
import contextlib
import os
import secrets
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from atlas_agents.core.errors import Conflict, StoreBusy, StoreError, StoreFull
from atlas_agents.core.store import AuditRow
from atlas_agents.storage.hash_chain import AuditHead, audit_head, find_audit_break
from atlas_agents.storage.migrations import check_applied, log_step, pending_steps
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.statements import AUDIT_END
from atlas_agents.storage.sqlite.statements import AUDIT_BYTES

APPLICATION_ID = 0x41544C53
"""Application id in the file header: ATLS."""
Progress: TypeAlias = Callable[[int, int], object]
"""Called with the bytes copied so far and their total."""
_MIN_VERSION = (3, 35, 0)
_PAGE_SIZE = 1024
"""Bytes per page of a new database. A commit changes a few rows in many places and writes each page that it changes."""
_LOG_SIZE = 4 << 20
"""Size of the write-ahead log in bytes at which it is moved to the database file."""
WRITER_CACHE = 8 << 10
"""Page cache of the writer, in kilobytes. The pages of indexes on random ids are all over the file."""
_LARGE_CACHE = 64 << 10
"""Page cache of a reader for searches, in kilobytes."""
_CHECKED_BYTES = 64 << 20
"""Files up to this size are checked completely when opened. In larger ones SQLite checks pages as it reads them."""
_CREATE_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (version INTEGER PRIMARY KEY, checksum TEXT NOT NULL)"
_READ_VERSIONS = "SELECT version, checksum FROM schema_versions"
_PUT_VERSION = "INSERT INTO schema_versions (version, checksum) VALUES (?, ?)"
_BACKUP_PAGES = 1024
_BACKUP_BUSY_TIMEOUT = 5.0


def translate_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Map an SQLite error to a `StoreError` with a remedy."""
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(f"database {path} is locked by another process; nothing was written, try again")
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return StoreFull(f"database {path} cannot grow ({error}); nothing was written, free some disk space")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{path} is not an SQLite database, or it is encrypted; it was not changed")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"database {path} is damaged ({error}); it was not changed, restore a backup")
        case sqlite3.SQLITE_READONLY:
            return StoreError(f"database {path} is read-only: give this user write permission")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"cannot open database {path}: {error}")
        case _:
            return StoreError(f"cannot use database {path}: {error}")


class OpenOptions(msgspec.Struct, frozen=True):
    """The file and how to open it."""

    path: Path
    must_exist: bool
    max_pages: int | None
    busy_timeout: float


def open_writer(options: OpenOptions) -> sqlite3.Connection:
    """Open the connection that writes, and migrate the schema."""
    if sqlite3.sqlite_version_info < _MIN_VERSION:
        raise StoreError(f"expected SQLite 3.35 or newer, got {sqlite3.sqlite_version}")
    path = options.path
    _prepare_file(path, must_exist=options.must_exist)
    connection = _connect(options)
    try:
        _check_file(connection, path, must_exist=options.must_exist)
        connection.execute(f"PRAGMA page_size = {_PAGE_SIZE:d}")  # an existing database keeps its own
        _use_wal(connection, path, options.busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE:d}")
        size: int = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_SIZE // size:d}")
        if options.max_pages is not None:
            connection.execute(f"PRAGMA max_page_count = {options.max_pages * 4096 // size:d}")
        _migrate(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise translate_error(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(options: OpenOptions, *, large_cache: bool = False) -> sqlite3.Connection:
    """Open a read-only connection to an existing file. A large cache is for searches, which read much of it."""
    connection = _connect(options, f"{options.path.absolute().as_uri()}?mode=rw")
    if large_cache:
        connection.execute(f"PRAGMA cache_size = -{_LARGE_CACHE:d}")
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_memory() -> sqlite3.Connection:
    """Open a new in-memory database. Any thread may use it, one at a time."""
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256, check_same_thread=False)
    _empty_database().backup(connection)
    return connection


@cache
def _empty_database() -> sqlite3.Connection:
    """Create an empty in-memory database to copy, which is faster than creating its tables."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    atexit.register(connection.close)
    _migrate(connection, Path(":memory:"))
    return connection


@cache
def _empty_file() -> bytes:
    """Return the content of an empty database file with a write-ahead log, to write instead of migrating each."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {_PAGE_SIZE:d}")
        _migrate(connection, Path(":memory:"))
        content = bytearray(connection.serialize())
    content[18:20] = b"\2\2"  # the header's versions for writing and reading: both with a log
    return bytes(content)


def file_identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file at the path, if any. They change when the file is moved or replaced."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(options: OpenOptions, uri: str | None = None) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            uri or options.path,
            timeout=options.busy_timeout,
            isolation_level=None,
            cached_statements=256,
            uri=uri is not None,
        )
    except sqlite3.Error as error:
        raise translate_error(error, options.path) from error


def _prepare_file(path: Path, *, must_exist: bool) -> None:
    """Create the file if allowed, for its owner only. SQLite gives its side files the same mode."""
    try:
        found = path.stat()
    except FileNotFoundError:
        _create_file(path, must_exist=must_exist)
        return
    except OSError as error:
        raise StoreError(f"cannot open database {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        kind = "directory" if stat.S_ISDIR(found.st_mode) else "special file"
        raise StoreError(f"expected a database, got a {kind}: {path}")
    if must_exist and found.st_size == 0:
        raise StoreError(f"database {path} is empty, but existed before: restore a backup")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreError(f"database {path} is read-only: give this user write permission for it and its directory")


def _create_file(path: Path, *, must_exist: bool) -> None:
    log = path.with_name(path.name + "-wal")
    if must_exist or (log.exists() and log.stat().st_size > 0):
        raise StoreError(f"database {path} is missing, but existed before: restore it; no new one was created")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(sqlite3.Connection, "serialize"):  # some builds of SQLite lack it
            with contextlib.suppress(StoreError):  # no space or no hard links: SQLite fills the file, or says why not
                _create_from_template(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"cannot create database {path}: {error.strerror}") from error


def _create_from_template(path: Path) -> None:
    """Create the file with all tables, unless another process has just done so; it appears complete or not at all."""
    with _temporary_file(path) as temporary:
        temporary.write_bytes(_empty_file())
        _sync(temporary)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        _sync(path.parent)


def _check_file(connection: sqlite3.Connection, path: Path, *, must_exist: bool) -> None:
    """Check that the file is a database of ours and intact, or new, before anything is written."""
    connection.execute("BEGIN")  # one snapshot for both queries: another process may be creating the database
    found_id: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if found_id != APPLICATION_ID and (tables or found_id or must_exist):
        raise StoreError(f"{path} is a database of another program; it was not changed")
    if tables and path.stat().st_size <= _CHECKED_BYTES:
        found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            line = " ".join(found.split())
            raise StoreError(f"database {path} is damaged ({line}); it was not changed, restore a backup")


def _use_wal(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Switch to a write-ahead log. SQLite does not always apply the busy timeout to this, so retry here."""
    end = time.monotonic() + timeout
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreError(f"database {path} cannot use a write-ahead log: put it on a local disk")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply all pending migrations. A second process waits and then finds none pending."""
    while _migrate_step(connection, path):
        pass


def _migrate_step(connection: sqlite3.Connection, path: Path) -> bool:
    """Apply the next migration in one transaction; return whether more may be pending."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_CREATE_VERSIONS)
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        pending = pending_steps("sqlite", version, f"database {path}")
        check_applied("sqlite", dict(connection.execute(_READ_VERSIONS).fetchall()), f"database {path}")
        for step in pending[:1]:
            log_step(f"path={path}", step, pending[-1].version)
            for statement in _split_statements(step.sql):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {step.version}")
            connection.execute(_PUT_VERSION, (step.version, step.checksum))
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return len(pending) > 1


def _split_statements(script: str) -> Iterator[str]:
    """Yield the statements of a script. `executescript` would commit before the first one."""
    statement = ""
    for piece in script.split(";"):
        statement += f"{piece};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# Backup and restore

_COUNTS = {
    "sessions": "SELECT count(*) FROM sessions",
    "messages": "SELECT count(*) FROM messages",
    "audit": "SELECT count(*) FROM audit",
    "open_runs": "SELECT count(*) FROM runs WHERE status IN ('queued', 'running', 'waiting')",
    "open_jobs": "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')",
}
_HAS_ROWS = (
    "SELECT EXISTS (SELECT 1 FROM sessions) OR EXISTS (SELECT 1 FROM audit) OR EXISTS (SELECT 1 FROM records)"
    " OR EXISTS (SELECT 1 FROM documents) OR EXISTS (SELECT 1 FROM usage_sums)"
)


class DatabaseSummary(msgspec.Struct, frozen=True):
    """Summary of an intact database. `broken` describes the first break of an audit chain, if any."""

    schema: int
    size: int
    sessions: int
    messages: int
    audit: int
    open_runs: int
    open_jobs: int
    broken: str | None = None


def back_up(
    source: Path, target: Path, progress: Progress | None = None, audit_keys: Sequence[bytes] = ()
) -> DatabaseSummary:
    """Write a consistent snapshot of a database to a single file, even while the database is in use."""
    if not source.is_file():
        raise StoreError(f"not found: database {source}")
    if target.exists():
        raise Conflict(f"{target} already exists: choose another file for the backup")
    with _temporary_file(target) as temporary:
        try:
            _copy(source, temporary, progress)
        except sqlite3.Error as error:
            problem = translate_error(error, source)
            raise translate_error(error, target) if isinstance(problem, StoreFull) else problem from error
        summary = inspect(temporary, audit_keys=audit_keys)
        _sync(temporary)
        temporary.rename(target)
        _sync(target.parent)
    return summary


def restore(
    backup: Path, target: Path, *, replace: bool = False, unverified: bool = False, audit_keys: Sequence[bytes] = ()
) -> tuple[DatabaseSummary, Path | None]:
    """Replace a database with a verified backup. Returns its summary and the new path of the old database, if any.

    Raises `Conflict` if the database is not empty and `replace` is not set, and `StoreBusy` if it is in use.
    """
    if not backup.is_file() or not os.access(backup, os.R_OK):
        raise StoreError(f"cannot read backup {backup}" if backup.exists() else f"not found: backup {backup}")
    if backup.resolve() == target.resolve():
        raise Conflict(f"{backup} is the database itself: expected a backup of it")
    _check_replaceable(target, replace=replace)
    with _temporary_file(target) as temporary:
        _check_no_log(backup)
        shutil.copyfile(backup, temporary)
        summary = inspect(temporary, shown_as=backup, audit_keys=audit_keys)
        if summary.broken and not unverified:
            raise StoreError(f"{backup}: {summary.broken}; nothing was changed")
        _sync(temporary)
        old = _rename_aside(target)
        temporary.rename(target)
        _sync(target.parent)
    return summary, old


def inspect(path: Path, *, shown_as: Path | None = None, audit_keys: Sequence[bytes] = ()) -> DatabaseSummary:
    """Verify a database that is not in use: its schema version, every page, and the audit chains."""
    name = shown_as or path
    _check_no_log(path)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as found:
            found_id, schema = (
                found.execute(f"PRAGMA {each}").fetchone()[0] for each in ("application_id", "user_version")
            )
            if found_id != APPLICATION_ID:
                raise StoreError(f"{name} is not a database of Atlas Agents")
            pending_steps("sqlite", schema, str(name))
            integrity: str = found.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if integrity != "ok":
                raise StoreError(f"{name} is damaged: {' '.join(integrity.split())}")
            counts = {each: found.execute(sql).fetchone()[0] for each, sql in _COUNTS.items()}
            return DatabaseSummary(schema, path.stat().st_size, **counts, broken=_find_broken_chain(found, audit_keys))
    except sqlite3.Error as error:
        raise translate_error(error, name) from error


def _find_broken_chain(connection: sqlite3.Connection, keys: Sequence[bytes]) -> str | None:
    for (tenant,) in connection.execute("SELECT DISTINCT tenant FROM audit ORDER BY tenant").fetchall():
        entry = find_audit_break(_audit_rows(connection, tenant), keys)
        if entry is not None:
            return f"the audit log of tenant {tenant!r} is broken at entry {entry}"
    return None


def audit_ends(path: Path) -> dict[str, AuditHead]:
    """Return the last audit row of each tenant of a database that is not in use."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tenants = [tenant for (tenant,) in connection.execute("SELECT DISTINCT tenant FROM audit").fetchall()]
        return {each: audit_head(*connection.execute(AUDIT_END, {"tenant": each}).fetchone()) for each in tenants}


def _audit_rows(connection: sqlite3.Connection, tenant: str) -> Iterator[AuditRow]:
    for row in connection.execute(AUDIT_BYTES, {"tenant": tenant}):
        yield tables.AUDIT.decode(row)


def _copy(source: Path, target: Path, progress: Progress | None) -> None:
    """Copy in one read transaction: all steps see the same snapshot, and a concurrent write does not restart them."""

    def report(_: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress((total - remaining) * size, total * size)

    with (
        contextlib.closing(sqlite3.connect(source, timeout=_BACKUP_BUSY_TIMEOUT, isolation_level=None)) as source_db,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as target_db,
    ):
        source_db.execute("PRAGMA query_only = ON")
        source_db.execute("BEGIN")
        size: int = source_db.execute("PRAGMA page_size").fetchone()[0]
        if source_db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"{source} is not a database of Atlas Agents")
        source_db.backup(target_db, pages=_BACKUP_PAGES, progress=report)
        target_db.execute("PRAGMA journal_mode = DELETE")  # leave everything in one file


def _check_replaceable(target: Path, *, replace: bool) -> None:
    """Check that the database is not in use, and that it is empty or may be replaced."""
    if not target.exists() or target.stat().st_size == 0:
        return
    try:
        with contextlib.closing(sqlite3.connect(target, timeout=0.5, isolation_level=None)) as found:
            tables: int = found.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables and found.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise StoreError(f"{target} is a database of another program; it was not changed")
            # This needs exclusive access, and moves the content of the write-ahead log into the file.
            found.execute("PRAGMA journal_mode = DELETE")
            has_rows = bool(tables) and bool(found.execute(_HAS_ROWS).fetchone()[0])
    except sqlite3.DatabaseError as error:
        if isinstance(translate_error(error, target), StoreBusy):
            raise StoreBusy(f"database {target} is in use: stop the gateway first") from error
        has_rows = True  # damaged
    if has_rows and not replace:
        raise Conflict(f"database {target} is not empty: pass --replace to rename it and restore the backup")


def _check_no_log(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        raise StoreError(
            f"{path} is incomplete: part of it is in {log.name} next to it. Make a copy with `atlas store backup`"
        )


def _rename_aside(target: Path) -> Path | None:
    """Rename the old database and its side files."""
    if not target.exists():
        return None
    old = target.with_name(f"{target.name}.replaced-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}")
    for end in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            target.with_name(target.name + end).rename(f"{old}{end}")
    return old


@contextlib.contextmanager
def _temporary_file(target: Path) -> Generator[Path, None, None]:
    """Create a file in the same directory, for its owner only; it is deleted unless the block renames it."""
    temporary = target.with_name(f".{target.name}-{secrets.token_hex(8)}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield temporary
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror}") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                temporary.with_name(temporary.name + end).unlink()


def _sync(path: Path) -> None:
    """Flush a file to disk, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
