"""Parameters and results of `knowledge.*` and `memories.*`."""

from typing import Annotated

from msgspec import Meta

from atlas_agents.gateway.protocol.chat import Page
from atlas_agents.gateway.protocol.types import EditParams, EditResult, WireStruct

Source = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
Category = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00]*$")]
Text = Annotated[str, Meta(min_length=1, max_length=2000)]
MemoryText = Annotated[str, Meta(min_length=1, max_length=4000)]


class KnowledgeList(WireStruct, frozen=True):
    """All documents, or those of one category; latest first."""

    category: Category | None = None
    limit: Page = 100
    cursor: str | None = None


class DocumentShape(WireStruct, frozen=True):
    """A document: its source, citation and number of passages.

    `complete` is false if ingestion was interrupted; `model` is the embedding model.
    """

    id: str
    source: str
    name: str
    title: str
    category: str
    passages: int
    bytes: int
    added_at: int
    added_by: str = ""
    root: str = ""
    model: str = ""
    complete: bool = True
    uploaded: bool = False
    """Whether the gateway keeps the file; removing the document deletes it."""


class DocumentPage(WireStruct, frozen=True):
    """A page of documents and the cursor of the next page; the first page also has all categories."""

    documents: tuple[DocumentShape, ...]
    next_cursor: str | None = None
    categories: tuple[str, ...] = ()


class KnowledgeSearch(WireStruct, frozen=True):
    """A question or keywords."""

    query: Text
    category: Category | None = None
    max_results: Annotated[int, Meta(ge=1, le=50)] = 5


class PassageShape(WireStruct, frozen=True):
    """A matching passage. `heading` lists the headings above it; `position` is its line or page."""

    text: str
    score: float
    source: str
    name: str
    title: str
    heading: str
    position: str
    category: str


class PassagesResult(WireStruct, frozen=True):
    results: tuple[PassageShape, ...]


class KnowledgeAdd(WireStruct, frozen=True):
    """A folder, a file or a URL; or the id of an upload (`POST /api/uploads`). Paths refer to the gateway's machine."""

    source: Source | None = None
    category: Category | None = None
    """By default, known sources keep their category; new ones are in `general`."""
    upload_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")] | None = None


class KnowledgeRefresh(WireStruct, frozen=True):
    """The source to refresh, or everything."""

    source: Source | None = None


class Skipped(WireStruct, frozen=True):
    """A document that was skipped, and why."""

    source: str
    reason: str


class DuplicateShape(WireStruct, frozen=True):
    """A document that was not ingested, because `original` has the same content."""

    source: str
    original: str


class Ingested(WireStruct, frozen=True):
    """The result of ingesting documents. `duplicates` are documents with known content; `copies` names them."""

    added: int
    changed: int
    unchanged: int
    removed: int
    duplicates: int
    passages: int
    skipped: tuple[Skipped, ...] = ()
    copies: tuple[DuplicateShape, ...] = ()


class KnowledgeRemove(WireStruct, frozen=True):
    """The id or the source of a document, or the source that several were added with."""

    source: Source


class Removed(WireStruct, frozen=True):
    removed: int


class MemoriesList(WireStruct, frozen=True):
    """Memories of one agent about the caller: with `query` the best matches, otherwise the latest first."""

    agent_id: str
    query: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class MemoryShape(WireStruct, frozen=True):
    """A memory and the run in which it was stored. `version` changes with its text."""

    id: str
    text: str
    created_at: int
    tags: tuple[str, ...] = ()
    run_id: str = ""
    session_key: str = ""
    version: str = ""


class MemoriesResult(WireStruct, frozen=True):
    memories: tuple[MemoryShape, ...]


class MemorySearch(WireStruct, frozen=True):
    """A question or keywords, and how many memories to return. Without `agentId`, the default agent's are searched."""

    query: Text
    agent_id: str | None = None
    k: Annotated[int, Meta(ge=1, le=50)] = 5


class MemoryMatch(WireStruct, frozen=True):
    """A memory that matches. A higher `score` is a better match."""

    memory: MemoryShape
    score: float


class MemoryMatches(WireStruct, frozen=True):
    results: tuple[MemoryMatch, ...]


class MemoriesForget(WireStruct, frozen=True):
    """Identifies a memory of an agent about the caller."""

    agent_id: str
    id: str


class MemoriesPut(EditParams, frozen=True, kw_only=True):
    """The new text of a memory of an agent about the caller."""

    agent_id: str
    id: str
    text: MemoryText


class MemoryResult(EditResult, frozen=True, kw_only=True):
    memory: MemoryShape


class MemoriesClear(WireStruct, frozen=True):
    """The agent that forgets everything about the caller."""

    agent_id: str
