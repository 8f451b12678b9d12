"""The documents of the house for MCP clients: who may search them may read them, and each reading is written down."""

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
    """Something that can be read by its address."""

    uri: str
    name: str
    description: str = ""
    media_type: str = "text/plain"
    size: int | None = None


class ResourceReader(msgspec.Struct, frozen=True):
    """Who reads: a token's owner, with the rights of an agent."""

    agent: Agent
    user: str


class ResourceLibrary(Protocol):
    """Knows what a reader may read."""

    async def list(self, reader: ResourceReader, cursor: str = "") -> tuple[Sequence[Resource], str]:
        """Some of it, and where to go on; nothing if that was all."""
        ...

    async def read(self, uri: str, reader: ResourceReader) -> tuple[str, str]:
        """The text and its media type; a ConfigError if there is none that this reader may read."""
        ...


class McpOffers:
    """Filled in by whoever makes the gateway, before it runs."""

    def __init__(self) -> None:
        self.prompts: Callable[[], Sequence[Prompt]] = tuple
        self.library: ResourceLibrary | None = None


PAGE = 200
_BEFORE = "knowledge://documents/"
_ID = re.compile(r"d[0-9a-f]{20}")
_MEDIA = "text/markdown"


class Documents:
    """The library of a gateway's own tenant."""

    def __init__(self, hub: Hub, study: KnowledgeBase, clock: Clock = SYSTEM_CLOCK) -> None:
        self._hub = hub
        self._knowledge: Knowledge = study.knowledge
        self._search_tool = study.search_tool
        self._clock = clock

    async def list(self, reader: ResourceReader, cursor: str = "") -> tuple[Sequence[Resource], str]:
        if cursor and not _ID.fullmatch(cursor):
            raise ConfigError("this cursor is not from here")
        if not self._may(reader):
            return (), ""
        found = await self._knowledge.page(self._hub.atlas.tenant, after=cursor, limit=PAGE)
        return [_readable(each) for each in found if each.hash], found[-1].id if len(found) == PAGE else ""

    async def read(self, uri: str, reader: ResourceReader) -> tuple[str, str]:
        """The same words for what is not there and for what this reader may not read."""
        id = uri.removeprefix(_BEFORE)
        if not uri.startswith(_BEFORE) or not _ID.fullmatch(id):
            raise ConfigError("there is nothing to read at this address")
        may = self._may(reader)
        try:
            text = await self._knowledge.text(self._hub.atlas.tenant, id) if may else ""
        except NotFound:
            text = ""
        await self._write_down(uri, reader, permitted=may, success=bool(text))
        if not text:
            raise ConfigError("there is nothing to read at this address")
        return text, _MEDIA

    def _may(self, reader: ResourceReader) -> bool:
        """To read is to search everything: the tool that searches must be the agent's, and need no person's yes."""
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
