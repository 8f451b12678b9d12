"""Queries on a large database: CPU and wall time of every list, search, sum and filter of the gateway.

python bench/large.py                      a fifth of the full size, on SQLite
python bench/large.py --scale 1            100,000 sessions, 200,000 messages, 1,000,000 audit rows, 10,000 documents
python bench/large.py --postgres           the same on a Postgres server started for this
python bench/large.py --database PLACE     keep the database in a folder, or use one that is there or at a URL

Rows are inserted directly, through the schema of the store; audit rows are signed. The gateway runs in its own process;
CPU is that of all its threads and of the Postgres server. While a request is answered, another client calls
`health.check` all the time. `stall` is the longest time that it waited, the least of three runs, because other programs
use the cores, too.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from websockets.asyncio.client import ClientConnection

from atlas_agents import Agent, Atlas
from atlas_agents.core.aio import BackgroundTasks, utc_day
from atlas_agents.core.json import encode
from atlas_agents.core.store import Document, JobRow, RunRow, Schedule, UsageRow, audit_hash
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
from harness import ROOT, Model, Process, call, cpu_seconds_of_tree, owner_token, print_line, sign_in, started
from tables import table

sys.path.append(str(ROOT / "tests"))
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
Row = dict[str, float | None]
AUDIT_KEY = b"a key of the benchmark"


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
        row = RunRow(f"run{n}", session_key(n), AGENTS[n % 8], "done", 1, user, "", b"{}", None, at, at, "default")
        yield (*tables.RUNS.values(row).values(), 1)


def usage_rows(scale: float) -> Iterator[tuple[Any, ...]]:
    sessions = int(SESSIONS * scale)
    for n in range(sessions):
        day = utc_day(session_time(n, sessions) / 1000)
        row = UsageRow(day, session_key(n), AGENTS[n % 8], MODELS[n % 3], 1000 + n % 100, 200, 50, 12_345, 1)
        yield ("default", *tables.USAGE.values(row).values())


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
    "runs": (f"{tables.RUNS.columns}, place", run_rows),
    "usage_sums": (f"tenant, {tables.USAGE.columns}", usage_rows),
    "audit": ("tenant, seq, entry, previous, hash", audit_rows),
    "jobs": (f"tenant, {tables.JOBS.columns}", job_rows),
    "documents": (f"tenant, {tables.DOCUMENTS.columns}", document_rows),
    "records": ("tenant, kind, key, body, version", record_rows),
}


def fill_sqlite(path: Path, scale: float) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for name, (columns, rows) in TABLES.items():
            places = ", ".join("?" * len(columns.split(", ")))
            connection.execute("BEGIN")
            connection.executemany(f"INSERT INTO {name} ({columns}) VALUES ({places})", rows(scale))
            connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def fill_postgres(url: str, scale: float) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = atlas")
        for name, (columns, rows) in TABLES.items():
            with connection.cursor().copy(f"COPY {name} ({columns}) FROM STDIN".encode()) as copy:
                for row in rows(scale):
                    copy.write_row(row)
        connection.execute("VACUUM ANALYZE")


def open_store(where: str, home: Path) -> SqliteStore | PostgresStore:
    signer = AuditSigner(home / "heads", AUDIT_KEY, (AUDIT_KEY,))
    return (PostgresStore if where.startswith("postgresql:") else SqliteStore)(where, audit=signer)


async def create(where: str) -> None:
    store = PostgresStore(where) if where.startswith("postgresql:") else SqliteStore(where)
    await store.open()
    await store.close()


async def serve(where: str, home: Path) -> None:
    """Be a gateway: print its port and the cost of its start, and later a line when all derived tables are filled."""
    begin, cpu = time.monotonic(), time.process_time()
    store = open_store(where, home)
    await store.open()
    atlas = Atlas([Agent(each, model=Model()) for each in AGENTS], store=store)
    tasks = BackgroundTasks("benchmark")

    async def report_refreshed() -> None:
        await store._refreshing.wait()
        print_line("refreshed")

    def ready(gateway: Gateway) -> None:
        configure_collector()
        print_line((gateway.port, (time.monotonic() - begin) * 1000, (time.process_time() - cpu) * 1000))
        tasks.spawn(report_refreshed())

    services = GatewayServices(KnowledgeBase(store))
    await Gateway(atlas, GatewaySettings(home=home, port=0), services=services).serve(ready)
    await tasks.close()
    await store.close()


async def verify(where: str, home: Path) -> None:
    store = open_store(where, home)
    await store.open()
    begin, cpu = time.monotonic(), time.process_time()
    problem = await store.verify_audit("default")
    assert problem is None, problem
    print_line(((time.monotonic() - begin) * 1000, (time.process_time() - cpu) * 1000))
    await store.close()


def postgres_pid(where: str) -> int:
    """Return the process id of the Postgres server; 0 for SQLite."""
    if not where.startswith("postgresql:"):
        return 0
    with psycopg.connect(where) as connection:
        ((backend,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        return int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])


async def longest_wait(socket: ClientConnection, until: asyncio.Task[Any]) -> float:
    """Call a trivial method until a task has ended; return the longest wait in milliseconds."""
    longest = 0.0
    while not until.done():
        begin = time.monotonic()
        await call(socket, "health.check", {})
        longest = max(longest, time.monotonic() - begin)
    return longest * 1000


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


DAYS_AGO = {"LAST_MONTH": 30, "LAST_200_DAYS": 200}


def fill_in(value: Any) -> Any:
    """Replace the names that stand for a day or for the cursor of a late page."""
    if value == "OLD":
        return base64.urlsafe_b64encode(f"{NOW - (DAYS - 2) * 86_400_000} ".encode()).decode().rstrip("=")
    if isinstance(value, str) and value in DAYS_AGO:
        return (datetime.fromtimestamp(NOW / 1000, UTC) - timedelta(days=DAYS_AGO[value])).strftime("%Y-%m-%d")
    return value


class Server:
    """A gateway on the large database, measured together with its Postgres server."""

    def __init__(self, process: Process, where: str) -> None:
        self._process = process
        self._postgres = postgres_pid(where)

    def cpu(self) -> float:
        return self._process.cpu() + (cpu_seconds_of_tree(self._postgres) if self._postgres else 0)

    async def measure(self, socket: ClientConnection, other: ClientConnection, method: str, params: Any) -> Row:
        """Measure a request several times. The stall is measured in requests of its own."""
        walls, cpus, waits, rows = list[float](), list[float](), list[float](), 0
        for _ in range(REPEATS):
            begin, cpu = time.monotonic(), self.cpu()
            result = await call(socket, method, params)
            walls.append((time.monotonic() - begin) * 1000)
            cpus.append((self.cpu() - cpu) * 1000)
            rows = max((len(value) for value in result.values() if isinstance(value, list)), default=0)
        for _ in range(REPEATS):
            request = asyncio.create_task(call(socket, method, params))
            waits.append(await longest_wait(other, request))
            await request
        return make_row(statistics.median(cpus), statistics.median(walls), rows, cpus[0], min(waits))


def make_row(
    cpu: float, wall: float, rows: int | None = None, first: float | None = None, stall: float | None = None
) -> Row:
    return {"rows": rows, "first: CPU ms": first, "CPU ms": cpu, "wall ms": wall, "stall ms": stall}


async def measure(where: str, home: Path) -> dict[str, Row]:
    results: dict[str, Row] = {}
    async with started("serve", where, home) as process:
        port, wall, cpu = await process.read_line()
        results["start of the gateway"] = make_row(cpu, wall)
        tokens = {"": owner_token(home)}
        for user in ("user0", "user3"):
            tokens[user] = TokenFile(home).create(user, TokenEntry(("read", "write"))).reveal()
        sockets = {user: await sign_in(port, token) for user, token in tokens.items()}
        other = await sign_in(port, tokens[""])
        await process.read_line()  # all derived tables are filled
        server = Server(process, where)
        for name, target, params in QUERIES:
            user, _, method = target.rpartition(" ")
            filled = {key: fill_in(value) for key, value in params.items()}
            results[name] = await server.measure(sockets[user], other, method, filled)
    async with started("verify", where, home) as process:
        wall, cpu = await process.read_line()
        results["audit verify"] = make_row(cpu, wall)
    return results


def prepare(options: argparse.Namespace, stack: contextlib.ExitStack) -> str:
    """Return the address of the filled database."""
    if str(options.database).startswith("postgresql:"):
        return str(options.database)
    folder = Path(options.database or stack.enter_context(tempfile.TemporaryDirectory()))
    folder.mkdir(parents=True, exist_ok=True)
    file, begin = folder / "atlas.db", time.monotonic()
    if file.exists() and not options.postgres:
        return str(file)
    where = stack.enter_context(PostgresServer(safe=True)).url if options.postgres else str(file)
    run(create(where))
    (fill_postgres if options.postgres else fill_sqlite)(where, options.scale)  # type: ignore[arg-type]
    print(f"filled in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return where


def main(options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        where = prepare(options, stack)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        print(table("query", asyncio.run(measure(where, home))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(serve(sys.argv[2], Path(sys.argv[3])))
    elif sys.argv[1:2] == ["verify"]:
        run(verify(sys.argv[2], Path(sys.argv[3])))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--scale", type=float, default=0.2)
        parser.add_argument("--postgres", action="store_true")
        parser.add_argument("--database", metavar="PLACE")
        main(parser.parse_args())
