"""Finding words with a database's own index.

Both score every passage that matches, so that words which are everywhere would cost more than they tell: where rarer
ones are asked for too, only those are looked for, and never is more than a limited number of passages scored.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from atlas_agents.core.shelves import Hit, Where
from atlas_agents.stores import shelf_statements as sql
from atlas_agents.stores.query import Query, Row, query
from atlas_agents.stores.words import on_shelf, owner_of, plain

Fetch: TypeAlias = Callable[[Query], Awaitable[list[Row]]]
_EVERYWHERE = 2_000
"""A word that is in so many passages tells little about any of them."""
_MOST_SCORED = 8_000
_MOST_WORDS = 32


async def sqlite_matching(search: Fetch, tenant: str, where: Where, words: Sequence[str], limit: int) -> list[Hit]:
    """With FTS5: passages with any of the words, the best first."""
    wanted = [f'"{word}"' for word in plain(words)[:_MOST_WORDS]]
    owner = owner_of(tenant, where)
    if not wanted:
        return []

    def match(expression: str) -> str:
        return f"owners : {owner} AND {{heading text}} : ({expression})"

    each = {f"match{n}": match(word) for n, word in enumerate(wanted)}
    counted = await search(query(tenant, sql.sqlite_counts(len(wanted)), most=_EVERYWHERE, **each))
    chosen = match(_chosen(wanted, counted, " OR ", " AND "))
    values = {"kind": where.kind, "match": chosen, "most": _MOST_SCORED, "limit": max(limit, 0)}
    return [Hit(id, score) for id, score in await search(query(tenant, sql.SQLITE_MATCHING, **values))]


async def postgres_matching(search: Fetch, tenant: str, where: Where, words: Sequence[str], limit: int) -> list[Hit]:
    """The same with the full text search of Postgres."""
    wanted = [f"'{word}'" for word in plain(words)[:_MOST_WORDS]]
    if not wanted:
        return []
    each = {f"match{n}": word for n, word in enumerate(wanted)}
    asked = query(tenant, sql.postgres_counts(len(wanted)), **on_shelf(where), most=_EVERYWHERE, **each)
    chosen = _chosen(wanted, await search(asked), " | ", " & ")
    values = {"match": chosen, "most": _MOST_SCORED, "limit": max(limit, 0)}
    return [
        Hit(id, score) for id, score in await search(query(tenant, sql.POSTGRES_MATCHING, **on_shelf(where), **values))
    ]


def _chosen(wanted: Sequence[str], counted: Sequence[Row], any_of: str, all_of: str) -> str:
    """Any of the rare words; where all are everywhere, all of them together."""
    rare = [word for word, (count,) in zip(wanted, counted, strict=True) if count < _EVERYWHERE]
    return any_of.join(rare) if rare else all_of.join(wanted)
