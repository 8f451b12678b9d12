"""Asking a person before a tool acts. A yes is bound to the exact bytes that were shown."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import BackgroundTasks, Clock
from atlas_agents.core.aio import invoke as call_user
from atlas_agents.core.approvals import Answer, Decision, Question
from atlas_agents.core.errors import BadArguments, Declined

_DECISIONS: tuple[str, ...] = ("once", "session", "always", "dismiss")
_NOES = ("no", "dismiss")
_asking = BackgroundTasks("approve function")
"""Kept here until they end: the loop itself would forget an `approve` that was left behind."""


Approve: TypeAlias = Callable[[Question], Any]
"""Sync or async; gives an Answer, one of the words, or True for once. Anything else is a no."""
Heard: TypeAlias = tuple[Any, BaseException | None, bool]
"""What was said, what went wrong instead, and whether it is not kept anywhere yet."""


def binding(
    tool: str, arguments: dict[str, Any], policy_version: str, directory: str | None = None, facts: Any = None
) -> str:
    """The hash that a yes is for: tool, canonical arguments, working directory, policy version and, of a tool that
    looks them up, the facts that it depends on."""
    where = os.path.realpath(directory or os.getcwd())
    bound = [tool, arguments, where, policy_version, *([facts] if facts is not None else [])]
    try:
        canonical = msgspec.json.encode(bound, order="deterministic")
        exact = msgspec.json.decode(canonical)[1] == arguments  # NaN would be written as null, and bytes as text
    except (TypeError, ValueError, OverflowError, RecursionError):
        exact, canonical = False, b""
    if not exact:
        raise BadArguments("The arguments are no plain JSON: nobody could say yes to exactly these.")
    return hashlib.sha256(canonical).hexdigest()


def question_id(run_id: str, call_id: str, binding: str) -> str:
    """The same whenever the same is asked again, also by a run that goes on in another process."""
    return hashlib.sha256(f"{run_id}\n{call_id}\n{binding}".encode()).hexdigest()[:32]


class Book(Protocol):
    """Where questions and answers outlive the process; a run's journal is one."""

    async def ask(self, question: Question) -> tuple[Question, Answer | None]:
        """Keep a question; if it was asked before, it is as it was then, with its answer if it has one."""
        ...

    async def answered(self, question: Question, answer: Answer, grants: str, *, new: bool) -> Answer:
        """Keep an answer before anything comes of it, and give the one that counts: the first."""
        ...

    async def granted(self, binding: str) -> list[tuple[Question, Answer]]:
        """What was allowed for longer than once, of this exact thing."""
        ...


