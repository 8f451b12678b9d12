"""Params and results of `knowledge.*` and `memories.*`: documents that agents know, and what they remember."""

from typing import Annotated

from msgspec import Meta

from atlas_agents.gateway.protocol.types import WireStruct

Source = Annotated[str, Meta(min_length=1, max_length=4096)]
Category = Annotated[str, Meta(min_length=1, max_length=100)]
Words = Annotated[str, Meta(min_length=1, max_length=2000)]


class KnowledgeList(WireStruct, frozen=True):
    """All documents, or those of a category."""

    category: Category | None = None


class DocumentShape(WireStruct, frozen=True):
    """A document: where it comes from, how it is cited, and of how many passages it is. `complete` unless reading it
    was cut short; `model` is what made its vectors."""

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


class DocumentsFound(WireStruct, frozen=True):
    documents: tuple[DocumentShape, ...]


class KnowledgeSearch(WireStruct, frozen=True):
    """A question or key words."""

    query: Words
    category: Category | None = None
    max_results: Annotated[int, Meta(ge=1, le=50)] = 5


class PassageShape(WireStruct, frozen=True):
    """A passage that fits: `heading` are those above it, `position` is its line or page."""

    text: str
    score: float
    source: str
    name: str
    title: str
    heading: str
    position: str
    category: str


class PassagesFound(WireStruct, frozen=True):
    results: tuple[PassageShape, ...]


class KnowledgeAdd(WireStruct, frozen=True):
    """A folder, a file or an address; paths are those of the gateway's machine."""

    source: Source
    category: Category = "general"


class KnowledgeRefresh(WireStruct, frozen=True):
    """What was added with this source, or everything."""

    source: Source | None = None


class Skipped(WireStruct, frozen=True):
    """A document that was not read, and why."""

    source: str
    reason: str


class Ingested(WireStruct, frozen=True):
    """What has become of documents; `duplicates` say the same as another one."""

    added: int
    changed: int
    unchanged: int
    removed: int
    duplicates: int
    passages: int
    skipped: tuple[Skipped, ...] = ()


class KnowledgeRemove(WireStruct, frozen=True):
    """A document's id or source, or what several were added with."""

    source: Source


class Removed(WireStruct, frozen=True):
    removed: int


class MemoriesList(WireStruct, frozen=True):
    """Those of one agent about whoever asks; with `query` the ones that fit, the best first, else the latest first."""

    agent_id: str
    query: Words | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class MemoryShape(WireStruct, frozen=True):
    """A memory, and in which turn it was noted."""

    id: str
    text: str
    created_at: int
    tags: tuple[str, ...] = ()
    run_id: str = ""
    session_key: str = ""


class MemoriesFound(WireStruct, frozen=True):
    memories: tuple[MemoryShape, ...]


class MemoriesForget(WireStruct, frozen=True):
    """One memory of an agent about whoever asks."""

    agent_id: str
    id: str
