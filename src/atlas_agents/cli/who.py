"""Who answers: as the first line of a conversation says it."""

from typing import Any

from atlas_agents.cli.reach import Here
from atlas_agents.cli.words import for_people, one_line
from atlas_agents.core.errors import ConfigError

_LONGEST = 600


async def agents(here: Here) -> list[dict[str, Any]]:
    """All agents, as the gateway tells them."""
    return (await here.client.call("agents.list"))["agents"]


async def headline(here: Here, agent_id: str | None = None) -> str:
    """Which model speaks for which agent and, if it is not the one that the agent names, why."""
    if here.choice is not None:
        return here.choice.headline
    found = pick(await agents(here), agent_id)
    words = f"{found['id']} answers with {model_name(found['model'])}"
    why = for_people(found.get("notice", ""))
    return one_line(f"{words} ({why})" if why else words, _LONGEST)


def pick(found: list[dict[str, Any]], agent_id: str | None) -> dict[str, Any]:
    """The agent of that id, or the one that answers when none is named."""
    for agent in found:
        if agent["id"] == agent_id or (agent_id is None and agent.get("default")):
            return agent
    names = ", ".join(agent["id"] for agent in found)
    raise ConfigError(f"there is no agent {agent_id!r}; there are {names}" if agent_id else "there is no agent")


def model_name(model: str) -> str:
    return "a scripted demo, not a model" if model == "demo" else model
