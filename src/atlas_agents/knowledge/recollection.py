"""Looking back over everything at once: memories, calls, turns and documents, merged and ranked."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from atlas_agents.core.store import Store
from atlas_agents.knowledge.embedding import Embedder
from atlas_agents.knowledge.library import Knowledge, about_of
from atlas_agents.knowledge.memories import Memories, Whose
from atlas_agents.knowledge.past import Calls, Past, Turns, ranked

Source: TypeAlias = Literal["memory", "audit", "workflows", "kb"]
SOURCES: tuple[Source, ...] = get_args(Source)


class Recollection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was found, and where: `at` is when it was noted or happened (milliseconds since 1970)."""

    source: Source
    text: str
    score: float
    id: str
    at: int = 0
    where: str = ""
    tags: tuple[str, ...] = ()


class Recollections:
    """Searches for one agent and one person. `pasts` are further places to look at, by the source they belong to."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder | None,
        memories: Memories,
        knowledge: Knowledge,
        pasts: Mapping[Source, Sequence[Past]] | None = None,
    ) -> None:
        self._embedder = embedder
        self._memories = memories
        self._knowledge = knowledge
        more = pasts or {}
        self._pasts: dict[Source, list[Past]] = {
            "audit": [Calls(store), *more.get("audit", ())],
            "workflows": [Turns(store), *more.get("workflows", ())],
        }

    async def search(
        self, whose: Whose, question: str, sources: Sequence[Source] = SOURCES, most: int = 10
    ) -> list[Recollection]:
        """The best of all sources, the best first."""
        wanted = dict.fromkeys(sources or SOURCES)
        found = await asyncio.gather(*(self._of(source, whose, question, most) for source in wanted))
        every = [each for some in found for each in some]
        return sorted(every, key=lambda each: (-each.score, -each.at))[:most]

    async def _of(self, source: Source, whose: Whose, question: str, most: int) -> list[Recollection]:
        match source:
            case "memory":
                return [
                    Recollection(
                        "memory", memory.text, score, memory.id, memory.created_at, memory.session, memory.tags
                    )
                    for memory, score in await self._memories.search(whose, question, most)
                ]
            case "kb":
                return [
                    Recollection(
                        "kb",
                        found.passage.text,
                        found.score,
                        found.document.id,
                        found.document.created_at,
                        " ".join((about_of(found.document).name, found.passage.position)).strip(),
                    )
                    for found in await self._knowledge.search(whose.tenant, question, max_results=most)
                ]
            case "audit" | "workflows":
                moments = [each for past in self._pasts[source] for each in await past.moments(whose)]
                return [
                    Recollection(source, moment.text, score, moment.id, moment.at)
                    for moment, score in await ranked(moments, question, self._embedder, most)
                ]
