"""What a run remembers of itself, so that after a sudden end it goes on where it was.

Intent before, outcome after: a call that has its outcome is not made again, one that has only its intent is made again
if its effect allows, and else its outcome is unknown, and said to be.
"""

import weakref
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from atlas_agents.core.conversation import Conversation
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolCall, ToolResult
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddJournal,
    AddMessage,
    ClaimRun,
    JournalRow,
    PutSession,
    RunStatus,
    SetRun,
    Store,
    Write,
)
from atlas_agents.tools.audit import Entry

_read: "weakref.WeakSet[Conversation]" = weakref.WeakSet()
"""Conversations that are in step with the store: this process has read them and keeps them."""
_results = msgspec.json.Decoder(ToolResult)


class Journal:
    """One run's journal in a store. What was read at the start answers from memory; what is added is on the disk when
    the call returns."""

    def __init__(self, store: Store, tenant: str, run_id: str, session: str) -> None:
        self._store = store
        self._tenant = tenant
        self._run_id = run_id
        self._session = session
        self._epoch = 0
        self._waiting: list[Write] = []
        self._replies: list[Message] = []
        self._heard = 0
        self._intents: set[str] = set()
        self._outcomes: dict[str, ToolResult] = {}

    async def begin(self, conversation: Conversation) -> list[Message]:
        """Read the session as it was before this run. Of a run that was cut short, become the owner, remember what it
        had done, and give back the messages it began with; a new one has none."""
        if conversation in _read:
            return []
        rows = await self._store.messages(self._tenant, self._session)
        mine = [Message.from_json(row.body) for row in rows if row.run_id == self._run_id]
        conversation.messages[:] = [Message.from_json(row.body) for row in rows if row.run_id != self._run_id]
        _read.add(conversation)
        if not mine:
            return []
        (self._epoch,) = await self._store.commit(self._tenant, [ClaimRun(self._run_id)])
        for row in await self._store.journal(self._tenant, self._run_id):
            self._remember(row)
        return list(takewhile(lambda message: message.role != "assistant", mine))

    async def accept(self, messages: Sequence[Message], agent_id: str, user: str) -> None:
        """Take the user's message in, the last of these: acknowledged when this returns."""
        body = messages[-1].to_json()
        writes: list[Write] = [
            PutSession(self._session),
            AcceptRun(self._run_id, self._session, agent_id, user, request=body),
            ClaimRun(self._run_id),
            *(AddMessage(self._session, message.id, message.to_json(), self._run_id) for message in messages),
            AddJournal(self._run_id, 1, "accepted", "", body),
        ]
        results = await self._store.commit(self._tenant, writes)
        self._epoch = results[2]

    @property
    def owned(self) -> bool:
        """The run is accepted, and ours."""
        return self._epoch > 0

    def settled_before(self, call: ToolCall, *, repeatable: bool) -> bool:
        """Nothing is left to ask about this call: it has its outcome, or may have and must not be made again."""
        return call.id in self._outcomes or (call.id in self._intents and not repeatable)

    def next_reply(self) -> Message | None:
        """The reply that was heard in this place before, if one was."""
        if self._heard < len(self._replies):
            self._heard += 1
            return self._replies[self._heard - 1]
        return None

    def outcome(self, call: ToolCall) -> ToolResult | None:
        return self._outcomes.get(call.id)

    def intended(self, call: ToolCall) -> bool:
        """It was about to act, or acted, when everything stopped."""
        return call.id in self._intents

    def add(self, message: Message) -> None:
        """Keep a message with the next step; adding it again changes nothing."""
        self._waiting.append(AddMessage(self._session, message.id, message.to_json(), self._run_id))

    async def reply(self, message: Message) -> None:
        """The model has spoken: kept before anything comes of it."""
        self._heard += 1
        self.add(message)
        await self._step("reply", str(self._heard), message.to_json())

    async def intend(self, call: ToolCall) -> None:
        """About to act."""
        if call.id not in self._intents:
            await self._step("intent", call.id, encode(call))

    async def settle(self, call: ToolCall, result: ToolResult, entry: Entry) -> None:
        """It has an outcome: the outcome and its audit row, both or none."""
        await self._step("outcome", call.id, encode(result), AddAudit(encode(entry)))

    async def end(self, status: RunStatus, error: str | None = None) -> None:
        """The turn is over; what it added last is kept with that."""
        await self._step("ended", "", encode({"status": status, "error": error}), end=(status, error))

    async def _step(
        self,
        kind: Any,
        key: str,
        payload: bytes,
        *more: Write,
        end: tuple[RunStatus, str | None] | None = None,
    ) -> None:
        waiting, self._waiting = self._waiting, []  # what is added meanwhile waits for the next step
        writes = [*waiting, AddJournal(self._run_id, self._epoch, kind, key, payload), *more]
        if end is not None:
            writes.append(SetRun(self._run_id, self._epoch, end[0], end[1]))
        try:
            await self._store.commit(self._tenant, writes)
        except BaseException:
            self._waiting[:0] = waiting
            raise

    def _remember(self, row: JournalRow) -> None:
        if row.kind == "reply":
            self._replies.append(Message.from_json(row.payload))
        elif row.kind == "intent":
            self._intents.add(row.key)
        elif row.kind == "outcome":
            self._outcomes[row.key] = _results.decode(row.payload)
