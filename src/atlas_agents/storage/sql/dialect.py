"""Statements whose text differs between SQLite and Postgres, by name.

`storage.sqlite.statements` and `storage.postgres.statements` have a text for each name; `statements` has the others.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Protocol, TypeAlias

OfCount: TypeAlias = Callable[[int], str]
"""A statement with the parameters of a number of rows, such as `:seq0`, `:body0` and so on."""


def of_count(statement: OfCount) -> OfCount:
    """Keep the statement of each number of rows."""
    return cache(statement)


class Dialect(Protocol):
    """The statements of one database."""

    IS_BRANCH: str
    """Condition of sessions that are branches of others."""
    PUT_SESSION: str
    SET_SESSION_METADATA: str
    DROP_ROWS: tuple[str, ...]
    ADD_MESSAGE: str
    SET_LAST_MESSAGE: str
    NEXT_RUN: str
    ADD_RUN: str
    CLAIM_RUN: str
    SET_RUN: str
    START_NEXT: str
    QUEUED_RUNS_OF: str
    JOURNAL_END: str
    ADD_JOURNAL: str
    JOURNAL: str
    EVENTS: str
    RESERVE_EVENTS: str
    ADD_AUDIT: str
    PENDING_APPROVALS: str
    PRUNE_ROWS: Mapping[str, str]
    COUNT_PRUNABLE: Mapping[str, str]
    add_events: OfCount
    add_search_texts: OfCount
    add_audit_values: OfCount
    update_search_sessions: OfCount
