"""SQLite stores: in one file without a server, with a thread for writing, for reading and for searching; and in memory.

Group commit: commits that arrive while another one is being written share the next transaction, each in a savepoint of
its own, so that one that fails does not affect the others. A commit returns after its transaction is on disk.

Lease: a process that runs turns holds a lock on a file next to the database, so that no other process resumes them.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, BatchThread, Clock, QueuedRequest
from atlas_agents.core.errors import StoreError, StoreFull, StoreInUse
from atlas_agents.core.store import AcceptRun, ClaimJob, ClaimRun, RunRow, Write
from atlas_agents.storage.hash_chain import AuditSigner, ChainEnds, CheckRows
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.statements import AUDIT, OPEN_RUNS
from atlas_agents.storage.sql.tables import Query, Row, Steps, WriteContext, bind
from atlas_agents.storage.sql.writes import apply_writes
from atlas_agents.storage.sqlite import statements
from atlas_agents.storage.sqlite.files import (
    OpenOptions,
    file_identity,
    open_memory,
    open_reader,
    open_writer,
    translate_error,
)
from atlas_agents.storage.sqlite.reads import SqliteReads
from atlas_agents.storage.sqlite.statements import PARTS, Parts

T = TypeVar("T")
_OWNING_WRITES = (AcceptRun, ClaimRun, ClaimJob)
"""Kinds of writes that only a process that executes turns or jobs makes."""
_MEMORY = Path(":memory:")


class SqliteStore(SqliteReads):
    """Store in one SQLite file.

    Any number of processes may read the file and run turns in sessions of their own. Unfinished turns are resumed only
    by a process that is the only one to run turns.

    Args:
        path: The file.
        must_exist: Whether a missing file is an error; otherwise it is created.
        max_pages: Maximum size of the file in pages of 4 KB.
        busy_timeout: Seconds to wait for a lock of another process.
        clock: Source of time.
        audit: Signs the audit log.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        must_exist: bool = False,
        max_pages: int | None = None,
        busy_timeout: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
        audit: AuditSigner | None = None,
    ) -> None:
        super().__init__(audit)
        self.path = Path(path)
        self._options = OpenOptions(self.path, must_exist, max_pages, busy_timeout)
        self._clock = clock
        self._threads: tuple[_WriteThread, _ReadThread] | None = None
        self._searcher: _ReadThread | None = None
        self._opened_by = 0
        """Id of the process that opened the store. A forked child has none of its threads."""

    @property
    def transactions(self) -> int:
        """Transactions committed so far; fewer than the commits if some shared one."""
        return self._require_threads()[0].transactions

    async def open(self) -> None:
        if self._threads is not None:
            self._require_threads()
            raise StoreError(f"database {self.path} is already open: call close() first")
        writer = _WriteThread(self._options, self._clock, self.audit_signer.row_key if self.audit_signer else None)
        reader = _ReadThread(self._options)
        try:
            for each in (writer, reader):
                await each.thread.run("open")
        except BaseException:
            for each in (reader, writer):
                await each.thread.close("close")
            raise
        self._threads, self._opened_by = (writer, reader), os.getpid()
        if self.audit_signer is not None:
            try:
                await self.audit_signer.open(self, self.audit_ends)
            except BaseException:
                await self.close()
                raise
        self._refreshing.spawn(self._refresh_all())

    async def close(self) -> None:
        """Finish all commits and reads that were submitted, then close the file."""
        if self._threads is not None:
            self._require_threads()
        await self._refreshing.close()
        if self.audit_signer is not None:
            await self.audit_signer.close()
        if self._threads is not None:
            (writer, reader), self._threads = self._threads, None
            searcher, self._searcher = self._searcher, None
            for each in (searcher, reader, writer):
                if each is not None:
                    await each.thread.close("close")

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        writer, _ = self._require_threads()
        results = await writer.thread.run(_Commit(tenant, tuple(writes)))
        self._note_audit(tenant, results)
        self._note_writes(tenant, writes)
        return results

    async def fetch(self, query: Query) -> list[Row]:
        _, reader = self._require_threads()
        return await reader.thread.run(query)

    async def orphaned_runs(self) -> list[RunRow]:
        """Return the open runs of earlier processes. From now on, no other process can resume them."""
        writer, _ = self._require_threads()
        return await tables.RUNS.decode_all(await writer.thread.run("orphans"))

    async def search(self, query: Query) -> list[Row]:
        """Execute a search on a thread of its own, so that short reads do not wait for it; the first one starts it."""
        return await self._search_thread().run(query)

    async def check_audit(self, tenant: str, after: int, limit: int, check: CheckRows) -> str | None:
        """Check audit rows on the thread that has read them: the event loop is not blocked meanwhile."""
        return await self._search_thread().run(_Check(bind(tenant, AUDIT, after=after, limit=limit), check))

    async def scan(self, query: Query) -> list[Row]:
        """Execute a query on a connection and thread of its own, so that not even searches wait for it."""
        self._require_threads()
        scanner = _ReadThread(self._options)
        try:
            await scanner.thread.run("open")
            return await scanner.thread.run(query)
        finally:
            await scanner.thread.close("close")

    def _search_thread(self) -> "BatchThread[_ReadRequest]":
        self._require_threads()
        if self._searcher is None:
            self._searcher = _ReadThread(self._options, large_cache=True)
        return self._searcher.thread

    def _require_threads(self) -> "tuple[_WriteThread, _ReadThread]":
        if self._threads is None:
            raise StoreError(f"database {self.path} is not open: call open() first")
        if self._opened_by != os.getpid():
            raise StoreError(
                f"database {self.path} was opened in process {self._opened_by}, before a fork: create and open a "
                f"SqliteStore in process {os.getpid()}, after the fork"
            )
        return self._threads


