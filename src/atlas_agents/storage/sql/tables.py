"""Tables derived from the row structs: column lists, INSERT statements, parameters and row decoders.

A new column is a new field of the struct in `core.store` and a migration. Everything here follows from the struct.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_origin

import msgspec

from atlas_agents.core.json import encode
from atlas_agents.core.store import (
    ApprovalRow,
    AuditRow,
    Document,
    EventRow,
    JobRow,
    JournalRow,
    PassageRow,
    RunRow,
    Session,
    StoredMessage,
    StoredRecord,
    UsageRow,
)
from atlas_agents.storage.sql.query import Row

R = TypeVar("R", bound=msgspec.Struct)
Convert = Callable[[Any], Any]


class Table(Generic[R]):
    """A table whose rows are instances of a struct. `renamed` maps fields to columns that have another name.

    Booleans are stored as the database does, dicts as JSON in a BLOB, and tuples as JSON in a TEXT column.
    """

    def __init__(self, name: str, struct: type[R], *, decoders: dict[str, Convert] | None = None, **renamed: str):
        fields = msgspec.structs.fields(struct)
        decoders = {field.name: decode for field in fields if (decode := _decoder(field.type))} | (decoders or {})
        encoders = {field.name: encode for field in fields if (encode := _encoder(field.type))}
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
        """The column list of a SELECT, qualified by an alias, with expressions in place of some columns."""
        prefix = f"{alias}." if alias else ""
        return ", ".join(expressions.get(name, prefix + name) for name in self.names)

    def insert(self, **expressions: str) -> str:
        """INSERT of one row. Each column takes the parameter of its name, unless an expression is given for it.

        Expressions for names that are not in the struct add columns.
        """
        values = {name: f":{name}" for name in ("tenant", *self.names)} | expressions
        return f"INSERT INTO {self.name} ({', '.join(values)}) VALUES ({', '.join(values.values())})"

    def values(self, row: R) -> dict[str, Any]:
        """Parameters for `insert`."""
        values = dict(zip(self.names, self._get(row), strict=True))
        for column, convert in self._encoders:
            values[column] = convert(values[column])
        return values

    def decode(self, row: Sequence[Any]) -> R:
        """A row of the columns in `select` order."""
        if self._decoders:
            row = list(row)
            for index, convert in self._decoders:
                row[index] = convert(row[index])
        return self._struct(*row)

    def first(self, rows: Sequence[Row]) -> R | None:
        return self.decode(rows[0]) if rows else None

    def all(self, rows: Sequence[Row]) -> list[R]:
        return [self.decode(row) for row in rows]


def _decoder(kind: Any) -> Convert | None:
    if kind is bool:
        return bool
    return msgspec.json.Decoder(kind).decode if get_origin(kind) in (dict, tuple) else None


def _encoder(kind: Any) -> Convert | None:
    return {dict: encode, tuple: _encode_text}.get(get_origin(kind) or kind)


def _encode_text(value: Any) -> str:
    return encode(value).decode()


def _as_bytes(entry: bytes | str) -> bytes:
    """An audit entry that was edited by hand may be TEXT. Read it, so that the chain check can report it."""
    return entry.encode() if isinstance(entry, str) else entry


SESSIONS = Table("sessions", Session)
MESSAGES = Table("messages", StoredMessage)
RUNS = Table("runs", RunRow, user="user_id")
JOURNAL = Table("journal", JournalRow)
AUDIT = Table("audit", AuditRow, decoders={"entry": _as_bytes})
EVENTS = Table("events", EventRow)
APPROVALS = Table("approvals", ApprovalRow)
USAGE = Table("usage_sums", UsageRow)
JOBS = Table("jobs", JobRow, user="user_id", notified="told")
RECORDS = Table("records", StoredRecord)
DOCUMENTS = Table("documents", Document, collection="shelf")
PASSAGES = Table("passages", PassageRow, collection="shelf")
