"""Routing strategies for several agents: they choose which agent starts a turn, which may take over, and which follow.

A strategy only chooses the agents. The turn stays one run with one stream, whichever agents take part.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from atlas_agents.agents.agent import ASK_PARAMETERS, ASK_TIMEOUT, Agent, chain_of_call, read_answer
from atlas_agents.agents.options import HandoffPlan
from atlas_agents.core.aio import is_async
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import UNTRUSTED, Message, user
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool

Strategy: TypeAlias = Callable[[Message, Sequence[Agent]], HandoffPlan]
"""Chooses the agents of a turn from the message and the known agents."""
Predicate: TypeAlias = Callable[[Message], bool]


def by_keywords(table: Mapping[str, Iterable[str]], default: str = "") -> Strategy:
    """Route to the agent with the most keywords in the message, else to the default."""
    patterns = {
        agent_id: [re.compile(rf"(?<!\w){re.escape(word.casefold())}(?!\w)") for word in keywords]
        for agent_id, keywords in table.items()
    }

    def choose(message: Message, agents: Sequence[Agent]) -> HandoffPlan:
        text = message.text.casefold()
        hits = {agent_id: sum(1 for each in group if each.search(text)) for agent_id, group in patterns.items()}
        best = max(hits, key=lambda agent_id: hits[agent_id], default="")
        return HandoffPlan(best if best and hits[best] else default)

    return choose


def by_rules(*rules: tuple[Predicate, str], default: str = "") -> Strategy:
    """Route to the agent of the first rule whose predicate holds for the message, else to the default."""

    def choose(message: Message, agents: Sequence[Agent]) -> HandoffPlan:
        return HandoffPlan(next((agent_id for predicate, agent_id in rules if predicate(message)), default))

    return choose


def supervisor(router: str, *agents: str) -> Strategy:
    """Start with the router, which answers or hands off to one of the agents; without names, to any other.

    If it hands off to several in one reply, each of them answers in turn, and the router joins their answers.
    """

    def choose(message: Message, available: Sequence[Agent]) -> HandoffPlan:
        others = agents or tuple(agent.id for agent in available if agent.id != router)
        return HandoffPlan(router, hands_to=others)

    return choose


def chain(first: str, *then: str) -> Strategy:
    """Run agents one after another, each with the answer of the one before; the last one answers."""

    def choose(message: Message, agents: Sequence[Agent]) -> HandoffPlan:
        return HandoffPlan(first, then=then)

    return choose


def last_speaker(default: str = "", *, hands_to: Iterable[str] = ()) -> Strategy:
    """Continue with the agent that answered last in the session: a hand-off lasts until the next one."""
    others = tuple(hands_to)

    def choose(message: Message, agents: Sequence[Agent]) -> HandoffPlan:
        return HandoffPlan(default, hands_to=others, stays=True)

    return choose


def agent_tool(atlas: Any, agent: Agent, *, name: str = "") -> Tool:
    """Wrap an agent as a tool for other agents. It runs in its own session, with its own role.

    With a store, repeating the same call returns the same turn.
    """

    async def consult(request: str, context: ToolContext) -> str:
        key, chain = context.idempotency_key, chain_of_call(context, agent.id)
        session = f"{context.conversation.id}/{agent.id}/{key}"
        durable = {"idempotency_key": key} if atlas.store is not None else {}
        message = user(request, **({UNTRUSTED: list(context.untrusted)} if context.untrusted else {}))
        stream = atlas.send(message, session=session, agent_id=agent.id, chain=chain, **durable)
        try:
            answer: Message = await stream.reply()
        except asyncio.CancelledError:
            stream.cancel()
            raise
        finally:
            context.add_turn(stream.usage)
        for source in await _untrusted_sources(atlas, session):
            context.mark_untrusted(f"agent: {source}")
        return read_answer(agent.id, answer)

    return Tool(
        name or f"ask_{agent.id}",
        consult,
        description=f"Ask {agent.name}. {agent.description}".strip(),
        parameters=ASK_PARAMETERS,
        effect="keyed",
        timeout=ASK_TIMEOUT,
    )


async def _untrusted_sources(atlas: Any, session: str) -> list[str]:
    """Return the sources of untrusted content in a session."""
    stored = atlas.store is not None
    messages: Sequence[Message] = (
        await atlas.sessions.history(session) if stored else atlas.conversation(session).messages
    )
    return list(dict.fromkeys(source for message in messages for source in message.untrusted))


def check_strategy(strategy: Strategy | None) -> Strategy | None:
    """Return the strategy; raises ConfigError if it is not a plain function."""
    if strategy is not None and (not callable(cast(object, strategy)) or is_async(strategy)):
        raise ConfigError(
            f"invalid routing strategy {strategy!r}: route(…) takes a plain function (def, not async def) of the "
            "message and the agents that returns a HandoffPlan"
        )
    return strategy


def check_plan(plan: object, exists: Callable[[str], bool]) -> HandoffPlan:
    """Return the plan; raises ConfigError if it is of another type, or names an unknown agent."""
    if not isinstance(plan, HandoffPlan):
        raise ConfigError(
            f"the routing strategy returned {plan!r}: expected a HandoffPlan, for example HandoffPlan('agent id')"
        )
    for agent_id in filter(None, (plan.agent_id, *plan.hands_to, *plan.then)):
        if not exists(agent_id):
            raise ConfigError(f"the routing strategy returned an unknown agent {agent_id!r}")
    return plan