class _Commit(NamedTuple):
    tenant: str
    writes: tuple[Write, ...]


class _Check(NamedTuple):
    query: Query
    check: CheckRows


_WriteRequest: TypeAlias = _Commit | Literal["open", "close", "orphans"]
_ReadRequest: TypeAlias = Query | _Check | Literal["open", "close"]
_QueuedWrite: TypeAlias = QueuedRequest[_WriteRequest]


class _WriteThread:
    """Owns the only connection that writes, and uses it on its thread only."""

    def __init__(self, options: OpenOptions, clock: Clock, audit_key: bytes | None) -> None:
        self.transactions = 0
        self._audit_key = audit_key
        self._ends = ChainEnds()
        self._options = options
        self._path = options.path
        self._file = str(options.path)
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._lease: _Lease | None = None
        self._has_lease = False
        self.thread: BatchThread[_WriteRequest] = BatchThread("atlas-sqlite-writer", self._work)

    def _work(self, batch: Sequence[_QueuedWrite]) -> None:
        commits: list[tuple[_QueuedWrite, _Commit]] = []
        for queued in batch:
            if isinstance(queued.request, _Commit):
                commits.append((queued, queued.request))
                continue
            self._commit_group(commits)
            commits = []
            with _capture_error(queued, self._path):
                queued.result = self._execute(queued.request)
        self._commit_group(commits)

    def _execute(self, request: Literal["open", "close", "orphans"]) -> list[Row] | None:
        if request == "orphans":
            return self._orphaned_runs()
        return self._open() if request == "open" else self._close()

    def _open(self) -> None:
        self._connection = open_writer(self._options)
        self._identity = file_identity(self._file)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._lease is not None:
            self._lease.release(self)

    def _take_lease(self, *, alone: bool = False) -> None:
        if self._lease is None:
            self._lease = _lease_of(self._path.resolve())
        self._lease.take(self, alone=alone)
        self._has_lease = True

    def _orphaned_runs(self) -> list[Row]:
        connection = self._require_connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._take_lease(alone=True)
            found = connection.execute(OPEN_RUNS).fetchall()
            connection.execute("COMMIT")
        finally:
            roll_back(connection)
        return found

    def _commit_group(self, commits: Sequence[tuple[_QueuedWrite, _Commit]]) -> None:
        """Write all commits in one transaction. If the database rejects it as a whole, give each its own."""
        if not commits:
            return
        try:
            self._commit_transaction(commits)
        except sqlite3.Error as error:
            if len(commits) == 1 or _is_busy(error):
                for queued, _ in commits:
                    queued.error = translate_error(error, self._path)
                return
            for queued, commit in commits:
                queued.error = None
                self._commit_group([(queued, commit)])
        except Exception as error:  # noqa: BLE001  of the only commit, or a StoreError that concerns all of them
            for queued, _ in commits:
                queued.error = error

    def _commit_transaction(self, commits: Sequence[tuple[_QueuedWrite, _Commit]]) -> None:
        """Set the result or error of each commit. Raises `sqlite3.Error` if nothing at all was written."""
        connection = self._require_connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self._has_lease and _runs_turns(commits):
                self._take_lease()
            if len(commits) == 1:
                ((queued, commit),) = commits
                queued.result = self._apply(connection, commit)
            else:
                for queued, commit in commits:
                    self._apply_in_savepoint(connection, queued, commit)
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise
        self.transactions += 1

    def _apply(self, connection: sqlite3.Connection, commit: _Commit) -> list[Any]:
        context = WriteContext(
            commit.tenant, int(self._clock.time() * 1000), statements, self._audit_key, ends=self._ends
        )
        return run_steps(connection, apply_writes(context, commit.writes))

    def _apply_in_savepoint(self, connection: sqlite3.Connection, queued: _QueuedWrite, commit: _Commit) -> None:
        """Apply one commit completely or not at all. A failure affects only it, unless it ended the transaction."""
        connection.execute("SAVEPOINT one")
        try:
            queued.result = self._apply(connection, commit)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO one")
            queued.error = translate_error(error, self._path) if isinstance(error, sqlite3.Error) else error
        connection.execute("RELEASE one")

    def _require_connection(self) -> sqlite3.Connection:
        """Return the connection. Commits to a file that was moved away would be lost unnoticed, so that is an error."""
        if self._connection is None:
            raise StoreError(f"database {self._path} is not open")
        if file_identity(self._file) != self._identity:
            raise StoreError(f"database {self._path} was moved or removed while in use; writing has stopped")
        return self._connection


