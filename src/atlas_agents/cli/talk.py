"""The conversation at the prompt: reads a line, takes a turn, and knows a few commands."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from rich.console import Console

from atlas_agents.cli.approve import ask_person, resolve
from atlas_agents.cli.commands import COMMANDS, LEAVE, Place, obey
from atlas_agents.cli.page import Page
from atlas_agents.cli.reach import Here
from atlas_agents.cli.turn import Asked, Ending, Left, remark, take_turn
from atlas_agents.cli.who import headline
from atlas_agents.cli.words import one_line, sentence, trouble
from atlas_agents.client.client import SessionFeed
from atlas_agents.core.errors import GatewayError


class Talk:
    """A conversation with a person; a session that is kept, if the gateway keeps any."""

    def __init__(self, here: Here, place: Place) -> None:
        self._here = here
        self._asking = asyncio.Lock()
        self._place = place
        self._page = Page(Console(highlight=False))
        self._feed: SessionFeed | None = None
        here.hint = self._page.hint

    async def run(self) -> None:
        """Go on until the person leaves."""
        prompt = self._prompt()
        self._page.line(f"Atlas {version('atlas-agents')}: {await headline(self._here, self._place.agent)}", "bold")
        self._page.line("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.", "dim")
        with suppress(Left):
            if self._place.known:
                await self._come_back()
            while (line := await self._line(prompt)) is not None:
                await self._answer(line)

    async def _answer(self, line: str) -> None:
        if is_command(line):
            await self._safely(lambda: obey(line, self._place, self._here, self._page))
            if self._place.moved:
                await self._move()
        elif line:
            await self._safely(lambda: self._say(line))

    async def _line(self, prompt: PromptSession[str]) -> str | None:
        """What the person typed; None when they leave."""
        self._page.line("")
        try:
            line = (await prompt.prompt_async([("bold", "> ")])).strip()
        except (EOFError, KeyboardInterrupt):
            return None
        return None if line in LEAVE else line

    async def _safely(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Left:
            raise
        except Exception as error:  # noqa: BLE001 - whatever broke in this turn, the conversation goes on
            self._page.line(sentence(error), "red")

    async def _say(self, message: str) -> None:
        feed = await self._joined()
        sent = await feed.send(message, agent_id=self._place.agent)
        self._place.known = True
        if sent.status == "queued":
            waiting = max(1, len(feed.positions) - 1)
            self._page.line(f"(queued: {waiting} {'turn is' if waiting == 1 else 'turns are'} before this one)", "dim")
        await self._hear(feed, sent.run_id)

    async def _hear(self, feed: SessionFeed, run_id: str) -> None:
        ending = await take_turn(self._here.client, feed, run_id, self._page, self._decide)
        self._place.last = ending
        self._tell(ending)

    def _tell(self, ending: Ending) -> None:
        choice = self._here.choice
        if ending.error is not None:
            self._page.line(trouble(ending.error, ending.kind, choice.address if choice else ""), "red")
        elif ending.cancelled:
            self._page.line("(stopped: this answer is not kept; the conversation goes on)", "yellow")
        else:
            remark(ending, self._page)

    async def _decide(self, asked: Asked) -> None:
        """Ask the person at the prompt. Ctrl-C there stops the turn, which is a no too."""
        try:
            async with self._asking:  # calls that run side by side may ask at the same time
                while not await resolve(self._here.client, asked, await ask_person(asked, self._page), self._page):
                    pass
        except KeyboardInterrupt:
            with suppress(GatewayError):
                await self._here.client.call("chat.abort", run_id=asked.run_id)

    async def _joined(self) -> SessionFeed:
        if self._feed is None:
            self._feed = self._here.client.follow(self._place.key)
            await self._feed.join()
        return self._feed

    async def _move(self) -> None:
        """Another session from here on."""
        self._place.moved = False
        if self._feed is not None:
            await self._feed.close()
            self._feed = None
        if self._place.known and not self._place.told:
            await self._come_back()

    async def _come_back(self) -> None:
        """Show the end of a session that is known, and what is under way in it."""
        feed = await self._joined()
        label = feed.session.label if feed.session else ""
        self._page.line(f"(session {self._place.key}: {one_line(label, 80) or 'nothing was said yet'})", "dim")
        self._place.show(feed.messages[-6:], self._page)
        waiting = list(feed.positions)
        if len(waiting) > 1:
            self._page.line(f"({len(waiting)} turns are under way or wait)", "dim")
        for run_id in waiting:
            await self._safely(lambda run_id=run_id: self._hear(feed, run_id))

    def _prompt(self) -> PromptSession[str]:
        keys = KeyBindings()

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        return PromptSession(
            history=_history(self._here.settings.home if self._here.settings else None),
            completer=WordCompleter([*COMMANDS, *LEAVE], sentence=True),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            key_bindings=keys,
        )


def _history(home: Path | None) -> History:
    """What was typed before, in a file for its owner only."""
    if home is None:
        return InMemoryHistory()
    path = home / "typed"
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    return FileHistory(str(path)) if os.access(path, os.W_OK) else InMemoryHistory()


def is_command(line: str) -> bool:
    """`/word`, but not a path: people paste those."""
    word = line.split()[0] if line else ""
    return word.startswith("/") and "/" not in word[1:]
