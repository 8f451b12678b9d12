"""Documents and passages as steps: what is asked and what is written."""

from collections.abc import Sequence
from typing import Any

from atlas_agents.core.shelves import AddPassages, Document, DropDocument, Passage, PutDocument
from atlas_agents.stores import shelf_statements as sql
from atlas_agents.stores.query import Place, Steps, Vector, cleaned
from atlas_agents.stores.refusals import no_document
from atlas_agents.stores.words import owners_of

_AT_ONCE = (32, 8, 1)
"""So many passages go into a statement, so that each stays prepared."""


def put_document(place: Place, write: PutDocument) -> Steps[Document]:
    new = write.document
    yield from _drop(place, new, shelf=None)
    rows = yield place.ask(
        sql.PUT_DOCUMENT,
        kind=new.kind,
        id=new.id,
        shelf=new.shelf,
        source=new.source,
        title=cleaned(new.title),
        hash=new.hash,
        model=new.model,
        about=new.about,
        passages=len(write.passages),
    )
    document = Document(*rows[0])
    yield from _add(place, document, 0, write.passages)
    return document


def add_passages(place: Place, write: AddPassages) -> Steps[Document]:
    rows = yield place.ask(sql.GROW_DOCUMENT, kind=write.kind, id=write.id, added=len(write.passages), hash=write.hash)
    if not rows:
        raise no_document(write.id)
    document = Document(*rows[0])
    yield from _add(place, document, document.passages - len(write.passages), write.passages)
    return document


def drop_document(place: Place, write: DropDocument) -> Steps[None]:
    if not (yield from _drop(place, write, write.shelf)):
        raise no_document(write.id)


def _drop(place: Place, which: Document | DropDocument, shelf: str | None) -> Steps[bool]:
    kind, id = which.kind, which.id
    dropped = yield place.ask(sql.DROP_DOCUMENT, kind=kind, id=id, any=shelf is None, shelf=shelf or "")
    if not dropped:
        return False
    counted = yield place.ask(sql.COUNT_VECTORS, kind=kind, id=id)
    yield place.ask(sql.DROP_PASSAGES, kind=kind, id=id)
    yield place.ask(sql.CHANGED, kind=kind, model=dropped[0][0], vectors=-counted[0][0])
    return True


def _add(place: Place, document: Document, first: int, passages: Sequence[Passage]) -> Steps[None]:
    shared = {
        "kind": document.kind,
        "document": document.id,
        "shelf": document.shelf,
        "owners": owners_of(place.tenant, document.kind, document.shelf),
        "model": document.model,
    }
    begin = 0
    while begin < len(passages):
        count = next(size for size in _AT_ONCE if size <= len(passages) - begin)
        rows: dict[str, Any] = {}
        for n, passage in enumerate(passages[begin : begin + count]):
            rows |= {
                f"place{n}": first + begin + n,
                f"heading{n}": cleaned(passage.heading),
                f"text{n}": cleaned(passage.text),
                f"position{n}": passage.position,
                f"vector{n}": Vector(passage.vector) if passage.vector else None,
            }
        yield place.ask(sql.add_passages(count), **shared, **rows)
        begin += count
    vectors = sum(1 for passage in passages if passage.vector)
    yield place.ask(sql.CHANGED, kind=document.kind, model=document.model, vectors=vectors)
