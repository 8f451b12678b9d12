"""SQL statements: both databases have the same ones, and each reads only the rows of its tenant."""

import inspect
import re
from pathlib import Path

import pytest
from sql_texts import COMMON, POSTGRES, SQLITE, names_of, sqlite_parts

from atlas_agents.core.store import AcceptRun, PutSession
from atlas_agents.storage import postgres
from atlas_agents.storage.postgres import statements as postgres_statements
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.dialect import Dialect
from atlas_agents.storage.sqlite import statements as sqlite_statements

FUNCTIONS = (Path(inspect.getfile(postgres)).parent / "write_turns.sql").read_text(encoding="utf-8")
ONLY_SQLITE = {"Parts", "PARTS", "AUDIT_BYTES"}
ONLY_POSTGRES = {"STORED_STEP", "SESSIONS_BY_KEY", "GROUPED", "JOURNAL_ENDS", "ADD_AUDIT_ROWS", "find_nearest"} | {
    *("BEGIN_STEPWISE", "BEGIN_SHARED", "FENCE", "PRUNE_TOKENS", "WRITE_TURNS", "CHAIN_AUDIT")
}
OF_ALL_TENANTS = {"OPEN_RUNS", "TENANTS", "NEXT_AUDIT_TENANT", "NEXT_SESSION_TENANT"}
WITHOUT_TENANT = {"BEGIN_STEPWISE", "BEGIN_SHARED", "FENCE", "PRUNE_TOKENS", "WRITE_TURNS"}
"""The function gets its tenant as part of its argument; the token of a transaction belongs to no tenant."""


def test_both_databases_have_the_same_statements() -> None:
    sqlite, other = names_of(sqlite_statements) - ONLY_SQLITE, names_of(postgres_statements) - ONLY_POSTGRES
    assert sqlite == other
    assert sqlite - {"MATCHING", "SESSION_MATCHES", "count_matches"} == set(Dialect.__annotations__)


def test_no_statement_is_defined_for_a_database_without_need() -> None:
    same = [name for name in SQLITE.keys() & POSTGRES.keys() if [*sqlite_parts(SQLITE[name])] == [POSTGRES[name]]]
    assert [name for name in same if name != "COUNT_PRUNABLE 0"] == []


@pytest.mark.parametrize("statements", [COMMON, SQLITE, POSTGRES], ids=["common", "sqlite", "postgres"])
def test_every_statement_filters_by_tenant(statements: dict[str, str]) -> None:
    no_tables = "SET|passage_words|session_words|days|open_days|found|unnest|LATERAL|existing|next|added|runs\\)"
    no_tables += "|jsonb_to_recordset|recent|examined|used"
    no_tables += "|journal_rows|event_rows"  # of a run, which is found by its tenant
    checked = {name: text for name, text in statements.items() if name not in OF_ALL_TENANTS | WITHOUT_TENANT}
    assert len(checked) > 20
    for name, statement in checked.items():
        for part in sqlite_parts(statement):  # the full-text indexes filter by owner words
            tables = len(re.findall(rf"\b(?:FROM|UPDATE|JOIN|INTO) (?!{no_tables})\w+", part))
            assert len(re.findall(r":tenant\b", part)) >= tables - part.count("DO UPDATE SET"), (name, part)


def test_every_statement_of_the_function_filters_by_tenant() -> None:
    reads = r"\b(FROM|JOIN|INTO|UPDATE|USING) (sessions|runs|messages|journal|events|audit|usage_sums|budgets|jobs)\b"
    found = [each for each in FUNCTIONS.split(";") if re.search(reads, each)]
    assert len(found) > 10
    assert [each for each in found if "of_tenant" not in each] == []


def test_function_writes_every_field() -> None:
    """A column that the function does not write would be lost, or make each commit of a turn take the slower path."""
    decided = {"place", "status", "epoch", "created_at", "updated_at", "last_event_at", "at_once", "user", "tenant"}
    rows = {
        "changed_sessions": PutSession.__struct_fields__,
        "accepted": AcceptRun.__struct_fields__,
        "messages": tables.MESSAGES.names,
        "usage": tables.USAGE.names,
        "steps": tables.JOURNAL.names,
        "events": tables.EVENTS.names,
    }
    for name, fields in rows.items():
        columns = re.findall(rf"jsonb_to_recordset\(given->'{name}'\) AS w \(([^)]*)\)", FUNCTIONS)
        read = {column.split()[0] for found in columns for column in found.split(",")}
        computed = {"messages": {"seq"}, "events": {"run_id"}}.get(name, set())
        assert set(fields) - read <= decided | computed, name


def test_sql_of_one_database_is_not_made_from_that_of_the_other() -> None:
    for module, other in ((sqlite_statements, "postgres"), (postgres_statements, "sqlite")):
        source = inspect.getsource(module)
        assert f"storage.{other}" not in source and not re.search(r"\.replace\(|\bre\.", source)
