"""Delivery of an answer to a chat: shown while it streams, complete at the end, and not repeated after a crash.

Telegram has no idempotency key for sending a message, but a message that exists can be edited any number of times.
So the state is saved before and after each message is sent; from then on the message is only edited.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from atlas_agents.builtin_tools.telegram_api import BotApi, BotApiError, BotUnreachable, call_with_text, send_message
from atlas_agents.builtin_tools.telegram_format import MAX_LENGTH, FormattedText, concat, parse_markdown, split_message
from atlas_agents.channels.telegram.state import PendingDelivery, StateFile
from atlas_agents.client import SessionEvent
from atlas_agents.core.http import backoff
from atlas_agents.core.messages import STEERING_RUN
from atlas_agents.gateway.protocol.events import ChatDelta, ChatError, ChatFinal, ChatMessage, ChatReset
from atlas_agents.gateway.protocol.sessions import RunPosition
from atlas_agents.gateway.protocol.types import MessageShape, Part, TextPart, ToolCallPart

logger = logging.getLogger(__name__)
T = TypeVar("T")
_SENT_AGAIN = "(Sent again: the first attempt may have arrived too.)\n\n"
_REMOVED = FormattedText("(removed)")
_MAX_PARTS = 40


class TelegramTiming(msgspec.Struct, frozen=True):
    """Intervals in seconds. The default edit interval respects Telegram's limit of about one message a second."""

    edit: float = 1.5  # between two edits of a message
    typing: float = 4.5  # between two typing indicators
    poll: int = 50  # for which Telegram holds a long poll
    min_delay: float = 1.0  # before the first retry
    max_delay: float = 60.0
    watch: float = 1.0  # between two reads of the paired users


TIMING = TelegramTiming()


class MessageBuffer:
    """Text buffer of an answer: its complete messages and the one that is streaming. `done` after the last event.

    Text after a steering message is a separate text, so that it is shown below that message.
    """

    def __init__(self) -> None:
        self.done = False
        self._complete: list[dict[str, str]] = [{}]
        self._partial = ""
        self._note = ""

    @property
    def texts(self) -> list[str]:
        *earlier, last = [list(messages.values()) for messages in self._complete]
        return [text for each in (*earlier, [*last, self._partial, self._note]) if (text := _joined(each))]

    def add(self, event: SessionEvent) -> None:
        match event:
            case ChatDelta(text=text):
                self._partial += text
            case ChatReset():
                self._partial = ""
            case RunPosition(parts=parts):
                self._partial = _text(parts or ())
            case ChatMessage(message=message):
                self._add_message(message)
            case ChatFinal():
                self._finish(event)
            case ChatError(message=message):
                self.done, self._note = True, f"(Failed: {message})"
            case _:
                pass

    def _add_message(self, message: MessageShape) -> None:
        if message.role == "assistant":
            self._complete[-1][message.id] = f"{_text(message.parts)}\n\n{message.refusal}"
            self._partial = ""
        elif STEERING_RUN in message.metadata:
            self._complete.append({})

    def _finish(self, final: ChatFinal) -> None:
        self.done = True
        if final.entered_run_id is not None:  # the delivery of that run has the answer
            return
        if final.message is not None:
            self._add_message(final.message)
            if any(isinstance(part, ToolCallPart) for part in final.message.parts):
                self._note = "(Stopped: the limit of rounds per turn is reached.)"
        if final.cancelled:
            self._note = "(Stopped.)"
        elif not self.texts:
            self._note = "(No answer.)"


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in map(str.strip, texts) if text)


def _text(parts: tuple[Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


class Delivery:
    """Receives the events of a run and keeps the messages of its answer in the chat up to date."""

    def __init__(
        self, run_id: str, pending: PendingDelivery, api: BotApi, state_file: StateFile, timing: TelegramTiming
    ) -> None:
        self.run_id = run_id
        self.pending = pending
        self.awaited_approvals: set[str] = set()
        """Whether the typing indicator is suppressed."""
        self._api = api
        self._state_file = state_file
        self._timing = timing
        self._buffer = MessageBuffer()
        self._changed = asyncio.Event()
        self._done = asyncio.Event()
        self._shown: dict[int, FormattedText] = {}

    def add(self, event: SessionEvent) -> None:
        self._buffer.add(event)
        self._changed.set()
        if self._buffer.done:
            self._done.set()

    async def run(self) -> None:
        """Deliver the answer until it is complete, or Telegram rejects it for good."""
        typing = asyncio.create_task(self._show_typing())
        try:
            while not await self._sync():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._done.wait(), self._timing.edit)
        except BotApiError as error:
            logger.warning("answer not delivered to Telegram: run=%s error=%s", self.run_id, error.advice)
        finally:
            typing.cancel()
        self._state_file.state.deliveries.pop(self.run_id, None)
        await self._state_file.save()

    async def _sync(self) -> bool:
        """Wait for a change and show it; return whether the answer is complete."""
        await self._changed.wait()
        self._changed.clear()
        done = self._buffer.done
        limit = MAX_LENGTH - len(_SENT_AGAIN)
        split = [split_message(parse_markdown(text), limit) for text in self._buffer.texts]
        parts = [part for each in split for part in each][:_MAX_PARTS]
        for index, part in enumerate(parts):
            if index >= len(self.pending.messages):
                await self._retry(lambda part=part: self._send(part))
            elif self._shown.get(index) != part:
                await self._retry(lambda index=index, part=part: self._edit(index, part))
            self._shown[index] = part
        if done:
            for index in range(len(parts), len(self.pending.messages)):
                await self._retry(lambda index=index: self._edit(index, _REMOVED))
        return done

    async def _send(self, part: FormattedText) -> None:
        pending = self.pending
        if pending.sending:
            part = concat(_SENT_AGAIN, part)
        pending.sending = True
        await self._state_file.save()
        try:
            pending.messages.append(await send_message(self._api, pending.user, part))
            pending.sending = False
        except BotApiError:
            pending.sending = False
            raise
        except BotUnreachable as error:
            pending.sending = error.sent
            raise
        await self._state_file.save()

    async def _edit(self, index: int, part: FormattedText) -> None:
        message = self.pending.messages[index]
        try:
            await call_with_text(self._api, "editMessageText", part, chat_id=self.pending.user, message_id=message)
        except BotApiError as error:
            if error.status != 400:
                raise
            if "not modified" not in error.description:  # the message was deleted, or is too old to edit
                logger.info("Telegram message not edited: message=%d error=%s", message, error.description)

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry with backoff until Telegram accepts or rejects the request."""
        attempt = 0
        while True:
            delay = backoff(attempt, self._timing.min_delay, self._timing.max_delay)
            try:
                return await work()
            except BotApiError as error:
                if error.status != 429:
                    raise
                await asyncio.sleep(min(error.retry_after or delay, 10 * self._timing.max_delay))
            except BotUnreachable as error:
                logger.info("Telegram delivery delayed: run=%s error=%s", self.run_id, error)
                await asyncio.sleep(delay)
                attempt += 1

    async def _show_typing(self) -> None:
        while not self._buffer.done:
            if not self.awaited_approvals:
                with suppress(BotApiError, BotUnreachable):
                    await self._api.call("sendChatAction", chat_id=self.pending.user, action="typing")
            await asyncio.sleep(self._timing.typing)
