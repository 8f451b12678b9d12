"""The two threads of the SQLite store: one writes, many commits to a transaction; one reads."""

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from atlas_agents.core.clock import Clock
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import Write
from atlas_agents.stores.lane import Lane, Ticket
from atlas_agents.stores.query import Place, Query, Steps
from atlas_agents.stores.sqlite_file import Opening, fault, identity, open_reader, open_writer
from atlas_agents.stores.writes import carry_out

T = TypeVar("T")


class Commit(NamedTuple):
    """Writes that belong together."""

    tenant: str
    writes: tuple[Write, ...]


WriterJob: TypeAlias = Commit | Literal["open", "close"]
ReaderJob: TypeAlias = Query | Literal["open", "close"]


class Writer:
    """Owns the one connection that writes; it is used on the lane's thread only."""

    def __init__(self, how: Opening, clock: Clock) -> None:
        self.transactions = 0
        self._how = how
        self._path = how.path
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self.lane: Lane[WriterJob] = Lane("atlas-sqlite-writer", self._work)

    def _work(self, tickets: Sequence[Ticket[WriterJob]]) -> None:
        commits: list[tuple[Ticket[WriterJob], Commit]] = []
        for ticket in tickets:
            job = ticket.job
            if isinstance(job, Commit):
                commits.append((ticket, job))
                continue
            self._group(commits)
            commits = []
            with _told(ticket, self._path):
                self._open() if job == "open" else self._close()
        self._group(commits)

    def _open(self) -> None:
        self._connection = open_writer(self._how)
        self._identity = identity(self._path)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _group(self, commits: Sequence[tuple[Ticket[WriterJob], Commit]]) -> None:
        """All in one transaction; should the database throw it out as a whole, each in its own."""
        if not commits:
            return
        try:
            self._transaction(commits)
        except sqlite3.Error as error:
            if len(commits) == 1 or _is_busy(error):
                for ticket, _ in commits:
                    ticket.error = fault(error, self._path)
                return
            for one in commits:
                one[0].error = None
                self._group([one])
        except StoreError as error:
            for ticket, _ in commits:
                ticket.error = error

    def _transaction(self, commits: Sequence[tuple[Ticket[WriterJob], Commit]]) -> None:
        """Raise `sqlite3.Error` if nothing at all was written; else each ticket knows its own result or error."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for ticket, commit in commits:
                self._savepoint(connection, ticket, commit)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        self.transactions += 1

    def _savepoint(self, connection: sqlite3.Connection, ticket: Ticket[WriterJob], commit: Commit) -> None:
        """One commit, all of it or nothing; its failure is the ticket's, unless the transaction itself is lost."""
        connection.execute("SAVEPOINT one")
        try:
            place = Place(commit.tenant, int(self._clock.time() * 1000))
            ticket.result = drive(connection, carry_out(place, commit.writes))
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO one")
            ticket.error = fault(error, self._path) if isinstance(error, sqlite3.Error) else error
        connection.execute("RELEASE one")

    def _connected(self) -> sqlite3.Connection:
        """A file that was moved away would take every further commit with it, unseen."""
        if self._connection is None:
            raise StoreError(f"the database {self._path} is not open")
        if identity(self._path) != self._identity:
            raise StoreError(f"the database {self._path} was moved or removed while in use: nothing more is written")
        return self._connection


class Reader:
    """Owns a connection that only reads; a commit that has returned is seen by every later read."""

    def __init__(self, how: Opening, *, large: bool = False) -> None:
        self._how = how
        self._large = large
        self._path = how.path
        self._connection: sqlite3.Connection | None = None
        self.lane: Lane[ReaderJob] = Lane("atlas-sqlite-reader", self._work)

    def _work(self, tickets: Sequence[Ticket[ReaderJob]]) -> None:
        for ticket in tickets:
            with _told(ticket, self._path):
                ticket.result = self._do(ticket.job)

    def _do(self, job: ReaderJob) -> Any:
        if job == "open":
            self._connection = open_reader(self._how, large=self._large)
            return None
        if job == "close":
            connection, self._connection = self._connection, None
            return None if connection is None else connection.close()
        if self._connection is None:
            raise StoreError(f"the database {self._path} is not open")
        return self._connection.execute(job.sql, job.values).fetchall()


def drive(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Execute what the steps ask for, one query after the other."""
    try:
        query = next(steps)
        while True:
            query = steps.send(connection.execute(query.sql, query.values).fetchall())
    except StopIteration as end:
        return end.value


@contextlib.contextmanager
def _told(ticket: Ticket[Any], path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        ticket.error = fault(error, path)
    except StoreError as error:
        ticket.error = error


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
