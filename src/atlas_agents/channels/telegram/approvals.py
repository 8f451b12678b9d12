"""Questions of one person: put with buttons, answered once, and closed in the chat whoever answered them."""

import asyncio
import logging
import time
from typing import Any

import msgspec

from atlas_agents.builtin_tools.telegram_api import BotApi, BotRefused, BotUnreachable, send, write
from atlas_agents.builtin_tools.telegram_format import MOST, Styled, bold, code_block, joined, units
from atlas_agents.channels.telegram.delivery import Delivery
from atlas_agents.channels.telegram.state import PendingQuestion, StateFile
from atlas_agents.channels.telegram.types import TelegramMessage
from atlas_agents.client.client import GatewayClient, SessionEvent
from atlas_agents.core.errors import GatewayError
from atlas_agents.core.text import escape_invisible, seen
from atlas_agents.gateway.protocol.events import ApprovalRequested, ApprovalResolved
from atlas_agents.gateway.protocol.sessions import ApprovalsFound, RunPosition
from atlas_agents.gateway.protocol.types import ApprovalShape

YES, NO = "y", "n"
_ROOM = 3000
_MOST_PARTS = 5
_TO_FILL = "It asks for values: give them on the page, or with atlas approvals."
_TOO_LONG = "It is too long to be shown here. Say no, or answer it on the page or with atlas approvals."


class QuestionMessage(msgspec.Struct, frozen=True):
    """What is sent: messages before, and the last one, which has the buttons."""

    before: tuple[Styled, ...]
    last: Styled
    words: str
    """The first line, kept to be shown when it is over."""
    buttons: dict[str, Any]


def sheet(asked: ApprovalShape) -> QuestionMessage:
    """A question as it is put. Every character that is not seen stands as its escape."""
    head = seen(asked.summary.replace("\n", " "))[:200]
    content = "\n".join(
        [f"{escape_invisible(name)[1:-1]} = {escape_invisible(value)}" for name, value in asked.details.items()]
    )
    if asked.preview:
        content = f"{content}\n\n{seen(asked.preview).rstrip()}"
    if asked.form is not None:
        content = seen(asked.preview).rstrip()
    foot = _foot(asked)
    whole = joined(bold(head), "\n\n", code_block(content or "(no arguments)"), "\n\n", foot)
    if units(whole.text) <= MOST:
        return QuestionMessage((), whole, head, _buttons(asked, shown=True))
    chunks = _chunks(content)
    if chunks is None:
        start = code_block(content[:_ROOM].rstrip())
        short = joined(bold(head), "\n\n", start, f"\n\n… {_TOO_LONG}\n\n{foot}")
        return QuestionMessage((), short, head, _buttons(asked, shown=False))
    before = [
        joined(f"{head} ({number} of {len(chunks)})\n\n", code_block(chunk)) for number, chunk in enumerate(chunks, 1)
    ]
    return QuestionMessage(
        tuple(before), joined(bold(head), f"\n\nas shown above\n\n{foot}"), head, _buttons(asked, shown=True)
    )


def over(words: str, how: str) -> Styled:
    """The same message once it is answered."""
    return joined(bold(words), f"\n\n{how}")


def read(data: str) -> tuple[str, str]:
    """Which button of which question was pressed; both empty if it is none of ours."""
    way, _, approval_id = data.partition(":")
    return (way, approval_id) if way in (YES, NO) else ("", "")


def _foot(asked: ApprovalShape) -> str:
    if asked.form is not None and _to_fill(asked):
        return _TO_FILL
    left = max(0, round(asked.expires_at / 1000 - time.time()))
    because = f"because of {seen(asked.risk)[:200]}; " if asked.risk else ""
    return f"in {escape_invisible(asked.working_dir)}\n{because}without an answer it is no, in {left} s"


def _buttons(asked: ApprovalShape, *, shown: bool) -> dict[str, Any]:
    yes = "Once" if asked.form is None else "Accept"
    may = shown and not _to_fill(asked)
    row = [{"text": yes, "callback_data": f"{YES}:{asked.approval_id}"}] if may else []
    return {"inline_keyboard": [[*row, {"text": "Deny", "callback_data": f"{NO}:{asked.approval_id}"}]]}


def _to_fill(asked: ApprovalShape) -> bool:
    """Buttons are not enough: something is needed that is not suggested."""
    fields = asked.form.fields if asked.form is not None else ()
    return any(field.required and field.default is None for field in fields)


def _chunks(content: str) -> list[str] | None:
    """The content in pieces, none with a space at its end, which would be lost; None if that cannot be, or is too
    much."""
    found: list[str] = []
    while content:
        if len(found) == _MOST_PARTS:
            return None
        cut = min(len(content), _ROOM)
        while units(content[:cut]) > _ROOM or content[cut - 1].isspace():
            cut -= 1
            if cut < _ROOM // 4:
                return None
        found.append(content[:cut])
        content = content[cut:]
    return found


