"""Full-text search with the index of the database.

Both databases score every passage that matches, so words that occur everywhere cost more than they contribute. If the
query has rarer words, only the rarest are searched for, and the number of passages that are scored is limited.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from atlas_agents.core.store import Hit, Where
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql.tables import Query, Row, bind

Fetch: TypeAlias = Callable[[Query], Awaitable[list[Row]]]
_MAX_WORDS = 32
_WORD = re.compile(r"[^\W_]+")


class _CostLimits(NamedTuple):
    """Cost limits of a search. A word in `common_from` passages or more is common; rare words are searched for as long
    as they occur in no more than `max_scored` passages together."""

    common_from: int
    max_scored: int


_SQLITE = _CostLimits(2_000, 8_000)
_POSTGRES = _CostLimits(500, 2_000)
"""Lower, because Postgres reads the whole row of each passage: 6,000 passages took 60 ms with the limits of SQLite."""


async def search_sqlite(search: Fetch, tenant: str, where: Where, words: Sequence[str], limit: int) -> list[Hit]:
    """Search with FTS5, best matches first."""
    wanted = [f'"{word}"' for word in plain_words(words)[:_MAX_WORDS]]
    owner = _owner_word(tenant, where.kind, *([] if where.collection is None else [where.collection]))
    if not wanted:
        return []

    def match(expression: str) -> str:
        return f"owners : {owner} AND {{heading text}} : ({expression})"

    each = {f"match{n}": match(word) for n, word in enumerate(wanted)}
    counts = await search(bind(tenant, sql.sqlite_counts(len(wanted)), max_rows=_SQLITE.common_from, **each))
    chosen = match(_choose_words(_SQLITE, wanted, counts, " OR ", " AND "))
    values = {"kind": where.kind, "match": chosen, "max_rows": _SQLITE.max_scored, "limit": max(limit, 0)}
    return [Hit(id, score) for id, score in await search(bind(tenant, sql.SQLITE_MATCHING, **values))]


async def search_postgres(search: Fetch, tenant: str, where: Where, words: Sequence[str], limit: int) -> list[Hit]:
    """Search with the full-text index of Postgres, best matches first."""
    wanted = [f"'{word}'" for word in plain_words(words)[:_MAX_WORDS]]
    if not wanted:
        return []
    each = {f"match{n}": word for n, word in enumerate(wanted)}
    scope = scope_values(where)
    counts = bind(tenant, sql.postgres_counts(len(wanted)), **scope, max_rows=_POSTGRES.common_from, **each)
    chosen = _choose_words(_POSTGRES, wanted, await search(counts), " | ", " & ")
    values = {"match": chosen, "max_rows": _POSTGRES.max_scored, "limit": max(limit, 0)}
    return [Hit(id, score) for id, score in await search(bind(tenant, sql.POSTGRES_MATCHING, **scope, **values))]


async def match_sessions_sqlite(
    search: Fetch, tenant: str, words: Sequence[str], prefix: str, before: int, limit: int
) -> list[Row]:
    """Return id, session and number of the latest texts with all words and an id less than `before`."""
    owner = _owner_word(tenant, "session", *([prefix] if prefix else []))
    wanted = " AND ".join([f'"{word}"{"*" if len(word) > 1 else ""}' for word in words])
    match = f"owners : {owner} AND text : ({wanted})"
    return await search(bind(tenant, sql.SQLITE_SESSION_MATCHES, match=match, before=before, limit=limit))


async def match_sessions_postgres(
    search: Fetch, tenant: str, words: Sequence[str], prefix: str, before: int, limit: int
) -> list[Row]:
    """Do the same as `match_sessions_sqlite` on Postgres."""
    match = " & ".join([f"'{word}'{':*' if len(word) > 1 else ''}" for word in words])
    keys = {"all": not prefix, **key_range(prefix or "@")}
    return await search(bind(tenant, sql.POSTGRES_SESSION_MATCHES, match=match, before=before, limit=limit, **keys))


def session_owners(tenant: str, session: str) -> str:
    """Return the words for the `owners` column of a text: one for its tenant, one for the user who owns the session."""
    owner, slash, _ = session.partition("/")
    own = f" {_owner_word(tenant, 'session', owner + slash)}" if owner.startswith("@") and slash else ""
    return _owner_word(tenant, "session") + own


def key_range(prefix: str) -> dict[str, str]:
    """Return the first key with a prefix, and the first one after them; keys are compared by code point."""
    return {"first": prefix, "end": prefix[:-1] + chr(ord(prefix[-1]) + 1)}


def _choose_words(limits: _CostLimits, wanted: Sequence[str], counts: Sequence[Row], any_of: str, all_of: str) -> str:
    """Build an expression: any of the rarest words or, if all words are common, all of them together."""
    rare: list[str] = []
    passages = 0
    for count, word in sorted(zip((count for (count,) in counts), wanted, strict=True), key=lambda pair: pair[0]):
        passages += count
        if count >= limits.common_from or (rare and passages > limits.max_scored):
            break
        rare.append(word)
    return any_of.join(rare) if rare else all_of.join(wanted)


def plain_words(words: Iterable[str]) -> list[str]:
    """Return the distinct runs of letters and digits, without characters that have a meaning in a query."""
    return list(dict.fromkeys(piece for word in words for piece in _WORD.findall(word)))


def scope_values(where: Where) -> dict[str, Any]:
    """Return the parameters of a statement that searches one collection or all."""
    return {"kind": where.kind, "any": where.collection is None, "collection": where.collection or ""}


def owner_words(tenant: str, kind: str, collection: str) -> str:
    """Return the words for the `owners` column of a passage: one for its tenant and kind, one for its collection."""
    return f"{_owner_word(tenant, kind)} {_owner_word(tenant, kind, collection)}"


def _owner_word(*names: str) -> str:
    lengths = ",".join(str(len(name)) for name in names)  # without them, two lists of names could give the same word
    return "o" + hashlib.sha256("\0".join((lengths, *names)).encode(errors="replace")).hexdigest()
