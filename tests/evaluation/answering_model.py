"""A model for tests of evaluations: it answers each question by a table, and records what it was asked."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping

from atlas_agents import Registry, Usage
from atlas_agents.core.messages import Message
from atlas_agents.core.paths import Environment
from atlas_agents.providers import base
from atlas_agents.providers.testing import Reply, says


class Answering(base.BaseProvider):
    """Answers the last message of the user; after tool results it repeats them, unless `endless`."""

    def __init__(
        self, answers: Mapping[str, Reply] | Callable[[str], Reply], id: str = "fake", *, endless: bool = False
    ) -> None:
        self.id = id
        self._endless = endless
        self.asked: list[str] = []
        self.models: list[str | None] = []
        self.lengths: list[int] = []
        """Messages in each request."""
        self.running = self.most_running = 0
        self._answers = answers

    @property
    def capabilities(self) -> base.Capabilities:
        return base.Capabilities()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        last: Message = request.messages[-1]
        self.asked.append(last.text)
        self.models.append(request.model)
        self.lengths.append(len(request.messages))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            answers, text = self._answers, last.text
            reply = answers(text) if callable(answers) else answers.get(text, says("I do not know."))
            if last.tool_results and not self._endless:
                reply = says(f"It is {last.tool_results[0].result}.")
            for item in reply.items:
                await asyncio.sleep(0)
                if isinstance(item, Exception):
                    raise item
                yield item
            called = any(isinstance(item, base.ToolCallChunk) for item in reply.items)
            yield base.DoneChunk(Usage(40, 10), "tool_calls" if called else "stop")
        finally:
            self.running -= 1


def registry_of(*providers: Answering) -> Registry:
    """Return a registry in which these providers have their ids, and no settings of the machine."""
    registry = Registry(Environment({}, dotenv=None))
    for provider in providers:
        registry.register(provider.id, lambda _, provider=provider: provider)
    return registry
