"""Lists find their rows through an index: they neither read other rows nor sort more than a page."""

import re
import sqlite3
from contextlib import closing

import psycopg
import pytest
from store_helpers import TENANT
from test_derived import database

from atlas_agents.core.store import AcceptRun, AddJob, Document, JobRow, Passage, PutDocument, PutSession, Store, Where
from atlas_agents.storage.postgres import statements as postgres_statements
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql.reads import limit_or_max
from atlas_agents.storage.sql.tables import Query, bind
from atlas_agents.storage.sql.text_search import scope_values
from atlas_agents.storage.sqlite import statements as sqlite_statements

pytestmark = pytest.mark.durable
_PARAMETER = re.compile(r":(\w+)")


def explain(location: tuple[str, str], query: Query) -> str:
    """Return the plan of a statement. On Postgres, it is executed with the generic plan of a prepared statement."""
    where, schema = location
    if not where.startswith("postgresql:"):
        with closing(sqlite3.connect(where)) as connection:
            return "\n".join([row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query.sql}", query.values)])
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


def assert_indexed(plan: str, *indexes: str, sorts: bool = False) -> None:
    """Check that a statement reads only rows that it finds through indexes; `sorts`: and sorts some of them."""
    for index in indexes:
        assert index in plan, plan
    sorting = "" if sorts else "|TEMP B-TREE|Sort Key"
    read = r"Seq Scan|Rows Removed|SCAN (jobs|documents|runs)|\(tenant=\?\)"
    assert not re.search(read + sorting, plan), plan


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
    place = {"before": found[-1].created_at, "before_id": found[-1].id, "limit": 100}
    latest, latest_of = (
        bind(TENANT, each, **values | place) for each in (sql.LATEST_DOCUMENTS, sql.LATEST_DOCUMENTS_OF)
    )
    assert_indexed(explain(location, latest), "documents_by_time")
    assert_indexed(explain(location, latest_of), "documents_of_collection_by_time")


async def test_branches_are_read_without_other_sessions(store: Store, location: tuple[str, str]) -> None:
    sessions = [PutSession(f"s{n:04}", metadata={"topic": "branch"}) for n in range(2000)]
    branches = [
        PutSession(f"{owner}b{n}", metadata={"branch": {"root": "s0007"}}) for n in (1, 2) for owner in ("", "@ann/")
    ]
    await store.commit(TENANT, sessions[:1000])
    await store.commit(TENANT, [*branches, PutSession("other", metadata={"branch": "main"}), *sessions[1000:]])
    found = await store.sessions(TENANT, branches=True)
    assert sorted(each.key for each in found) == ["@ann/b1", "@ann/b2", "b1", "b2"]
    assert [each.key for each in await store.sessions(TENANT, branches=True, prefix="@ann/", limit=1)] == ["@ann/b2"]
    dialect = postgres_statements if location[0].startswith("postgresql:") else sqlite_statements
    query = bind(TENANT, sql.list_sessions(dialect.IS_BRANCH), before=1 << 60, before_key="", limit=100)
    assert_indexed(explain(location, query), "sessions_branched")


async def test_last_runs_of_a_session_are_read_without_the_others(store: Store, location: tuple[str, str]) -> None:
    sessions = [PutSession(f"s{n}") for n in range(20)]
    await store.commit(TENANT, [*sessions, *[AcceptRun(f"r{n}", f"s{n % 20}", "a") for n in range(1000)]])
    query = bind(TENANT, sql.LAST_RUNS, session="s7", limit=3)
    assert [run.id for run in await store.runs(TENANT, "s7", last=3)] == ["r947", "r967", "r987"]
    assert_indexed(explain(location, query), "session")


async def add_jobs(store: Store, location: tuple[str, str]) -> None:
    """Add 3,000 jobs: a few that need work, some of a user, many that are due later, and many that have ended."""
    sessions = [f"@ann/jobs/{n}" if n % 3 == 0 else f"jobs/{n}" for n in range(3000)]
    jobs = [JobRow(f"j{n}", "request", "a", "write", each, priority=n % 4) for n, each in enumerate(sessions)]
    await store.commit(TENANT, [AddJob(each) for each in jobs])
    with database(*location) as execute:
        execute("UPDATE jobs SET notified = seq % 100 <> 5")
        execute("UPDATE jobs SET due_at = CASE WHEN seq % 100 = 7 THEN 0 ELSE 10000 END + seq")
        execute("UPDATE jobs SET deadline = seq WHERE seq % 100 = 8")
        execute("UPDATE jobs SET state = 'done' WHERE seq % 2 = 1 AND seq % 100 <> 7")
        execute("UPDATE jobs SET state = 'dead' WHERE seq % 100 = 11")
        execute("UPDATE jobs SET state = 'running' WHERE seq % 500 = 9")


async def test_pending_jobs_are_read_without_those_that_are_due_later_or_have_ended(
    store: Store, location: tuple[str, str]
) -> None:
    await add_jobs(store, location)
    found = await store.pending_jobs(TENANT, 5000)
    every = await store.jobs(TENANT, limit=9999)
    expected = [
        each
        for each in every
        if each.state == "running"
        or (each.state == "queued" and (each.due_at <= 5000 or (each.deadline or 9999) <= 5000))
        or (each.state in ("done", "dead") and not each.notified)
    ]
    expected.sort(key=lambda each: (-each.priority, each.due_at, each.seq))
    assert found == expected and len(found) == 96
    assert await store.pending_jobs(TENANT, 5000, limit=7) == expected[:7]
    query = bind(TENANT, sql.PENDING_JOBS, until=5000, limit=1000)
    indexes = ("jobs_in_state", "jobs_due", "jobs_expiring", "jobs_unreported")
    assert_indexed(explain(location, query), *indexes, sorts=True)


async def test_jobs_in_some_states_are_read_without_the_others(store: Store, location: tuple[str, str]) -> None:
    await add_jobs(store, location)
    for prefix in ("", "@ann/"):
        await assert_jobs_are_indexed(store, location, prefix)


async def assert_jobs_are_indexed(store: Store, location: tuple[str, str], prefix: str) -> None:
    every = [each for each in await store.jobs(TENANT, limit=9999) if each.session.startswith(prefix)]
    conditions, owner = ((sql.OF_OWNER,), {"owner": prefix}) if prefix else ((), {})
    for states in (("dead",), ("dead", "running"), ("dead", "dead")):
        found = await store.jobs(TENANT, states=states, limit=5, before=2500, prefix=prefix)
        assert found == [each for each in every if each.state in states and each.seq < 2500][:5]
        named = {f"state{n}": state for n, state in enumerate(states)}
        query = bind(TENANT, sql.list_jobs(len(states), *conditions), limit=5, before=2500, **owner, **named)
        index = "jobs_of_owner_in_state" if prefix else "jobs_in_state"
        assert_indexed(explain(location, query), index, sorts=len(states) > 1)
    query = bind(TENANT, sql.list_jobs(0, *conditions), limit=5, before=2500, **owner)
    assert_indexed(explain(location, query), "jobs_of_owner" if prefix else "jobs")
    assert await store.jobs(TENANT, limit=5, before=2500, prefix=prefix) == [e for e in every if e.seq < 2500][:5]