class Approvals:
    """Asks, and remembers what was allowed for a session or for good: for exactly that hash, nothing like it.

    With `approve`, that function is asked. With `wait`, a question waits until somebody says `atlas.answer(…)`.

    Args:
        approve: Function that is asked, sync or async.
        deadline: Seconds to wait for an answer; then the call is declined.
        two_person: Whether users may not approve calls of their own turns.
        wait: Keep the question open until `atlas.answer` is called.
    """

    def __init__(
        self,
        approve: Approve | None = None,
        *,
        deadline: float = 300.0,
        two_person: bool = False,
        wait: bool = False,
    ) -> None:
        self.approve = approve
        self.deadline = deadline
        self.two_person = two_person
        self.wait = wait
        self._rules: dict[tuple[str | None, ...], str] = {}
        self._open: dict[str, tuple[Question, asyncio.Future[Heard]]] = {}

    @property
    def pending(self) -> list[Question]:
        """Questions that wait for an answer in this process, the oldest first."""
        return [question for question, _ in self._open.values()]

    async def allowed(self, question: Question, book: Book | None = None) -> str | None:
        """Who allowed exactly this before, for this session or for good; None if nobody did."""
        if book is not None:
            for asked, answer in await book.granted(question.binding):
                self._remember(answer, asked, question.binding)
        for session in (question.session, None):
            by = self._rules.get(_rule(question, session, question.binding))
            if by is not None:
                return by
        return None

    def waits_for(self, id: str) -> bool:
        """Somebody in this process waits for the answer to this question."""
        return id in self._open and not self._open[id][1].done()

    def give(self, id: str, answer: Answer) -> bool:
        """Hand an answer to whoever waits for it here; False if nobody does."""
        waiting = self._open.get(id)
        if waiting is None or waiting[1].done():
            return False
        waiting[1].set_result((answer, None, False))
        return True

    def judged(self, question: Question, answer: Answer) -> Answer:
        """The answer as it counts: where two must agree, one's own yes is none. A form takes one, once."""
        if question.form is not None:
            return answer if answer.decision in _NOES else msgspec.structs.replace(answer, decision="once")
        own = _name(answer.by) in ("", _name(question.asked_by), _name(question.agent_id))
        if self.two_person and own and answer.decision != "no":
            return Answer("no", by=answer.by, reason="it needs the yes of a second person")
        return answer

    async def ask(
        self, question: Question, clock: Clock, book: Book | None = None, tell: Callable[[Question], None] | None = None
    ) -> Answer:
        """The yes; Declined for a no, for none in time, for nobody to ask, and for one's own yes where two must."""
        answer = await self.hear(question, clock, book, tell)
        if answer.decision in _NOES:
            raise Declined(f"{question.tool} was not approved{_by(answer)}", answer.reason)
        self._remember(answer, question, granted_by(question, answer))
        return answer

    async def hear(
        self, question: Question, clock: Clock, book: Book | None = None, tell: Callable[[Question], None] | None = None
    ) -> Answer:
        """The answer, whatever it is; Declined for nobody to ask.

        `tell` is called with a question that waits, once it is kept.
        """
        if self.approve is None and not self.wait:
            raise Declined(f"{question.tool} needs a yes, and there is nobody to ask")
        answer: Answer | None = None
        if book is not None:
            question, answer = await book.ask(question)
        new = answer is None
        if answer is None:
            if tell is not None:
                tell(question)
            answer, new = await self._heard(question, clock)
        answer = self.judged(question, answer)
        if book is not None:
            answer = await book.answered(question, answer, granted_by(question, answer), new=new)
        return answer

    def _remember(self, answer: Answer, question: Question, binding: str) -> None:
        """Keep an answer that holds for longer than once: for exactly that hash, asked for the same user by the same
        agent of the same tenant."""
        if answer.decision in ("session", "always") and binding:
            session = question.session if answer.decision == "session" else None
            self._rules[_rule(question, session, binding)] = answer.by

    async def _heard(self, question: Question, clock: Clock) -> tuple[Answer, bool]:
        """What was said before the deadline, and whether it is not kept anywhere yet. Only the answer is waited for: an
        `approve` that goes on after it, or after the turn was cancelled, is left behind and not heard any more."""
        heard: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        left = max(0.0, min(self.deadline, question.expires_at - clock.time()))
        late = Answer("no", reason=f"nobody answered within {self.deadline:g} s")
        asking = _asking.spawn(_put(self.approve, question, heard)) if self.approve is not None else None
        alarm = clock.call_later(left, lambda: heard.done() or heard.set_result((late, None, True)))
        self._open[question.id] = question, heard
        try:
            answer, error, new = await heard
        finally:
            del self._open[question.id]
            alarm.cancel()
            if asking is not None:
                asking.cancel()
        if error is not None:
            raise error
        return _answer(answer), new


async def _put(approve: Approve, question: Question, heard: "asyncio.Future[Heard]") -> None:
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
        heard.set_result((answer, error, True))


def granted_by(question: Question, answer: Answer) -> str:
    """The hash that an answer allows for longer than once; for arguments that were edited it is theirs. What a form is
    filled with allows nothing."""
    if answer.decision not in ("session", "always") or question.form is not None:
        return ""
    if answer.arguments is None:
        return question.binding
    if question.facts is not None:  # those of the edited arguments are not known here
        return ""
    return binding(question.tool, answer.arguments, question.policy, question.working_directory)


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
