"""What can be typed at the prompt besides a message."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

import msgspec

from atlas_agents.cli.page import Page
from atlas_agents.cli.reach import Here
from atlas_agents.cli.turn import Ending
from atlas_agents.cli.when import ago
from atlas_agents.cli.who import agents, model_name, pick
from atlas_agents.cli.words import answered, called, for_people, one_line, printable
from atlas_agents.core.messages import new_id
from atlas_agents.gateway.protocol.chat import ChatHistoryPage
from atlas_agents.gateway.protocol.types import MessageShape, TextPart, ToolCallPart, ToolResultPart

LEAVE = ("/exit", "/quit")
_HELP = (
    ("/agents", "who answers, and with which tools"),
    ("/agent ID", "talk to another agent from here on"),
    ("/sessions", "the latest sessions"),
    ("/session KEY", "go on with another session"),
    ("/new", "begin a new conversation"),
    ("/fork", "go on in a copy of this conversation"),
    ("/history", "what was said so far"),
    ("/usage", "tokens of this conversation"),
    ("/quit", "leave; Ctrl-D does too"),
)


class Place:
    """Where the conversation is: its session, and the agent that is to answer if it is not the session's own."""

    def __init__(self, key: str, *, known: bool, agent: str | None = None) -> None:
        self.key = key
        self.known = known
        """Something was said in it."""
        self.agent = agent
        self.last: Ending | None = None
        self.moved = False
        self.told = False
        """What is in it stands on the screen already."""

    def go(self, key: str, *, known: bool, told: bool = False) -> None:
        self.key, self.known, self.told, self.moved, self.last = key, known, told, True, None

    def show(self, messages: Iterable[MessageShape], page: Page) -> None:
        """Messages, each part in its line."""
        names: dict[str, str] = {}
        for message in messages:
            for part in message.parts:
                match part:
                    case TextPart(text) if text.strip():
                        page.line(f"{'you' if message.role == 'user' else message.role}: {printable(text)}")
                    case ToolCallPart(id, name, arguments):
                        names[id] = name
                        page.line(called(name, arguments), "cyan")
                    case ToolResultPart(call_id, status, result, error):
                        page.line(answered(names.get(call_id, "?"), status, result, error), "dim")
                    case _:
                        pass


Command: TypeAlias = Callable[[str, Place, Here, Page], Awaitable[None]]


async def obey(line: str, place: Place, here: Here, page: Page) -> None:
    """Do what a line that begins with / says."""
    word, _, rest = line.partition(" ")
    command = COMMANDS.get(word)
    if command is None:
        page.line(f"There is no command {one_line(word)}: /help lists them.", "yellow")
    else:
        await command(rest.strip(), place, here, page)


async def _help(_: str, place: Place, here: Here, page: Page) -> None:
    for command, words in _HELP:
        page.line(f"{command:<13} {words}")
    page.line("Ctrl-C        stops an answer, and pressed twice leaves; empties the line, or leaves when it is empty")


async def _agents(_: str, place: Place, here: Here, page: Page) -> None:
    for agent in await agents(here):
        tools = ", ".join(agent["tools"]) or "none"
        chosen = here.choice
        model = f"{chosen.name} ({chosen.why})" if chosen else model_name(agent["model"])
        sign = "* " if place.agent == agent["id"] or (place.agent is None and agent.get("default")) else ""
        page.line(f"{sign}{agent['id']}: {model}; tools: {tools}")
        if agent.get("notice"):
            page.line(f"  {one_line(for_people(agent['notice']), 400)}", "yellow")


async def _agent(name: str, place: Place, here: Here, page: Page) -> None:
    found = pick(await agents(here), name or place.agent)
    place.agent = found["id"]
    if place.known and name:
        await here.client.call("sessions.update", session_key=place.key, agent_id=found["id"])
    page.line(f"{found['id']} answers with {model_name(found['model'])}.", "dim")


async def _sessions(_: str, place: Place, here: Here, page: Page) -> None:
    found = (await here.client.call("sessions.list", limit=10))["sessions"]
    for session in found:
        sign = "*" if session["sessionKey"] == place.key else " "
        label = one_line(session["label"], 60) or "(no name)"
        page.line(f"{sign} {session['sessionKey']}  {ago(session['updatedAt'])}  {label}")
    if not found:
        page.line("There are no sessions yet.", "dim")


async def _session(key: str, place: Place, here: Here, page: Page) -> None:
    if not key:
        page.line(f"This is the session {place.key}." if place.known else "Nothing was said yet.", "dim")
        return
    await here.client.call("sessions.get", session_key=key)
    place.go(key, known=True)


async def _new(_: str, place: Place, here: Here, page: Page) -> None:
    place.go(new_id(), known=False)
    page.line("A new conversation begins.", "dim")


async def _fork(_: str, place: Place, here: Here, page: Page) -> None:
    if not place.known:
        page.line("Nothing was said yet, so there is nothing to copy.", "yellow")
        return
    copy = (await here.client.call("sessions.fork", session_key=place.key))["sessionKey"]
    place.go(copy, known=True, told=True)
    page.line(f"From here on in a copy: session {copy}. The other one stays as it is.", "dim")


async def _history(_: str, place: Place, here: Here, page: Page) -> None:
    if not place.known:
        page.line("Nothing was said yet.", "dim")
        return
    found = msgspec.convert(await here.client.call("chat.history", session_key=place.key, limit=500), ChatHistoryPage)
    if found.has_more:
        page.line("(there is more before this)", "dim")
    place.show(found.messages, page)


async def _usage(_: str, place: Place, here: Here, page: Page) -> None:
    rows = (await here.client.call("usage.summary", group_by="session"))["rows"]
    for row in rows:
        if row["name"] == place.key:
            turns = "1 turn" if row["turns"] == 1 else f"{row['turns']} turns"
            words = f"{turns}: {row['inputTokens']:,} tokens in, {row['outputTokens']:,} out"
            cost = f", {row['costMicrocents'] / 1e8:.4f} $" if row["costMicrocents"] else ""
            page.line(words + cost)
            return
    page.line("Nothing was used yet.", "dim")


COMMANDS: dict[str, Command] = {
    "/help": _help,
    "/agents": _agents,
    "/agent": _agent,
    "/sessions": _sessions,
    "/session": _session,
    "/new": _new,
    "/reset": _new,
    "/fork": _fork,
    "/history": _history,
    "/usage": _usage,
}
