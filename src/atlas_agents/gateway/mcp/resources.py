"""MCP resources: documents of the knowledge base. Reading requires permission to search and is audited."""

import re
from collections.abc import Sequence

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, NotFound
from atlas_agents.core.store import Document
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.library import Knowledge, document_details
from atlas_agents.tools.audit import AuditEntry

PAGE = 200
MAX_COMPLETIONS = 100
_URI_PREFIX = "knowledge://documents/"
_ID = re.compile(r"d[0-9a-f]{20}")
_MEDIA = "text/markdown"


class Resource(msgspec.Struct, frozen=True):
    """A document with its URI."""

    uri: str
    name: str
    description: str = ""
    media_type: str = "text/plain"
    size: int | None = None


class ResourceTemplate(msgspec.Struct, frozen=True):
    """A URI with a parameter in braces, and what it stands for."""

    uri: str
    name: str
    description: str
    media_type: str = "text/plain"


class ResourceReader(msgspec.Struct, frozen=True):
    """Reader of resources: a user, with the permissions of an agent."""

    agent: Agent
    user: str


class DocumentResources:
    """The documents of the gateway's tenant as MCP resources."""

    def __init__(self, atlas: Atlas, knowledge_base: KnowledgeBase, clock: Clock = SYSTEM_CLOCK) -> None:
        self._atlas = atlas
        self._knowledge: Knowledge = knowledge_base.knowledge
        self._search_tool = knowledge_base.search_tool
        self._clock = clock

    async def list(self, reader: ResourceReader, cursor: str = "") -> tuple[Sequence[Resource], str]:
        """Return a page of resources and the cursor of the next page, empty at the end."""
        if cursor and not _ID.fullmatch(cursor):
            raise ConfigError("invalid cursor: expected a cursor returned by this method")
        if not self._is_allowed(reader):
            return (), ""
        found = await self._knowledge.page(self._atlas.tenant, after=cursor, limit=PAGE)
        return [_to_resource(each) for each in found if each.hash], found[-1].id if len(found) == PAGE else ""

    def templates(self, reader: ResourceReader) -> Sequence[ResourceTemplate]:
        """Return the templates of the URIs that a reader may read."""
        about = "A document of the knowledge base, by its id in search results."
        template = ResourceTemplate(_URI_PREFIX + "{id}", "document", about, _MEDIA)
        return (template,) if self._is_allowed(reader) else ()

    async def complete(self, uri: str, text: str, reader: ResourceReader) -> Sequence[str]:
        """Return ids of documents for a template: those that begin with a text, or whose name contains it."""
        if uri not in [each.uri for each in self.templates(reader)]:
            raise ConfigError("resource template not found")
        found: list[str] = []
        after, wanted = "", text.casefold()
        while len(found) < MAX_COMPLETIONS and (
            page := await self._knowledge.page(self._atlas.tenant, after=after, limit=PAGE)
        ):
            after = page[-1].id
            found += [each.id for each in page if each.hash and _is_meant(each, wanted)]
        return found[:MAX_COMPLETIONS]

    async def version(self, uri: str, reader: ResourceReader) -> str:
        """Return the hash of a resource's content; empty if the reader cannot read it."""
        id = uri.removeprefix(_URI_PREFIX)
        if not uri.startswith(_URI_PREFIX) or not _ID.fullmatch(id) or not self._is_allowed(reader):
            return ""
        return await self._knowledge.version(self._atlas.tenant, id)

    async def read(self, uri: str, reader: ResourceReader) -> tuple[str, str]:
        """Return the text of a document and its media type.

        The error is the same whether it does not exist or the reader may not access it.
        """
        id = uri.removeprefix(_URI_PREFIX)
        if not uri.startswith(_URI_PREFIX) or not _ID.fullmatch(id):
            raise ConfigError("resource not found")
        allowed = self._is_allowed(reader)
        try:
            text = await self._knowledge.text(self._atlas.tenant, id) if allowed else ""
        except NotFound:
            text = ""
        await self._audit(uri, reader, permitted=allowed, success=bool(text))
        if not text:
            raise ConfigError("resource not found")
        return text, _MEDIA

    def _is_allowed(self, reader: ResourceReader) -> bool:
        """Return whether the agent has the search tool and may use it without approval."""
        tool = next((each for each in reader.agent.tools if each.name == self._search_tool), None)
        return tool is not None and self._atlas.verdict(reader.agent, tool, reader.user).cell == "yes"

    async def _audit(self, uri: str, reader: ResourceReader, *, permitted: bool, success: bool) -> None:
        agent, tenant = reader.agent, self._atlas.tenant
        outcome = "success" if success else "failed" if permitted else "not permitted"
        await self._atlas.audit.append(
            AuditEntry(
                tenant_id=tenant,
                actor_external_id=agent.id,
                entity_id=uri,
                level="info" if success else "error",
                message=f"{reader.user} read {uri} as agent {agent.id}: {outcome}",
                success=success,
                meta={"user": reader.user, "role": agent.role, "permitted": permitted},
                timestamp=int(self._clock.time() * 1000),
                action="DOCUMENT_READ",
                entity_type="document",
            )
        )


def _is_meant(document: Document, wanted: str) -> bool:
    names = (document.title, document_details(document).name)
    return document.id.startswith(wanted) or any(wanted in name.casefold() for name in names)


def _to_resource(document: Document) -> Resource:
    about = document_details(document)
    description = f"{document.title} ({document.collection})" if document.title != about.name else document.collection
    return Resource(_URI_PREFIX + document.id, about.name, description, _MEDIA, about.size)
