"""Hybrid search over documents and memories: semantic similarity combined with keyword scores."""

import asyncio
import re
from collections.abc import Sequence

import msgspec

from atlas_agents.core.store import Document, Hit, PassageRow, Store, Where
from atlas_agents.knowledge.embedding import Embedder

WORDS_WEIGH = 0.1
"""Weight of the best keyword match relative to a cosine; tuned on half of the questions in tests/knowledge."""
CODES_WEIGH = 0.4
"""The weight for questions with a number or a code, which must match exactly."""
_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")
_SMALL = frozenset(
    """a about after all also am an and any are as at be been before being but by can could did do does doing for from
    get got had has have he her him his how i if in into is it its just let may me might must my no nor not of on or our
    out over own she should so some such than that the their them then there these they this those through to too under
    up us very was we were what when where which while who whom whose why will with would you your""".split()  # noqa: SIM905
)


def words_of(question: str) -> list[str]:
    """Return the significant words of a question; all of them if none is."""
    words = list(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    return [word for word in words if word not in _SMALL] or words


def weight_of(question: str) -> float:
    """Return the weight of keywords for this question."""
    return CODES_WEIGH if any(char.isdigit() for char in question) else WORDS_WEIGH


def fused(by_meaning: Sequence[Hit], by_words: Sequence[Hit], weight: float = WORDS_WEIGH) -> list[Hit]:
    """Combine the cosine with the keyword score relative to the best keyword score.

    A passage found only by keywords is assumed to be as similar as the last one found by meaning.
    """
    near = {hit.passage: hit.score for hit in by_meaning}
    furthest = min(near.values(), default=0.0)
    best = max((hit.score for hit in by_words), default=0.0)
    said = {hit.passage: hit.score / best for hit in by_words} if best > 0 else {}
    total = {id: near.get(id, furthest) + weight * said.get(id, 0.0) for id in (*near, *said)}
    return sorted([Hit(id, score) for id, score in total.items()], key=lambda hit: (-hit.score, hit.passage))


_CANDIDATES = 60
_LONGEST_QUESTION = 2_000


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

    async def search(self, tenant: str, where: Where, question: str, most: int) -> list[SearchResult]:
        """Return the best passages, best first, without duplicates."""
        question = question[:_LONGEST_QUESTION]
        by_words, by_meaning = await asyncio.gather(
            self._store.matching(tenant, where, words_of(question), limit=_CANDIDATES),
            self._by_meaning(tenant, where, question),
        )
        hits = fused(by_meaning, by_words, weight_of(question))
        return await self._found(tenant, where, hits, most)

    async def _by_meaning(self, tenant: str, where: Where, question: str) -> list[Hit]:
        if self._embedder is None or not question.strip():
            return []
        (vector,) = await self._embedder.embed([question])
        if not vector:
            return []
        return await self._store.nearest(tenant, where, self._embedder.model, vector, limit=_CANDIDATES)

    async def _found(self, tenant: str, where: Where, hits: Sequence[Hit], most: int) -> list[SearchResult]:
        found: list[SearchResult] = []
        seen: set[str] = set()
        documents: dict[str, Document | None] = {}
        rows = {
            row.id: row for row in await self._store.passages(tenant, [hit.passage for hit in hits[: 3 * most + 10]])
        }
        for hit in hits:
            row = rows.get(hit.passage)
            if row is None or len(found) >= most:
                continue
            if row.document not in documents:
                documents[row.document] = await self._store.document(tenant, where.kind, row.document)
            document, words = documents[row.document], " ".join(row.text.split())
            if document is not None and words not in seen:
                seen.add(words)
                found.append(SearchResult(row, document, round(max(hit.score, 0.0), 4)))
        return found
