"""Asking a person before a tool acts. A yes is bound to the exact bytes that were shown."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.calling import call as call_user
from atlas_agents.core.clock import Clock
from atlas_agents.core.errors import BadArguments, Declined

Decision: TypeAlias = Literal["once", "session", "always", "no"]
_DECISIONS: tuple[str, ...] = ("once", "session", "always")
_asking: set[asyncio.Task[None]] = set()
"""Kept here until they end: the loop itself would forget an `approve` that was left behind."""


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
    tenant: str = "default"


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
    try:
        canonical = msgspec.json.encode([tool, arguments, where, policy_version], order="deterministic")
        exact = msgspec.json.decode(canonical)[1] == arguments  # NaN would be written as null, and bytes as text
    except (TypeError, ValueError, OverflowError, RecursionError):
        exact, canonical = False, b""
    if not exact:
        raise BadArguments("The arguments are no plain JSON: nobody could say yes to exactly these.")
    return hashlib.sha256(canonical).hexdigest()


class Approvals:
    """Asks, and remembers what was allowed for a session or for good: for exactly that hash, nothing like it."""

    def __init__(self, approve: Approve | None, *, deadline: float = 300.0, two_person: bool = False) -> None:
        self.approve = approve
        self.deadline = deadline
        self.two_person = two_person
        self._rules: dict[tuple[str | None, ...], str] = {}

    def allowed(self, question: Question) -> str | None:
        """Who allowed exactly this before, for this session or for good; None if nobody did."""
        for session in (question.session, None):
            by = self._rules.get(_rule(question, session, question.binding))
            if by is not None:
                return by
        return None

    def remember(self, answer: Answer, question: Question, binding: str) -> None:
        """Keep an answer that holds for longer than once: for exactly that hash, asked for the same user by the same
        agent of the same tenant."""
        if answer.decision in ("session", "always"):
            session = question.session if answer.decision == "session" else None
            self._rules[_rule(question, session, binding)] = answer.by

    async def ask(self, question: Question, clock: Clock) -> Answer:
        """The answer; Declined for a no, for none in time, for nobody to ask, and for one's own yes where two must."""
        if self.approve is None:
            raise Declined(f"{question.tool} needs a yes, and there is nobody to ask")
        answer = _answer(await self._in_time(self.approve, question, clock))
        if answer.decision == "no":
            raise Declined(f"{question.tool} was not approved{_by(answer)}")
        if self.two_person and _name(answer.by) in ("", _name(question.asked_by), _name(question.agent_id)):
            raise Declined(f"{question.tool} needs the yes of a second person")
        return answer

    async def _in_time(self, approve: Approve, question: Question, clock: Clock) -> Any:
        """What was said before the deadline. Only the answer is waited for: an `approve` that goes on after it, or
        after the turn was cancelled, is left behind and not heard any more."""
        heard: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()
        late = Declined(f"nobody answered about {question.tool} within {self.deadline:g} s")
        asking = asyncio.create_task(_put(approve, question, heard))
        _asking.add(asking)
        asking.add_done_callback(_asking.discard)
        alarm = clock.call_later(self.deadline, lambda: heard.done() or heard.set_result((None, late)))
        try:
            answer, error = await heard
        finally:
            alarm.cancel()
            asking.cancel()
        if error is not None:
            raise error
        return answer


async def _put(approve: Approve, question: Question, heard: "asyncio.Future[tuple[Any, BaseException | None]]") -> None:
    """Have the question answered. Nothing is raised here, where SystemExit would end the loop."""
    answer: Any = None
    error: BaseException | None = None
    try:
        answer = await call_user(approve, question)
    except asyncio.CancelledError:
        error = Declined(f"asking about {question.tool} was given up")
    except BaseException as caught:  # noqa: BLE001 - raised again where the answer is awaited
        error = caught
    if not heard.done():
        heard.set_result((answer, error))


def _rule(question: Question, session: str | None, binding: str) -> tuple[str | None, ...]:
    return question.tenant, question.agent_id, question.asked_by, session, binding


def _name(of: str) -> str:
    """A name to compare: `Ana ` is ana."""
    return of.strip().casefold()


def _by(answer: Answer) -> str:
    """Who said no, and why, for the audit log."""
    return (f" by {answer.by}" if answer.by else "") + (f": {answer.reason}" if answer.reason else "")


def _answer(given: Any) -> Answer:
    if isinstance(given, Answer):
        return given if given.decision in _DECISIONS else Answer("no", by=given.by, reason=given.reason)
    if given is True:
        return Answer("once")
    return Answer(cast(Decision, given)) if given in _DECISIONS else Answer("no")
