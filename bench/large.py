"""Queries on a large database: CPU and wall time of every list, search, sum and filter of the gateway.

python bench/large.py                      a fifth of the full size, on SQLite
python bench/large.py --scale 1            100,000 sessions, 200,000 messages, 1,000,000 audit rows, 10,000 documents
python bench/large.py --postgres           the same on a Postgres server started for this
python bench/large.py --database PLACE     keep the database in a folder, or use one that is there or at a URL
python bench/large.py --upgrade FOLDER     upgrade a database of the checkout in FOLDER, with a kill -9 in between
python bench/large.py --json FILE          also write the results as JSON

Rows are inserted directly, through the schema of the store; audit rows are signed. The gateway runs in its own process;
CPU is that of all its threads and of the Postgres server. While a request is answered, another client calls
`health.check` all the time. `stall` is the longest time that it waited, the least of three runs, because other programs
use the cores, too. `loop` is the most CPU time that the event loop used while it waited.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from websockets.asyncio.client import ClientConnection, connect

from atlas_agents import Agent, Atlas, Capabilities, Chunk, DoneChunk, Request, TextChunk, Usage
from atlas_agents.core.aio import BackgroundTasks, utc_day
from atlas_agents.core.json import encode
from atlas_agents.core.store import Document, JobRow, Schedule, audit_hash
from atlas_agents.core.tenancy import User
from atlas_agents.gateway.auth import TokenEntry, TokenFile
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.server import Gateway, configure_collector, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.library import DocumentDetails, document_id
from atlas_agents.knowledge.memories import Memory, MemoryOwner
from atlas_agents.storage.hash_chain import AuditSigner
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sqlite import SqliteStore

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from stores.postgres_server import PostgresServer

SESSIONS, MESSAGES, AUDIT, JOBS, USERS, DAYS = 100_000, 200_000, 1_000_000, 20_000, 200, 365
DOCUMENTS, MEMORIES, SCHEDULES = 10_000, 20_000, 500
AGENTS = tuple(f"agent{n}" for n in range(8))
MODELS = ("openai/gpt-5.6", "anthropic/claude-opus-5", "ollama/qwen3")
TOOLS = tuple(f"tool{n}" for n in range(40))
RARE = "zymurgy"
"""A word in the message of the oldest session only."""
RNG = random.Random(7)
WORDS = ["".join(RNG.choices("abcdefghijklmnoprstuvw", k=RNG.randint(3, 10))) for _ in range(20_000)]
NOW = 1_780_000_000_000
REPEATS = 3
AUDIT_KEY = b"a key of the benchmark"


class Model:
    id = "model"
    capabilities = Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        yield TextChunk("done")
        yield DoneChunk(Usage(1, 1))


def words(count: int) -> str:
    """Text that starts with the common word 'the'; words further back in the list are rarer."""
    return "the " + " ".join([WORDS[int(20_000 * RNG.random() ** 3)] for _ in range(count)])


def session_key(n: int) -> str:
    """A quarter of the sessions belongs to users who have sessions of their own; user0 has most of them."""
    if n % 4:
        return f"session-{n:06}"
    return f"@user{0 if n % 8 else n // 8 % USERS}/session-{n:06}"


def session_time(n: int, sessions: int) -> int:
    return NOW - (sessions - n) * (DAYS * 86_400_000 // sessions)


def session_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    sessions, each = int(SESSIONS * scale), MESSAGES // SESSIONS
    for n in range(sessions):
        at = session_time(n, sessions)
        archived = n % 50 == 1
        yield ("default", session_key(n), AGENTS[n % 8], f"Talk {n}", archived, b"{}", at, at, each, 1)


def message_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    sessions, each = int(SESSIONS * scale), MESSAGES // SESSIONS
    for n in range(sessions):
        for seq in range(1, each + 1):
            text = f"{RARE if n == 0 and seq == 1 else ''} {words(60)}"
            parts = [{"type": "text", "text": text}]
            role = "user" if seq % 2 else "assistant"
            body = {"role": role, "parts": parts, "id": f"m{n}-{seq}", "created_at": session_time(n, sessions)}
            id, packed = f"m{n}-{seq}", tables.pack_value(json.dumps(body).encode())
            number = tables.message_number("default", session_key(n), id)
            yield ("default", session_key(n), seq, id, f"run{n}", packed, number)


def run_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    sessions = int(SESSIONS * scale)
    for n in range(sessions):
        at, user = session_time(n, sessions), f"user{n % USERS}"
        yield ("default", f"run{n}", session_key(n), 1, AGENTS[n % 8], "done", 1, user, "", b"{}", None, at, at, n + 1)


def usage_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    sessions = int(SESSIONS * scale)
    for n in range(sessions):
        day = utc_day(session_time(n, sessions) / 1000)
        yield ("default", day, session_key(n), AGENTS[n % 8], MODELS[n % 3], 1000 + n % 100, 200, 50, 12_345, 1)


def audit_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    rows, previous = int(AUDIT * scale), ""
    step, sessions = DAYS * 86_400_000 // rows, int(SESSIONS * scale)
    for seq in range(1, rows + 1):
        n = seq * sessions // rows
        meta = {"run_id": f"run{n}", "user": f"user{n % USERS}", "duration_ms": 1.5, "verdict": "yes", "acts": True}
        entry: dict[str, Any] = {
            "tenantId": "default",
            "timestamp": NOW - (rows - seq) * step,
            "level": "error" if seq % 1000 == 0 else "warn" if seq % 50 == 0 else "info",
            "action": "TOOL_CALL",
            "entityType": "tool",
            "entityId": "rare_tool" if seq % 20_000 == 7 else TOOLS[seq % 40],
            "actorType": "agent",
            "actorExternalId": AGENTS[n % 8],
            "success": seq % 100 > 0,
            "message": "called",
            "meta": meta,
        }
        body = msgspec.json.encode(entry)
        digest = audit_hash(seq, previous, body, AUDIT_KEY)
        yield ("default", seq, body, previous, digest)
        previous = digest


def job_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    sessions = int(SESSIONS * scale)
    for seq in range(1, int(JOBS * scale) + 1):
        n, at = seq * 5 % sessions, NOW - seq
        names = (f"job{seq}", "request", AGENTS[n % 8], "a task", session_key(n))
        state = "dead" if seq % 500 == 0 else "queued" if seq % 4 == 1 else "done"
        times = {"due_at": 2 * NOW if state == "queued" else at, "created_at": at, "ended_at": at, "seq": seq}
        job = JobRow(*names, state, user=f"user{n % USERS}", result="ok", notified=True, **times)
        yield ("default", *tables.JOBS.values(job).values())


def document_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    """Documents in 100 categories, and memories of each agent for each user."""
    for n in range(int(DOCUMENTS * scale)):
        about = encode(DocumentDetails(f"docs/{n}.md", "/srv/docs", "owner", 10_000))
        ids = document_id(f"/srv/docs/{n}.md"), f"category{n % 100}", f"/srv/docs/{n}.md"
        row = Document("knowledge", *ids, f"Document {n}", "hash", "", about, 7, session_time(n, DOCUMENTS))
        yield ("default", *tables.DOCUMENTS.values(row).values())
    for n in range(int(MEMORIES * scale)):
        owner = MemoryOwner("default", AGENTS[n % 8], "owner" if n % 16 == 3 else f"user{n // 8 % USERS}")
        about = encode(Memory(f"m{n}", words(20), agent_id=owner.agent_id, user=owner.user))
        row = Document("memory", f"m{n}", owner.collection, hash="hash", about=about, created_at=NOW - n)
        yield ("default", *tables.DOCUMENTS.values(row).values())


def record_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    """Users with their last edits, edits of other things, and schedules."""
    for n in range(USERS):
        yield ("default", "user", f"user{n}", encode(User(f"user{n}", "member", "active", NOW - n)), 1)
        yield ("default", "edit", f"user:user{n}", encode({"version": "1", "by": "owner", "at": NOW - n}), 1)
    for n in range(int(DOCUMENTS * scale)):
        yield ("default", "edit", f"knowledge:docs/{n}.md", encode({"version": "1", "by": "owner", "at": NOW - n}), 1)
    for n in range(int(SCHEDULES * scale)):
        schedule = Schedule(f"schedule{n}", "0 9 1 * *", AGENTS[n % 8], "a task", "Europe/Berlin", last=2 * NOW)
        yield ("default", "schedule", schedule.name, encode(schedule), 1)


TABLES = {
    "sessions": (
        "tenant, key, agent_id, label, archived, metadata, created_at, updated_at, last_message, last_run",
        session_rows,
    ),
    "messages": ("tenant, session, seq, id, run_id, body, id_number", message_rows),
    "runs": (
        "tenant, id, session, place, agent_id, status, epoch, user_id, idempotency_key, request, error, created_at,"
        " ended_at, number",
        run_rows,
    ),
    "usage_sums": (
        "tenant, day, session, agent_id, model, input_tokens, output_tokens, cached_tokens, cost_microcents, turns",
        usage_rows,
    ),
    "audit": ("tenant, seq, entry, previous, hash", audit_rows),
    "jobs": (f"tenant, {tables.JOBS.columns}", job_rows),
    "documents": (f"tenant, {tables.DOCUMENTS.columns}", document_rows),
    "records": ("tenant, kind, key, body, version", record_rows),
}


def fill_sqlite(path: Path, scale: float) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for table, (columns, rows) in TABLES.items():
            present = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
            names = columns.split(", ")
            used = [n for n, name in enumerate(names) if name in present]  # all, unless the schema is an older one
            insert = f"INSERT INTO {table} ({', '.join(names[n] for n in used)}) VALUES ({', '.join('?' * len(used))})"
            connection.execute("BEGIN")
            connection.executemany(insert, (tuple([row[n] for n in used]) for row in rows(scale)))
            connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def fill_postgres(url: str, scale: float) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = atlas")
        for table, (columns, rows) in TABLES.items():
            found = connection.execute("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass", (table,))
            present, names = {name for (name,) in found}, columns.split(", ")
            used = [n for n, name in enumerate(names) if name in present]  # only SQLite numbers its runs
            with connection.cursor().copy(
                f"COPY {table} ({', '.join(names[n] for n in used)}) FROM STDIN".encode()
            ) as copy:
                for row in rows(scale):
                    copy.write_row([row[n] for n in used])
        connection.execute("VACUUM ANALYZE")


def open_store(where: str, home: Path) -> SqliteStore | PostgresStore:
    signer = AuditSigner(home / "heads", AUDIT_KEY, (AUDIT_KEY,))
    return (PostgresStore if where.startswith("postgresql:") else SqliteStore)(where, audit=signer)


async def create(where: str) -> None:
    store = PostgresStore(where) if where.startswith("postgresql:") else SqliteStore(where)
    await store.open()
    await store.close()


async def serve(where: str, home: Path) -> None:
    started, cpu = time.monotonic(), time.process_time()
    store = open_store(where, home)
    await store.open()
    atlas = Atlas([Agent(each, model=Model()) for each in AGENTS], store=store)

    tasks = BackgroundTasks("benchmark")

    async def report_refreshed() -> None:
        """Print a line when all derived tables are filled."""
        await store._refreshing.wait()
        print("refreshed", flush=True)

    def ready(gateway: Gateway) -> None:
        configure_collector()
        took, used = time.monotonic() - started, time.process_time() - cpu
        print(json.dumps([gateway.port, took * 1000, used * 1000]), flush=True)
        tasks.spawn(report_refreshed())

    services = GatewayServices(KnowledgeBase(store))
    await Gateway(atlas, GatewaySettings(home=home, port=0), services=services).serve(ready)
    await tasks.close()
    await store.close()


async def verify(where: str, home: Path) -> None:
    store = open_store(where, home)
    await store.open()
    started, cpu = time.monotonic(), time.process_time()
    problem = await store.verify_audit("default")
    assert problem is None, problem
    print(json.dumps([(time.monotonic() - started) * 1000, (time.process_time() - cpu) * 1000]), flush=True)
    await store.close()


def cpu_of(pid: int, server: int = 0) -> float:
    """Return the CPU seconds that all threads of a process have used, and the children of a Postgres server."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split() if server else []
    return sum(_cpu_of_process(each) for each in (pid, *children)) / 1e9


