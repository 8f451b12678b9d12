"""The tables of the queue: made, and brought up to date from an older version of procrastinate, once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from atlas_agents.core.messages import new_id
from atlas_agents.dispatch.queue import Queue, application_name, migrate_queue, packaged_migrations
from checks import PATIENCE, until

pytestmark = pytest.mark.slow
_SHAPES = """
SELECT 'column', c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema() AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind = 'r'
UNION ALL SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' FROM pg_proc p
    WHERE p.pronamespace = current_schema()::regnamespace
UNION ALL SELECT 'trigger', t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = current_schema()::regnamespace AND NOT t.tgisinternal
ORDER BY 1, 2"""


@asynccontextmanager
async def schema_on(url: str) -> AsyncGenerator[tuple[str, psycopg.AsyncConnection[Any]]]:
    name = "t" + new_id().replace("-", "")
    async with asyncio.timeout(PATIENCE), await psycopg.AsyncConnection.connect(url, autocommit=True) as line:
        await line.execute(sql.SQL("CREATE SCHEMA {0}").format(sql.Identifier(name)))
        await line.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(name)))
        yield name, line


async def rows(line: psycopg.AsyncConnection[Any], question: str) -> list[Any]:
    return await (await line.execute(question.encode())).fetchall()


async def none_named(line: psycopg.AsyncConnection[Any], name: str) -> bool:
    found = await rows(line, "SELECT application_name FROM pg_stat_activity")
    return (name,) not in found


async def older(line: psycopg.AsyncConnection[Any], last: str) -> None:
    """The tables as a version left them whose last step was this one."""
    await line.execute("CREATE TABLE queue_steps (name TEXT PRIMARY KEY)")
    for step in packaged_migrations():
        if step.name <= last:
            await line.execute(step.read_bytes())
            await line.execute("INSERT INTO queue_steps VALUES (%s)", (step.name,))


async def test_tables_of_an_older_version_become_those_of_the_newest_and_keep_their_jobs(url: str) -> None:
    async with schema_on(url) as (old, line), schema_on(url) as (new, other):
        await older(line, "03.00.00_50_post_cancel_notification.sql")
        await line.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES ('atlas:a', 'atlas.run', '{}')"
        )
        queues = [Queue(url, name, "a") for name in (old, old, new)]
        await asyncio.gather(*[queue.open() for queue in queues])
        for queue in queues:
            await queue.close()
        assert await rows(line, _SHAPES) == await rows(other, _SHAPES)
        assert await rows(line, "SELECT name FROM queue_steps ORDER BY 1") == [(s.name,) for s in packaged_migrations()]
        assert await rows(line, "SELECT task_name FROM procrastinate_jobs") == [("atlas.run",)]


async def test_tables_that_were_made_before_steps_were_written_down_take_only_what_is_new(
    url: str, tmp_path: Path
) -> None:
    async with schema_on(url) as (name, line):
        await migrate_queue(url, name, packaged_migrations())
        await line.execute("DROP TABLE queue_steps")
        assert await migrate_queue(url, name, packaged_migrations()) == []
        assert len(await rows(line, "SELECT name FROM queue_steps")) == len(packaged_migrations())


async def test_what_only_older_code_uses_is_taken_away_when_the_last_of_it_is_gone(url: str, tmp_path: Path) -> None:
    for step, words in {
        "90.00.00_01_pre_add": "CREATE FUNCTION added() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "90.00.00_50_post_drop": "DROP FUNCTION added()",
    }.items():
        (tmp_path / f"{step}.sql").write_text(words)
    newer = [*packaged_migrations(), *packaged_migrations(tmp_path)]
    async with schema_on(url) as (name, line):
        queue = Queue(url, name, "a")
        await queue.open()
        assert await migrate_queue(url, name, newer) == ["90.00.00_01_pre_add.sql"]
        await queue.close()
        await until(lambda: none_named(line, application_name(name, packaged_migrations())))
        assert await migrate_queue(url, name, newer) == ["90.00.00_50_post_drop.sql"]
        assert await migrate_queue(url, name, newer) == []


async def test_a_step_that_fails_changes_nothing_and_is_taken_again(url: str, tmp_path: Path) -> None:
    step = tmp_path / "90.00.00_01_pre_odd.sql"
    step.write_text("CREATE TABLE half (id int); SELECT 1 / 0")
    async with schema_on(url) as (name, line):
        await migrate_queue(url, name, packaged_migrations())
        with pytest.raises(psycopg.Error):
            await migrate_queue(url, name, [*packaged_migrations(), step])
        assert await rows(line, "SELECT to_regclass('half')") == [(None,)]
        step.write_text("CREATE TABLE half (id int)")
        assert await migrate_queue(url, name, [*packaged_migrations(), step]) == [step.name]
