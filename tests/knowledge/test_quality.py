"""Search quality: benchmark questions over our own documents, half of which were never used for tuning.

The figures are in docs/design/knowledge.md.
"""

from collections.abc import Callable, Sequence

import pytest
from library_helpers import EMBEDDER, HERE, BenchmarkQuestion, T, open_knowledge, read_questions

from atlas_agents.core.store import Hit, Where
from atlas_agents.knowledge.library import fuse_hits, keyword_weight, significant_words
from atlas_agents.storage.sqlite import SqliteStore

Scores = tuple[float, float, float]
ALL = Where("knowledge")


def scores(ranks: Sequence[int]) -> Scores:
    """Return hit@1, hit@3 and the mean reciprocal rank; rank 0 means not found."""
    count = len(ranks)
    first = sum(rank == 1 for rank in ranks) / count
    third = sum(0 < rank <= 3 for rank in ranks) / count
    return first, third, sum(1 / rank for rank in ranks if rank) / count


def test_benchmark_has_enough_questions_in_each_half() -> None:
    found = read_questions()
    assert len(found) >= 100 and len({each.question for each in found}) == len(found)
    assert 60 <= sum(each.held_out for each in found) <= len(found) - 60
    for each in found:
        assert f"\n## {each.heading}\n" in (HERE / "corpus" / f"{each.document}.md").read_text()


@pytest.fixture
async def results(tmp_path: object) -> dict[str, dict[bool, Scores]]:
    """Scores of each search method, for the held-out half (True) and the other."""
    store, embedder = SqliteStore(f"{tmp_path}/atlas.db"), EMBEDDER
    await store.open()
    async with open_knowledge(store, embedder) as knowledge:
        await knowledge.add(T, str(HERE / "corpus"))
        methods: dict[str, Callable[[list[Hit], list[Hit], str], list[Hit]]] = {
            "keywords": lambda keyword, vector, question: keyword,
            "vectors": lambda keyword, vector, question: vector,
            "hybrid": lambda keyword, vector, question: fuse_hits(vector, keyword, keyword_weight(question)),
        }
        ranks: dict[str, dict[bool, list[int]]] = {name: {True: [], False: []} for name in methods}
        for each in read_questions():
            (vector,) = await embedder.embed([each.question])
            keyword_hits = await store.search_text(T, ALL, significant_words(each.question), limit=60)
            vector_hits = await store.find_nearest(T, ALL, embedder.model, vector, limit=60)
            for name, method in methods.items():
                hits = method(keyword_hits, vector_hits, each.question)[:10]
                ranks[name][each.held_out].append(await _rank(store, each, hits))
    await store.close()
    return {name: {half: scores(found) for half, found in halves.items()} for name, halves in ranks.items()}


async def _rank(store: SqliteStore, question: BenchmarkQuestion, hits: Sequence[Hit]) -> int:
    rows = await store.passages(T, [hit.passage for hit in hits])
    for rank, row in enumerate(rows, 1):
        document = await store.document(T, "knowledge", row.document)
        assert document is not None
        if document.source.endswith(f"/{question.document}.md") and row.heading.endswith(f" > {question.heading}"):
            return rank
    return 0


async def test_hybrid_search_outperforms_both_methods_on_held_out_questions(
    results: dict[str, dict[bool, Scores]],
) -> None:
    hybrid, vectors, keywords = (results[name][True] for name in ("hybrid", "vectors", "keywords"))
    assert all(ours > theirs for ours, theirs in zip(hybrid, vectors, strict=True)), results
    assert all(ours > theirs for ours, theirs in zip(hybrid, keywords, strict=True)), results
    assert hybrid[0] >= 0.45 and hybrid[1] >= 0.69 and hybrid[2] >= 0.58, results
