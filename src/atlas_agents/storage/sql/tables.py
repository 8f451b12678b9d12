"""Tables derived from the row structs: column lists, INSERT statements, parameters, row decoders; and bound queries.

A new column is a new field of the struct in `core.store` and a migration. Everything else follows from the struct.
"""

import hashlib
import logging
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast, get_origin

import msgspec

from atlas_agents.core import store
from atlas_agents.core.aio import TimeSlices
from atlas_agents.core.errors import StoreError
from atlas_agents.core.json import encode
from atlas_agents.storage.hash_chain import ChainEnds, journal_row
from atlas_agents.storage.sql.dialect import Dialect

logger = logging.getLogger(__name__)
Row: TypeAlias = tuple[Any, ...]
Convert: TypeAlias = Callable[[Any], Any]
T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
_MIN, _MAX = -(1 << 63), (1 << 63) - 1
EVENT_BATCHES = (64, 16, 4, 2, 1)
"""Rows per INSERT. Few sizes, so that each statement stays prepared."""
VALUE_BATCHES = (64, 16, 4, 1)
"""Rows per INSERT into a derived table."""
MAX_SEQ = (1 << 31) - 1
"""Highest number of an event, and of a step in a journal."""
_EVENT_TEXT = (
    b'{"type":"tool_result","callId":"","status":"ok","result":"","durationMs":0}"durations":{""estimated":true,"cost":'
    b'{"type":"tool_call","id":"","name":"","arguments":{""model":"{"event":"chat.final","data":{"runId":"","usage":{'
    b'"inputTokens":,"outputTokens":},"message":{{"event":"chat.started","data":{"runId":"{"event":"chat.thinking","data":{'
    b'{"event":"tool.call","data":{{"event":"tool.result","data":{"runId":"","toolCallId":"call_","name":"","arguments":{"'
    b'"metadata":{"stop_reason":"stop","provider":"","speaker":"assistant","usage":{"input":,"output":,"cached":0},'
    b'"timing":{"first":0,"total":0}},"agentId":"assistant"}}}{"event":"chat.delta","data":{"runId":"","text":"'
    b'{"event":"chat.message","data":{"runId":"","message":{"id":"","role":"tool","role":"user","role":"assistant",'
    b'"parts":[{"type":"text","text":""}],"createdAt":17'
)
"""Compression dictionary of events, with typical content. It must never change."""
_COMPRESSION = (6, zlib.DEFLATED, -12, 5, zlib.Z_DEFAULT_STRATEGY, _EVENT_TEXT)
"""A small window: one event takes 14 microseconds, a quarter of what the default takes."""
_STORED_TEXT = (
    b'{"resumed":"process":"epoch":"question":{"answer":{"approved":true,"by":"expires_at":"summary":"arguments":{"path":"'
    b'"],"output":null,"model":"","asks":true,"mode":"","team":{},"chain":{},"requested":null}{"messages":[{"role":"user",'
    b'{"status":"done","error":null,"used":{"usage":{"input":,"output":,"cached":0}}}"parts":[{"type":"thinking","text":"'
    b'{"type":"tool_result","call_id":"call_","status":"error","result":"","status":"ok","result":"'
    b'"}],"metadata":{"durations":{"call_{"type":"tool_call","id":"call_","name":"","arguments":{"'
    b'{"role":"tool","parts":[{"type":"tool_result","call_id":"{"role":"assistant","parts":[{"type":"tool_call","id":"'
    b'{"role":"user","parts":[{"type":"text","text":"{"role":"assistant","parts":[{"type":"text","text":"'
    b'"}],"id":"01","created_at":17,"metadata":{}}"metadata":{"stop_reason":"tool_use","metadata":{"stop_reason":"stop",'
    b'"provider":"","speaker":"assistant","usage":{"input":1,"output":1,"cached":0},"timing":{"first":0,"total":0}},'
    b'"request":["",1,"","",0,"",{},[]]}"request":["",1,"","",0,"",null,[]]}'
)
"""Compression dictionary of messages, steps and requests, with typical content. It must never change."""
_TIMED_ID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_ORDERED_BASE64 = "".join(sorted(_BASE64.replace("+", "-").replace("/", "_")))
_ORDERED = str.maketrans(_BASE64, _ORDERED_BASE64)
"""Characters of base64 in an order that is that of the bytes."""
_PACKED_HASH = 43
"""Characters of a SHA-256 hash in base64, without padding."""
_STORED_WINDOW = -11
_PACKED = b"\x01"
"""First byte of a compressed value. JSON does not begin with it."""
_TWO_STEPS = b"\x02"
"""First byte of the payload of a row that contains two steps of a journal, followed by their packed content."""
_compressor = zlib.compressobj(3, zlib.DEFLATED, _STORED_WINDOW, 5, zlib.Z_DEFAULT_STRATEGY, _STORED_TEXT)
"""A compressor that has read the dictionary, to be copied for each value."""
_SLICE = 16
"""Rows that are decoded without a check of the time. Each may have a compressed value."""
_MIN_PACKED, _MAX_PACKED = 64, 16 * 1024
"""Range of the size in bytes of compressed values. Compressing a larger value would delay waiting commits."""


