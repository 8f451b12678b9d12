"""Hash chains of the audit log and the journals: changing, removing or moving a row breaks the chain.

`AuditSigner` protects the audit log against people who can write to the database. A key outside the database turns the
hashes of rows into HMACs, so that the chain cannot be recomputed without the key. The last row of each chain, its head,
is kept in a signed file, so that rows removed from the end are noticed.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from atlas_agents.core import store as port
from atlas_agents.core.aio import BackgroundTasks, TimeSlices, run_in_thread
from atlas_agents.core.errors import StoreError
from atlas_agents.core.json import encode
from atlas_agents.core.paths import lock_file, write_file
from atlas_agents.core.store import AuditRow, JournalKind, JournalRow

logger = logging.getLogger(__name__)
START = ""
"""The hash before the first row."""
_PAGE = 1000
_BLOCK = 64
"""Block size of SHA-256 in bytes."""
_MAX_CHAINS = 8192
_FLUSH_DELAY = 1.0
"""Seconds after a row until the signed heads are written."""
_PUBLISH_TIMEOUT = 5.0
Publish: TypeAlias = Callable[[bytes], Coroutine[Any, Any, None]]
"""Sends the signed heads to another system."""


def audit_row(seq: int, previous: str, entry: bytes, key: bytes | None = None) -> AuditRow:
    """Chain an entry."""
    return AuditRow(seq, entry, previous, port.audit_hash(seq, previous, entry, key))


def journal_row(
    run_id: str, seq: int, kind: JournalKind, key: str, at: int, previous: str, payload: bytes
) -> JournalRow:
    """Chain a step. The hash covers every field of the row, including the run id."""
    head = encode([previous, seq, run_id, kind, key, at])
    digest = hashlib.sha256(head + b"\n" + payload).hexdigest()
    return JournalRow(run_id, seq, kind, key, payload, at, previous, digest)


class ChainEnds:
    """Cache of the last row of each chain that this process writes, so that it is not read before each row.

    A chain is the journal of a run, or the audit log of a tenant, whose `run_id` is empty. The database verifies what
    is cached: a wrong entry costs a repetition, never a wrong row.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()

    def get(self, tenant: str, run_id: str) -> tuple[int, str] | None:
        return self._ends.get((tenant, run_id))

    def put(self, tenant: str, run_id: str, seq: int, hash: str) -> None:
        self._ends[tenant, run_id] = seq, hash
        self._ends.move_to_end((tenant, run_id))
        if len(self._ends) > _MAX_CHAINS:
            self._ends.popitem(last=False)

    def drop(self, tenant: str, run_id: str) -> None:
        self._ends.pop((tenant, run_id), None)

    def drop_all(self, tenant: str, writes: Sequence[port.Write]) -> None:
        """Drop the cached ends of the journals that a commit continues."""
        for write in writes:
            if isinstance(write, port.AddJournal | port.ClaimRun):
                self.drop(tenant, write.run_id)


def find_audit_break(rows: Iterable[AuditRow], keys: Sequence[bytes] = ()) -> int | None:
    """Return the number of the first row that does not follow from the one before it; `rows` start at the first row.

    Without the key of a row only its number and its link to the row before it are checked.
    """
    verifier = AuditVerifier(keys)
    return next((verifier.rows for row in rows if verifier.check(row) is not None), None)


def find_journal_break(rows: Iterable[JournalRow]) -> int | None:
    """Return the number of the first row of a journal that does not follow from the one before it."""
    previous = START
    for seq, row in enumerate(rows, 1):
        if row != journal_row(row.run_id, seq, row.kind, row.key, row.at, previous, row.payload):
            return seq
        previous = row.hash
    return None


class AuditHead(msgspec.Struct, frozen=True):
    """The last row of a chain. All rows from `signed_from` on have a keyed hash; 0 if none has."""

    seq: int
    hash: str
    signed_from: int = 0


def audit_head(seq: int, hash: str) -> AuditHead:
    """Return the head of a chain that ends with a row."""
    return AuditHead(seq, hash, seq if hash.startswith("hmac:") else 0)


class AuditReader(Protocol):
    """Port: audit rows of a store, as a verification reads them."""

    async def audit(self, tenant: str, *, after: int = 0, limit: int | None = None) -> Sequence[AuditRow]: ...


AuditColumns: TypeAlias = tuple[int, bytes, str, str]
"""Number, entry, previous hash and hash of an audit row, which are the fields of `AuditRow`."""

