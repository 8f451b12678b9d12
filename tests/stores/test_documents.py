"""Documents and passages: stored, replaced, found by words and vectors, deleted, and separated by tenant."""

import asyncio

import msgspec
import numpy
import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT, Make

from atlas_agents.core.errors import NotFound, StoreError
from atlas_agents.core.store import (
    AddAudit,
    AddPassages,
    AnswerApproval,
    Document,
    DropDocument,
    Passage,
    PutDocument,
    Store,
    Where,
    Write,
)
from atlas_agents.storage.postgres import PostgresStore

MODEL = "test/3"
ALL = Where("knowledge")


def vector(*numbers: float) -> bytes:
    return numpy.asarray(numbers, numpy.float16).tobytes()


X, Y, Z = vector(1, 0, 0), vector(0, 1, 0), vector(0, 0, 1)


def make_document(id: str = "d1", collection: str = "news", *passages: Passage, hash: str = "h") -> PutDocument:
    document = Document("knowledge", id, collection, f"/{id}.md", f"Title of {id}", hash, MODEL, b'{"k":1}')
    return PutDocument(document, passages or (Passage("Top > Sub", f"the walrus of {id}", "line 1", X),))


async def texts(store: Store, ids: list[int], tenant: str = TENANT) -> list[str]:
    return [row.text for row in await store.passages(tenant, ids)]


async def search_by_words(store: Store, *words: str, where: Where = ALL, tenant: str = TENANT) -> list[str]:
    hits = await store.search_text(tenant, where, words)
    return await texts(store, [hit.passage for hit in hits], tenant)


async def search_by_vector(
    store: Store, query_vector: bytes, where: Where = ALL, tenant: str = TENANT, limit: int = 50
) -> list[str]:
    hits = await store.find_nearest(tenant, where, MODEL, query_vector, limit=limit)
    return await texts(store, [hit.passage for hit in hits], tenant)


async def test_document_is_stored_with_its_passages(store: Store) -> None:
    (stored,) = await store.commit(TENANT, [make_document()])
    assert stored == Document(
        "knowledge", "d1", "news", "/d1.md", "Title of d1", "h", MODEL, b'{"k":1}', 1, stored.created_at
    )
    assert await store.document(TENANT, "knowledge", "d1") == stored
    assert await store.documents(TENANT, ALL) == [stored]
    (hit,) = await store.search_text(TENANT, ALL, ["walrus"])
    (row,) = await store.passages(TENANT, [hit.passage])
    assert (row.document, row.collection, row.place, row.heading, row.text, row.position) == (
        "d1", "news", 0, "Top > Sub", "the walrus of d1", "line 1",
    )  # fmt: skip


async def test_passages_of_a_document_are_read_in_order_page_by_page(store: Store) -> None:
    first = tuple(Passage("", f"passage {number}") for number in range(3))
    await store.commit(TENANT, [make_document("d1", "news", *first, hash=""), make_document("d2")])
    await store.commit(TENANT, [AddPassages("knowledge", "d1", (Passage("", "passage 3"),), "whole")])
    page = await store.document_passages(TENANT, "knowledge", "d1", limit=3)
    assert [row.text for row in page] == ["passage 0", "passage 1", "passage 2"]
    rest = await store.document_passages(TENANT, "knowledge", "d1", after=page[-1].place)
    assert [(row.text, row.place) for row in rest] == [("passage 3", 3)]
    assert await store.document_passages("other", "knowledge", "d1") == []


async def test_more_passages_follow_and_the_hash_comes_with_the_last(store: Store) -> None:
    await store.commit(TENANT, [make_document(hash="")])
    (grown,) = await store.commit(
        TENANT, [AddPassages("knowledge", "d1", (Passage("", "a narwhal", "line 9", Y),), "whole")]
    )
    assert (grown.passages, grown.hash) == (2, "whole")
    hits = await store.search_text(TENANT, ALL, ["narwhal"])
    assert [row.place for row in await store.passages(TENANT, [hit.passage for hit in hits])] == [1]
    with pytest.raises(NotFound):
        await store.commit(TENANT, [AddPassages("knowledge", "d2", ())])


async def test_put_document_replaces_the_previous_one(store: Store) -> None:
    await store.commit(TENANT, [make_document("d1"), make_document("d2")])
    assert await search_by_vector(store, X) == ["the walrus of d1", "the walrus of d2"]
    await store.commit(TENANT, [make_document("d1", "old", Passage("", "a narwhal", "", Y))])
    assert await search_by_words(store, "walrus") == ["the walrus of d2"] == await search_by_vector(store, X, limit=1)
    assert await search_by_words(store, "narwhal") == ["a narwhal"] == await search_by_vector(store, Y, limit=1)
    assert len(await search_by_vector(store, X)) == 2


async def test_dropped_document_is_no_longer_found(store: Store) -> None:
    await store.commit(TENANT, [make_document("d1"), make_document("d2")])
    assert len(await search_by_vector(store, X)) == 2
    await store.commit(TENANT, [DropDocument("knowledge", "d1")])
    assert await search_by_words(store, "walrus") == ["the walrus of d2"] == await search_by_vector(store, X)
    assert await store.document(TENANT, "knowledge", "d1") is None
    with pytest.raises(NotFound):
        await store.commit(TENANT, [DropDocument("knowledge", "d1")])


