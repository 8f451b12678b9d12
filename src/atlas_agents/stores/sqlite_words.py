"""Finding words with SQLite's own index, FTS5.

It scores every passage that matches, so that words which are everywhere would cost more than they tell: where rarer
ones are asked for too, only those are looked for, and never is more than a limited number of passages scored.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from atlas_agents.core.shelves import Hit, Where
from atlas_agents.stores import shelf_statements as sql
from atlas_agents.stores.query import Query, Row, query
from atlas_agents.stores.words import owner_of, plain

Fetch: TypeAlias = Callable[[Query], Awaitable[list[Row]]]
_EVERYWHERE = 2_000
"""A word that is in so many passages tells little about any of them."""
_MOST_SCORED = 8_000
_MOST_WORDS = 32


async def matching(search: Fetch, tenant: str, where: Where, words: Sequence[str], limit: int) -> list[Hit]:
    """Passages with any of the words, the best first."""
    wanted = plain(words)[:_MOST_WORDS]
    if not wanted:
        return []
    owner = owner_of(tenant, where)
    each = {f"match{n}": _match(owner, f'"{word}"') for n, word in enumerate(wanted)}
    counted = await search(query(tenant, sql.counts(len(wanted)), most=_EVERYWHERE, **each))
    rare = [word for word, (count,) in zip(wanted, counted, strict=True) if count < _EVERYWHERE]
    match = " OR ".join(f'"{word}"' for word in rare) if rare else " AND ".join(f'"{word}"' for word in wanted)
    asked = query(
        tenant,
        sql.SQLITE_MATCHING,
        kind=where.kind,
        match=_match(owner, match),
        most=_MOST_SCORED,
        limit=max(limit, 0),
    )
    return [Hit(id, score) for id, score in await search(asked)]


def _match(owner: str, words: str) -> str:
    return f"owners : {owner} AND {{heading text}} : ({words})"