class Vector(bytes):
    """An embedding as 16-bit floats. Each database driver converts it to its own type."""


class Query(NamedTuple):
    """A statement with a value for each `:name`."""

    sql: str
    values: dict[str, Any]


Steps: TypeAlias = Generator[Query, list[Row], T]


class WriteContext(msgspec.Struct, frozen=True):
    """Tenant and time (milliseconds since 1970) of a commit, the statements of its database, and the key of the hashes
    of audit rows, if any. `is_shared`: commits of turns are written at the same time. `ends`: the ends of hash chains,
    if they are cached."""

    tenant: str
    now: int
    dialect: Dialect
    audit_key: bytes | None = None
    is_shared: bool = False
    ends: ChainEnds | None = None

    def chain_end(self, run_id: str) -> tuple[int, str] | None:
        """Return the cached end of a journal, or of the audit log for no run. It may be outdated."""
        return self.ends.get(self.tenant, run_id) if self.ends is not None else None

    def note_end(self, run_id: str, seq: int, hash: str) -> None:
        if self.ends is not None:
            self.ends.put(self.tenant, run_id, seq, hash)

    def drop_end(self, run_id: str) -> None:
        if self.ends is not None:
            self.ends.drop(self.tenant, run_id)

    def bind(self, sql: str, /, **values: Any) -> Query:
        """Bind a statement to the tenant, the time and values."""
        values["now"] = self.now
        return _bind_checked(self.tenant, sql, values)


def bind(tenant: str, sql: str, /, **values: Any) -> Query:
    """Bind a statement to a tenant and values. A value that one of the databases cannot store raises `StoreError`."""
    return _bind_checked(tenant, sql, values)


def _bind_checked(tenant: str, sql: str, values: dict[str, Any]) -> Query:
    values["tenant"] = tenant
    for name, value in values.items():
        kind = type(value)
        if kind is str:
            if not value.isascii() or "\0" in value:
                _check_text(name, value)
        elif kind is int:
            if not _MIN <= value <= _MAX:
                _check_value(name, value)
        elif value is not None and kind is not bytes:
            _check_value(name, value)
    if not tenant:
        raise StoreError("the tenant must not be empty")
    return Query(sql, values)


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, str):
        if not value.isascii() or "\0" in value:
            _check_text(name, value)
    elif isinstance(value, int):
        if not _MIN <= value <= _MAX:
            raise StoreError(f"{name} must fit into 64 bits, got {value}")
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            _check_value(name, item)


def clean_text(text: str | None) -> str | None:
    """Replace characters that no database can store, in text that is only displayed."""
    return text and text.replace("\0", "\ufffd").encode(errors="replace").decode()


