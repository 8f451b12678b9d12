"""Knowledge base: documents, memories and their tools over one store."""

from collections.abc import Callable, Mapping, Sequence

from atlas_agents.agents.hooks import Interceptor
from atlas_agents.core.store import Store
from atlas_agents.knowledge.embedding import Embedder
from atlas_agents.knowledge.library import Knowledge
from atlas_agents.knowledge.loaders import Sources
from atlas_agents.knowledge.memories import HistorySource, Memories, Recall, Source, recall_interceptor
from atlas_agents.knowledge.tools import SEARCH_TOOL, knowledge_tool, memory_tools
from atlas_agents.tools.tool import Tool


class KnowledgeBase:
    """`KnowledgeBase(store, LocalEmbedder())`; without an embedder, search uses keywords only.

    `history_sources` adds history to `search_my_memories`, by source name. `search_tool` is the name under which agents
    see the tool that searches documents.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder | None = None,
        *,
        sources: Sources | None = None,
        history_sources: Mapping[Source, Sequence[HistorySource]] | None = None,
        search_tool: str = SEARCH_TOOL,
    ) -> None:
        self.search_tool = search_tool
        self.knowledge = Knowledge(store, embedder, sources or Sources())
        self.memories = Memories(store, embedder)
        self.recall = Recall(store, embedder, self.memories, self.knowledge, history_sources)
        self.tools: list[Tool] = [
            knowledge_tool(self.knowledge, search_tool),
            *memory_tools(self.memories, self.recall),
        ]

    def recall_interceptor(self, applies_to: Callable[[str], bool] = lambda agent_id: True) -> Interceptor:
        """Return an interceptor for `Atlas(interceptors=[…])` that recalls matching memories before each turn."""
        return recall_interceptor(self.recall, applies_to=applies_to)

    async def close(self) -> None:
        await self.knowledge.close()
