"""Document library: add, refresh, search and remove documents. The search combines similarity and keyword scores."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from atlas_agents.core.errors import ConfigError, NotFound, ToolFault
from atlas_agents.core.json import encode
from atlas_agents.core.store import (
    AddPassages,
    Document,
    DropDocument,
    Hit,
    Passage,
    PassageRow,
    PutDocument,
    Store,
    Where,
)
from atlas_agents.knowledge.embedding import Embedder
from atlas_agents.knowledge.loaders import (
    Item,
    LoadedDocument,
    Media,
    Raw,
    Sources,
    TextPassage,
    is_url,
    split_passages,
)

KEYWORD_WEIGHT = 0.1
"""Weight of the best keyword match relative to a cosine; tuned on half of the questions in tests/knowledge."""
CODE_WEIGHT = 0.4
"""Weight for questions with a number or a code, which must match exactly."""
_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")
_STOP_WORDS = frozenset(
    """a about after all also am an and any are as at be been before being but by can could did do does doing for from
    get got had has have he her him his how i if in into is it its just let may me might must my no nor not of on or our
    out over own she should so some such than that the their them then there these they this those through to too under
    up us very was we were what when where which while who whom whose why will with would you your""".split()  # noqa: SIM905
)
_CANDIDATES = 60
_MAX_QUERY = 2_000
CATEGORY = "general"
_VERSION = "1"
"""Version of the chunking; changing it re-reads all documents."""
_BATCH_SIZE = 32
_PAGE = 500
_MAX_SKIPPED = 50
_NAMES: dict[Media, str] = {
    "markdown": "Markdown file",
    "text": "text file",
    "html": "page",
    "pdf": "PDF",
    "docx": "Word document",
}
MAX_TEXT = 1_000_000
"""Maximum characters returned when a document is read whole."""


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


class DocumentDetails(msgspec.Struct, frozen=True):
    """Details of a document: how it is cited, its source, who added it and its size in bytes."""

    name: str
    root: str
    user: str = ""
    size: int = 0


class Progress(msgspec.Struct, frozen=True):
    """Progress of an import: documents done and in total, the current one, and passages so far.

    Attributes:
        done: Documents that are done.
        total: Documents in total.
        source: The current document.
        passages: Passages so far.
        pieces: Passages of the current document; 0 until it has been read.
        stored: Passages of the current document that are stored.
    """

    done: int
    total: int
    source: str
    passages: int
    stored: int = 0
    pieces: int = 0


class Report(msgspec.Struct):
    """Result of an import. `skipped` gives the reason for each unreadable document, `copies` the name of the document
    with the same content for each duplicate."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    duplicates: int = 0
    passages: int = 0
    skipped: list[tuple[str, str]] = []
    copies: list[tuple[str, str]] = []

    def skip(self, source: str, reason: str) -> None:
        if len(self.skipped) < _MAX_SKIPPED:
            self.skipped.append((source, reason))

    def add_copy(self, source: str, original: str) -> None:
        self.duplicates += 1
        if len(self.copies) < _MAX_SKIPPED:
            self.copies.append((source, original))


OnProgress: TypeAlias = Callable[[Progress], object]
OnStored: TypeAlias = Callable[[int, int], object]
"""Called while a longer document is stored: passages done and in total."""


def _report_stored(on_progress: OnProgress, before: Progress, stored: int, pieces: int) -> None:
    passages = before.passages + stored
    on_progress(msgspec.structs.replace(before, passages=passages, stored=stored, pieces=pieces))


def _ignore(progress: Progress) -> None:
    """Default progress callback: does nothing."""