def _cpu_of_process(pid: int | str) -> int:
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def server_of(where: str) -> int:
    """Return the process id of the Postgres server; 0 for SQLite."""
    if not where.startswith("postgresql:"):
        return 0
    with psycopg.connect(where) as connection:
        ((backend,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        return int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])


def loop_cpu_of(pid: int) -> float:
    """Return the CPU seconds of the main thread, on which the event loop runs."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def sign_in(port: int, token: str) -> ClientConnection:
    socket = await connect(f"ws://127.0.0.1:{port}/", compression=None, max_size=None)
    await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
    await socket.recv()
    return socket


async def call(socket: ClientConnection, method: str, params: dict[str, Any]) -> Any:
    await socket.send(json.dumps({"id": 1, "method": method, "params": params}))
    while True:
        frame: Any = json.loads(await socket.recv())
        if frame.get("id") == 1:
            if "error" in frame:
                raise RuntimeError(f"{method} {params}: {frame['error']}")
            return frame["result"]


async def longest_wait(pid: int, socket: ClientConnection, until: asyncio.Task[Any]) -> tuple[float, float]:
    """Call a trivial method until a task has ended; return the longest wait and the CPU of the loop, in seconds."""
    longest, busiest = 0.0, 0.0
    while not until.done():
        started, cpu = time.monotonic(), loop_cpu_of(pid)
        await call(socket, "health.check", {})
        longest = max(longest, time.monotonic() - started)
        busiest = max(busiest, loop_cpu_of(pid) - cpu)
    return longest, busiest


QUERIES: list[tuple[str, str, dict[str, Any]]] = [
    ("sessions: latest 100", "sessions.list", {}),
    ("sessions: archived", "sessions.list", {"archived": True}),
    ("sessions: of one user (many)", "user0 sessions.list", {}),
    ("sessions: of one user (few)", "user3 sessions.list", {}),
    ("sessions: page at the end", "sessions.list", {"cursor": "OLD"}),
    ("search: rare word, oldest session", "sessions.search", {"query": RARE}),
    ("search: common word", "sessions.search", {"query": "the"}),
    ("search: two words", "sessions.search", {"query": f"{WORDS[40]} {WORDS[60]}"}),
    ("search: beginning of a word", "sessions.search", {"query": WORDS[9000][:3]}),
    ("search: no match", "sessions.search", {"query": "nowhere1234"}),
    ("search: one user, common word", "user3 sessions.search", {"query": "the"}),
    ("search: one user, rare word", "user3 sessions.search", {"query": WORDS[19990]}),
    ("branches of a session", "sessions.branches", {"sessionKey": "session-000001"}),
    ("session", "sessions.get", {"sessionKey": "session-000001"}),
    ("history of a session", "chat.history", {"sessionKey": "session-000001"}),
    ("export of a session", "sessions.export", {"sessionKey": "session-000001"}),
    ("runs: latest 100", "runs.list", {}),
    ("runs: of one user", "user3 runs.list", {}),
    ("runs: of a session", "runs.list", {"sessionKey": "session-000001"}),
    ("run with its steps", "runs.get", {"runId": "run1"}),
    ("usage by agent", "usage.summary", {"groupBy": "agent"}),
    ("usage by model", "usage.summary", {"groupBy": "model"}),
    ("usage by day", "usage.summary", {"groupBy": "day"}),
    ("usage by agent and day", "usage.summary", {"groupBy": "agent", "byDay": True}),
    ("usage by session", "usage.summary", {"groupBy": "session"}),
    ("usage by session and day", "usage.summary", {"groupBy": "session", "byDay": True}),
    ("usage by session, 30 days", "usage.summary", {"groupBy": "session", "from": "LAST_MONTH"}),
    ("usage by session, 200 days", "usage.summary", {"groupBy": "session", "from": "LAST_200_DAYS"}),
    ("usage of one session", "usage.summary", {"groupBy": "session", "sessionKey": "session-000001"}),
    ("usage of one user by session", "user0 usage.summary", {"groupBy": "session"}),
    ("usage of one user by agent", "user0 usage.summary", {"groupBy": "agent"}),
    ("usage by tool", "usage.tools", {}),
    ("usage by tool, 30 days", "usage.tools", {"from": "LAST_MONTH"}),
    ("audit: latest 100", "audit.list", {}),
    ("audit: one agent", "audit.list", {"agentId": "agent3"}),
    ("audit: common tool", "audit.list", {"tool": "tool7"}),
    ("audit: rare tool", "audit.list", {"tool": "rare_tool"}),
    ("audit: unknown tool", "audit.list", {"tool": "none"}),
    ("audit: errors", "audit.list", {"level": "error"}),
    ("audit: one turn, oldest", "audit.list", {"runId": "run1"}),
    ("audit: one user", "audit.list", {"user": "user7"}),
    ("audit: user, tool and errors", "audit.list", {"user": "user7", "tool": "tool0", "level": "error"}),
    ("audit: a day last year", "audit.list", {"from": NOW - 300 * 86_400_000, "to": NOW - 299 * 86_400_000}),
    ("jobs: latest 100", "jobs.list", {}),
    ("jobs: dead", "jobs.list", {"states": ["dead"]}),
    ("jobs: queued", "jobs.list", {"states": ["queued"]}),
    ("jobs: dead or cancelled", "jobs.list", {"states": ["dead", "cancelled"]}),
    ("jobs: of one user", "user3 jobs.list", {}),
    ("jobs: of one user, dead", "user3 jobs.list", {"states": ["dead"]}),
    ("job", "jobs.get", {"jobId": "job5"}),
    ("approvals", "approvals.list", {}),
    ("users", "users.list", {}),
    ("tenant", "tenants.get", {}),
    ("limits", "limits.get", {}),
    ("schedules", "schedules.list", {}),
    ("tenants", "tenants.list", {}),
    ("devices", "devices.list", {}),
    ("documents: a page", "knowledge.list", {"limit": 500}),
    ("documents of a category", "knowledge.list", {"category": "category7"}),
    ("memories", "memories.list", {"agentId": "agent3"}),
]


class Measured(msgspec.Struct):
    """Milliseconds; `first` is the CPU of the first request, before anything is cached."""

    name: str
    cpu: float
    wall: float
    stall: float
    rows: int
    first: float = 0.0
    loop: float = 0.0


async def measure(where: str, home: Path) -> list[Measured]:
    command = (sys.executable, __file__, "serve", where, str(home))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        port, wall, cpu = json.loads(await process.stdout.readline())
        results = [Measured("start of the gateway", cpu, wall, 0, 0)]
        tokens = TokenFile(home)
        owner = await sign_in(port, (home / "token").read_text().strip())
        scopes = ("read", "write")
        users = {each: tokens.create(each, TokenEntry(scopes)).reveal() for each in ("user0", "user3")}
        sockets = {each: await sign_in(port, token) for each, token in users.items()}
        other = await sign_in(port, (home / "token").read_text().strip())
        await process.stdout.readline()  # all derived tables are filled
        server = server_of(where)
        for name, target, params in QUERIES:
            user, _, method = target.rpartition(" ")
            clients = sockets.get(user, owner), other
            results.append(await measure_query((process.pid, server), clients, name, method, params))
        return results
    finally:
        process.terminate()
        await process.wait()


async def measure_query(
    processes: tuple[int, int], clients: tuple[ClientConnection, ClientConnection], name: str, method: str, params: Any
) -> Measured:
    """Measure a request several times; the median counts. The stall is measured in a request of its own."""
    month = (datetime.fromtimestamp(NOW / 1000, UTC) - timedelta(days=30)).strftime("%Y-%m-%d")
    old = base64.urlsafe_b64encode(f"{NOW - (DAYS - 2) * 86_400_000} ".encode()).decode().rstrip("=")
    days200 = (datetime.fromtimestamp(NOW / 1000, UTC) - timedelta(days=200)).strftime("%Y-%m-%d")
    replaced = {"LAST_MONTH": month, "LAST_200_DAYS": days200, "OLD": old}
    params = {key: replaced.get(value, value) if isinstance(value, str) else value for key, value in params.items()}
    (socket, other), walls, cpus, rows = clients, list[float](), list[float](), 0
    for _ in range(REPEATS):
        started, cpu = time.monotonic(), cpu_of(*processes)
        result = await call(socket, method, params)
        walls.append((time.monotonic() - started) * 1000)
        cpus.append((cpu_of(*processes) - cpu) * 1000)
        rows = max((len(value) for value in result.values() if isinstance(value, list)), default=0)
    waits = list[tuple[float, float]]()
    for _ in range(REPEATS):
        request = asyncio.create_task(call(socket, method, params))
        waits.append(await longest_wait(processes[0], other, request))
        await request
    middle = REPEATS // 2
    stall, loop = min(waits)[0] * 1000, min([each for _, each in waits]) * 1000
    return Measured(name, sorted(cpus)[middle], sorted(walls)[middle], stall, rows, cpus[0], loop)


async def measure_verify(where: str, home: Path) -> Measured:
    command = (sys.executable, __file__, "verify", where, str(home))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    wall, cpu = json.loads((await process.communicate())[0])
    return Measured("audit verify", cpu, wall, 0, 0)


def print_table(results: list[Measured]) -> None:
    print("| query | rows | first: CPU ms | CPU ms | wall ms | stall ms | loop ms |\n|---|---|---|---|---|---|---|")
    for each in results:
        numbers = (each.first, each.cpu, each.wall, each.stall, each.loop)
        print(f"| {each.name} | {each.rows} | {' | '.join(f'{number:,.1f}' for number in numbers)} |")


def prepare(options: argparse.Namespace, stack: contextlib.ExitStack) -> str:
    """Return the address of the filled database."""
    if str(options.database).startswith("postgresql:"):
        return str(options.database)
    folder = Path(options.database or stack.enter_context(tempfile.TemporaryDirectory()))
    folder.mkdir(parents=True, exist_ok=True)
    file, started = folder / "atlas.db", time.monotonic()
    if file.exists() and not options.postgres:
        return str(file)
    where = stack.enter_context(PostgresServer(safe=True)).url if options.postgres else str(file)
    if options.upgrade:
        environment = os.environ | {"PYTHONPATH": f"{options.upgrade}/src", "LARGE_CREATE": where}
        subprocess.run([sys.executable, "-c", CREATE], env=environment, check=True)
    else:
        run(create(where))
    (fill_postgres if options.postgres else fill_sqlite)(where, options.scale)  # type: ignore[arg-type]
    print(f"filled in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return where


async def measure_all(where: str, home: Path) -> list[Measured]:
    return [*await measure(where, home), await measure_verify(where, home)]


CREATE = """
import asyncio, os
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore

