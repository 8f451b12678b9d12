"""Signed audit log: changes, rewriting and truncation by someone who can write to the database but has no key."""

import contextlib
import hashlib
import sqlite3
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
from postgres_server import PostgresServer

from atlas_agents import verify
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import AddAudit, AuditRow, PutSession, Store
from atlas_agents.storage.hash_chain import AuditSigner, audit_row, verify_audit
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.tools.audit import AuditEntry, StoreAudit

pytestmark = pytest.mark.durable
KEY, OTHER_KEY = b"key of the audit log", b"another key"
TENANT = "default"
Execute: TypeAlias = Callable[..., list[tuple[int, bytes]]]


class Log:
    """A database with a signed audit log, and direct access to its table as an attacker has it."""

    def __init__(self, kind: str, folder: Path, schema: str, server: PostgresServer | None) -> None:
        self.heads = folder / "elsewhere"
        self._kind, self._folder, self._schema, self._server = kind, folder, schema, server

    def signer(self, *keys: bytes, own: bool = True) -> AuditSigner:
        return AuditSigner(self.heads, (*keys, KEY)[0], keys or (KEY,), is_own_key=own)

    @contextlib.asynccontextmanager
    async def open(self, signer: AuditSigner | None) -> AsyncGenerator[SqliteStore | PostgresStore, None]:
        store: SqliteStore | PostgresStore
        if self._server is None:
            store = SqliteStore(self._folder / "atlas.db", audit=signer)
        else:
            store = PostgresStore(self._server.url, schema=self._schema, audit=signer)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def execute(self, statement: str, *values: object) -> list[tuple[int, bytes]]:
        if self._server is None:
            with contextlib.closing(sqlite3.connect(self._folder / "atlas.db", isolation_level=None)) as database:
                return database.execute(statement.replace("%s", "?"), values).fetchall()
        with psycopg.connect(self._server.url, autocommit=True) as session:
            session.execute(f"SET search_path = {self._schema}".encode())
            cursor = session.execute(statement.encode(), values)
            return [(seq, bytes(entry)) for seq, entry in cursor.fetchall()] if cursor.description else []

    def rewrite(self, first: int = 1, key: bytes | None = None) -> None:
        """Recompute the chain from a row on, as an attacker can."""
        previous = ""
        rows = self.execute("SELECT seq, entry FROM audit ORDER BY seq")
        if first > 1:
            previous = str(self.execute_hash(first - 1))
        for seq, entry in rows[first - 1 :]:
            row = audit_row(seq, previous, entry, key)
            self.execute("UPDATE audit SET previous = %s, hash = %s WHERE seq = %s", row.previous, row.hash, seq)
            previous = row.hash

    def execute_hash(self, seq: int) -> str:
        if self._server is None:
            return str(self.execute("SELECT hash, entry FROM audit WHERE seq = %s", seq)[0][0])
        with psycopg.connect(self._server.url) as session:
            session.execute(f"SET search_path = {self._schema}".encode())
            found = session.execute("SELECT hash FROM audit WHERE seq = %s", (seq,)).fetchone()
            assert found is not None
            return str(found[0])

    async def problem(self, signer: AuditSigner | None = None) -> str | None:
        async with self.open(signer or self.signer()) as store:
            return await store.verify_audit(TENANT)


@pytest.fixture
def log(kind: str, schema: str, tmp_path: Path, request: pytest.FixtureRequest) -> Log:
    server = request.getfixturevalue("postgres_server") if kind == "postgres" else None
    return Log(kind, tmp_path, schema, server)


async def _add(store: Store, count: int) -> None:
    for n in range(count):
        await store.commit(TENANT, [AddAudit(f'{{"call":{n}}}'.encode())])


async def _fill(log: Log, count: int, signer: AuditSigner | None = None) -> None:
    async with log.open(signer or log.signer()) as store:
        await _add(store, count)