class _ReadThread:
    """Owns a read-only connection. It sees every commit that has returned."""

    def __init__(self, options: OpenOptions, *, large_cache: bool = False) -> None:
        self._options = options
        self._large_cache = large_cache
        self._path = options.path
        self._connection: sqlite3.Connection | None = None
        self.thread: BatchThread[_ReadRequest] = BatchThread("atlas-sqlite-reader", self._work)

    def _work(self, batch: Sequence[QueuedRequest[_ReadRequest]]) -> None:
        for queued in batch:
            with _capture_error(queued, self._path):
                queued.result = self._execute(queued.request)

    def _execute(self, request: _ReadRequest) -> Any:
        if request == "close":
            connection, self._connection = self._connection, None
            return None if connection is None else connection.close()
        if self._connection is None:
            self._connection = open_reader(self._options, large_cache=self._large_cache)
        if isinstance(request, _Check):
            return request.check(execute(self._connection, request.query))
        return None if request == "open" else execute(self._connection, request)


def execute(connection: sqlite3.Connection, query: Query) -> list[Row]:
    """Execute a query, or a write in its parts."""
    parts = PARTS.get(query.sql)
    if parts is None:
        return connection.execute(query.sql, query.values).fetchall()
    return _execute_parts(connection, parts, query.values)


def _execute_parts(connection: sqlite3.Connection, parts: Parts, values: Mapping[str, Any]) -> list[Row]:
    """Execute a write, and return the same rows as the statement that Postgres executes."""
    found: list[Row] = []
    if parts.check:
        found = connection.execute(parts.check, values).fetchall()
        if not found:
            return found
        values = {**values, "found": found[0][0]}
    if not connection.execute(parts.change, values).rowcount:
        return []
    return connection.execute(parts.result, values).fetchall() if parts.result else found