async def test_search_in_a_collection_sees_only_that_collection(store: Store) -> None:
    await store.commit(TENANT, [make_document("d1", "a"), make_document("d2", "b"), make_document("d3", "a")])
    own = Where("knowledge", "a")
    assert await search_by_words(store, "walrus", where=own) == ["the walrus of d1", "the walrus of d3"]
    assert await search_by_vector(store, X, own) == ["the walrus of d1", "the walrus of d3"]
    assert [each.id for each in await store.documents(TENANT, own)] == ["d1", "d3"]
    assert await search_by_words(store, "walrus", where=Where("knowledge", "")) == []
    assert await search_by_vector(store, X, Where("knowledge", "none")) == []
    with pytest.raises(NotFound):
        await store.commit(TENANT, [DropDocument("knowledge", "d2", "a")])
    await store.commit(TENANT, [DropDocument("knowledge", "d2", "b")])


async def test_kinds_with_the_same_ids_are_separate(store: Store) -> None:
    memory = Document("memory", "d1", "news", model=MODEL)
    await store.commit(TENANT, [make_document(), PutDocument(memory, (Passage("", "a walrus that I met", "", X),))])
    assert await search_by_words(store, "walrus") == ["the walrus of d1"] == await search_by_vector(store, X)
    await store.commit(TENANT, [DropDocument("memory", "d1")])
    assert await search_by_words(store, "walrus") == ["the walrus of d1"] == await search_by_vector(store, X)


async def test_tenants_never_see_each_others_documents(store: Store) -> None:
    await store.commit("a", [make_document("d1"), make_document("d2")])
    (hit, _) = await store.search_text("a", ALL, ["walrus"])
    assert await store.passages("b", [hit.passage]) == []
    assert await store.document("b", "knowledge", "d1") is None
    assert await store.documents("b", ALL) == []
    assert await search_by_words(store, "walrus", tenant="b") == [] == await search_by_vector(store, X, tenant="b")
    with pytest.raises(NotFound):
        await store.commit("b", [DropDocument("knowledge", "d1")])
    with pytest.raises(NotFound):
        await store.commit("b", [AddPassages("knowledge", "d1", (Passage("", "poison", "", X),))])
    await store.commit("b", [make_document("d1", "news", Passage("", "walrus of the others", "", X))])
    assert (
        await search_by_words(store, "walrus", tenant="b")
        == ["walrus of the others"]
        == await search_by_vector(store, X, tenant="b")
    )
    assert await search_by_words(store, "walrus", tenant="a") == ["the walrus of d1", "the walrus of d2"]


async def test_rare_words_and_headings_score_higher(store: Store) -> None:
    await store.commit(
        TENANT,
        [
            make_document("d1", "n", Passage("Tides", "the sea is wide and the boat is small", "", X)),
            make_document("d2", "n", Passage("Boats", "the sea is wide and the boat is small", "", X)),
            make_document("d3", "n", Passage("Other", "the sea is wide and the lighthouse is tall", "", X)),
            *(make_document(f"e{n}", "n", Passage("Other", "the sea is wide and cold", "", X)) for n in range(6)),
        ],
    )
    (first, *_) = await store.search_text(TENANT, ALL, ["sea", "lighthouse"])
    assert await texts(store, [first.passage]) == ["the sea is wide and the lighthouse is tall"]
    (first, *_) = await store.search_text(TENANT, ALL, ["tides", "small"])
    assert [row.document for row in await store.passages(TENANT, [first.passage])] == ["d1"]


async def test_nearest_passages_come_first_with_their_cosines(store: Store) -> None:
    between = vector(3, 4, 0)
    await store.commit(
        TENANT,
        [make_document("d1", "n", Passage("", "x", "", X), Passage("", "y", "", Y), Passage("", "none", "", b""))],
    )
    hits = await store.find_nearest(TENANT, ALL, MODEL, between)
    assert await texts(store, [hit.passage for hit in hits]) == ["y", "x"]
    assert [round(hit.score, 2) for hit in hits] == [0.8, 0.6]
    assert await store.find_nearest(TENANT, ALL, "another/3", between) == []
    assert len(await store.find_nearest(TENANT, ALL, MODEL, between, limit=1)) == 1
    assert await store.find_nearest(TENANT, ALL, MODEL, between, limit=0) == []


async def test_documents_are_listed_in_pages(store: Store) -> None:
    await store.commit(TENANT, [make_document(f"d{n}") for n in range(5)])
    first = await store.documents(TENANT, ALL, limit=2)
    rest = await store.documents(TENANT, ALL, after=first[-1].id)
    assert [each.id for each in (*first, *rest)] == ["d0", "d1", "d2", "d3", "d4"]