CheckRows: TypeAlias = Callable[[Sequence[AuditColumns]], str | None]
"""Returns the problem with rows, if any."""


ReadEnds: TypeAlias = Callable[[], Coroutine[Any, Any, dict[str, AuditHead]]]
"""Returns the last audit row of each tenant."""


class SignedHeads(msgspec.Struct, frozen=True):
    """Content of the file of signed heads, by tenant. `gap` describes why earlier heads are unknown."""

    heads: dict[str, AuditHead] = {}
    at: int = 0
    gap: str = ""


class KeyedHash:
    """HMAC-SHA256 for many texts. Blocks that depend only on the key are hashed once, which halves the time."""

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
        self.inner = hashlib.sha256(bytes([byte ^ 0x36 for byte in block]))
        self.outer = hashlib.sha256(bytes([byte ^ 0x5C for byte in block]))

    def hexdigest(self, content: bytes) -> str:
        inner, outer = self.inner.copy(), self.outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.hexdigest()


class AuditVerifier:
    """Verifies the rows of a chain one after the other, from the first one, and compares them with the signed head."""

    def __init__(
        self, keys: Sequence[bytes] = (), head: AuditHead | None = None, *, requires_keys: bool = False
    ) -> None:
        self._keys = {port.audit_key_id(key): KeyedHash(key) for key in keys}
        self._head = head
        self._requires_keys = requires_keys
        self._previous = START
        self.rows = 0
        self.signed_from = 0

    def check(self, row: AuditRow) -> str | None:
        """Verify the next row; return the problem with it, if any."""
        self.rows += 1
        seq, hash, previous = self.rows, row.hash, self._previous
        self._previous = hash
        id = hash.split(":")[1] if ":" in hash and hash.count(":") == 2 else ""
        if not id and (self.signed_from or (self._head and 0 < self._head.signed_from <= seq)):
            return f"row {seq} is not signed, but rows before it were: the log was rewritten without the key"
        if id and not self.signed_from:
            self.signed_from = seq
        key = self._keys.get(id) if id else None
        if id and key is None and self._requires_keys:
            return f"row {seq} is signed with the key {id}, which is not known here: add it to audit_key"
        if row.seq != seq or row.previous != previous or not _has_hash(row, id, key):
            return port.describe_broken_row(row, seq, previous)
        if self._head is not None and self._head.seq == seq and self._head.hash != hash:
            return f"row {seq} is not the row of the signed head: the log was rewritten"
        return None

    def check_all(self, rows: Sequence[AuditColumns]) -> str | None:
        """Verify the next rows; return the problem with the first broken one.

        Comparing the hash is enough for an intact row that is signed like the one before it; `check` decides about all
        others. The loop avoids calls and objects where possible, because a log has millions of rows.
        """
        seq, previous, head = self.rows, self._previous, self._head
        head_seq, signed_from = (head.seq, head.signed_from) if head is not None else (0, 0)
        prefix, key = self._signature_of(previous)
        for stored_seq, entry, stored_previous, hash in rows:
            seq += 1
            try:
                content = f"{previous}\n{seq}\n".encode() + entry
            except TypeError:  # changed to TEXT or a number, which SQLite allows
                entry = str(entry).encode()
                content = f"{previous}\n{seq}\n".encode() + entry
            if key is not None:
                inner, outer = key.inner.copy(), key.outer.copy()
                inner.update(content)
                outer.update(inner.digest())
                expected = prefix + outer.hexdigest()
            else:
                expected = None if self.signed_from or seq == signed_from else hashlib.sha256(content).hexdigest()
            if expected != hash or stored_seq != seq or stored_previous != previous or seq == head_seq:
                self.rows, self._previous = seq - 1, previous
                if (problem := self.check(AuditRow(stored_seq, entry, str(stored_previous), str(hash)))) is not None:
                    return problem
                prefix, key = self._signature_of(hash)
            previous = hash
        self.rows, self._previous = seq, previous
        return None

    def _signature_of(self, hash: str) -> tuple[str, KeyedHash | None]:
        """Return the beginning of a keyed hash and its key, if that is known."""
        prefix = hash[: hash.rfind(":") + 1]
        return prefix, self._keys.get(prefix[5:-1]) if prefix.startswith("hmac:") else None

    def finish(self) -> str | None:
        """Return whether rows are missing at the end."""
        if self._head is not None and self._head.seq > self.rows:
            first, last = self.rows + 1, self._head.seq
            missing = f"row {last} is" if first == last else f"rows {first} to {last} are"
            return f"{missing} missing: the log was truncated"
        return None