def _check_text(name: str, text: str) -> None:
    if "\0" in text:
        raise StoreError(f"{name} must not contain a null character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StoreError(f"{name} must not contain an unpaired surrogate") from None


def split_batches(items: Sequence[T], sizes: Sequence[int]) -> Iterator[Sequence[T]]:
    """Split into slices of the given sizes, the largest first."""
    begin = 0
    for size in sizes:
        while len(items) - begin >= size:
            yield items[begin : begin + size]
            begin += size


def pack_bodies(bodies: Sequence[bytes]) -> bytes:
    """Compress the bodies of several events to one value."""
    compressor = zlib.compressobj(*_COMPRESSION)
    lengths = ",".join([str(len(body)) for body in bodies]).encode()
    return b"".join([*map(compressor.compress, (lengths, b"\n", *bodies)), compressor.flush()])


def unpack_events(rows: Sequence[Row], after: int) -> list[store.EventRow]:
    """Return the events of rows with a run, the last number, a body, and the first number if the body is packed."""
    found: list[store.EventRow] = []
    for run_id, last, body, first in rows:
        bodies = [body] if first is None else _unpack_bodies(body)
        if first is not None and len(bodies) != last - first + 1:
            logger.warning("stored events unreadable: run=%s first=%d last=%d", run_id, first, last)
            continue
        start = last if first is None else first
        found += [store.EventRow(run_id, seq, each) for seq, each in enumerate(bodies, start) if seq > after]
    return found


def _unpack_bodies(packed: bytes) -> list[bytes]:
    """Return the bodies in a packed value; none if it cannot be read."""
    try:
        lengths, _, text = zlib.decompressobj(_COMPRESSION[2], _EVENT_TEXT).decompress(packed).partition(b"\n")
        sizes = [int(length) for length in lengths.split(b",")]
    except (zlib.error, ValueError):
        return []
    ends = [*accumulate(sizes)]
    return [text[end - size : end] for size, end in zip(sizes, ends, strict=True)] if ends[-1] == len(text) else []


def message_number(tenant: str, session: str, id: str) -> int:
    """Return the number by which a message is found by its id; others may have it as well.

    Ids that begin with the time give numbers that begin with it. New entries of an index on them are neighbours, and
    shorter than those of an index on ids.
    """
    key = f"{tenant}\0{session}\0{id}".encode(errors="replace")
    if id[14:15] == "7" and id[8:9] == id[13:14] == "-":  # a UUID of version 7
        with suppress(ValueError):
            return (int(id[:8] + id[9:13], 16) & (1 << 46) - 1) << 16 | zlib.crc32(key) & 0xFFFF
    return 1 << 62 | int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 2


@lru_cache(maxsize=64)
def run_key(run_id: str) -> str:
    """Return the name of a run in the journal and the events of Postgres, where each row and each entry of an index
    repeats it: 15 characters of an id that begins with the time (UUID version 7), any other id as it is.

    The order of keys is that of the times. Two ids of one millisecond have the same key with a probability of 2^-48.
    The schema of Postgres has the same function.
    """
    if _TIMED_ID.fullmatch(run_id) is None:
        return run_id
    time = bytes.fromhex(run_id[:8] + run_id[9:13])
    digest = hashlib.sha256(run_id.encode()).digest()[:6]
    return (b64encode(time)[1:] + b64encode(digest)).decode().translate(_ORDERED)


def pack_hash(hash: str) -> str:
    """Return the hash of a step as it is stored on Postgres, in base64."""
    return b64encode(bytes.fromhex(hash)).decode().rstrip("=")


def unpack_hash(hash: str) -> str:
    """Return a stored hash in hexadecimal digits; one that cannot be read stays as it is."""
    if len(hash) == _PACKED_HASH:
        with suppress(ValueError):
            return b64decode(hash + "=").hex()
    return hash


def pack_value(value: bytes) -> bytes:
    """Compress a message, a step or a request, if that makes it shorter."""
    is_ambiguous = value[:1] in (_PACKED, _TWO_STEPS)
    if not is_ambiguous and not _MIN_PACKED <= len(value) <= _MAX_PACKED:
        return value
    compressor = _compressor.copy()
    packed = b"".join((_PACKED, compressor.compress(value), compressor.flush()))
    return packed if is_ambiguous or len(packed) < len(value) else value


def unpack_value(value: bytes) -> bytes:
    """Decompress a value of `pack_value`; a value that is not compressed, or unreadable, is returned as it is."""
    if not value or value[:1] != _PACKED:  # SQLite gives NULL for the request of a run that has ended
        return value
    try:
        return zlib.decompressobj(_STORED_WINDOW, _STORED_TEXT).decompress(value[1:])
    except zlib.error:
        return value


def pack_steps(first: store.JournalRow, last: store.JournalRow) -> bytes | None:
    """Return the payload of a row with the last two steps of a journal; None if they are too long for one row.

    The hash of the first one follows from its content, and from the hash of the step before it.
    """
    head = encode([first.kind, first.key, first.at, len(first.payload)])
    content = b"%b\n%b%b" % (head, first.payload, last.payload)
    return _TWO_STEPS + pack_value(content) if len(content) <= _MAX_PACKED else None


def unpack_steps(rows: Sequence[store.JournalRow]) -> list[store.JournalRow]:
    """Return the steps of a journal from its rows; a row that cannot be read stays as it is."""
    found = list[store.JournalRow]()
    for row in rows:
        if row.payload[:1] == _TWO_STEPS:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                head, _, content = unpack_value(row.payload[1:]).partition(b"\n")
                kind, key, at, length = msgspec.json.decode(head, type=tuple[store.JournalKind, str, int, int])
                first = journal_row(row.run_id, row.seq - 1, kind, key, at, row.previous, content[:length])
                last = msgspec.structs.replace(row, payload=content[length:], previous=first.hash)
                found += [first, last]
                continue
        found.append(row)
    return found


class Table(Generic[R]):
    """A table whose rows are instances of a struct. `renamed` maps fields to columns with another name, and values of
    `packed` fields are stored in compressed form.

    Booleans are stored as the driver does, dicts as JSON in a BLOB, and tuples as JSON in a TEXT column.
    """

    def __init__(
        self,
        name: str,
        struct: type[R],
        *,
        decoders: dict[str, Convert] | None = None,
        packed: Sequence[str] = (),
        **renamed: str,
    ) -> None:
        fields = msgspec.structs.fields(struct)
        decoders = {field.name: decode for field in fields if (decode := _decoder_for(field.type))} | (decoders or {})
        decoders |= dict.fromkeys(packed, unpack_value)
        encoders = {
            field.name: encode for field in fields if (encode := _ENCODERS.get(get_origin(field.type) or field.type))
        }
        encoders |= dict.fromkeys(packed, pack_value)
        self.name = name
        self.names = tuple(renamed.get(field.name, field.name) for field in fields)
        self.columns = ", ".join(self.names)
        self._struct = struct
        self._get = attrgetter(*struct.__struct_fields__)
        self._decoders = [(n, decoders[field.name]) for n, field in enumerate(fields) if field.name in decoders]
        self._encoders = [
            (column, encoders[field.name])
            for column, field in zip(self.names, fields, strict=True)
            if field.name in encoders
        ]

    def select(self, alias: str = "", **expressions: str) -> str:
        """Return the column list of a SELECT, qualified by an alias, with expressions in place of some columns."""
        prefix = f"{alias}." if alias else ""
        return ", ".join(expressions.get(name, prefix + name) for name in self.names)

    def insert(self, **expressions: str) -> str:
        """Return the INSERT of one row. Each column takes the parameter of its name, or the expression given for it.

        Expressions for names that are not in the struct add columns.
        """
        values = {name: f":{name}" for name in ("tenant", *self.names)} | expressions
        return f"INSERT INTO {self.name} ({', '.join(values)}) VALUES ({', '.join(values.values())})"

    def values(self, row: R) -> dict[str, Any]:
        """Return the parameters of `insert` for a row."""
        values = dict(zip(self.names, self._get(row), strict=True))
        for column, convert in self._encoders:
            values[column] = convert(values[column])
        return values

    def decode(self, row: Sequence[Any]) -> R:
        """Build the struct from the columns in `select` order."""
        if self._decoders:
            row = list(row)
            for index, convert in self._decoders:
                row[index] = convert(row[index])
        return self._struct(*row)

    def first(self, rows: Sequence[Row]) -> R | None:
        return self.decode(rows[0]) if rows else None

    async def decode_all(self, rows: Sequence[Row]) -> list[R]:
        """Decode rows in short slices, between which other tasks run."""
        if len(rows) <= _SLICE:
            return self.all(rows)
        slices, found = TimeSlices(), list[R]()
        for start in range(0, len(rows), _SLICE):
            found += self.all(rows[start : start + _SLICE])
            await slices.pause()
        return found

    def all(self, rows: Sequence[Row]) -> list[R]:
        """Decode a few rows."""
        struct, found = self._struct, list[R]()
        for row in rows:
            values = list(row)
            for index, convert in self._decoders:
                values[index] = convert(values[index])
            found.append(struct(*values))
        return found


_EMPTY: dict[Any, Callable[[], Any]] = {dict: dict, tuple: tuple}


def _decoder_for(kind: Any) -> Convert | None:
    if kind is bool:
        return bool
    make_empty = _EMPTY.get(get_origin(kind))
    if make_empty is None:
        return None
    decode = msgspec.json.Decoder(kind).decode

    def decode_or_empty(value: Any) -> Any:
        """Decode a column; return an empty value if that fails, so that one bad row does not hide the others."""
        try:
            return decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("stored column unreadable: error=%s", error)
            return make_empty()

    return decode_or_empty


_ENCODERS: dict[Any, Convert] = {dict: encode, tuple: lambda value: encode(value).decode()}


def as_bytes(entry: bytes | str) -> bytes:
    """Convert TEXT to bytes: an audit entry that someone changed to TEXT is then reported by the chain check."""
    return entry.encode() if isinstance(entry, str) else entry


class AuditTable(Table[store.AuditRow]):
    """The audit log, of which many rows are decoded at a time."""

    def all(self, rows: Sequence[Row]) -> list[store.AuditRow]:
        found = [store.AuditRow(*row) for row in rows]
        return found if all([type(row.entry) is bytes for row in found]) else super().all(rows)


SESSIONS = Table("sessions", store.Session)
MESSAGES = Table("messages", store.StoredMessage, packed=("body",))
RUNS = Table("runs", store.RunRow, packed=("request",), user="user_id")
JOURNAL = Table(
    "journal", store.JournalRow, decoders={"previous": unpack_hash, "hash": unpack_hash}, packed=("payload",)
)
AUDIT = AuditTable("audit", store.AuditRow, decoders={"entry": as_bytes})
EVENTS = Table("events", store.EventRow)
APPROVALS = Table("approvals", store.ApprovalRow)
USAGE = Table("usage_sums", store.UsageRow)
USAGE_KEY = ("day", "session", "agent_id", "model")
BUDGETS = Table("budgets", store.BudgetRow)
JOBS = Table("jobs", store.JobRow, user="user_id")
RECORDS = Table("records", store.StoredRecord)
DOCUMENTS = Table("documents", store.Document)
PASSAGES = Table("passages", store.PassageRow)
