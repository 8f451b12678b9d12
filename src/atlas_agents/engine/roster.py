"""The agents of an Atlas by their ids, and the one that answers when none is named."""

from collections.abc import Iterable

from atlas_agents.core.errors import ConfigError, UnknownAgent
from atlas_agents.engine.agent import Agent


class Roster:
    """Ids are unique in it; the first agent answers until another is chosen."""

    def __init__(self, agents: Iterable[Agent], default: str | Agent | None = None) -> None:
        self._by_id = _named(agents)
        self.current: Agent | None = next(iter(self._by_id.values()), None)
        if default is not None:
            self.current = self.find(default) if isinstance(default, str) else self.adopt(default)

    @property
    def all(self) -> tuple[Agent, ...]:
        return tuple(self._by_id.values())

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._by_id

    def get(self, agent_id: str) -> Agent | None:
        return self._by_id.get(agent_id)

    def find(self, agent_id: str) -> Agent:
        """UnknownAgent lists those there are."""
        agent = self._by_id.get(agent_id)
        if agent is None:
            known = ", ".join(sorted(self._by_id)) or "none"
            raise UnknownAgent(f"there is no agent {agent_id!r}; there are: {known}")
        return agent

    def chosen(self, agent_id: str | None) -> Agent:
        """The one that is named, else the one that answers when none is."""
        agent = self.current if agent_id is None else self.find(agent_id)
        if agent is None:
            raise ConfigError("this Atlas has no agent: Atlas(agents=[…]) or set_agent(…)")
        return agent

    def adopt(self, agent: Agent) -> Agent:
        """One of a known id takes the old one's place."""
        self._by_id[agent.id] = agent
        return agent

    def replace(self, agents: Iterable[Agent]) -> None:
        """Have these and no others. The one that answers stays the one of that id, if there still is one."""
        found = _named(agents)
        current = self.current.id if self.current else ""
        self._by_id = found
        self.current = found.get(current) or next(iter(found.values()), None)


def _named(agents: Iterable[Agent]) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    for each in agents:
        if each.id in found:
            raise ConfigError(f"two agents have the id {each.id!r}")
        found[each.id] = each
    return found
