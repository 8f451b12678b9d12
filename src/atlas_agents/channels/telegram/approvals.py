"""Approval requests of one user: shown with buttons, resolved once, and closed in the chat when they are resolved."""

import asyncio
import logging
import time
from typing import Any

import msgspec

from atlas_agents.builtin_tools.telegram_api import (
    BotApi,
    BotApiError,
    BotUnreachable,
    TelegramMessage,
    call_with_text,
    send_message,
)
from atlas_agents.builtin_tools.telegram_format import MAX_LENGTH, FormattedText, bold, code_block, concat, utf16_length
from atlas_agents.channels.telegram.delivery import Delivery
from atlas_agents.channels.telegram.state import PendingQuestion, StateFile
from atlas_agents.client import GatewayClient, SessionEvent
from atlas_agents.core.errors import GatewayError
from atlas_agents.core.text import escape_invisible, escape_text
from atlas_agents.gateway.protocol.events import ApprovalRequested, ApprovalResolved
from atlas_agents.gateway.protocol.sessions import ApprovalsResult, RunPosition
from atlas_agents.gateway.protocol.types import ApprovalShape

logger = logging.getLogger(__name__)
ALLOW, DENY = "y", "n"
CLOSED = "This request is already closed."
NOT_ALLOWED = "You cannot answer this request."
_MAX_CHUNK = 3000
_MAX_CHUNKS = 5
_MAX_RATE_LIMIT_WAIT = 30.0
_NEEDS_VALUES = "This form needs values: complete it in the web UI, or run: atlas approvals"
_TOO_LONG = "Too long to show here. Deny the request, or answer it in the web UI or with: atlas approvals"
_NO_LONGER_NEEDED = "No longer needed."
_ALLOWED = {"allow-once": "Allowed once", "allow-session": "Allowed for session", "allow-always": "Always allowed"}


class ApprovalMessage(msgspec.Struct, frozen=True):
    """An approval request as Telegram messages; the last one has the buttons."""

    before: tuple[FormattedText, ...]
    last: FormattedText
    title: str
    """The first line, which stays when the request is closed."""
    buttons: dict[str, Any]


def format_request(request: ApprovalShape) -> ApprovalMessage:
    """Format an approval request. Invisible characters are shown as escapes."""
    title = escape_text(request.summary.replace("\n", " "))[:200]
    content = "\n".join(
        [f"{escape_invisible(name)[1:-1]} = {escape_invisible(value)}" for name, value in request.details.items()]
    )
    if request.preview:
        content = f"{content}\n\n{escape_text(request.preview).rstrip()}"
    if request.form is not None:
        content = escape_text(request.preview).rstrip()
    footer = _format_footer(request)
    whole = concat(bold(title), "\n\n", code_block(content or "(no arguments)"), "\n\n", footer)
    if utf16_length(whole.text) <= MAX_LENGTH:
        return ApprovalMessage((), whole, title, _buttons(request, complete=True))
    chunks = _split_content(content)
    if chunks is None:
        start = code_block(content[:_MAX_CHUNK].rstrip())
        short = concat(bold(title), "\n\n", start, f"\n\n… {_TOO_LONG}\n\n{footer}")
        return ApprovalMessage((), short, title, _buttons(request, complete=False))
    before = [
        concat(f"{title} ({number} of {len(chunks)})\n\n", code_block(chunk)) for number, chunk in enumerate(chunks, 1)
    ]
    last = concat(bold(title), f"\n\nThe full content is shown above.\n\n{footer}")
    return ApprovalMessage(tuple(before), last, title, _buttons(request, complete=True))


def parse_callback_data(data: str) -> tuple[str, str]:
    """Return the request and the button of a callback; both are empty for unknown data."""
    button, _, approval_id = data.partition(":")
    return (button, approval_id) if button in (ALLOW, DENY) else ("", "")


def _format_footer(request: ApprovalShape) -> str:
    if _needs_values(request):
        return _NEEDS_VALUES
    left = max(0, round(request.expires_at / 1000 - time.time()))
    reason = f"Reason: {escape_text(request.risk)[:200]}\n" if request.risk else ""
    return f"Folder: {escape_invisible(request.working_dir)}\n{reason}Denied automatically in {left} s."


def _buttons(request: ApprovalShape, *, complete: bool) -> dict[str, Any]:
    label = "Allow once" if request.form is None else "Accept"
    allow = {"text": label, "callback_data": f"{ALLOW}:{request.approval_id}"}
    deny = {"text": "Deny", "callback_data": f"{DENY}:{request.approval_id}"}
    return {"inline_keyboard": [[allow, deny] if complete and not _needs_values(request) else [deny]]}


def _needs_values(request: ApprovalShape) -> bool:
    """Return whether a required field of the form has no default, so that a button cannot answer it."""
    fields = request.form.fields if request.form is not None else ()
    return any(field.required and field.default is None for field in fields)


def _split_content(content: str) -> list[str] | None:
    """Split into chunks without trailing whitespace, which Telegram removes; None if that is impossible or too long."""
    found: list[str] = []
    while content:
        if len(found) == _MAX_CHUNKS:
            return None
        cut = min(len(content), _MAX_CHUNK)
        while utf16_length(content[:cut]) > _MAX_CHUNK or content[cut - 1].isspace():
            cut -= 1
            if cut < _MAX_CHUNK // 4:
                return None
        found.append(content[:cut])
        content = content[cut:]
    return found


