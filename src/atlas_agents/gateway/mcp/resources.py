"""MCP resources: documents of the knowledge base. Reading requires permission to search and is audited."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, NotFound
from atlas_agents.core.store import Document
from atlas_agents.gateway.hub import Hub
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.library import Knowledge, about_of
from atlas_agents.tools.audit import AuditEntry
from atlas_agents.workspace.skills import Prompt


class Resource(msgspec.Struct, frozen=True):
    """A document with its URI."""

    uri: str
    name: str
    description: str = ""
    media_type: str = "text/plain"
    size: int | None = None


class ResourceReader(msgspec.Struct, frozen=True):
    """The user that reads, with the permissions of an agent."""

    agent: Agent
    user: str


class ResourceLibrary(Protocol):
    """Lists and reads the resources that a reader may access."""

    async def list(self, reader: ResourceReader, cursor: str = "") -> tuple[Sequence[Resource], str]:
        """Return a page of resources and the cursor of the next page, empty at the end."""
        ...

    async def read(self, uri: str, reader: ResourceReader) -> tuple[str, str]:
        """Return the text and its media type; raise ConfigError if the reader may not access the URI."""
        ...


class McpOffers:
    """What the MCP server offers besides tools, set before the gateway runs."""

    def __init__(self) -> None:
        self.prompts: Callable[[], Sequence[Prompt]] = tuple
        self.library: ResourceLibrary | None = None


PAGE = 200
_BEFORE = "knowledge://documents/"
_ID = re.compile(r"d[0-9a-f]{20}")
_MEDIA = "text/markdown"


class Documents:
    """The documents of the gateway's tenant."""

    def __init__(self, hub: Hub, study: KnowledgeBase, clock: Clock = SYSTEM_CLOCK) -> None:
        self._hub = hub
        self._knowledge: Knowledge = study.knowledge
        self._search_tool = study.search_tool
        self._clock = clock

    async def list(self, reader: ResourceReader, cursor: str = "") -> tuple[Sequence[Resource], str]:
        if cursor and not _ID.fullmatch(cursor):
            raise ConfigError("invalid cursor: expected a cursor returned by this method")
        if not self._may(reader):
            return (), ""
        found = await self._knowledge.page(self._hub.atlas.tenant, after=cursor, limit=PAGE)
        return [_readable(each) for each in found if each.hash], found[-1].id if len(found) == PAGE else ""

    async def read(self, uri: str, reader: ResourceReader) -> tuple[str, str]:
        """Read a document. The error is the same whether it does not exist or the reader may not access it."""
        id = uri.removeprefix(_BEFORE)
        if not uri.startswith(_BEFORE) or not _ID.fullmatch(id):
            raise ConfigError("resource not found")
        may = self._may(reader)
        try:
            text = await self._knowledge.text(self._hub.atlas.tenant, id) if may else ""
        except NotFound:
            text = ""
        await self._write_down(uri, reader, permitted=may, success=bool(text))
        if not text:
            raise ConfigError("resource not found")
        return text, _MEDIA

    def _may(self, reader: ResourceReader) -> bool:
        """Return whether the agent has the search tool and may use it without approval."""
        tool = next((each for each in reader.agent.tools if each.name == self._search_tool), None)
        return tool is not None and self._hub.atlas.verdict(reader.agent, tool, reader.user).cell == "yes"

    async def _write_down(self, uri: str, reader: ResourceReader, *, permitted: bool, success: bool) -> None:
        agent, tenant = reader.agent, self._hub.atlas.tenant
        how = "success" if success else "failed" if permitted else "not permitted"
        await self._hub.atlas.audit.append(
            AuditEntry(
                tenant_id=tenant,
                actor_external_id=agent.id,
                entity_id=uri,
                level="info" if success else "error",
                message=f"{reader.user} read {uri} as agent {agent.id}: {how}",
                success=success,
                meta={"user": reader.user, "role": agent.role, "permitted": permitted},
                timestamp=int(self._clock.time() * 1000),
                action="DOCUMENT_READ",
                entity_type="document",
            )
        )


def _readable(document: Document) -> Resource:
    about = about_of(document)
    words = f"{document.title} ({document.collection})" if document.title != about.name else document.collection
    return Resource(_BEFORE + document.id, about.name, words, _MEDIA, about.size)
