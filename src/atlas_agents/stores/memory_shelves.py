"""Documents and passages on dictionaries, and a plain search by words: the reference for what databases do."""

import math
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from atlas_agents.core.shelves import AddPassages, Document, DropDocument, Hit, Passage, PassageRow, PutDocument, Where
from atlas_agents.stores.memory_desk import Desk, KeptPassage
from atlas_agents.stores.query import Place, cleaned
from atlas_agents.stores.refusals import no_document
from atlas_agents.stores.words import plain

_WORD = re.compile(r"\w+")
_SATURATION, _LENGTH = 1.2, 0.75


def put_document(desk: Desk, place: Place, write: PutDocument) -> Document:
    new = write.document
    if (new.kind, new.id) in desk.documents:
        _drop(desk, new.kind, new.id)
    document = msgspec.structs.replace(
        new, title=cleaned(new.title) or "", passages=len(write.passages), created_at=place.now
    )
    desk.put(desk.documents, (new.kind, new.id), document)
    _add(desk, document, 0, write.passages)
    return document


def add_passages(desk: Desk, place: Place, write: AddPassages) -> Document:
    known = desk.documents.get((write.kind, write.id))
    if known is None:
        raise no_document(write.id)
    document = msgspec.structs.replace(known, passages=known.passages + len(write.passages), hash=write.hash)
    desk.put(desk.documents, (write.kind, write.id), document)
    _add(desk, document, known.passages, write.passages)
    return document


def drop_document(desk: Desk, place: Place, write: DropDocument) -> None:
    known = desk.documents.get((write.kind, write.id))
    if known is None or write.shelf not in (None, known.shelf):
        raise no_document(write.id)
    _drop(desk, write.kind, write.id)


def _drop(desk: Desk, kind: str, id: str) -> None:
    model = desk.documents[kind, id].model
    ids = desk.passages_of.get((kind, id), {})
    _changed(desk, kind, model, -sum(1 for number in ids if desk.passages[number].vector))
    for number in ids:
        desk.remove(desk.passages, number)
    desk.remove(desk.passages_of, (kind, id))
    desk.remove(desk.documents, (kind, id))


def _add(desk: Desk, document: Document, first: int, passages: Sequence[Passage]) -> None:
    for place, passage in enumerate(passages, first):
        id = desk.next_passage()
        heading, text = cleaned(passage.heading) or "", cleaned(passage.text) or ""
        row = PassageRow(id, document.id, document.shelf, place, heading, text, passage.position)
        desk.put(desk.passages, id, KeptPassage(document.kind, row, document.model, passage.vector))
        desk.put_in(desk.passages_of, (document.kind, document.id), id, None)
    _changed(desk, document.kind, document.model, sum(1 for passage in passages if passage.vector))


def _changed(desk: Desk, kind: str, model: str, vectors: int) -> None:
    version, count = desk.libraries.get((kind, model), (0, 0))
    desk.put(desk.libraries, (kind, model), (version + 1, count + vectors))


def matching(desk: Desk, where: Where, words: Sequence[str]) -> list[Hit]:
    """BM25 over the passages that are looked through, headings counted twice."""
    wanted = {word.casefold() for word in plain(words)}
    counts: dict[int, tuple[Counter[str], int]] = {}
    for id, kept in desk.passages.items():
        if kept.kind == where.kind and where.shelf in (None, kept.row.shelf):
            found = _WORD.findall(f"{kept.row.heading} {kept.row.heading} {kept.row.text}".casefold())
            counts[id] = Counter(word for word in found if word in wanted), len(found)
    usual = sum(length for _, length in counts.values()) / len(counts) if counts else 1.0
    rarity = {
        word: math.log(1 + len(counts) / (1 + sum(1 for found, _ in counts.values() if word in found)))
        for word in wanted
    }
    hits = [
        Hit(
            id,
            sum(
                rarity[word] * n * (_SATURATION + 1) / (n + _SATURATION * (1 - _LENGTH + _LENGTH * length / usual))
                for word, n in found.items()
            ),
        )
        for id, (found, length) in counts.items()
        if found
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.passage))
