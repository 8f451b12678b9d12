"""Small things that are kept by name and read as a whole: schedules, users, a plan, chores, paces of keys, a seal."""

from typing import Literal, TypeAlias

import msgspec

RecordKind: TypeAlias = Literal["schedule", "user", "tenant", "plan", "chore", "pace", "seal"]


class Record(msgspec.Struct, frozen=True):
    """One of them; `body` is JSON. `version` rises with every change."""

    kind: RecordKind
    key: str
    body: bytes
    version: int


class PutRecord(msgspec.Struct, frozen=True, tag=True):
    """Keep a record, or change one; it is the result. With a version it must be the one that is there, 0 for none yet:
    else `Conflict`."""

    kind: RecordKind
    key: str
    body: bytes
    version: int | None = None


class DropRecord(msgspec.Struct, frozen=True, tag=True):
    """Remove a record; `NotStored` if there is none."""

    kind: RecordKind
    key: str