async def test_intact_log_is_verified(log: Log) -> None:
    await _fill(log, 3)
    assert await log.problem() is None
    await _fill(log, 2)
    assert await log.problem() is None


async def test_log_without_its_last_rows_is_reported_as_truncated(log: Log) -> None:
    await _fill(log, 5)
    log.execute("DELETE FROM audit WHERE seq > 3")
    assert await log.problem() == "rows 4 to 5 are missing: the log was truncated"
    log.execute("DELETE FROM audit WHERE seq > 0")
    assert await log.problem() == "rows 1 to 5 are missing: the log was truncated"


async def test_truncated_log_that_grew_again_is_reported_as_rewritten(log: Log) -> None:
    await _fill(log, 5)
    log.execute("DELETE FROM audit WHERE seq > 3")
    await _fill(log, 4)
    problem = await log.problem()
    assert problem == "row 5 is not the row of the signed head: the log was rewritten"


async def test_log_with_recomputed_hashes_is_reported_as_rewritten(log: Log) -> None:
    await _fill(log, 4)
    log.execute("UPDATE audit SET entry = %s WHERE seq = 2", b'{"call":"forged"}')
    log.rewrite()
    problem = await log.problem()
    assert problem == "row 1 is not signed, but rows before it were: the log was rewritten without the key"
    log.rewrite(key=OTHER_KEY)
    assert "is not known here" in str(await log.problem())


async def test_rows_recomputed_from_the_middle_are_reported(log: Log) -> None:
    await _fill(log, 4)
    log.execute("UPDATE audit SET entry = %s WHERE seq = 3", b'{"call":"forged"}')
    assert await log.problem() == "row 3 was changed after it was written"
    log.rewrite(first=3)
    assert "row 3 is not signed" in str(await log.problem())


async def test_row_that_was_added_without_the_key_is_reported(log: Log) -> None:
    await _fill(log, 2)
    forged = audit_row(3, log.execute_hash(2), b'{"call":"forged"}')
    log.execute(
        "INSERT INTO audit (tenant, seq, entry, previous, hash) VALUES (%s, %s, %s, %s, %s)",
        *(TENANT, 3, forged.entry, forged.previous, forged.hash),
    )
    assert "row 3 is not signed" in str(await log.problem())


async def test_process_without_the_key_cannot_add_rows_to_a_signed_log(log: Log) -> None:
    await _fill(log, 2)
    async with log.open(None) as store:
        with pytest.raises(StoreError, match="the audit log is signed, but this process has no key"):
            await _add(store, 1)
    assert await log.problem() is None


async def test_old_rows_without_signature_stay_verifiable(log: Log) -> None:
    async with log.open(None) as store:
        await _add(store, 3)
    await _fill(log, 2)
    assert await log.problem() is None
    log.execute("UPDATE audit SET entry = %s WHERE seq = 2", b'{"call":"forged"}')
    assert await log.problem() == "row 2 was changed after it was written"
    for seq in (2, 3):  # recomputed up to the first signed row, which covers the hash before it
        previous = log.execute_hash(seq - 1)
        (entry,) = [each for number, each in log.execute("SELECT seq, entry FROM audit") if number == seq]
        row = audit_row(seq, previous, entry)
        log.execute("UPDATE audit SET previous = %s, hash = %s WHERE seq = %s", row.previous, row.hash, seq)
    assert "row 4 does not match the hash of the row before it" in str(await log.problem())


async def test_old_unsigned_log_is_protected_by_its_head(log: Log) -> None:
    async with log.open(None) as store:
        await _add(store, 3)
    assert await log.problem() is None  # the head is signed when the log is first opened
    log.execute("UPDATE audit SET entry = %s WHERE seq = 2", b'{"call":"forged"}')
    log.rewrite()
    assert await log.problem() == "row 3 is not the row of the signed head: the log was rewritten"
    log.execute("DELETE FROM audit WHERE seq = 3")
    assert "row 3 is missing: the log was truncated" in str(await log.problem())


