"""How well passages are found: a set of questions over documents of our own, one half of which nothing was tuned on.

The figures are in docs/design/knowledge.md.
"""

from collections.abc import Callable, Sequence

import pytest
from library_words import EMBEDDER, HERE, Asked, T, asked, opened

from atlas_agents.core.store import Hit, Where
from atlas_agents.knowledge.search import fuse_hits, keyword_weight, significant_words
from atlas_agents.storage.sqlite import SqliteStore

Scores = tuple[float, float, float]
ALL = Where("knowledge")


def scores(ranks: Sequence[int]) -> Scores:
    """hit@1, hit@3 and the mean reciprocal rank; 0 is a rank of none."""
    count = len(ranks)
    first = sum(rank == 1 for rank in ranks) / count
    third = sum(0 < rank <= 3 for rank in ranks) / count
    return first, third, sum(1 / rank for rank in ranks if rank) / count


def test_there_are_enough_questions_and_each_half_is_large() -> None:
    found = asked()
    assert len(found) >= 100 and len({each.question for each in found}) == len(found)
    assert 60 <= sum(each.held_out for each in found) <= len(found) - 60
    for each in found:
        assert f"\n## {each.heading}\n" in (HERE / "corpus" / f"{each.document}.md").read_text()


@pytest.fixture
async def results(tmp_path: object) -> dict[str, dict[bool, Scores]]:
    """By words, by meaning, and by both: the scores of the tuned half and of the held-out one."""
    store, embedder = SqliteStore(f"{tmp_path}/atlas.db"), EMBEDDER
    await store.open()
    async with opened(store, embedder) as knowledge:
        await knowledge.add(T, str(HERE / "corpus"))
        ways: dict[str, Callable[[list[Hit], list[Hit], str], list[Hit]]] = {
            "words": lambda words, meaning, question: words,
            "meaning": lambda words, meaning, question: meaning,
            "both": lambda words, meaning, question: fuse_hits(meaning, words, keyword_weight(question)),
        }
        ranks: dict[str, dict[bool, list[int]]] = {name: {True: [], False: []} for name in ways}
        for each in asked():
            (vector,) = await embedder.embed([each.question])
            by_words = await store.search_text(T, ALL, significant_words(each.question), limit=60)
            by_meaning = await store.search_vectors(T, ALL, embedder.model, vector, limit=60)
            for name, way in ways.items():
                hits = way(by_words, by_meaning, each.question)[:10]
                ranks[name][each.held_out].append(await _rank(store, each, hits))
    await store.close()
    return {name: {half: scores(found) for half, found in halves.items()} for name, halves in ranks.items()}


async def _rank(store: SqliteStore, wanted: Asked, hits: Sequence[Hit]) -> int:
    rows = await store.passages(T, [hit.passage for hit in hits])
    for place, row in enumerate(rows, 1):
        document = await store.document(T, "knowledge", row.document)
        assert document is not None
        if document.source.endswith(f"/{wanted.document}.md") and row.heading.endswith(f" > {wanted.heading}"):
            return place
    return 0


async def test_both_together_find_more_than_either_on_the_half_that_nothing_was_tuned_on(
    results: dict[str, dict[bool, Scores]],
) -> None:
    both, meaning, words = (results[name][True] for name in ("both", "meaning", "words"))
    assert all(ours > theirs for ours, theirs in zip(both, meaning, strict=True)), results
    assert all(ours > theirs for ours, theirs in zip(both, words, strict=True)), results
    assert both[0] >= 0.45 and both[1] >= 0.69 and both[2] >= 0.58, results
