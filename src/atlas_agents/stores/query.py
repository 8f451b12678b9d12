"""A statement with its values, and work made of several: a generator that asks for rows and does no input or output.

So the same steps run on SQLite's thread and on Postgres' event loop; who drives them executes each query in turn.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from atlas_agents.core.errors import StoreError

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")


class Vector(bytes):
    """16-bit floats; each database has its own way to keep them."""


class Query(NamedTuple):
    """What to execute, with a value for each `:name`."""

    sql: str
    values: dict[str, Any]


Steps: TypeAlias = Generator[Query, list[Row], T]


class Place(msgspec.Struct, frozen=True):
    """Whose rows are written, and when (milliseconds since 1970)."""

    tenant: str
    now: int

    def ask(self, sql: str, **values: Any) -> Query:
        """The statement for this tenant."""
        return query(self.tenant, sql, now=self.now, **values)


def query(tenant: str, sql: str, **values: Any) -> Query:
    """The statement for a tenant, once its values are such that every database can keep them."""
    values["tenant"] = tenant
    for name, value in values.items():
        if isinstance(value, str):
            _check_text(name, value)
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise StoreError(f"{name} does not fit into 64 bits: {value}")
    if not tenant:
        raise StoreError("a tenant needs a name")
    return Query(sql, values)


def cleaned(text: str | None) -> str | None:
    """Text that is only shown, with what no database keeps replaced rather than refused."""
    return text and text.replace("\0", "\ufffd").encode(errors="replace").decode()


def _check_text(name: str, text: str) -> None:
    if "\0" in text:
        raise StoreError(f"{name} must not contain a null character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise StoreError(f"{name} must not contain half a surrogate pair") from None