async def test_changed_or_removed_heads_are_reported(log: Log) -> None:
    await _fill(log, 3)
    content = log.heads.read_bytes()
    log.heads.write_bytes(content.replace(b'"seq":3', b'"seq":2'))
    assert "was changed, or signed with another key" in str(await log.problem())
    log.heads.write_bytes(content)
    assert await log.problem() is None
    log.heads.unlink()
    log.execute("DELETE FROM audit WHERE seq = 3")
    for _ in range(2):  # and stays reported
        assert "was missing when the database was opened" in str(await log.problem())
    await _fill(log, 1)
    assert "was missing when the database was opened" in str(await log.problem())


async def test_rows_and_heads_that_were_both_put_back_are_reported_by_the_running_process(log: Log) -> None:
    async with log.open(log.signer()) as store:
        assert store.audit_signer is not None
        await _add(store, 2)
        await store.audit_signer.flush()
        old = log.heads.read_bytes()
        await _add(store, 2)
        await store.audit_signer.flush()
        log.heads.write_bytes(old)
        log.execute("DELETE FROM audit WHERE seq > 2")
        assert await store.verify_audit() == "rows 3 to 4 are missing: the log was truncated"
        for _ in range(3):
            await store.commit(TENANT, [AddAudit(b'{"call":"another"}')])
        assert await store.verify_audit() == "row 4 is not the row of the signed head: the log was rewritten"


async def test_heads_of_another_machine_are_not_expected(log: Log) -> None:
    await _fill(log, 3)
    log.heads.unlink()
    assert await log.problem(log.signer(own=False)) is None


async def test_accepted_log_is_no_longer_reported(log: Log) -> None:
    await _fill(log, 3)
    log.execute("DELETE FROM audit WHERE seq = 3")
    async with log.open(log.signer()) as store:
        assert store.audit_signer is not None
        store.audit_signer.reset(await store.audit_ends())
    assert await log.problem() is None


async def test_rotated_key_verifies_rows_of_the_old_one(log: Log) -> None:
    await _fill(log, 2)
    await _fill(log, 2, log.signer(OTHER_KEY, KEY))
    assert await log.problem(log.signer(OTHER_KEY, KEY)) is None
    assert "row 1 is signed with the key" in str(await log.problem(AuditSigner(log.heads, OTHER_KEY, (OTHER_KEY,))))


async def test_processes_that_share_the_file_never_move_a_head_back(log: Log) -> None:
    async with log.open(log.signer()) as first, log.open(log.signer()) as second:
        for _ in range(3):
            await _add(first, 1)
            await _add(second, 1)
            assert first.audit_signer is not None and second.audit_signer is not None
            await second.audit_signer.flush()
            await first.audit_signer.flush()
    log.execute("DELETE FROM audit WHERE seq = 6")
    assert await log.problem() == "row 6 is missing: the log was truncated"


async def test_signed_heads_are_published(log: Log) -> None:
    published: list[bytes] = []

    async def publish(content: bytes) -> None:
        published.append(content)

    async with log.open(AuditSigner(log.heads, KEY, (KEY,), publish=publish)) as store:
        await _add(store, 2)
    assert published == [log.heads.read_bytes()]
    assert KEY not in published[0]


async def test_signing_adds_no_transaction(log: Log) -> None:
    session = PutSession("s", "assistant")
    counts: list[int] = []
    for signer in (None, log.signer()):
        async with log.open(signer) as store:
            before = store.transactions
            for n in range(5):
                await store.commit(TENANT, [AddAudit(f'{{"call":{n}}}'.encode()), session])
            counts.append(store.transactions - before)
    assert counts == [5, 5]


async def test_heads_that_cannot_be_written_stop_the_start(log: Log, tmp_path: Path) -> None:
    signer = AuditSigner(tmp_path / "missing" / "heads", KEY, (KEY,))
    with pytest.raises(StoreError, match="cannot write the signed heads"):
        async with log.open(signer):
            pass