logger = logging.getLogger(__name__)
CLOSED = "This question is closed."
NOT_YOURS = "This is not yours to answer."
_PATIENCE = 30.0
_WORDS = {"allow-once": "allowed once", "allow-session": "allowed for the session", "allow-always": "always allowed"}


class ApprovalPrompts:
    """Puts what the gateway asks, and takes answers back to it."""

    def __init__(self, user: int, client: GatewayClient, api: BotApi, notebook: StateFile) -> None:
        self._user = user
        self._client = client
        self._api = api
        self._notebook = notebook
        self._one = asyncio.Lock()
        self._denied: set[str] = set()
        """By this person: of a no, the gateway does not tell whose it was."""

    async def hear(self, event: SessionEvent, delivery: Delivery) -> None:
        """Put a question that is asked, close one that is answered. One at a time, in their order."""
        async with self._one:
            if isinstance(event, ApprovalRequested):
                delivery.waits = True
                await self._put(event.approval_id)
            elif isinstance(event, RunPosition) and event.pending_approval is not None:
                delivery.waits = True
                await self._put(event.pending_approval.approval_id)
            elif isinstance(event, ApprovalResolved):
                delivery.waits = False
                await self._close(event.approval_id, self._how(event))

    async def close(self, run_id: str) -> None:
        """A run has ended: nothing of it is asked any more."""
        async with self._one:
            for approval_id, asked in list(self._notebook.notes.questions.items()):
                if asked.run_id == run_id:
                    await self._close(approval_id, "It is not asked any more.")

    async def clean_up(self) -> None:
        """Close what was answered, or asked no more, while nobody was here."""
        async with self._one:
            pending = await self._pending()
            for approval_id, asked in list(self._notebook.notes.questions.items()):
                if asked.user == self._user and approval_id not in pending:
                    await self._close(approval_id, "It is not asked any more.")

    async def answer(self, approval_id: str, *, yes: bool, under: TelegramMessage) -> str:
        """Take the answer of a button to the gateway, which knows whose question it is; what to say to who pressed it.

        The message need not be the one that was noted: after a sudden end a question may stand there twice.
        """
        try:
            decision = "allow-once" if yes else "deny"
            await self._client.call("approvals.resolve", approval_id=approval_id, decision=decision)
        except GatewayError as trouble:
            if trouble.retryable:
                raise
            return CLOSED if trouble.kind == "APPROVAL_NOT_FOUND" else str(trouble)[:200]
        if not yes:
            self._denied.add(approval_id)
        asked = self._notebook.notes.questions.get(approval_id)
        if asked is None or asked.message != under.message_id:
            words = (under.text or "").partition("\n")[0]
            await self._change(under.message_id, words, "Allowed once, by you." if yes else "Denied, by you.")
        return "Allowed once." if yes else "Denied."

    async def _put(self, approval_id: str) -> None:
        """Ask, unless it stands there already or is not asked any more: what is heard may be long past."""
        questions = self._notebook.notes.questions
        if approval_id in questions or (shape := (await self._pending()).get(approval_id)) is None:
            return
        page = sheet(shape)
        try:
            for part in page.before:
                await send(self._api, self._user, part, patience=_PATIENCE)
            number = await send(self._api, self._user, page.last, patience=_PATIENCE, reply_markup=page.buttons)
        except (BotRefused, BotUnreachable) as trouble:
            logger.warning("a question could not be put in Telegram; it waits on the page: %s", trouble)
            return
        questions[approval_id] = PendingQuestion(self._user, shape.run_id, number, page.words, shape.expires_at)
        await self._notebook.save()

    async def _close(self, approval_id: str, how: str) -> None:
        asked = self._notebook.notes.questions.pop(approval_id, None)
        if asked is not None:
            await self._change(asked.message, asked.words, how)
            await self._notebook.save()

    async def _change(self, message: int, words: str, how: str) -> None:
        """Say under a question what became of it; its buttons go."""
        try:
            text = over(words, how)
            await write(self._api, "editMessageText", text, chat_id=self._user, message_id=message, patience=_PATIENCE)
        except (BotRefused, BotUnreachable) as trouble:
            logger.info("a question that is closed still has its buttons: %s", trouble)

    def _how(self, event: ApprovalResolved) -> str:
        asked = self._notebook.notes.questions.get(event.approval_id)
        if event.approval_id in self._denied:
            return "Denied, by you."
        if event.decision == "dismiss":
            return "It was left unanswered."
        if event.decision == "deny" and not event.by:
            late = asked is not None and time.time() * 1000 >= asked.expires_at - 1000
            return "Nobody answered in time, so it was no." if late else "It was not allowed."
        who = "you" if event.by == f"telegram-{self._user}" else event.by or "somebody"
        return f"{_WORDS.get(event.decision, 'denied').capitalize()}, by {who}."

    async def _pending(self) -> dict[str, ApprovalShape]:
        found = msgspec.convert(await self._client.call("approvals.list"), ApprovalsFound)
        return {each.approval_id: each for each in found.approvals}