def run_steps(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Execute the queries that a generator of steps yields, and return its result."""
    try:
        query = next(steps)
        while True:
            query = steps.send(execute(connection, query))
    except StopIteration as end:
        return end.value


def roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


@contextlib.contextmanager
def _capture_error(queued: QueuedRequest[Any], path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        queued.error = translate_error(error, path)
    except StoreError as error:
        queued.error = error


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _runs_turns(commits: Sequence[tuple[_QueuedWrite, _Commit]]) -> bool:
    return any(isinstance(write, _OWNING_WRITES) for _, commit in commits for write in commit.writes)


# The lease


class _Owner(msgspec.Struct, frozen=True):
    """A process that runs turns, as named in the lock file."""

    pid: int
    program: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.program}, since {self.since})"

    @property
    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return True


class _Lease:
    """Shared lock of this process on `<database>-lock`, from its first turn until the last of its stores is closed.

    The kernel releases it when the process dies. Every call of `take` is made within a write transaction of the
    database, so that processes change their locks one at a time: flock cannot convert a lock atomically.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name(f"{database.name}-lock")
        self._descriptor: int | None = None
        self._stores: set[object] = set()

    def take(self, store: object, *, alone: bool) -> None:
        """Take the lease for a store of this process; raise StoreInUse if another process has one too and `alone`."""
        with _leases_guard:
            descriptor = self._descriptor
            if descriptor is None or alone:
                descriptor = self._lock(alone=alone)
            self._descriptor = descriptor
            self._stores.add(store)

    def release(self, store: object) -> None:
        with _leases_guard:
            self._stores.discard(store)
            if not self._stores:
                self.forget()

    def forget(self) -> None:
        """Close the lock file. In a forked child this does not affect the lock of its parent."""
        descriptor, self._descriptor = self._descriptor, None
        self._stores.clear()
        if descriptor is not None:
            os.close(descriptor)

    def _lock(self, *, alone: bool) -> int:
        descriptor = self._open_file() if self._descriptor is None else self._descriptor
        is_alone = _try_lock(descriptor, fcntl.LOCK_EX)
        if not _try_lock(descriptor, fcntl.LOCK_SH) or (alone and not is_alone):
            error = StoreInUse(self._describe_owners(descriptor))
            if descriptor != self._descriptor:
                os.close(descriptor)
            raise error
        if descriptor != self._descriptor:
            self._add_owner(descriptor, first=is_alone)
        return descriptor

    def _open_file(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.geteuid() == 0:  # like the other files of the database, it belongs to the user who owns that
                owner = self._database.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        except OSError as error:
            kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
            raise kind(f"cannot open {self._path}: {error.strerror}") from error
        return descriptor

    def _add_owner(self, descriptor: int, *, first: bool) -> None:
        program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        owner = _Owner(os.getpid(), program, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        with contextlib.suppress(OSError):  # the lock counts; a full disk only costs the name of its holder
            if first:
                os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(owner) + b"\n", os.fstat(descriptor).st_size)

    def _describe_owners(self, descriptor: int) -> str:
        owners: list[_Owner] = []
        for line in os.pread(descriptor, 1 << 16, 0).splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                owners.append(msgspec.json.decode(line, type=_Owner))
        owners = [each for each in owners if each.pid != os.getpid() and each.alive] or owners
        names = " and ".join(map(str, owners)) or "another process"
        return (
            f"database {self._database} is in use by {names}, whose turns must not be resumed here; stop it first, or "
            "use another database (several processes can share a Postgres database)"
        )


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_leases: dict[Path, _Lease] = {}
_leases_guard = threading.Lock()


def _lease_of(database: Path) -> _Lease:
    with _leases_guard:
        return _leases.setdefault(database, _Lease(database))


def _forget_leases() -> None:
    for lease in _leases.values():
        lease.forget()
    _leases_guard.release()


os.register_at_fork(before=_leases_guard.acquire, after_in_parent=_leases_guard.release, after_in_child=_forget_leases)


class MemoryStore(SqliteReads):
    """Store in memory. It works without `open`, keeps its rows after `close`, and loses them with the object.

    Statements run on the calling thread: there is no disk to wait for.

    Args:
        clock: Source of time; a `VirtualClock` in tests.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self._ends = ChainEnds()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        context = WriteContext(tenant, int(self._clock.time() * 1000), statements, ends=self._ends)
        with self._lock:
            connection = self._connect()
            try:
                connection.execute("BEGIN")
                results = run_steps(connection, apply_writes(context, writes))
                connection.execute("COMMIT")
            except BaseException as error:
                roll_back(connection)
                if isinstance(error, sqlite3.Error):
                    raise translate_error(error, _MEMORY) from error
                raise
        return results

    async def fetch(self, query: Query) -> list[Row]:
        with self._lock:
            try:
                return execute(self._connect(), query)
            except sqlite3.Error as error:
                raise translate_error(error, _MEMORY) from error

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_memory()
            weakref.finalize(self, self._connection.close)
        return self._connection
