"""Schema migrations: numbered steps, forward only, that bring a database of any version up to date.

The first step of a database creates its tables (`sqlite/schema.sql`, `postgres/schema.sql`); a change of a released
schema is a new step at the end of its `STEPS`. The database keeps a checksum of each step that was applied, so that a
step which was changed afterwards is noticed. Each step is a transaction of its own: after a crash, the migration
continues with the step that was not completed. Large tables are filled in batches afterwards; see `sql.derived`.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from atlas_agents.core.errors import StoreError

logger = logging.getLogger(__name__)
Database: TypeAlias = Literal["sqlite", "postgres"]


class Migration(NamedTuple):
    """A step as SQL, and the version of the schema that it leads to."""

    version: int
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def _read(*names: str) -> str:
    return "\n".join([(Path(__file__).parent / name).read_text(encoding="utf-8") for name in names])


STEPS: dict[Database, tuple[str, ...]] = {
    "sqlite": (_read("sqlite/schema.sql"),),
    "postgres": (_read("postgres/schema.sql", "postgres/write_turns.sql"),),
}


def schema_version(database: Database) -> int:
    """Return the version of the schema that this version of Atlas Agents uses."""
    return len(STEPS[database])


def pending_steps(database: Database, version: int, where: str) -> list[Migration]:
    """Return the steps that a database of a version lacks; raise StoreError if it is newer."""
    newest = schema_version(database)
    if not 0 <= version <= newest:
        raise StoreError(
            f"{where} has schema version {version}, but this version of Atlas Agents supports up to {newest}: "
            "use a newer Atlas Agents; nothing was changed"
        )
    return [Migration(number, sql) for number, sql in enumerate(STEPS[database], 1) if number > version]


def check_applied(database: Database, applied: Mapping[int, str], where: str) -> None:
    """Raise StoreError if a step was applied in a form that differs from this version's."""
    for step in pending_steps(database, 0, where):
        checksum = applied.get(step.version, step.checksum)
        if checksum != step.checksum:
            raise StoreError(
                f"{where}: migration {step.version} was applied with the checksum {checksum}, but has {step.checksum} "
                "in this version of Atlas Agents: the database comes from another build. Use that build, or restore "
                "a backup from before; nothing was changed"
            )


def log_step(where: str, step: Migration, last: int) -> None:
    """Log the start of a step on a database that has rows; the gateway shows this even before it is ready."""
    if step.version > 1:
        logger.info("migrating the database: %s step=%d of=%d", where, step.version, last)