async def test_records_are_verified_with_the_key(log: Log) -> None:
    entry = AuditEntry(TENANT, "assistant", "echo", "info", "called", True, {"arguments": {}}, 1)
    async with log.open(log.signer()) as store:
        audit = StoreAudit(store)
        for _ in range(2):
            await audit.append(entry)
        records = await audit.records()
    assert verify(records, KEY.decode()) is None
    assert verify(records) == "row 1 is signed: pass the key of the audit log"
    assert verify(records[1:], KEY.decode()) == "row 1 is missing: found row 2 instead"


def test_hash_does_not_reveal_the_key(kind: str) -> None:
    row = audit_row(1, "", b"{}", KEY)
    assert hashlib.sha256(KEY).hexdigest()[:8] not in row.hash
    assert row.hash.startswith("hmac:") and len(row.hash) == 5 + 8 + 1 + 64


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DELETE FROM audit WHERE seq = 1", "row 1 is missing: found row 2 instead"),
        ("DELETE FROM audit WHERE seq = 3", "row 3 is missing: found row 4 instead"),
        ("UPDATE audit SET previous = '' WHERE seq = 3", "row 3 does not match the hash of the row before it"),
        ("UPDATE audit SET hash = previous WHERE seq = 3", "row 3 was changed after it was written"),
        ("UPDATE audit SET seq = 9 WHERE seq = 3", "row 3 is missing: found row 4 instead"),
        ("UPDATE audit SET seq = seq + 10", "row 1 is missing: found row 11 instead"),
    ],
)
async def test_every_change_of_a_row_is_reported(log: Log, change: str, problem: str) -> None:
    await _fill(log, 5)
    log.execute(change)
    assert problem in str(await log.problem())


async def test_row_without_a_hash_is_reported_where_the_key_is_not_known(log: Log) -> None:
    await _fill(log, 4)
    log.execute("UPDATE audit SET entry = %s, hash = '' WHERE seq = 2", b'{"call":"forged"}')
    log.execute("UPDATE audit SET previous = '' WHERE seq = 3")
    async with log.open(None) as store:
        assert "row 2 is not signed, but rows before it were" in str(await store.verify_audit(TENANT))


async def test_two_entries_that_changed_places_are_reported(log: Log) -> None:
    await _fill(log, 4)
    log.execute("UPDATE audit SET seq = seq + 10 WHERE seq IN (2, 3)")
    log.execute("UPDATE audit SET seq = 15 - seq WHERE seq IN (12, 13)")
    assert await log.problem() == "row 2 does not match the hash of the row before it: one of them was replaced"


async def test_columns_of_another_type_are_reported_unless_their_content_is_the_same(tmp_path: Path) -> None:
    log = Log("sqlite", tmp_path, "", None)
    await _fill(log, 3)
    log.execute("UPDATE audit SET entry = CAST(entry AS TEXT) WHERE seq = 2")
    assert await log.problem() is None
    log.execute("UPDATE audit SET entry = 7 WHERE seq = 2")
    assert await log.problem() == "row 2 was changed after it was written"
    log.execute("UPDATE audit SET hash = CAST(hash AS BLOB) WHERE seq = 1")
    assert await log.problem() == "row 1 was changed after it was written"


async def test_store_that_only_returns_rows_is_verified(log: Log) -> None:
    class Rows:
        def __init__(self, store: Store) -> None:
            self._store = store

        async def audit(self, tenant: str, *, after: int = 0, limit: int | None = None) -> list[AuditRow]:
            return list(await self._store.audit(tenant, after=after, limit=limit))

    async with log.open(None) as store:
        await _add(store, 4)
        assert (await verify_audit(Rows(store), TENANT)).rows == 4
        log.execute("UPDATE audit SET entry = %s WHERE seq = 3", b"{}")
        assert (await verify_audit(Rows(store), TENANT)).broken == 3
