"""Opening a SQLite file with care: what is missing, damaged, foreign or too new is refused in one line."""

import contextlib
import os
import sqlite3
import stat
import time
from pathlib import Path

import msgspec

from atlas_agents.core.errors import StoreBusy, StoreError, StoreFull
from atlas_agents.stores.migrations import SQLITE, pending

OURS = 0x41544C53
"""The application id in the file's header: ATLS."""
_OLDEST = (3, 35, 0)
_LARGE_CACHE = 64 << 10
"""In kilobytes."""
_CHECKED_BYTES = 64 << 20
"""A file up to this size is checked whole at each opening; a larger one when its pages are read."""


def fault(error: sqlite3.Error, path: Path) -> StoreError:
    """What SQLite says, in our words: whether to try again, to make room or to look at the file."""
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(f"the database {path} is locked by another process; nothing was written, try again")
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return StoreFull(f"the database {path} cannot grow ({error}); nothing was written, make room on the disk")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{path} is not a SQLite database, or it is encrypted; it was left as it is")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"the database {path} is damaged ({error}); it was left as it is, restore a backup")
        case sqlite3.SQLITE_READONLY:
            return StoreError(f"the database {path} is read-only: give this user the right to write to it")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"the database {path} cannot be opened: {error}")
        case _:
            return StoreError(f"the database {path} cannot be used: {error}")


class Opening(msgspec.Struct, frozen=True):
    """Which file, and how it is to be opened."""

    path: Path
    must_exist: bool
    max_pages: int | None
    busy_timeout: float


def open_writer(how: Opening) -> sqlite3.Connection:
    """The one connection that writes, with the schema up to date."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreError(f"SQLite 3.35 or newer is needed, and this Python has {sqlite3.sqlite_version}")
    path = how.path
    _prepare_file(path, must_exist=how.must_exist)
    connection = _connect(how)
    try:
        _check(connection, path, must_exist=how.must_exist)
        _use_wal(connection, path, how.busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        if how.max_pages is not None:
            connection.execute(f"PRAGMA max_page_count = {how.max_pages:d}")
        _migrate(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise fault(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(how: Opening, *, large: bool = False) -> sqlite3.Connection:
    """A connection that cannot write; a `large` one keeps more of the file in memory, for who looks through it."""
    connection = _connect(how)
    if large:
        connection.execute(f"PRAGMA cache_size = -{_LARGE_CACHE:d}")
    connection.execute("PRAGMA query_only = ON")
    return connection


def identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at the path, if any: another one, or none, means that ours was moved or removed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(how: Opening) -> sqlite3.Connection:
    try:
        return sqlite3.connect(how.path, timeout=how.busy_timeout, isolation_level=None, cached_statements=256)
    except sqlite3.Error as error:
        raise fault(error, how.path) from error


def _prepare_file(path: Path, *, must_exist: bool) -> None:
    """Make the file if it may be made, readable by its owner alone; SQLite gives its side files the same mode."""
    try:
        found = path.stat()
    except FileNotFoundError:
        _create(path, must_exist=must_exist)
        return
    except OSError as error:
        raise StoreError(f"the database {path} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no file'}, not a database")
    if must_exist and found.st_size == 0:
        raise StoreError(f"the database {path} is empty, and it should not be: restore a backup")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreError(f"the database {path} is read-only: give this user the right to write to it and its folder")


def _create(path: Path, *, must_exist: bool) -> None:
    left = path.with_name(path.name + "-wal")
    if must_exist or (left.exists() and left.stat().st_size > 0):
        raise StoreError(f"the database {path} is missing, and there was one: restore it; no new one was made")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"the database {path} cannot be made: {error.strerror}") from error


def _check(connection: sqlite3.Connection, path: Path, *, must_exist: bool) -> None:
    """Ours and whole, or new; nothing is written before that is known."""
    connection.execute("BEGIN")  # another process may be making it: both answers must be of one moment
    ours: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if ours != OURS and (tables or ours or must_exist):
        raise StoreError(f"{path} is a database of another program; it was left as it is")
    if tables and path.stat().st_size <= _CHECKED_BYTES:
        found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            line = " ".join(found.split())
            raise StoreError(f"the database {path} is damaged ({line}); it was left as it is, restore a backup")


def _use_wal(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Changing the mode does not always wait for other processes, so the waiting is here."""
    end = time.monotonic() + patience
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreError(f"the database {path} cannot use a write-ahead log there: put it on a local disk")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """All steps in one transaction; a second process that opens the file waits and finds nothing to do."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        for number, statements in pending(version, f"the database {path}", SQLITE):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        if connection.execute("PRAGMA application_id").fetchone()[0] != OURS:
            connection.execute(f"PRAGMA application_id = {OURS}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
