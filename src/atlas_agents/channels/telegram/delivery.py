"""An answer on its way to a chat: shown while it grows, whole at its end, and not twice over a sudden end.

Telegram has no key under which a message is sent only once, but a message that is there can be changed as often as one
likes. So each message is written down before it is sent and after, and from then on it is only changed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from atlas_agents.channels.telegram.notes import Notebook, Owed
from atlas_agents.channels.telegram.pace import Pace
from atlas_agents.channels.telegram.words import Words
from atlas_agents.client.feed import SessionEvent
from atlas_agents.toolbox.telegram.api import BotApi, BotRefused, BotUnreachable
from atlas_agents.toolbox.telegram.markdown import Styled, joined, styled
from atlas_agents.toolbox.telegram.pieces import MOST, pieces
from atlas_agents.toolbox.telegram.writing import send, write

logger = logging.getLogger(__name__)
T = TypeVar("T")
_AGAIN = "(Once more: it is not known whether this was sent before.)\n\n"
_GONE = Styled("(withdrawn)")
_MOST_PARTS = 40


class Delivery:
    """Hears a run, and keeps the messages of its answer as they should be."""

    def __init__(self, run_id: str, owed: Owed, api: BotApi, notebook: Notebook, pace: Pace) -> None:
        self.run_id = run_id
        self.owed = owed
        self.waits = False
        """A question is open: nobody types."""
        self._api = api
        self._notebook = notebook
        self._pace = pace
        self._words = Words()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._shown: dict[int, Styled] = {}

    def hear(self, event: SessionEvent) -> None:
        self._words.hear(event)
        self._news.set()
        if self._words.over:
            self._over.set()

    async def run(self) -> None:
        """Until all of it is in the chat, or it is clear that it never will be."""
        typing = asyncio.create_task(self._type())
        try:
            while not await self._step():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), self._pace.edit)
        except BotRefused as refused:
            logger.warning("an answer does not reach its chat: %s", refused.advice)
        finally:
            typing.cancel()
        self._notebook.notes.owed.pop(self.run_id, None)
        await self._notebook.save()

    async def _step(self) -> bool:
        """Show what is new; whether it was the last of it."""
        await self._news.wait()
        self._news.clear()
        over = self._words.over
        parts = pieces(styled(self._words.text), MOST - len(_AGAIN))[:_MOST_PARTS]
        for place, part in enumerate(parts):
            if place >= len(self.owed.messages):
                await self._insist(lambda part=part: self._send(part))
            elif self._shown.get(place) != part:
                await self._insist(lambda place=place, part=part: self._edit(place, part))
            self._shown[place] = part
        if over:
            for place in range(len(parts), len(self.owed.messages)):
                await self._insist(lambda place=place: self._edit(place, _GONE))
        return over

    async def _send(self, part: Styled) -> None:
        owed = self.owed
        if owed.sending:
            part = joined(_AGAIN, part)
        owed.sending = True
        await self._notebook.save()
        try:
            owed.messages.append(await send(self._api, owed.user, part))
            owed.sending = False
        except BotRefused:
            owed.sending = False
            raise
        except BotUnreachable as lost:
            owed.sending = lost.sent
            raise
        await self._notebook.save()

    async def _edit(self, place: int, part: Styled) -> None:
        number = self.owed.messages[place]
        try:
            await write(self._api, "editMessageText", part, chat_id=self.owed.user, message_id=number)
        except BotRefused as refused:
            if refused.status != 400:
                raise
            if "not modified" not in refused.description:  # it was taken away, or is too old
                logger.info("a message could not be changed: %s", refused.description)

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try until Telegram has said yes or no."""
        pause = self._pace.first
        while True:
            try:
                return await work()
            except BotRefused as refused:
                if refused.status != 429:
                    raise
                await asyncio.sleep(min(refused.retry_after or pause, 10 * self._pace.most))
            except BotUnreachable as lost:
                logger.info("an answer waits: %s", lost)
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._pace.most)

    async def _type(self) -> None:
        while not self._words.over:
            if not self.waits:
                with suppress(BotRefused, BotUnreachable):
                    await self._api.call("sendChatAction", chat_id=self.owed.user, action="typing")
            await asyncio.sleep(self._pace.typing)
