"""Finding words with a database's own index.

Both score every passage that matches, so that words which are everywhere would cost more than they tell: where rarer
ones are asked for too, only the rarest are looked for, and never is more than a limited number of passages scored.
"""

from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from atlas_agents.core.shelves import Hit, Where
from atlas_agents.stores import shelf_statements as sql
from atlas_agents.stores.query import Query, Row, query
from atlas_agents.stores.words import on_shelf, owner_of, plain

Fetch: TypeAlias = Callable[[Query], Awaitable[list[Row]]]
_MOST_WORDS = 32


class Bounds(NamedTuple):
    """What a search may cost. A word that is in so many passages is `everywhere`, and tells little about any of them;
    of the rarer ones as many are looked for as are in `scored` passages together."""

    everywhere: int
    scored: int


_SQLITE = Bounds(2_000, 8_000)
_POSTGRES = Bounds(500, 2_000)
"""Less, because it reads the whole row of each: 6,000 passages took 60 ms with the bounds of SQLite."""


async def sqlite_matching(search: Fetch, tenant: str, where: Where, words: Sequence[str], limit: int) -> list[Hit]:
    """With FTS5: passages with any of the words, the best first."""
    wanted = [f'"{word}"' for word in plain(words)[:_MOST_WORDS]]
    owner = owner_of(tenant, where)
    if not wanted:
        return []

    def match(expression: str) -> str:
        return f"owners : {owner} AND {{heading text}} : ({expression})"

    each = {f"match{n}": match(word) for n, word in enumerate(wanted)}
    counted = await search(query(tenant, sql.sqlite_counts(len(wanted)), most=_SQLITE.everywhere, **each))
    chosen = match(_chosen(_SQLITE, wanted, counted, " OR ", " AND "))
    values = {"kind": where.kind, "match": chosen, "most": _SQLITE.scored, "limit": max(limit, 0)}
    return [Hit(id, score) for id, score in await search(query(tenant, sql.SQLITE_MATCHING, **values))]


async def postgres_matching(search: Fetch, tenant: str, where: Where, words: Sequence[str], limit: int) -> list[Hit]:
    """The same with the full text search of Postgres."""
    wanted = [f"'{word}'" for word in plain(words)[:_MOST_WORDS]]
    if not wanted:
        return []
    each = {f"match{n}": word for n, word in enumerate(wanted)}
    asked = query(tenant, sql.postgres_counts(len(wanted)), **on_shelf(where), most=_POSTGRES.everywhere, **each)
    chosen = _chosen(_POSTGRES, wanted, await search(asked), " | ", " & ")
    values = {"match": chosen, "most": _POSTGRES.scored, "limit": max(limit, 0)}
    return [
        Hit(id, score) for id, score in await search(query(tenant, sql.POSTGRES_MATCHING, **on_shelf(where), **values))
    ]


def _chosen(bounds: Bounds, wanted: Sequence[str], counted: Sequence[Row], any_of: str, all_of: str) -> str:
    """Any of the rarest words; where all are everywhere, all of them together."""
    rare: list[str] = []
    passages = 0
    for (count,), word in sorted(zip(counted, wanted, strict=True), key=itemgetter(0)):
        passages += count
        if count >= bounds.everywhere or (rare and passages > bounds.scored):
            break
        rare.append(word)
    return any_of.join(rare) if rare else all_of.join(wanted)