async def create(where):
    store = PostgresStore(where) if where.startswith("postgresql:") else SqliteStore(where)
    await store.open()
    await store.close()

asyncio.run(create(os.environ["LARGE_CREATE"]))
"""
"""Creates an empty database with the schema of another checkout."""


async def measure_upgrade(where: str, home: Path) -> None:
    """Start the gateway on an older database, use it while the derived tables are filled, and kill it once."""
    for attempt in ("first start", "start after kill -9"):
        started = time.monotonic()
        command = (sys.executable, __file__, "serve", where, str(home))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout
        port, wall, cpu = json.loads(await process.stdout.readline())
        print(f"{attempt}: ready after {wall:,.0f} ms, {cpu:,.0f} ms of CPU")
        token = (home / "token").read_text().strip()
        reader, writer = await sign_in(port, token), await sign_in(port, token)
        for _ in range(20):  # until the gateway has imported what it needs
            await call(writer, "sessions.create", {})
            await asyncio.sleep(0.1)
        waits, is_killed = list[tuple[float, float]](), False
        begin, refreshed = time.monotonic(), asyncio.create_task(process.stdout.readline())
        while not refreshed.done() and not is_killed:
            now, loop = time.monotonic(), loop_cpu_of(process.pid)
            await call(reader, "sessions.list", {})
            await call(writer, "sessions.create", {"label": "written meanwhile"})
            waits.append((time.monotonic() - now, loop_cpu_of(process.pid) - loop))
            await asyncio.sleep(0.1)
            is_killed = attempt == "first start" and time.monotonic() - begin > KILL_AFTER
        cpu_ms, seconds = cpu_of(process.pid) * 1000, time.monotonic() - started
        walls, loop_ms = sorted([wall * 1000 for wall, _ in waits]), max([loop for _, loop in waits]) * 1000
        print(f"  {'killed' if is_killed else 'complete'} after {seconds:,.0f} s, {cpu_ms:,.0f} ms of CPU")
        print(
            f"  a list and a write took {walls[len(walls) // 2]:,.1f} ms, 99 %: {walls[len(walls) * 99 // 100]:,.1f} ms"
        )
        print(f"  longest {walls[-1]:,.1f} ms; at most {loop_ms:,.1f} ms of the event loop")
        process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
        await process.wait()


KILL_AFTER = 15
"""Seconds."""


def main(options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        where = prepare(options, stack)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.upgrade:
            asyncio.run(measure_upgrade(where, home))
            return
        results = asyncio.run(measure_all(where, home))
    print_table(results)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(serve(sys.argv[2], Path(sys.argv[3])))
    elif sys.argv[1:2] == ["verify"]:
        run(verify(sys.argv[2], Path(sys.argv[3])))
    else:
        parser = argparse.ArgumentParser(description="Measure queries on a large database.")
        parser.add_argument("--scale", type=float, default=0.2)
        parser.add_argument("--postgres", action="store_true")
        parser.add_argument("--database")
        parser.add_argument("--upgrade", type=Path)
        parser.add_argument("--json", type=Path)
        given = parser.parse_args()
        if given.upgrade and not (given.upgrade / "src" / "atlas_agents").is_dir():
            parser.error(
                f"--upgrade {given.upgrade}: no checkout of Atlas Agents is there, expected src/atlas_agents in it"
            )
        main(given)
