"""Asking a person before a tool acts. A yes is bound to the exact bytes that were shown."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.calling import call as call_user
from atlas_agents.core.clock import Clock
from atlas_agents.core.errors import Declined

Decision: TypeAlias = Literal["once", "session", "always", "no"]
_DECISIONS: tuple[str, ...] = ("once", "session", "always")


class Question(msgspec.Struct, frozen=True):
    """What a person is asked: the tool, the exact arguments, and until when an answer counts."""

    title: str
    message: str
    tool: str
    arguments: dict[str, Any]
    binding: str
    call_id: str
    run_id: str
    agent_id: str
    session: str
    asked_by: str
    expires_at: float
    working_directory: str
    reason: str = ""
    options: tuple[Decision, ...] = ("once", "session", "always", "no")


class Answer(msgspec.Struct, frozen=True):
    """What the person said. `arguments` are edited ones to use instead; `by` is who answered."""

    decision: Decision
    arguments: dict[str, Any] | None = None
    by: str = ""
    reason: str = ""


Approve: TypeAlias = Callable[[Question], Any]
"""Sync or async; gives an Answer, one of the words, or True for once. Anything else is a no."""


def binding(tool: str, arguments: dict[str, Any], policy_version: str, directory: str | None = None) -> str:
    """The hash that a yes is for: tool, canonical arguments, working directory and policy version."""
    where = os.path.realpath(directory or os.getcwd())
    canonical = msgspec.json.encode([tool, arguments, where, policy_version], order="deterministic")
    return hashlib.sha256(canonical).hexdigest()


class Approvals:
    """Asks, and remembers what was allowed for a session or for good: for exactly that hash, nothing like it."""

    def __init__(self, approve: Approve | None, *, deadline: float = 300.0, two_person: bool = False) -> None:
        self.approve = approve
        self.deadline = deadline
        self.two_person = two_person
        self._session: set[tuple[str, str]] = set()
        self._always: set[str] = set()

    def allowed(self, session: str, hash: str) -> bool:
        return hash in self._always or (session, hash) in self._session

    def remember(self, decision: Decision, session: str, hash: str) -> None:
        if decision == "session":
            self._session.add((session, hash))
        elif decision == "always":
            self._always.add(hash)

    async def ask(self, question: Question, clock: Clock) -> Answer:
        """The answer; Declined for a no, for none in time, for nobody to ask, and for one's own yes where two must."""
        if self.approve is None:
            raise Declined(f"{question.tool} needs a yes, and there is nobody to ask")
        answer = _answer(await self._in_time(self.approve, question, clock))
        if answer.decision == "no":
            raise Declined(f"{question.tool} was not approved")
        if self.two_person and (not answer.by or answer.by == question.asked_by):
            raise Declined(f"{question.tool} needs the yes of a second person")
        return answer

    async def _in_time(self, approve: Approve, question: Question, clock: Clock) -> Any:
        asking = asyncio.ensure_future(call_user(approve, question))
        alarm = clock.call_later(self.deadline, asking.cancel)
        try:
            return await asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # not the deadline: the turn itself was cancelled
                asking.cancel()
                raise
            raise Declined(f"nobody answered about {question.tool} within {self.deadline:g} s") from None
        finally:
            alarm.cancel()


def _answer(given: Any) -> Answer:
    if isinstance(given, Answer):
        return given if given.decision in _DECISIONS else Answer("no", by=given.by, reason=given.reason)
    if given is True:
        return Answer("once")
    return Answer(cast(Decision, given)) if given in _DECISIONS else Answer("no")
