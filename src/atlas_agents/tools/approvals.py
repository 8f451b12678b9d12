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
_ANY_SESSION = ""


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
        self._rules: dict[tuple[str, str, str], str] = {}

    def allowed(self, question: Question) -> str | None:
        """Who allowed exactly this before, for this session or for good; None if nobody, or nobody who counts."""
        for session in (question.session, _ANY_SESSION):
            by = self._rules.get((question.agent_id, session, question.binding))
            if by is not None and self._counts(by, question):
                return by
        return None

    def remember(self, answer: Answer, question: Question, binding: str) -> None:
        """Keep an answer that holds for longer than once: for this agent and exactly that hash."""
        if answer.decision in ("session", "always"):
            session = question.session if answer.decision == "session" else _ANY_SESSION
            self._rules[question.agent_id, session, binding] = answer.by

    def _counts(self, by: str, question: Question) -> bool:
        """Where two persons are needed, one's own yes does not count."""
        return not self.two_person or bool(by and by != question.asked_by)

    async def ask(self, question: Question, clock: Clock) -> Answer:
        """The answer; Declined for a no, for none in time, for nobody to ask, and for one's own yes where two must."""
        if self.approve is None:
            raise Declined(f"{question.tool} needs a yes, and there is nobody to ask")
        answer = _answer(await self._in_time(self.approve, question, clock))
        if answer.decision == "no":
            raise Declined(f"{question.tool} was not approved{_by(answer)}")
        if not self._counts(answer.by, question):
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


def _by(answer: Answer) -> str:
    """Who said no, and why, for the audit log."""
    return (f" by {answer.by}" if answer.by else "") + (f": {answer.reason}" if answer.reason else "")


def _answer(given: Any) -> Answer:
    if isinstance(given, Answer):
        return given if given.decision in _DECISIONS else Answer("no", by=given.by, reason=given.reason)
    if given is True:
        return Answer("once")
    return Answer(cast(Decision, given)) if given in _DECISIONS else Answer("no")