class Knowledge:
    """Documents of all tenants, each visible to its own tenant only. Without an embedder, search uses keywords only."""

    def __init__(self, store: Store, embedder: Embedder | None, sources: Sources) -> None:
        self._store = store
        self._embedder = embedder
        self._sources = sources
        self._searcher = Searcher(store, embedder)
        self._import_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def search(
        self, tenant: str, query: str, *, category: str | None = None, max_results: int = 5
    ) -> list[SearchResult]:
        """Return the best matching passages, best first."""
        return await self._searcher.search(tenant, Where("knowledge", category), query, max_results)

    async def add(
        self,
        tenant: str,
        source: str,
        *,
        category: str | None = None,
        user: str = "",
        on_progress: OnProgress = _ignore,
    ) -> Report:
        """Import a file, a folder or a URL. Unchanged documents are kept; documents that disappeared from a folder
        added before are removed. Without a category, documents keep theirs, and new ones get that of their folder."""
        items = await self._sources.find(source)
        root = items[0].root
        async with self._import_lock(tenant):
            report = await self._import_items(tenant, items, category or None, user, on_progress)
            present = {item.source for item in items}
            of_root = [d async for d in self._iterate_documents(tenant) if document_details(d).root == root]
            for document in of_root:
                if document.source not in present:
                    await self._remove_document(tenant, document, report)
        return report

    async def refresh(self, tenant: str, source: str | None = None, *, on_progress: OnProgress = _ignore) -> Report:
        """Re-import all documents, or those from one source."""
        roots: dict[str, tuple[str, str]] = {}
        async for document in self._iterate_documents(tenant):
            details = document_details(document)
            if source is None or details.root == source:
                roots.setdefault(details.root, (document.collection, details.user))
        if source is not None and not roots:
            raise NotFound(f"not found: no document was added from {source!r}")
        total = Report()
        for root, (category, user) in roots.items():
            try:
                part = await self.add(tenant, root, category=category, user=user, on_progress=on_progress)
            except ConfigError as error:  # the folder or file itself is gone
                part = Report()
                part.skip(root, str(error))
            _add_report(total, part)
        return total

    async def documents(self, tenant: str, *, category: str | None = None) -> list[Document]:
        """Return all documents, ordered by source."""
        found = [each async for each in self._iterate_documents(tenant, category)]
        return sorted(found, key=lambda document: document.source)

    async def latest(
        self,
        tenant: str,
        *,
        category: str | None = None,
        before: int | None = None,
        before_id: str = "",
        limit: int = 100,
    ) -> list[Document]:
        """Return a page of documents, latest first, including those being imported. It continues before the time and
        id of the last one of the page before."""
        where = Where("knowledge", category)
        return await self._store.latest_documents(tenant, where, before=before, before_id=before_id, limit=limit)

    async def categories(self, tenant: str) -> list[str]:
        """Return the categories that have documents."""
        return await self._store.collections(tenant, "knowledge")

    async def page(self, tenant: str, *, after: str = "", limit: int = _PAGE) -> list[Document]:
        """Return a page of documents ordered by id, including those being imported."""
        return await self._store.documents(tenant, Where("knowledge"), after=after, limit=limit)

    async def text(self, tenant: str, id: str) -> str:
        """Return a document's text with its headings, truncated if very long; NotFound if missing or incomplete."""
        document = await self._store.document(tenant, "knowledge", id)
        if document is None or not document.hash:
            raise NotFound(f"document not found: {id[:80]!r}")
        lines, size, heading, after = [f"# {document.title}"], 0, document.title, -1
        while rows := await self._store.document_passages(tenant, "knowledge", id, after=after, limit=_PAGE):
            after = rows[-1].place
            for row in rows:
                if size > MAX_TEXT:
                    return "\n\n".join([*lines, f"… {document.passages - row.place:,} more passages omitted"])
                lines += [row.text] if row.heading == heading else [f"## {row.heading}", row.text]
                heading, size = row.heading, size + len(row.text)
        return "\n\n".join(lines)

    async def version(self, tenant: str, id: str) -> str:
        """Return the hash of a document's content; empty if it is missing or incomplete."""
        document = await self._store.document(tenant, "knowledge", id)
        return document.hash if document is not None else ""

    async def remove(self, tenant: str, which: str) -> int:
        """Remove a document by id or source, or everything added from a source; return the number of documents."""
        report = Report()
        async with self._import_lock(tenant):
            documents = self._iterate_documents(tenant)
            found = [d async for d in documents if which in (d.id, d.source, document_details(d).root)]
            for document in found:
                await self._remove_document(tenant, document, report)
        if not report.removed:
            raise NotFound(f"document not found: {which!r}")
        return report.removed

    async def close(self) -> None:
        await self._sources.close()
        if self._embedder is not None:
            await self._embedder.close()

    async def _import_items(
        self, tenant: str, items: Sequence[Item], category: str | None, user: str, on_progress: OnProgress
    ) -> Report:
        report = Report()
        known: dict[tuple[str, str], Document] = {}
        kept: dict[str, str] = {}
        default = category
        async for each in self._iterate_documents(tenant, category):
            known[each.collection, each.hash] = each
            kept[each.source] = each.collection
            if default is None and document_details(each).root == items[0].root:
                default = each.collection
        default = default or CATEGORY
        for done, item in enumerate(items):
            progress = Progress(done, len(items), item.name, report.passages)
            on_progress(progress)
            on_stored = partial(_report_stored, on_progress, progress)
            try:
                await self._import_item(tenant, item, (kept.get(item.source, default), user), known, report, on_stored)
            except FileNotFoundError:
                report.skip(item.name, "no longer exists")
            except ToolFault as error:
                report.skip(item.name, str(error))
        on_progress(Progress(len(items), len(items), "", report.passages))
        return report

    async def _import_item(
        self,
        tenant: str,
        item: Item,
        owner: tuple[str, str],
        known: dict[tuple[str, str], Document],
        report: Report,
        on_stored: OnStored,
    ) -> None:
        """Import a document unless it is unchanged, or a copy of a `known` one. `owner` is its category and user."""
        category, user = owner
        existing = await self._store.document(tenant, "knowledge", document_id(item.source))
        raw = await self._sources.fetch(item)
        hash = self._hash(raw)
        if existing is not None and (existing.hash, existing.collection) == (hash, category):
            report.unchanged += 1
            return
        if (copy := known.get((category, hash))) is not None and copy.source != item.source:
            report.add_copy(item.name, document_details(copy).name)
            return
        loaded = await self._sources.read(item, raw)
        details = DocumentDetails(item.name, item.root, user, len(raw.content))
        document = Document("knowledge", document_id(item.source), category, item.source, loaded.title)
        document = msgspec.structs.replace(document, about=encode(details))
        passages = await self._store_document(tenant, document, loaded, hash, on_stored)
        if not passages:
            report.skip(item.name, f"no text found in this {_NAMES[raw.media]}")
            if existing is not None:
                await self._remove_document(tenant, existing, report)
            return
        known[category, hash] = document
        report.passages += passages
        report.added += existing is None
        report.changed += existing is not None

    async def _store_document(
        self,
        tenant: str,
        document: Document,
        loaded: LoadedDocument,
        hash: str,
        on_stored: OnStored,
    ) -> int:
        """Store a document in batches, the last one with the hash, and return its number of passages."""
        chunks = split_passages(loaded.text, plain=loaded.plain)
        if not chunks:
            return 0
        title = document.title or next((chunk.path[0] for chunk in chunks if chunk.path), "")
        title = title or document_details(document).name
        model = self._embedder.model if self._embedder is not None else ""
        document = msgspec.structs.replace(document, title=title, model=model)
        batches = [chunks[start : start + _BATCH_SIZE] for start in range(0, len(chunks), _BATCH_SIZE)]
        if len(batches) > 1:
            on_stored(0, len(chunks))
        for number, batch in enumerate(batches):
            passages = await self._embed_passages(batch, title, loaded)
            last = hash if number == len(batches) - 1 else ""
            if number == 0:
                write = PutDocument(msgspec.structs.replace(document, hash=last), passages)
            else:
                write = AddPassages("knowledge", document.id, passages, last)
            await self._store.commit(tenant, [write])
            if len(batches) > 1:
                on_stored(min((number + 1) * _BATCH_SIZE, len(chunks)), len(chunks))
        return len(chunks)

    async def _embed_passages(
        self, batch: Sequence[TextPassage], title: str, loaded: LoadedDocument
    ) -> tuple[Passage, ...]:
        headings = [chunk.heading or title for chunk in batch]
        vectors = [b""] * len(batch)
        if self._embedder is not None:
            pairs = zip(headings, batch, strict=True)
            vectors = await self._embedder.embed([f"{heading}\n{chunk.text}" for heading, chunk in pairs])
        return tuple(
            Passage(heading, chunk.text, _position(chunk, loaded), vector)
            for heading, chunk, vector in zip(headings, batch, vectors, strict=True)
        )

    async def _remove_document(self, tenant: str, document: Document, report: Report) -> None:
        await self._store.commit(tenant, [DropDocument("knowledge", document.id)])
        report.removed += 1

    async def _iterate_documents(self, tenant: str, category: str | None = None) -> AsyncIterator[Document]:
        after = ""
        while page := await self._store.documents(tenant, Where("knowledge", category), after=after, limit=_PAGE):
            for document in page:
                yield document
            after = page[-1].id

    def _hash(self, raw: Raw) -> str:
        model = self._embedder.model if self._embedder is not None else ""
        return hashlib.sha256(f"{_VERSION}\n{raw.media}\n{model}\n".encode() + raw.content).hexdigest()

    def _import_lock(self, tenant: str) -> asyncio.Lock:
        """Return the import lock of a tenant; concurrent imports of one document would corrupt each other."""
        lock = self._import_locks.get(tenant)
        if lock is None:
            lock = self._import_locks[tenant] = asyncio.Lock()
        return lock


def document_id(source: str) -> str:
    """Return the document id of a source."""
    return "d" + hashlib.sha256(source.encode(errors="replace")).hexdigest()[:20]


def document_details(document: Document) -> DocumentDetails:
    return msgspec.json.decode(document.about, type=DocumentDetails)


def _position(chunk: TextPassage, loaded: LoadedDocument) -> str:
    if chunk.page:
        return f"page {chunk.page}"
    return f"line {chunk.line}" if loaded.lines else ""


def _add_report(total: Report, part: Report) -> None:
    for name in ("added", "changed", "unchanged", "removed", "duplicates", "passages"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    for source, reason in part.skipped:
        total.skip(source, reason)
    total.copies = [*total.copies, *part.copies][:_MAX_SKIPPED]


def canonical_source(source: str) -> str:
    """Return the canonical source: a URL unchanged, a path made absolute."""
    return source if is_url(source) else str(Path(source).expanduser().resolve())
