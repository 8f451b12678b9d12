"""Several agents that answer as one: who begins, who may take over, who comes after.

A strategy only chooses; the turn is one turn, in one stream, of one run, whoever speaks in it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import Message
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.lineup import Lineup
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool

Strategy: TypeAlias = Callable[[Message, Sequence[Agent]], Lineup]
"""Looks at a message and at the agents there are, and says who takes the turn."""
Test: TypeAlias = Callable[[Message], bool]


def by_keywords(table: Mapping[str, Iterable[str]], default: str = "") -> Strategy:
    """Role routing: the agent of whose words the most are in the message; else the default."""
    words = {agent_id: [_word(word) for word in known] for agent_id, known in table.items()}

    def choose(message: Message, agents: Sequence[Agent]) -> Lineup:
        text = message.text.casefold()
        found = {agent_id: sum(1 for word in known if word.search(text)) for agent_id, known in words.items()}
        best = max(found, key=lambda agent_id: found[agent_id], default="")
        return Lineup(best if best and found[best] else default)

    return choose


def by_rules(*rules: tuple[Test, str], default: str = "") -> Strategy:
    """The agent of the first rule that holds for the message; else the default."""

    def choose(message: Message, agents: Sequence[Agent]) -> Lineup:
        return Lineup(next((agent_id for test, agent_id in rules if test(message)), default))

    return choose


def supervisor(router: str, *agents: str) -> Strategy:
    """The router sees every message, and answers it or hands it over to one of the others; without names, to any."""

    def choose(message: Message, known: Sequence[Agent]) -> Lineup:
        others = agents or tuple(agent.id for agent in known if agent.id != router)
        return Lineup(router, hands_to=others)

    return choose


def chain(first: str, *then: str) -> Strategy:
    """One after the other: each goes on from the answer of the one before, and the last one's is the answer."""

    def choose(message: Message, agents: Sequence[Agent]) -> Lineup:
        return Lineup(first, then=then)

    return choose


def last_speaker(default: str = "", *, hands_to: Iterable[str] = ()) -> Strategy:
    """Whoever answered last in the session goes on with it: a hand-off holds until the next one."""
    others = tuple(hands_to)

    def choose(message: Message, agents: Sequence[Agent]) -> Lineup:
        return Lineup(default, hands_to=others, stays=True)

    return choose


def agent_tool(atlas: Any, agent: Agent, *, name: str = "") -> Tool:
    """An agent as a tool of others. It answers in a session of its own, under its own role; where turns are kept, the
    same call made again finds the same turn."""

    async def consult(request: str, context: ToolContext) -> str:
        key = context.idempotency_key
        session = f"{context.conversation.id}/{agent.id}/{key}"
        kept = {"idempotency_key": key} if atlas.store is not None else {}
        answer: Message = await atlas.ask(request, session=session, agent_id=agent.id, **kept)
        return answer.text

    return Tool(
        name or f"ask_{agent.id}",
        consult,
        description=f"Ask {agent.name}. {agent.description}".strip(),
        parameters={"request": {"type": "string", "description": "All that it needs to know; it sees nothing else."}},
        effect="keyed",
        timeout=300,
    )


def known_lineup(lineup: Lineup, known: Callable[[str], bool]) -> Lineup:
    """ConfigError for one that names somebody who is not there."""
    for agent_id in filter(None, (lineup.agent_id, *lineup.hands_to, *lineup.then)):
        if not known(agent_id):
            raise ConfigError(f"the strategy names an agent {agent_id!r}, and there is none")
    return lineup


def _word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word.casefold())}(?!\w)")
