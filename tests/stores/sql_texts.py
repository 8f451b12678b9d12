"""The SQL texts of the statement modules."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType

from atlas_agents.storage.postgres import statements as postgres
from atlas_agents.storage.sql import derived_statements as derived
from atlas_agents.storage.sql import statements as shared
from atlas_agents.storage.sqlite import statements as sqlite

_VERBS = ("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH ")


def names_of(module: ModuleType) -> set[str]:
    """Return the public names that a module defines itself."""
    names: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case _:
                pass
    return {name for name in names if not name.startswith("_")}


def statements_of(module: ModuleType) -> dict[str, str]:
    """Return the complete statements of a module by name, without the conditions and columns they are made of."""
    found: dict[str, str] = {}
    for name in names_of(module):
        value = getattr(module, name)
        texts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value]
        for number, text in enumerate(texts):
            if isinstance(text, str) and text.lstrip().startswith(_VERBS):
                found[f"{name} {number}" if len(texts) > 1 else name] = text
    return found


def _of_counts(module: ModuleType, *names: str) -> dict[str, str]:
    return {name: getattr(module, name)(2) for name in names}


COMMON = {
    **statements_of(shared),
    **statements_of(derived),
    **_of_counts(shared, "add_messages", "known_messages", "add_passages", "passages_by_id", "list_jobs"),
    **_of_counts(derived, "add_audit_blocks", "add_tool_days", "audit_in_ranges", "read_bodies"),
    **_of_counts(derived, "note_last_turns", "drop_search_labels", "put_search_sessions"),
    "list_sessions": shared.list_sessions(),
    "list_sessions of an owner": shared.list_sessions(shared.OF_OWNER),
    "usage_by": derived.usage_by(("day",)),
    "usage_by_session": derived.usage_by_session(("session",)),
    "usage_by_session of an owner": derived.usage_by_session(("session", "day"), owned=True),
    "usage_bound": derived.usage_bound(),
    "usage_of_session": derived.usage_of_session(("agent_id",)),
    "find_audit_blocks": derived.find_audit_blocks(("tool", "user")),
}
"""Statements that both databases execute."""
_OWN = ("add_events", "add_search_texts", "add_audit_values", "update_search_sessions", "count_matches")
SQLITE = {**statements_of(sqlite), **_of_counts(sqlite, *_OWN)}
POSTGRES = {**statements_of(postgres), **_of_counts(postgres, *_OWN, "find_nearest")}


def sqlite_parts(statement: str) -> Iterator[str]:
    """Yield what SQLite executes for a statement."""
    for part in sqlite.PARTS.get(statement, (statement,)):
        if part:
            yield part
