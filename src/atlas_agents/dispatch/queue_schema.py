"""procrastinate's tables: made as its version that is installed wants them, and brought up to date when that is newer.

Its files are named in their order. Since its version 3 there are two kinds: one that is `pre` fits the code before it
and after it; one that is `post` takes away what only the code before it used, so it waits until no process of that code
is at the queue any more.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from procrastinate.schema import SchemaManager
from psycopg import sql

from atlas_agents.dispatch.bus import LINE

_MAKING = 0x41544C51
_FIRST = "03.04.00_50_post_add_retry_failed_job_procedure.sql"
"""The last step that the tables have of which nobody wrote down how they were made."""
_MARK = "atlas-queue "
_ROOM = 36
"""Letters of the schema that fit beside it into the 63 that Postgres keeps."""
_KEEP = "CREATE TABLE IF NOT EXISTS queue_steps (name TEXT PRIMARY KEY)"
_OTHERS = """
SELECT application_name FROM pg_stat_activity WHERE datname = current_database()
AND starts_with(application_name, %s)"""


def packaged_steps(folder: Path | None = None) -> list[Path]:
    """All steps that the installed version knows, in their order."""
    return sorted((folder or Path(SchemaManager.get_migrations_path())).glob("*.sql"), key=lambda step: step.name)


def mark(schema: str, steps: Sequence[Path]) -> str:
    """How a process that is at the queue names its connections: by the newest step that its code knows."""
    newest = max((_number(step.name) for step in steps), default="")
    return f"{_MARK}{newest} {schema[:_ROOM]}"


async def bring_up_to_date(url: str, schema: str, steps: Sequence[Path]) -> list[str]:
    """Make the tables, or take the steps that they have not taken yet; which these were."""
    async with await psycopg.AsyncConnection.connect(url, **LINE) as line:
        await line.execute("SELECT pg_advisory_lock(%s)", (_MAKING,))  # over several transactions
        await line.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        taken = await _taken(line, steps)
        missing = [step for step in steps if step.name not in taken]
        if missing and await _older_code_is_here(line, schema, steps):
            missing = _without_last_posts(missing)
        for step in missing:
            async with line.transaction():
                await line.execute(step.read_bytes())
                await _write_down(line, [step.name])
        await line.execute("SELECT pg_advisory_unlock(%s)", (_MAKING,))
        return [step.name for step in missing]


async def _taken(line: psycopg.AsyncConnection[Any], steps: Sequence[Path]) -> set[str]:
    async with line.transaction():
        await line.execute(_KEEP)
        rows = await (await line.execute("SELECT name FROM queue_steps")).fetchall()
        if rows:
            return {row[0] for row in rows}
        found = await (await line.execute("SELECT to_regclass('procrastinate_jobs')")).fetchone()
        names = [step.name for step in steps]
        if found is None or found[0] is None:
            await line.execute(SchemaManager.get_schema())
        else:
            names = [name for name in names if name <= _FIRST]
        await _write_down(line, names)
        return set(names)


async def _write_down(line: psycopg.AsyncConnection[Any], names: Sequence[str]) -> None:
    await line.execute("INSERT INTO queue_steps SELECT unnest(%s::text[])", (list(names),))


async def _older_code_is_here(line: psycopg.AsyncConnection[Any], schema: str, steps: Sequence[Path]) -> bool:
    rows = await (await line.execute(_OTHERS, (_MARK,))).fetchall()
    others = [row[0] for row in rows if row[0].endswith(f" {schema[:_ROOM]}")]
    return any(other < mark(schema, steps) for other in others)


def _without_last_posts(steps: list[Path]) -> list[Path]:
    """What comes before a later `pre` has waited long enough: that one counts on it."""
    while steps and "_post_" in steps[-1].name:
        steps = steps[:-1]
    return steps


def _number(name: str) -> str:
    """`03.04.00_50` of a step's name."""
    return name[:11]
