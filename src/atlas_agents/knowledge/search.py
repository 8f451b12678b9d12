"""Searching by meaning and by words at once, over documents and memories alike."""

import asyncio
from collections.abc import Sequence

import msgspec

from atlas_agents.core.shelves import Document, Hit, PassageRow, Where
from atlas_agents.core.store import Store
from atlas_agents.knowledge.embedding import Embedder
from atlas_agents.knowledge.fusion import fused, weight_of, words_of

_CANDIDATES = 60
_LONGEST_QUESTION = 2_000


class Found(msgspec.Struct, frozen=True):
    """A passage, and how well it answers: 0 is not at all, 1 and a little more is the same words."""

    passage: PassageRow
    document: Document
    score: float


class Searcher:
    """Finds passages of one kind, on one shelf or all."""

    def __init__(self, store: Store, embedder: Embedder | None) -> None:
        self._store = store
        self._embedder = embedder

    async def search(self, tenant: str, where: Where, question: str, most: int) -> list[Found]:
        """The best first; a passage that says the same as a better one is left out."""
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

    async def _found(self, tenant: str, where: Where, hits: Sequence[Hit], most: int) -> list[Found]:
        found: list[Found] = []
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
                found.append(Found(row, document, round(max(hit.score, 0.0), 4)))
        return found
