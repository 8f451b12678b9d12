"""An answer on its way to a chat: shown while it grows, whole at its end, and not twice over a sudden end.

Telegram has no key under which a message is sent only once, but a message that is there can be changed as often as one
likes. So each message is written down before it is sent and after, and from then on it is only changed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from atlas_agents.builtin_tools.telegram_api import BotApi, BotRefused, BotUnreachable, send, write
from atlas_agents.builtin_tools.telegram_format import MOST, Styled, joined, pieces, styled
from atlas_agents.channels.telegram.state import PendingDelivery, StateFile
from atlas_agents.channels.telegram.types import TelegramTiming
from atlas_agents.client.client import SessionEvent
from atlas_agents.core.http import backoff
from atlas_agents.gateway.protocol.events import ChatDelta, ChatError, ChatFinal, ChatMessage, ChatReset
from atlas_agents.gateway.protocol.sessions import RunPosition
from atlas_agents.gateway.protocol.types import MessageShape, Part, TextPart, ToolCallPart


class MessageBuffer:
    """Messages that are complete, and the one under way. `over` when nothing more comes."""

    def __init__(self) -> None:
        self.over = False
        self._complete: dict[str, str] = {}
        self._now = ""
        self._remark = ""

    @property
    def text(self) -> str:
        pieces = [*self._complete.values(), self._now, self._remark]
        return "\n\n".join(piece for piece in map(str.strip, pieces) if piece)

    def hear(self, event: SessionEvent) -> None:
        match event:
            case ChatDelta(text=text):
                self._now += text
            case ChatReset():
                self._now = ""
            case RunPosition(parts=parts):
                self._now = _text(parts or ())
            case ChatMessage(message=message):
                self._add(message)
            case ChatFinal():
                self._end(event)
            case ChatError(message=words):
                self.over, self._remark = True, f"(It failed: {words})"
            case _:
                pass

    def _add(self, message: MessageShape) -> None:
        if message.role == "assistant":
            self._complete[message.id] = _text(message.parts)
            self._now = ""

    def _end(self, last: ChatFinal) -> None:
        self.over = True
        if last.message is not None:
            self._add(last.message)
            if any(isinstance(part, ToolCallPart) for part in last.message.parts):
                self._remark = "(It stopped here: all its rounds are spent.)"
        if last.cancelled:
            self._remark = "(Stopped.)"
        elif not self.text:
            self._remark = "(There is no answer.)"


def _text(parts: tuple[Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


logger = logging.getLogger(__name__)
T = TypeVar("T")
_AGAIN = "(Once more: it is not known whether this was sent before.)\n\n"
_GONE = Styled("(withdrawn)")
_MOST_PARTS = 40


class Delivery:
    """Hears a run, and keeps the messages of its answer as they should be."""

    def __init__(
        self, run_id: str, owed: PendingDelivery, api: BotApi, notebook: StateFile, pace: TelegramTiming
    ) -> None:
        self.run_id = run_id
        self.owed = owed
        self.waits = False
        """A question is open: nobody types."""
        self._api = api
        self._notebook = notebook
        self._pace = pace
        self._words = MessageBuffer()
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
        attempt = 0
        while True:
            pause = backoff(attempt, self._pace.first, self._pace.most)
            try:
                return await work()
            except BotRefused as refused:
                if refused.status != 429:
                    raise
                await asyncio.sleep(min(refused.retry_after or pause, 10 * self._pace.most))
            except BotUnreachable as lost:
                logger.info("an answer waits: %s", lost)
                await asyncio.sleep(pause)
                attempt += 1

    async def _type(self) -> None:
        while not self._words.over:
            if not self.waits:
                with suppress(BotRefused, BotUnreachable):
                    await self._api.call("sendChatAction", chat_id=self.owed.user, action="typing")
            await asyncio.sleep(self._pace.typing)
