"""Searches with the full-text index of SQLite (FTS5)."""

from abc import ABC
from collections.abc import Sequence

from atlas_agents.core.store import Hit, Where
from atlas_agents.storage.sql.reads import SqlReads
from atlas_agents.storage.sql.tables import Row, bind
from atlas_agents.storage.sql.text_search import MAX_WORDS, CostLimits, choose_words, owner_word, plain_words
from atlas_agents.storage.sqlite import statements as sql

_LIMITS = CostLimits(2_000, 8_000)


class SqliteReads(SqlReads, ABC):
    """Reads of a store on SQLite."""

    _dialect = sql

    async def search_text(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        wanted = [f'"{word}"' for word in plain_words(words)[:MAX_WORDS]]
        owner = owner_word(tenant, where.kind, *([] if where.collection is None else [where.collection]))
        if not wanted:
            return []

        def match(expression: str) -> str:
            return f"owners : {owner} AND {{heading text}} : ({expression})"

        each = {f"match{n}": match(word) for n, word in enumerate(wanted)}
        counts = await self.search(bind(tenant, sql.count_matches(len(wanted)), max_rows=_LIMITS.common_from, **each))
        chosen = match(choose_words(_LIMITS, wanted, counts, " OR ", " AND "))
        values = {"kind": where.kind, "match": chosen, "max_rows": _LIMITS.max_scored, "limit": max(limit, 0)}
        return [Hit(id, score) for id, score in await self.search(bind(tenant, sql.MATCHING, **values))]

    async def match_sessions(
        self, tenant: str, words: Sequence[str], prefix: str, before: int, limit: int
    ) -> list[Row]:
        owner = owner_word(tenant, "session", *([prefix] if prefix else []))
        wanted = " AND ".join([f'"{word}"{"*" if len(word) > 1 else ""}' for word in words])
        match = f"owners : {owner} AND text : ({wanted})"
        return await self.search(bind(tenant, sql.SESSION_MATCHES, match=match, before=before, limit=limit))
