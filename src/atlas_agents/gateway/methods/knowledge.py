"""Methods `knowledge.*` and `memories.*`: documents, search, and what agents remember about the caller."""

from collections.abc import Callable

from atlas_agents.core.store import Document
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol import knowledge as wire
from atlas_agents.gateway.protocol.events import KnowledgeProgress, encode_event
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import Ack
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.library import Progress, Report, SearchResult, document_details
from atlas_agents.knowledge.memories import Memory, MemoryOwner


def add_methods(methods: Methods) -> None:
    methods.add("knowledge.list", list_documents)
    methods.add("knowledge.search", search_documents)
    methods.add("knowledge.add", add_documents)
    methods.add("knowledge.refresh", refresh_documents)
    methods.add("knowledge.remove", remove_documents)
    methods.add("memories.list", list_memories)
    methods.add("memories.forget", forget_memory)


async def list_documents(caller: ClientConnection, params: wire.KnowledgeList) -> wire.DocumentsResult:
    found = await _require_knowledge_base(caller).knowledge.documents(caller.hub.atlas.tenant, category=params.category)
    return wire.DocumentsResult(tuple(map(_document_shape, found)))


async def search_documents(caller: ClientConnection, params: wire.KnowledgeSearch) -> wire.PassagesResult:
    found = await _require_knowledge_base(caller).knowledge.search(
        caller.hub.atlas.tenant, params.query, category=params.category, max_results=params.max_results
    )
    return wire.PassagesResult(tuple(map(_passage_shape, found)))


async def add_documents(caller: ClientConnection, params: wire.KnowledgeAdd) -> wire.Ingested:
    """Ingest documents and report progress to the caller."""
    report = await _require_knowledge_base(caller).knowledge.add(
        caller.hub.atlas.tenant,
        params.source,
        category=params.category,
        user=caller.grant.principal.id,
        on_progress=_progress_sender(caller, params.source),
    )
    return _to_ingested(report)


async def refresh_documents(caller: ClientConnection, params: wire.KnowledgeRefresh) -> wire.Ingested:
    knowledge, tenant = _require_knowledge_base(caller).knowledge, caller.hub.atlas.tenant
    on_progress = _progress_sender(caller, params.source or "")
    return _to_ingested(await knowledge.refresh(tenant, params.source, on_progress=on_progress))


async def remove_documents(caller: ClientConnection, params: wire.KnowledgeRemove) -> wire.Removed:
    return wire.Removed(await _require_knowledge_base(caller).knowledge.remove(caller.hub.atlas.tenant, params.source))


async def list_memories(caller: ClientConnection, params: wire.MemoriesList) -> wire.MemoriesResult:
    memories, owner = _require_knowledge_base(caller).memories, _memory_owner(caller, params.agent_id)
    if params.query is None:
        found = (await memories.all(owner))[: params.limit]
    else:
        found = [memory for memory, _ in await memories.search(owner, params.query, params.limit)]
    return wire.MemoriesResult(tuple([_memory_shape(each, caller.grant.prefix) for each in found]))


async def forget_memory(caller: ClientConnection, params: wire.MemoriesForget) -> Ack:
    await _require_knowledge_base(caller).memories.forget(_memory_owner(caller, params.agent_id), params.id)
    return Ack(True)


def _require_knowledge_base(caller: ClientConnection) -> KnowledgeBase:
    if caller.hub.services.knowledge_base is None:
        raise ProtocolError("UNAVAILABLE", "no knowledge base is configured: set one up in atlas.toml")
    return caller.hub.services.knowledge_base


def _memory_owner(caller: ClientConnection, agent_id: str) -> MemoryOwner:
    return MemoryOwner(caller.hub.atlas.tenant, agent_id, caller.grant.principal.id)


def _progress_sender(caller: ClientConnection, source: str) -> Callable[[Progress], object]:
    def send(progress: Progress) -> None:
        if caller.full:
            event = KnowledgeProgress(source, progress.done, progress.total, progress.passages, progress.source)
            caller.send(encode_event(event))

    return send


def _document_shape(document: Document) -> wire.DocumentShape:
    details = document_details(document)
    return wire.DocumentShape(
        document.id,
        document.source,
        details.name,
        document.title,
        document.collection,
        document.passages,
        details.size,
        document.created_at,
        details.user,
        details.root,
        document.model,
        bool(document.hash),
    )


def _passage_shape(found: SearchResult) -> wire.PassageShape:
    document, passage = found.document, found.passage
    return wire.PassageShape(
        passage.text,
        found.score,
        document.source,
        document_details(document).name,
        document.title,
        passage.heading,
        passage.position,
        document.collection,
    )


def _memory_shape(memory: Memory, prefix: str) -> wire.MemoryShape:
    session = memory.session.removeprefix(prefix)
    return wire.MemoryShape(memory.id, memory.text, memory.created_at, memory.tags, memory.run_id, session)


def _to_ingested(report: Report) -> wire.Ingested:
    return wire.Ingested(
        report.added,
        report.changed,
        report.unchanged,
        report.removed,
        report.duplicates,
        report.passages,
        tuple([wire.Skipped(source, reason) for source, reason in report.skipped]),
    )