def _has_hash(row: AuditRow, id: str, key: KeyedHash | None) -> bool:
    """Return whether the hash of a row is that of its content. The content of a row with an unknown key is not checked.

    This is `audit_hash` without the work that is the same for all rows.
    """
    content = f"{row.previous}\n{row.seq}\n".encode() + row.entry
    if not id:
        return hashlib.sha256(content).hexdigest() == row.hash
    return key is None or f"hmac:{id}:{key.hexdigest(content)}" == row.hash


class AuditVerification(msgspec.Struct, frozen=True):
    """Result of a verification: the number of rows, the first broken row, the problem, and the signed range."""

    rows: int
    broken: int | None = None
    problem: str | None = None
    signed_from: int | None = None
    head: int | None = None


async def verify_audit(
    store: AuditReader, tenant: str, progress: Callable[[int], object] = lambda rows: None
) -> AuditVerification:
    """Verify the audit log of a tenant up to the first broken row, and compare it with the signed head.

    The log is read in parts, between which other tasks run; `progress` is called after each with the rows so far.
    """
    signer: AuditSigner | None = getattr(store, "audit_signer", None)  # stores of plugins may have none
    signed = await signer.current() if signer is not None else SignedHeads()
    head = signed.heads.get(tenant)
    verifier = AuditVerifier(signer.row_keys if signer else (), head, requires_keys=signer is not None)
    check_audit = getattr(store, "check_audit", None) or partial(_check_audit, store)
    problem, broken, count = None, None, -1
    while problem is None and verifier.rows > count:
        count = verifier.rows
        problem = await check_audit(tenant, count, _PAGE, verifier.check_all)
        if verifier.rows > count:
            progress(verifier.rows)
    if problem is not None:
        broken = verifier.rows
    elif (problem := verifier.finish()) is not None:
        broken = verifier.rows + 1
    elif signed.gap:
        problem = f"{signed.gap}: rows may be missing. To accept the log as it is, run: atlas audit accept"
    return AuditVerification(verifier.rows, broken, problem, verifier.signed_from or None, head.seq if head else None)


async def _check_audit(store: AuditReader, tenant: str, after: int, limit: int, check: CheckRows) -> str | None:
    """Check rows of a plugin's store, which may lack this method."""
    slices = TimeSlices()
    rows = await store.audit(tenant, after=after, limit=limit)
    problem = check([(row.seq, row.entry, row.previous, row.hash) for row in rows])
    await slices.pause()
    return problem


