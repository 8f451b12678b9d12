"""Methods `knowledge.*` and `memories.*`: documents, search, and what agents remember about the caller."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from atlas_agents.core.errors import NotFound
from atlas_agents.core.store import Document
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.convert import build_cursor, parse_cursor
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.edits import EditTarget, unified_diff, version_of
from atlas_agents.gateway.protocol import knowledge as wire
from atlas_agents.gateway.protocol.events import KnowledgeProgress, encode_event
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import Ack
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.library import CATEGORY, Progress, Report, SearchResult, document_details
from atlas_agents.knowledge.memories import Memory, MemoryOwner


def add_methods(methods: Methods) -> None:
    methods.add("knowledge.list", list_documents)
    methods.add("knowledge.search", search_documents)
    methods.add("knowledge.add", add_documents)
    methods.add("knowledge.refresh", refresh_documents)
    methods.add("knowledge.remove", remove_documents)
    methods.add("memories.list", list_memories)
    methods.add("memory.search", search_memories)
    methods.add("memories.forget", forget_memory)
    methods.add("memories.put", put_memory)
    methods.add("memories.clear", clear_memories)


async def list_documents(caller: ClientConnection, params: wire.KnowledgeList) -> wire.DocumentPage:
    """List documents, latest first. Guests do not learn where the files are and who added them."""
    knowledge, uploads, tenant = _require_readable(caller).knowledge, caller.hub.uploads, caller.hub.atlas.tenant
    before, before_id = parse_cursor(params.cursor)
    found = await knowledge.latest(
        tenant, category=params.category, before=before, before_id=before_id, limit=params.limit + 1
    )
    shown = found[: params.limit]
    more = build_cursor(shown[-1].created_at, shown[-1].id) if len(found) > params.limit else None
    shapes = [_document_shape(each, uploaded=uploads.keeps(each.source)) for each in shown]
    if caller.grant.prefix:
        shapes = [msgspec.structs.replace(each, source=each.name, root="", added_by="") for each in shapes]
    categories = await knowledge.categories(tenant) if params.cursor is None else []
    return wire.DocumentPage(tuple(shapes), more, tuple(categories))


async def search_documents(caller: ClientConnection, params: wire.KnowledgeSearch) -> wire.PassagesResult:
    found = await _require_readable(caller).knowledge.search(
        caller.hub.atlas.tenant, params.query, category=params.category, max_results=params.max_results
    )
    shapes = [_passage_shape(each) for each in found]
    if caller.grant.prefix:
        shapes = [msgspec.structs.replace(each, source=each.name) for each in shapes]
    return wire.PassagesResult(tuple(shapes))


async def add_documents(caller: ClientConnection, params: wire.KnowledgeAdd) -> wire.Ingested:
    """Ingest documents and report progress to the caller."""
    if (params.source is None) == (params.upload_id is None):
        raise ProtocolError("INVALID_PARAMS", "expected either 'source' or 'uploadId'")
    if params.upload_id is not None:
        return await _add_upload(caller, params.upload_id, params.category or CATEGORY)
    return _to_ingested(await _ingest(caller, params.source or "", params.category, params.source or ""))


async def _ingest(caller: ClientConnection, source: str, category: str | None, shown: str) -> Report:
    hub, by = caller.hub, caller.grant.principal.id
    knowledge, report = _require_knowledge_base(caller).knowledge, Report()

    async def write() -> str | None:
        nonlocal report
        on_progress = _progress_sender(caller, shown)
        report = await knowledge.add(hub.atlas.tenant, source, category=category, user=by, on_progress=on_progress)
        return "added"

    await hub.edits.apply(EditTarget("knowledge", Path(source).name, None), by, write)
    return report


async def _add_upload(caller: ClientConnection, id: str, category: str) -> wire.Ingested:
    """Ingest an uploaded file. It replaces an earlier upload with the same name in the category."""
    hub, knowledge = caller.hub, _require_knowledge_base(caller).knowledge
    path = await hub.uploads.keep(id)
    try:
        report = await _ingest(caller, str(path), category, id)
    finally:
        present = await knowledge.documents(hub.atlas.tenant)
        if all(each.source != str(path) for each in present):
            await hub.uploads.discard(path)
    copies = [*report.copies, *([(path.name, path.name)] if report.unchanged else [])]
    if report.added or report.changed:
        for each in present:
            same = (each.collection, document_details(each).name) == (category, path.name)
            if same and each.source != str(path) and hub.uploads.keeps(each.source):
                report.removed += await knowledge.remove(hub.atlas.tenant, each.id)
                await hub.uploads.discard(Path(each.source))
    return msgspec.structs.replace(_to_ingested(report), copies=tuple([wire.DuplicateShape(*each) for each in copies]))


async def refresh_documents(caller: ClientConnection, params: wire.KnowledgeRefresh) -> wire.Ingested:
    knowledge, tenant = _require_knowledge_base(caller).knowledge, caller.hub.atlas.tenant
    on_progress = _progress_sender(caller, params.source or "")
    try:
        return _to_ingested(await knowledge.refresh(tenant, params.source, on_progress=on_progress))
    except NotFound as error:
        raise ProtocolError("INVALID_PARAMS", f"{error}; add it first, or name a source that was added") from None


async def remove_documents(caller: ClientConnection, params: wire.KnowledgeRemove) -> wire.Removed:
    hub, knowledge, which = caller.hub, _require_knowledge_base(caller).knowledge, params.source
    before = await knowledge.documents(hub.atlas.tenant)
    names = [document_details(each).name for each in before if each.id == which]
    removed = 0

    async def write() -> str | None:
        nonlocal removed
        removed = await knowledge.remove(hub.atlas.tenant, which)
        return None

    resource = EditTarget("knowledge", names[0] if names else which, "added")
    await hub.edits.apply(resource, caller.grant.principal.id, write)
    present = {each.source for each in await knowledge.documents(hub.atlas.tenant)}
    for each in before:
        if each.source not in present and hub.uploads.keeps(each.source):
            await hub.uploads.discard(Path(each.source))
    return wire.Removed(removed)


async def list_memories(caller: ClientConnection, params: wire.MemoriesList) -> wire.MemoriesResult:
    memories, owner = _require_knowledge_base(caller).memories, _memory_owner(caller, params.agent_id)
    if params.query is None:
        found = (await memories.all(owner))[: params.limit]
    else:
        found = [memory for memory, _ in await memories.search(owner, params.query, params.limit)]
    return wire.MemoriesResult(tuple([_memory_shape(each, caller.grant.prefix) for each in found]))


async def search_memories(caller: ClientConnection, params: wire.MemorySearch) -> wire.MemoryMatches:
    agent = await caller.hub.resolve_agent("", params.agent_id)
    memories, owner = _require_knowledge_base(caller).memories, _memory_owner(caller, agent.id)
    found = await memories.search(owner, params.query, params.k)
    return wire.MemoryMatches(
        tuple([wire.MemoryMatch(_memory_shape(memory, caller.grant.prefix), score) for memory, score in found])
    )


async def put_memory(caller: ClientConnection, params: wire.MemoriesPut) -> wire.MemoryResult:
    """Change the text of a memory. The audit log records who changed which memory, but not its text."""
    memories, owner = _require_knowledge_base(caller).memories, _memory_owner(caller, params.agent_id)
    edits, prefix = caller.hub.edits, caller.grant.prefix
    async with edits.exclusive():
        before = await memories.get(owner, params.id)
        resource = EditTarget("memory", before.id, version_of(before.text), before.text)
        await edits.check(resource, params.expected_version)
        diff = unified_diff(before.text, params.text, "memory")
        if params.dry_run:
            return wire.MemoryResult(memory=_memory_shape(before, prefix), diff=diff)

        async def write() -> str | None:
            return version_of((await memories.change(owner, params.id, params.text)).text)

        await edits.apply(resource, caller.grant.principal.id, write, scope="admin")
    return wire.MemoryResult(memory=_memory_shape(await memories.get(owner, params.id), prefix), diff=diff)


async def forget_memory(caller: ClientConnection, params: wire.MemoriesForget) -> Ack:
    memories, owner = _require_knowledge_base(caller).memories, _memory_owner(caller, params.agent_id)
    await _forget(caller, await memories.get(owner, params.id), owner)
    return Ack(True)


async def clear_memories(caller: ClientConnection, params: wire.MemoriesClear) -> wire.Removed:
    """Delete everything that an agent remembers about the caller."""
    owner = _memory_owner(caller, params.agent_id)
    removed = 0
    while found := await _require_knowledge_base(caller).memories.all(owner):
        for memory in found:
            await _forget(caller, memory, owner)
        removed += len(found)
    return wire.Removed(removed)


async def _forget(caller: ClientConnection, memory: Memory, owner: MemoryOwner) -> None:
    memories = _require_knowledge_base(caller).memories

    async def write() -> str | None:
        await memories.forget(owner, memory.id)
        return None

    resource = EditTarget("memory", memory.id, version_of(memory.text))
    await caller.hub.edits.apply(resource, caller.grant.principal.id, write, scope="admin")


def _require_knowledge_base(caller: ClientConnection) -> KnowledgeBase:
    if caller.hub.services.knowledge_base is None:
        raise ProtocolError("UNAVAILABLE", "no knowledge base is configured: set one up in atlas.toml")
    return caller.hub.services.knowledge_base


def _require_readable(caller: ClientConnection) -> KnowledgeBase:
    """Return the knowledge base if the caller may read documents. A guest may if an agent searches for them anyway."""
    found, hub = _require_knowledge_base(caller), caller.hub
    if not caller.grant.prefix:
        return found
    user = caller.grant.principal.id
    tools = [(agent, tool) for agent in hub.atlas.agents for tool in agent.tools if tool.name == found.search_tool]
    if not any(hub.atlas.verdict(agent, tool, user).cell == "yes" for agent, tool in tools):
        raise ProtocolError("FORBIDDEN", "no agent may search the documents for you")
    return found


def _memory_owner(caller: ClientConnection, agent_id: str) -> MemoryOwner:
    return MemoryOwner(caller.hub.atlas.tenant, agent_id, caller.grant.principal.id)


def _progress_sender(caller: ClientConnection, source: str) -> Callable[[Progress], object]:
    def send(progress: Progress) -> None:
        if caller.full:
            event = KnowledgeProgress(source, progress.done, progress.total, progress.passages, progress.source)
            caller.send(encode_event(msgspec.structs.replace(event, stored=progress.stored, pieces=progress.pieces)))

    return send


def _document_shape(document: Document, *, uploaded: bool) -> wire.DocumentShape:
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
        uploaded,
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
    version = version_of(memory.text) or ""
    return wire.MemoryShape(memory.id, memory.text, memory.created_at, memory.tags, memory.run_id, session, version)


def _to_ingested(report: Report) -> wire.Ingested:
    return wire.Ingested(
        report.added,
        report.changed,
        report.unchanged,
        report.removed,
        report.duplicates,
        report.passages,
        tuple([wire.Skipped(source, reason) for source, reason in report.skipped]),
        tuple([wire.DuplicateShape(source, original) for source, original in report.copies]),
    )
