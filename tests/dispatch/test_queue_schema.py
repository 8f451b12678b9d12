"""Queue tables: created once, and migrated when the installed version of procrastinate has new migrations."""

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
from checks import TIMEOUT, wait_until
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
_SCHEMA = """
SELECT 'column', c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema() AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind = 'r'
UNION ALL SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' FROM pg_proc p
    WHERE p.pronamespace = current_schema()::regnamespace
UNION ALL SELECT 'trigger', t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = current_schema()::regnamespace AND NOT t.tgisinternal
ORDER BY 1, 2"""


@asynccontextmanager
async def create_schema(url: str) -> AsyncGenerator[tuple[str, psycopg.AsyncConnection[Any]]]:
    name = "t" + new_id().replace("-", "")
    async with asyncio.timeout(TIMEOUT), await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(sql.SQL("CREATE SCHEMA {0}").format(sql.Identifier(name)))
        await connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(name)))
        yield name, connection


async def rows(connection: psycopg.AsyncConnection[Any], query: str) -> list[Any]:
    return await (await connection.execute(query.encode())).fetchall()


async def no_connection_named(connection: psycopg.AsyncConnection[Any], name: str) -> bool:
    found = await rows(connection, "SELECT application_name FROM pg_stat_activity")
    return (name,) not in found


async def create_old_tables(connection: psycopg.AsyncConnection[Any], last: str) -> None:
    """Create the tables of the version whose last migration is `last`."""
    await connection.execute("CREATE TABLE queue_steps (name TEXT PRIMARY KEY)")
    for migration in packaged_migrations():
        if migration.name <= last:
            await connection.execute(migration.read_bytes())
            await connection.execute("INSERT INTO queue_steps VALUES (%s)", (migration.name,))


async def test_old_tables_are_migrated_and_keep_their_jobs(url: str) -> None:
    async with create_schema(url) as (old, connection), create_schema(url) as (new, other):
        await create_old_tables(connection, "03.00.00_50_post_cancel_notification.sql")
        await connection.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES ('atlas:a', 'atlas.run', '{}')"
        )
        queues = [Queue(url, name, "a") for name in (old, old, new)]
        await asyncio.gather(*[queue.open() for queue in queues])
        for queue in queues:
            await queue.close()
        assert await rows(connection, _SCHEMA) == await rows(other, _SCHEMA)
        assert await rows(connection, "SELECT name FROM queue_steps ORDER BY 1") == [
            (s.name,) for s in packaged_migrations()
        ]
        assert await rows(connection, "SELECT task_name FROM procrastinate_jobs") == [("atlas.run",)]


async def test_jobs_are_unlogged_and_their_numbers_are_not_used_again_after_a_crash(schema: str) -> None:
    with PostgresServer() as server:
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
            await connection.execute(sql.SQL("CREATE SCHEMA {0}").format(sql.Identifier(schema)))
        await migrate_queue(server.url, schema, packaged_migrations())
        numbers = list[int]()
        for _ in range(2):
            options = f"-c search_path={schema}"
            async with await psycopg.AsyncConnection.connect(
                server.url, autocommit=True, options=options
            ) as connection:
                found = await rows(
                    connection,
                    "INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES ('q', 't', '{}') RETURNING id",
                )
                numbers += [id for (id,) in found]
                assert await rows(connection, "SELECT count(*) FROM procrastinate_jobs") == [(1,)]
            async with server.gone():
                pass
        assert numbers[1] > numbers[0]


async def test_post_migrations_wait_until_older_processes_are_gone(url: str, tmp_path: Path) -> None:
    for migration, statement in {
        "90.00.00_01_pre_add": "CREATE FUNCTION added() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "90.00.00_50_post_drop": "DROP FUNCTION added()",
    }.items():
        (tmp_path / f"{migration}.sql").write_text(statement)
    newer = [*packaged_migrations(), *packaged_migrations(tmp_path)]
    async with create_schema(url) as (name, connection):
        queue = Queue(url, name, "a")
        await queue.open()
        assert await migrate_queue(url, name, newer) == ["90.00.00_01_pre_add.sql"]
        await queue.close()
        await wait_until(lambda: no_connection_named(connection, application_name(name, packaged_migrations())))
        assert await migrate_queue(url, name, newer) == ["90.00.00_50_post_drop.sql"]
        assert await migrate_queue(url, name, newer) == []


async def test_failed_migration_changes_nothing_and_is_repeated(url: str, tmp_path: Path) -> None:
    migration = tmp_path / "90.00.00_01_pre_odd.sql"
    migration.write_text("CREATE TABLE half (id int); SELECT 1 / 0")
    async with create_schema(url) as (name, connection):
        await migrate_queue(url, name, packaged_migrations())
        with pytest.raises(psycopg.Error):
            await migrate_queue(url, name, [*packaged_migrations(), migration])
        assert await rows(connection, "SELECT to_regclass('half')") == [(None,)]
        migration.write_text("CREATE TABLE half (id int)")
        assert await migrate_queue(url, name, [*packaged_migrations(), migration]) == [migration.name]
