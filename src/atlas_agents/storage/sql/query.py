"""Parameterised queries, and writes as generators of queries.

A write is a generator that yields queries, receives their rows and does no I/O itself. So the same code runs on the
writer thread of SQLite and on the event loop with Postgres.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from atlas_agents.core.errors import StoreError

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")
_MIN, _MAX = -(1 << 63), (1 << 63) - 1


class Vector(bytes):
    """An embedding as 16-bit floats. Each database driver converts it to its own type."""


class Query(NamedTuple):
    """A statement with a value for each `:name`."""

    sql: str
    values: dict[str, Any]


Steps: TypeAlias = Generator[Query, list[Row], T]


class WriteContext(msgspec.Struct, frozen=True):
    """Tenant and time (milliseconds since 1970) of a commit."""

    tenant: str
    now: int

    def bind(self, sql: str, /, **values: Any) -> Query:
        values["now"] = self.now
        return _checked(self.tenant, sql, values)


def bind(tenant: str, sql: str, /, **values: Any) -> Query:
    """Bind a statement to a tenant and values. Values that some database cannot store raise `StoreError`."""
    return _checked(tenant, sql, values)


def _checked(tenant: str, sql: str, values: dict[str, Any]) -> Query:
    values["tenant"] = tenant
    for name, value in values.items():
        if isinstance(value, str):
            if not value.isascii() or "\0" in value:
                _check_text(name, value)
        elif isinstance(value, int) and not _MIN <= value <= _MAX:
            raise StoreError(f"{name} must fit into 64 bits, got {value}")
    if not tenant:
        raise StoreError("the tenant must not be empty")
    return Query(sql, values)


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
