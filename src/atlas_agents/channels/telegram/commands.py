"""What a guest can say to the channel itself: words that begin with a slash."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from atlas_agents.channels.telegram.guest import Guest

Command: TypeAlias = Callable[[Guest, str, int], Awaitable[str]]
HELP = (
    "Write to me, and an agent answers.\n\n"
    "/stop ends what is under way\n"
    "/new begins a new session\n"
    "/agents lists the agents, /agent NAME chooses one"
)


async def _help(guest: Guest, rest: str, update_id: int) -> str:
    return HELP


async def _stop(guest: Guest, rest: str, update_id: int) -> str:
    return "Stopping." if await guest.stop() else "There is nothing to stop."


async def _new(guest: Guest, rest: str, update_id: int) -> str:
    await guest.begin_anew(update_id)
    return "This is a new session."


async def _agents(guest: Guest, rest: str, update_id: int) -> str:
    chosen = guest.visit.agent
    lines = [
        f"{'→' if (agent.id == chosen if chosen else agent.default) else '•'} {agent.id}"
        + (f": {agent.description}" if agent.description else "")
        for agent in await guest.agents()
    ]
    return "\n".join(lines) or "There are no agents."


async def _agent(guest: Guest, rest: str, update_id: int) -> str:
    known = {agent.id.casefold(): agent.id for agent in await guest.agents()}
    found = known.get(rest.casefold())
    if found is None:
        return f"Choose one of them: {', '.join(known.values())}"
    guest.visit.agent = found
    return f"{found} answers from now on."


COMMANDS: dict[str, tuple[str, Command]] = {
    "help": ("What can be said here", _help),
    "start": ("What can be said here", _help),
    "stop": ("End what is under way", _stop),
    "new": ("Begin a new session", _new),
    "agents": ("List the agents", _agents),
    "agent": ("Choose who answers", _agent),
}


def parsed(text: str, bot_name: str) -> tuple[Command, str] | None:
    """The command and what follows it; None if it is none, and for an agent to read."""
    if not text.startswith("/"):
        return None
    word, _, rest = text[1:].partition(" ")
    name, _, bot = word.partition("@")
    if bot and bot.casefold() != bot_name.casefold():
        return None
    found = COMMANDS.get(name.casefold())
    return (found[1], rest.strip()) if found else None
