"""Hybrid search over documents and memories: semantic similarity combined with keyword scores."""

import asyncio
import re
from collections.abc import Sequence

import msgspec

from atlas_agents.core.store import Document, Hit, PassageRow, Store, Where
from atlas_agents.knowledge.embedding import Embedder

KEYWORD_WEIGHT = 0.1
"""Weight of the best keyword match relative to a cosine; tuned on half of the questions in tests/knowledge."""
CODE_WEIGHT = 0.4
"""The weight for questions with a number or a code, which must match exactly."""
_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")
_STOP_WORDS = frozenset(
    """a about after all also am an and any are as at be been before being but by can could did do does doing for from
    get got had has have he her him his how i if in into is it its just let may me might must my no nor not of on or our
    out over own she should so some such than that the their them then there these they this those through to too under
    up us very was we were what when where which while who whom whose why will with would you your""".split()  # noqa: SIM905
)
_CANDIDATES = 60
_MAX_QUERY = 2_000


def significant_words(query: str) -> list[str]:
    """Return the significant words of a question; all of them if none is."""
    words = list(dict.fromkeys(word.casefold() for word in _WORD.findall(query)))
    return [word for word in words if word not in _STOP_WORDS] or words


def keyword_weight(query: str) -> float:
    """Return the weight of keywords for this question."""
    return CODE_WEIGHT if any(char.isdigit() for char in query) else KEYWORD_WEIGHT


def fuse_hits(vector_hits: Sequence[Hit], keyword_hits: Sequence[Hit], weight: float = KEYWORD_WEIGHT) -> list[Hit]:
    """Add the keyword score, relative to the best one, to the cosine; a passage found only by keywords gets the lowest
    cosine found."""
    semantic = {hit.passage: hit.score for hit in vector_hits}
    lowest = min(semantic.values(), default=0.0)
    best = max((hit.score for hit in keyword_hits), default=0.0)
    keyword = {hit.passage: hit.score / best for hit in keyword_hits} if best > 0 else {}
    total = {id: semantic.get(id, lowest) + weight * keyword.get(id, 0.0) for id in (*semantic, *keyword)}
    return sorted([Hit(id, score) for id, score in total.items()], key=lambda hit: (-hit.score, hit.passage))


class SearchResult(msgspec.Struct, frozen=True):
    """A passage and its score: 0 means unrelated, 1 or slightly more an exact match."""

    passage: PassageRow
    document: Document
    score: float


class Searcher:
    """Searches passages of one kind, in one collection or all."""

    def __init__(self, store: Store, embedder: Embedder | None) -> None:
        self._store = store
        self._embedder = embedder

    async def search(self, tenant: str, where: Where, query: str, limit: int) -> list[SearchResult]:
        """Return the best passages, best first, without duplicates."""
        query = query[:_MAX_QUERY]
        keyword_hits, vector_hits = await asyncio.gather(
            self._store.search_text(tenant, where, significant_words(query), limit=_CANDIDATES),
            self._search_vectors(tenant, where, query),
        )
        hits = fuse_hits(vector_hits, keyword_hits, keyword_weight(query))
        return await self._load_results(tenant, where, hits, limit)

    async def _search_vectors(self, tenant: str, where: Where, query: str) -> list[Hit]:
        if self._embedder is None or not query.strip():
            return []
        (vector,) = await self._embedder.embed([query])
        if not vector:
            return []
        return await self._store.find_nearest(tenant, where, self._embedder.model, vector, limit=_CANDIDATES)

    async def _load_results(self, tenant: str, where: Where, hits: Sequence[Hit], limit: int) -> list[SearchResult]:
        found: list[SearchResult] = []
        seen: set[str] = set()
        documents: dict[str, Document | None] = {}
        rows = {
            row.id: row for row in await self._store.passages(tenant, [hit.passage for hit in hits[: 3 * limit + 10]])
        }
        for hit in hits:
            row = rows.get(hit.passage)
            if row is None or len(found) >= limit:
                continue
            if row.document not in documents:
                documents[row.document] = await self._store.document(tenant, where.kind, row.document)
            document, text = documents[row.document], " ".join(row.text.split())
            if document is not None and text not in seen:
                seen.add(text)
                found.append(SearchResult(row, document, round(max(hit.score, 0.0), 4)))
        return found