class ApprovalPrompts:
    """Shows the approval requests of the gateway to a user, and sends the user's decisions to the gateway."""

    def __init__(self, user: int, client: GatewayClient, api: BotApi, state_file: StateFile) -> None:
        self._user = user
        self._client = client
        self._api = api
        self._state_file = state_file
        self._lock = asyncio.Lock()
        self._denied: set[str] = set()
        """Requests that this user denied: the gateway does not report who denied a request."""

    async def handle(self, event: SessionEvent, delivery: Delivery) -> None:
        """Show a new request, or close a resolved one. Events are handled one at a time, in order."""
        async with self._lock:
            if isinstance(event, ApprovalRequested):
                delivery.awaited_approvals.add(event.approval_id)
                await self._show(event.approval_id)
            elif isinstance(event, RunPosition):
                delivery.awaited_approvals = {each.approval_id for each in event.pending_approvals}
                for each in event.pending_approvals:
                    await self._show(each.approval_id)
            elif isinstance(event, ApprovalResolved):
                delivery.awaited_approvals.discard(event.approval_id)
                await self._close(event.approval_id, self._describe_outcome(event))

    async def close(self, run_id: str) -> None:
        """Close the requests of a run that has ended."""
        async with self._lock:
            for approval_id, question in list(self._state_file.state.questions.items()):
                if question.run_id == run_id:
                    await self._close(approval_id, _NO_LONGER_NEEDED)

    async def clean_up(self) -> None:
        """Close the requests that were resolved or dropped while the channel was not running."""
        async with self._lock:
            pending = await self._pending()
            for approval_id, question in list(self._state_file.state.questions.items()):
                if question.user == self._user and approval_id not in pending:
                    await self._close(approval_id, _NO_LONGER_NEEDED)

    async def resolve(self, approval_id: str, *, allow: bool, message: TelegramMessage) -> str:
        """Send a decision to the gateway, which checks that the user may decide; return the reply to the user.

        The message may differ from the recorded one: after a crash a request can be in the chat twice.
        """
        try:
            decision = "allow-once" if allow else "deny"
            await self._client.call("approvals.resolve", approval_id=approval_id, decision=decision)
        except GatewayError as error:
            if error.retryable:
                raise
            return CLOSED if error.kind == "APPROVAL_NOT_FOUND" else str(error)[:200]
        if not allow:
            self._denied.add(approval_id)
        outcome = "Allowed once" if allow else "Denied"
        question = self._state_file.state.questions.get(approval_id)
        if question is None or question.message != message.message_id:
            title = (message.text or "").partition("\n")[0]
            await self._edit(message.message_id, title, f"{outcome} by you.")
        return f"{outcome}."

    async def _show(self, approval_id: str) -> None:
        """Send a request to the chat, unless it is there already or no longer pending: events may be old."""
        questions = self._state_file.state.questions
        if approval_id in questions or (request := (await self._pending()).get(approval_id)) is None:
            return
        prompt = format_request(request)
        try:
            for part in prompt.before:
                await send_message(self._api, self._user, part, max_wait=_MAX_RATE_LIMIT_WAIT)
            message = await send_message(
                self._api, self._user, prompt.last, max_wait=_MAX_RATE_LIMIT_WAIT, reply_markup=prompt.buttons
            )
        except (BotApiError, BotUnreachable) as error:
            logger.warning("approval request not sent to Telegram: approval=%s error=%s", approval_id, error)
            return
        questions[approval_id] = PendingQuestion(self._user, request.run_id, message, prompt.title, request.expires_at)
        await self._state_file.save()

    async def _close(self, approval_id: str, outcome: str) -> None:
        question = self._state_file.state.questions.pop(approval_id, None)
        if question is not None:
            await self._edit(question.message, question.title, outcome)
            await self._state_file.save()

    async def _edit(self, message: int, title: str, outcome: str) -> None:
        """Replace a request and its buttons with its outcome."""
        text = concat(bold(title), f"\n\n{outcome}")
        params = {"chat_id": self._user, "message_id": message, "max_wait": _MAX_RATE_LIMIT_WAIT}
        try:
            await call_with_text(self._api, "editMessageText", text, **params)
        except (BotApiError, BotUnreachable) as error:
            logger.info("buttons of a closed request not removed: message=%d error=%s", message, error)

    def _describe_outcome(self, event: ApprovalResolved) -> str:
        question = self._state_file.state.questions.get(event.approval_id)
        if event.approval_id in self._denied:
            return "Denied by you."
        if event.decision == "dismiss":
            return "Dismissed."
        if event.decision == "deny" and not event.by:
            expired = question is not None and time.time() * 1000 >= question.expires_at - 1000
            return "Denied: no answer in time." if expired else "Denied."
        who = "you" if event.by == f"telegram-{self._user}" else event.by or "another user"
        return f"{_ALLOWED.get(event.decision, 'Denied')} by {who}."

    async def _pending(self) -> dict[str, ApprovalShape]:
        found = msgspec.convert(await self._client.call("approvals.list"), ApprovalsResult)
        return {each.approval_id: each for each in found.approvals}