class AuditSigner:
    """Signs the audit log of one database.

    Args:
        path: File for the signed heads. Keep it where those who can write to the database cannot write.
        head_key: Key that signs this file.
        row_keys: Keys of the hashes of rows: the first signs new rows, all verify. All processes that write to one
            database must have the same ones. Without any, hashes are not keyed.
        is_own_key: Whether no other machine has the first row key. Then a row signed with it implies that the file
            existed.
        publish: Sends the content of the file to another place as well, whenever it changes.
    """

    def __init__(
        self,
        path: Path,
        head_key: bytes,
        row_keys: Sequence[bytes] = (),
        *,
        is_own_key: bool = False,
        publish: Publish | None = None,
    ) -> None:
        self.path = path
        self.row_keys = tuple(row_keys)
        self.is_own_key = is_own_key
        self._head_keys = (head_key, *row_keys)
        self._publish = publish
        self._store: AuditReader | None = None
        self._heads: dict[str, AuditHead] = {}
        self._written: dict[str, AuditHead] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks("audit heads", expected=(OSError, StoreError))

    @property
    def row_key(self) -> bytes | None:
        """The key that signs new rows."""
        return self.row_keys[0] if self.row_keys else None

    async def open(self, store: AuditReader, read_ends: ReadEnds) -> None:
        """Sign the rows of an open store. A missing file is created before the first row is signed."""
        if not await run_in_thread(self.path.exists):
            ends = await read_ends()
            try:
                await run_in_thread(self._start, ends)
            except OSError as error:
                raise StoreError(f"cannot write the signed heads of the audit log {self.path}: {error}") from error
        self._store = store

    def read(self) -> SignedHeads:
        """Read the file. A problem with the file is the `gap` of the result."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return SignedHeads(gap=f"the file of signed heads {self.path} is missing")
        except OSError as error:
            return SignedHeads(gap=f"cannot read the file of signed heads {self.path}: {error.strerror}")
        body, _, signature = content.rstrip(b"\n").rpartition(b"\n")
        if any(hmac.compare_digest(_sign(key, body), signature) for key in self._head_keys):
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(body, type=SignedHeads)
        return SignedHeads(gap=f"the file of signed heads {self.path} was changed, or signed with another key")

    def _start(self, ends: dict[str, AuditHead]) -> None:
        """Create the file with the given ends of the chains."""
        own = f"hmac:{port.audit_key_id(self.row_key)}:" if self.row_key and self.is_own_key else None
        is_lost = own is not None and any(head.hash.startswith(own) for head in ends.values())
        gap = f"the file of signed heads {self.path} was missing when the database was opened" if is_lost else ""
        if gap:
            logger.error("%s: rows may have been removed from the audit log before that", gap)
        self.reset(ends, gap)

    def reset(self, ends: dict[str, AuditHead], gap: str = "") -> None:
        """Replace the file, and so accept the given ends of the chains as they are."""
        self._heads, self._written = {}, {}
        with lock_file(self.path):
            self._write(SignedHeads(ends, int(time.time() * 1000), gap))

    def note(self, tenant: str, row: AuditRow) -> None:
        """Record a committed row. The file is written within a second."""
        known = self._heads.get(tenant)
        if self._store is not None and (known is None or row.seq > known.seq):
            signed = row.seq if row.hash.startswith("hmac:") else 0
            self._heads[tenant] = AuditHead(row.seq, row.hash, (known.signed_from if known else 0) or signed)
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_FLUSH_DELAY, lambda: self._tasks.spawn(self.flush()))

    async def flush(self) -> None:
        """Write the recorded heads. A head whose row is no longer in the log stays as evidence."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if not self._heads or self._store is None:
            return
        noted, self._heads = self._heads, {}
        try:
            known = self._with_written(await run_in_thread(self.read)).heads
            found = {tenant: await _is_in_log(self._store, tenant, known.get(tenant)) for tenant in noted}
            content = await run_in_thread(self._merge, {each: noted[each] for each in noted if found[each]})
        except (OSError, StoreError) as error:
            self._heads = noted | self._heads
            logger.error("cannot update the signed heads of the audit log: path=%s error=%s", self.path, error)
            return
        for tenant in noted:
            if found[tenant]:
                self._written[tenant] = noted[tenant]
            else:
                logger.error("audit log was truncated or rewritten: tenant=%s row=%d", tenant, known[tenant].seq)
        if self._publish is not None:
            self._tasks.spawn(self._publish(content))

    async def current(self) -> SignedHeads:
        """Write the recorded heads, then read the file."""
        await self.flush()
        return self._with_written(await run_in_thread(self.read))

    def _with_written(self, signed: SignedHeads) -> SignedHeads:
        """Return the content of the file with the heads that this process wrote, in case an older file was put back."""
        heads = signed.heads | {
            tenant: head
            for tenant, head in self._written.items()
            if tenant not in signed.heads or signed.heads[tenant].seq < head.seq
        }
        return msgspec.structs.replace(signed, heads=heads)

    async def close(self) -> None:
        """Write the remaining heads, and wait until they are published. The next process records later rows."""
        await self.flush()
        self._store = None
        await self._tasks.wait(_PUBLISH_TIMEOUT)

    def _merge(self, noted: dict[str, AuditHead]) -> bytes:
        """Add heads to the file, which other processes may have changed meanwhile; a head never moves back."""
        with lock_file(self.path):
            found = self.read()
            heads = dict(found.heads)
            for tenant, head in noted.items():
                known = heads.get(tenant)
                if known is None or head.seq > known.seq:
                    first = known.signed_from if known is not None and known.signed_from else head.signed_from
                    heads[tenant] = AuditHead(head.seq, head.hash, first)
            return self._write(SignedHeads(heads, int(time.time() * 1000), found.gap))

    def _write(self, content: SignedHeads) -> bytes:
        body = encode(content)
        signed = body + b"\n" + _sign(self._head_keys[0], body) + b"\n"
        write_file(self.path, signed)
        return signed


async def _is_in_log(store: AuditReader, tenant: str, head: AuditHead | None) -> bool:
    """Return whether the log still has the row of a head."""
    if head is None:
        return True
    rows = await store.audit(tenant, after=head.seq - 1, limit=1)
    return bool(rows) and (rows[0].seq, rows[0].hash) == (head.seq, head.hash)


def _sign(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"atlas audit heads\n" + body, "sha256").hex().encode()