async def test_latest_documents_are_listed_in_pages(store: Store) -> None:
    for ids in (("d5", "d2"), ("d1", "d4"), ("d3",)):  # those of a commit have the same time
        await store.commit(TENANT, [make_document(id, "even" if int(id[1]) % 2 == 0 else "odd") for id in ids])
        await asyncio.sleep(0.002)
    await store.commit(TENANT, [PutDocument(Document("memory", "m1", "notes", "", "", "", "", b""), ())])
    await store.commit("b", [make_document("d9", "other")])

    async def read_pages(where: Where, limit: int) -> list[str]:
        found = await store.latest_documents(TENANT, where, limit=limit)
        page = found
        while page:
            place = {"before": page[-1].created_at, "before_id": page[-1].id}
            page = await store.latest_documents(TENANT, where, limit=limit, **place)
            found += page
        return [each.id for each in found]

    for limit in (1, 2, 3, 100):
        assert await read_pages(ALL, limit) == ["d3", "d4", "d1", "d5", "d2"]
        assert await read_pages(Where("knowledge", "odd"), limit) == ["d3", "d1", "d5"]
    assert await store.latest_documents(TENANT, ALL, limit=0) == []
    assert await store.collections(TENANT, "knowledge") == ["even", "odd"]
    assert await store.collections(TENANT, "memory") == ["notes"]
    assert await store.collections("none", "knowledge") == []


@pytest.mark.parametrize(
    "word", ['"', "'", "a'b", 'x" OR owners : "o', "*", "(", "a:b", "\\", "ünï", "%", "|", "&!", "walrus) OR ("]
)
async def test_no_word_can_escape_the_search_expression(store: Store, word: str) -> None:
    await store.commit("a", [make_document("d1")])
    await store.commit("b", [make_document("d2", "n", Passage("", "another walrus", "", X))])
    found = await search_by_words(store, word, "walrus", tenant="a")
    assert set(found) <= {"the walrus of d1"}


async def test_failing_commit_leaves_documents_unchanged(store: Store) -> None:
    await store.commit(TENANT, [make_document("d1")])
    before = await store.documents(TENANT, ALL)
    bad: Write = AnswerApproval("unknown", b"")
    for writes in ([make_document("d2"), bad], [make_document("d1", "x"), bad], [DropDocument("knowledge", "d1"), bad]):
        with pytest.raises(NotFound):
            await store.commit(TENANT, writes)
        assert await store.documents(TENANT, ALL) == before
        assert await search_by_words(store, "walrus") == ["the walrus of d1"] == await search_by_vector(store, X)


@pytest.mark.parametrize("name", ["id", "collection", "source", "hash", "model"])
async def test_name_that_no_database_can_store_is_rejected(store: Store, name: str) -> None:
    bad = msgspec.structs.replace(Document("knowledge", "d"), **{name: "a\0b"})
    with pytest.raises(StoreError):
        await store.commit(TENANT, [AddAudit(b""), PutDocument(bad)])
    assert await store.audit(TENANT) == []


async def test_characters_that_no_database_can_store_are_replaced_in_text(store: Store) -> None:
    await store.commit(TENANT, [make_document("d1", "n", Passage("a\0b", "walrus \0 \ud800 end", "", X))])
    assert await search_by_words(store, "walrus") == ["walrus \ufffd ? end"]


@pytest.mark.durable
async def test_change_by_another_process_is_found_immediately(store: Store, make_store: Make) -> None:
    other = await make_store()
    await store.commit(TENANT, [make_document("d1"), make_document("d2")])
    assert len(await search_by_vector(other, X)) == 2
    await store.commit(TENANT, [DropDocument("knowledge", "d1"), make_document("d3")])
    assert await search_by_vector(other, X) == ["the walrus of d2", "the walrus of d3"]
    await asyncio.gather(*(store.commit(TENANT, [make_document(f"e{n}")]) for n in range(5)))
    found = await asyncio.gather(*(search_by_vector(other, X) for _ in range(5)))
    assert {len(each) for each in found} == {7}
    assert await search_by_words(other, "walrus") == await search_by_words(store, "walrus")


async def test_vectors_are_compared_by_postgres_or_by_the_store(postgres_server: PostgresServer, schema: str) -> None:
    if not postgres_server.has_pgvector:
        pytest.skip("the installed pgvector does not run on this CPU")
    with_index, without = (PostgresStore(postgres_server.url, schema=schema, pgvector=given) for given in (True, False))
    await with_index.open()
    await without.open()
    try:
        assert (with_index.has_pgvector, without.has_pgvector) == (True, False)
        numbers = numpy.random.default_rng(7).normal(size=(300, 16)).astype(numpy.float16)
        for tenant in ("a", "b"):
            passages = tuple(Passage("", f"{tenant} {n}", "", row.tobytes()) for n, row in enumerate(numbers))
            await with_index.commit(tenant, [make_document("d1", tenant, *passages)])
        for query_vector in numbers[:5]:
            ours, theirs = [
                await each.find_nearest("b", ALL, MODEL, query_vector.tobytes(), limit=5)
                for each in (without, with_index)
            ]
            assert [hit.passage for hit in ours] == [hit.passage for hit in theirs]
            assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-3)
            assert {text[0] for text in await texts(with_index, [hit.passage for hit in theirs], "b")} == {"b"}
    finally:
        await with_index.close()
        await without.close()
