"""The agents of a workspace, kept as its files say and as the models that are there allow."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from atlas_agents.core.errors import AtlasError, ConfigError
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.atlas import Atlas
from atlas_agents.providers.demo import Demo
from atlas_agents.providers.registry import Model, Registry, parse_model_ref
from atlas_agents.tools.tool import Tool
from atlas_agents.workspace.build import build_agents
from atlas_agents.workspace.workspace import Workspace, WorkspaceState

logger = logging.getLogger(__name__)
_PAUSES = (30.0, 120.0, 600.0)
_DEMO_PAUSE = 0.02
Get: TypeAlias = Callable[[str], Awaitable[None]]
"""Has a local model here, or raises an AtlasError that says why it cannot be."""


class Crew:
    """Makes agents of what the workspace says. `notices` are sentences, by agent, about models that others stand in
    for; `trouble` says why there is no local model, if there should be one."""

    def __init__(
        self,
        workspace: Workspace,
        registry: Registry,
        tools: Iterable[Tool],
        default: str | None = None,
        *,
        recall: bool = False,
    ) -> None:
        self._workspace = workspace
        self._registry = registry
        self._tools = list(tools)
        self._default = default
        self._recall = recall
        self.notices: dict[str, str] = {}
        self.trouble: str | None = None
        self.local: tuple[str, ...] = ()
        """Local models that agents speak with."""

    def give(self, tools: Iterable[Tool]) -> None:
        """Let these be the tools from the next time on that agents are made."""
        self._tools = list(tools)

    def agents(self, state: WorkspaceState | None = None) -> tuple[Agent, ...]:
        """All of them, each told the workspace's prompt and then its own; ConfigError if any cannot be made."""
        state = state or self._workspace.state
        built = build_agents(state, self._tools, self._registry, self._default, self._stand_in)
        self.notices, self.local = built.notices, tuple(ref for ref in built.refs if _is_local(ref))
        return built.agents

    def recalls(self, agent_id: str) -> bool:
        """Whether memories are recalled before this agent's turns: as its section says, or else the settings."""
        said = next((spec.recall for spec in self._workspace.state.agents if spec.id == agent_id), None)
        return self._recall if said is None else said

    def _stand_in(self, ref: str) -> tuple[Model, str] | None:
        """A demo, where there should be a local model and is none."""
        if self.trouble is None or not _is_local(ref):
            return None
        return Demo(pause=_DEMO_PAUSE), f"{ref} cannot answer ({self.trouble}); a scripted demo answers instead"

    async def follow(self, atlas: Atlas) -> None:
        """Give an Atlas new agents whenever the workspace is edited; an edit that cannot be used changes nothing."""
        async for state in self._workspace.watch():
            try:
                atlas.set_agents(self.agents(state))
            except ConfigError as error:
                logger.warning("the workspace stays as it was: %s", error)
            else:
                logger.info("the workspace was edited: %s", ", ".join(agent.id for agent in atlas.agents))

    async def fetch(self, atlas: Atlas, get: Get) -> None:
        """Have the local models here that are wanted. Where that fails a demo stands in, until another try succeeds."""
        for pause in (*_PAUSES, *[_PAUSES[-1]] * 100):
            before = self.trouble
            self.trouble = await self._missing(get)
            if self.trouble != before:
                atlas.set_agents(self.agents())
            if self.trouble is None:
                return
            await asyncio.sleep(pause)

    async def _missing(self, get: Get) -> str | None:
        for ref in self.local:
            try:
                await get(parse_model_ref(ref).model)
            except AtlasError as error:
                return str(error)
        return None


def _is_local(ref: str) -> bool:
    return parse_model_ref(ref).provider == "local"
