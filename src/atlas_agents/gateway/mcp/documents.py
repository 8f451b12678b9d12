"""The documents of the house for MCP clients: who may search them may read them, and each reading is written down."""

import re
from collections.abc import Sequence

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, NotStored
from atlas_agents.core.shelves import Document
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.mcp.offers import Readable, Reader
from atlas_agents.knowledge.library import Knowledge, about_of
from atlas_agents.knowledge.study import Study
from atlas_agents.knowledge.tools import SEARCH
from atlas_agents.tools.audit import Entry

PAGE = 200
_BEFORE = "knowledge://documents/"
_ID = re.compile(r"d[0-9a-f]{20}")
_MEDIA = "text/markdown"


class Documents:
    """The library of a gateway's own tenant."""

    def __init__(self, hub: Hub, study: Study, clock: Clock = SYSTEM_CLOCK) -> None:
        self._hub = hub
        self._knowledge: Knowledge = study.knowledge
        self._clock = clock

    async def list(self, reader: Reader, cursor: str = "") -> tuple[Sequence[Readable], str]:
        if cursor and not _ID.fullmatch(cursor):
            raise ConfigError("this cursor is not from here")
        if not self._may(reader):
            return (), ""
        found = await self._knowledge.page(self._hub.atlas.tenant, after=cursor, limit=PAGE)
        return [_readable(each) for each in found if each.hash], found[-1].id if len(found) == PAGE else ""

    async def read(self, uri: str, reader: Reader) -> tuple[str, str]:
        """The same words for what is not there and for what this reader may not read."""
        id = uri.removeprefix(_BEFORE)
        if not uri.startswith(_BEFORE) or not _ID.fullmatch(id):
            raise ConfigError("there is nothing to read at this address")
        may = self._may(reader)
        try:
            text = await self._knowledge.text(self._hub.atlas.tenant, id) if may else ""
        except NotStored:
            text = ""
        await self._write_down(uri, reader, permitted=may, success=bool(text))
        if not text:
            raise ConfigError("there is nothing to read at this address")
        return text, _MEDIA

    def _may(self, reader: Reader) -> bool:
        """To read is to search everything: the tool that searches must be the agent's, and need no person's yes."""
        tool = next((each for each in reader.agent.tools if each.name == SEARCH), None)
        return tool is not None and self._hub.atlas.verdict(reader.agent, tool, reader.user).cell == "yes"

    async def _write_down(self, uri: str, reader: Reader, *, permitted: bool, success: bool) -> None:
        agent, tenant = reader.agent, self._hub.atlas.tenant
        how = "success" if success else "failed" if permitted else "not permitted"
        await self._hub.atlas.audit.append(
            Entry(
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


def _readable(document: Document) -> Readable:
    about = about_of(document)
    words = f"{document.title} ({document.shelf})" if document.title != about.name else document.shelf
    return Readable(_BEFORE + document.id, about.name, words, _MEDIA, about.size)
