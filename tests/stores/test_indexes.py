"""Lists find their rows through an index: they neither read other rows nor sort more than a page."""

import re
import sqlite3
from contextlib import closing

import psycopg
import pytest
from store_helpers import TENANT

from atlas_agents.core.store import AcceptRun, Document, Passage, PutDocument, PutSession, Store, Where
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql.reads import limit_or_max
from atlas_agents.storage.sql.tables import Query, bind
from atlas_agents.storage.sql.text_search import scope_values

pytestmark = pytest.mark.durable
_PARAMETER = re.compile(r":(\w+)")


def explain(location: tuple[str, str], query: Query) -> str:
    """Return the plan of a statement. On Postgres, it is executed with the generic plan of a prepared statement."""
    where, schema = location
    if not where.startswith("postgresql:"):
        with closing(sqlite3.connect(where)) as connection:
            form = sql.SQLITE_FORMS.get(query.sql, query.sql)
            return "\n".join([row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {form}", query.values)])
    names = list(dict.fromkeys(_PARAMETER.findall(query.sql)))
    numbered = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", query.sql)
    with psycopg.connect(where, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(f"SET search_path = {schema}; SET plan_cache_mode = force_generic_plan; ANALYZE".encode())
        connection.execute(f"PREPARE listed AS {numbered}".encode())
        values = ", ".join(["%s"] * len(names))
        options = "ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF"
        rows = connection.execute(
            f"EXPLAIN ({options}) EXECUTE listed ({values})".encode(), [query.values[name] for name in names]
        )
        return "\n".join([line for (line,) in rows])


def assert_indexed(plan: str, index: str) -> None:
    """Check that a statement reads only an index, and the rows that it returns."""
    assert index in plan, plan
    assert not re.search(r"Seq Scan|Rows Removed|\bSCAN\b|TEMP B-TREE|Sort Key", plan), plan


async def test_documents_of_a_collection_are_read_without_those_of_others(
    store: Store, location: tuple[str, str]
) -> None:
    for kind in ("knowledge", "memory"):
        documents = [Document(kind, f"{kind}{n:04}", f"c{n % 50}", f"/{n}.md") for n in range(2000)]
        await store.commit(TENANT, [PutDocument(each, (Passage("", "text"),)) for each in documents])
    where = Where("knowledge", "c7")
    found = await store.documents(TENANT, where, after="knowledge0100")
    assert [each.id for each in found] == [f"knowledge{n:04}" for n in range(107, 2000, 50)]
    values = {**scope_values(where), "after": "", "limit": limit_or_max(None)}
    assert_indexed(explain(location, bind(TENANT, sql.DOCUMENTS_OF, **values)), "documents_of_collection")
    assert_indexed(explain(location, bind(TENANT, sql.DOCUMENTS, **values)), "documents")


async def test_last_runs_of_a_session_are_read_without_the_others(store: Store, location: tuple[str, str]) -> None:
    sessions = [PutSession(f"s{n}") for n in range(20)]
    await store.commit(TENANT, [*sessions, *[AcceptRun(f"r{n}", f"s{n % 20}", "a") for n in range(1000)]])
    query = bind(TENANT, sql.LAST_RUNS, session="s7", limit=3)
    assert [run.id for run in await store.runs(TENANT, "s7", last=3)] == ["r947", "r967", "r987"]
    assert_indexed(explain(location, query), "session")
