"""Searching by meaning and by words at once, over documents and memories alike."""

import asyncio
import re
from collections.abc import Sequence

import msgspec

from atlas_agents.core.store import Document, Hit, PassageRow, Store, Where
from atlas_agents.knowledge.embedding import Embedder

WORDS_WEIGH = 0.1
"""What the best match by words adds to a cosine; found on the tuning half of the questions in tests/knowledge."""
CODES_WEIGH = 0.4
"""The same for a question with a number or a code in it: those are the same, or they are not."""
_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")
_SMALL = frozenset(
    """a about after all also am an and any are as at be been before being but by can could did do does doing for from
    get got had has have he her him his how i if in into is it its just let may me might must my no nor not of on or our
    out over own she should so some such than that the their them then there these they this those through to too under
    up us very was we were what when where which while who whom whose why will with would you your""".split()  # noqa: SIM905
)


def words_of(question: str) -> list[str]:
    """The words that are worth looking for; all of them if none is."""
    words = list(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    return [word for word in words if word not in _SMALL] or words


def weight_of(question: str) -> float:
    """How much the words of this question count beside its meaning."""
    return CODES_WEIGH if any(char.isdigit() for char in question) else WORDS_WEIGH


def fused(by_meaning: Sequence[Hit], by_words: Sequence[Hit], weight: float = WORDS_WEIGH) -> list[Hit]:
    """The cosine, and on top of it how good the words are beside the best that were found.

    A passage that only the words have found is taken to be as near as the last that was found by meaning.
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
    """A passage, and how well it answers: 0 is not at all, 1 and a little more is the same words."""

    passage: PassageRow
    document: Document
    score: float


class Searcher:
    """Finds passages of one kind, on one shelf or all."""

    def __init__(self, store: Store, embedder: Embedder | None) -> None:
        self._store = store
        self._embedder = embedder

    async def search(self, tenant: str, where: Where, question: str, most: int) -> list[SearchResult]:
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
