"""Approvals: ask a person before a tool acts. An approval is bound to a hash of exactly the content that was shown."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import BackgroundTasks, Clock
from atlas_agents.core.aio import invoke as call_user
from atlas_agents.core.approvals import Answer, Decision, Form, Question
from atlas_agents.core.errors import BadArguments, Conflict, Declined, NotFound, StoreLost
from atlas_agents.core.json import decode_readable, encode
from atlas_agents.core.store import OPEN, AnswerApproval, Store
from atlas_agents.tools.schema import compile_check

_DECISIONS: tuple[str, ...] = ("once", "session", "always", "dismiss")
REFUSALS = ("no", "dismiss")
_tasks = BackgroundTasks("approve function")
_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)

Approve: TypeAlias = Callable[[Question], Any]
"""Sync or async; returns an Answer, a decision as text, or True for "once". Any other value denies the call."""
OnAsked: TypeAlias = Callable[[Question], None]
_Reply: TypeAlias = tuple[Any, BaseException | None, bool]
"""Reply to a question: the answer, or an error instead, and whether the answer still has to be stored."""
SavedQuestion: TypeAlias = tuple[Question, Answer | None]
"""A stored question, and its answer if there is one."""
_CLOCK_JUMP = 2.0
"""Seconds by which a deadline must differ from the stored one to be corrected."""


def compute_binding(
    tool: str, arguments: dict[str, Any], policy_version: str, directory: str | None = None, facts: Any = None
) -> str:
    """Return the hash that an approval is bound to.

    It covers the tool, the canonical arguments, the working directory, the policy version and the tool's own facts.
    """
    where = os.path.realpath(directory or os.getcwd())
    bound = [tool, arguments, where, policy_version, *([facts] if facts is not None else [])]
    try:
        canonical = msgspec.json.encode(bound, order="deterministic")
        exact: bool = msgspec.json.decode(canonical)[1] == arguments  # NaN would be encoded as null, and bytes as text
    except (TypeError, ValueError, OverflowError, RecursionError):
        exact, canonical = False, b""
    if not exact:
        raise BadArguments("The arguments are not plain JSON, so an approval cannot be bound to them.")
    return hashlib.sha256(canonical).hexdigest()


def question_id(run_id: str, call_id: str, binding: str) -> str:
    """Return the id of a question, which is the same when a resumed run asks it again in another process."""
    return hashlib.sha256(f"{run_id}\n{call_id}\n{binding}".encode()).hexdigest()[:32]


class ApprovalStore(Protocol):
    """Persists the questions of a run and their answers."""

    async def save_question(self, question: Question) -> tuple[Question, Answer | None]:
        """Store a question. If it was asked before, return it as it was stored, with its answer if there is one."""
        ...

    async def save_answer(self, question: Question, answer: Answer, grants: str, *, new: bool) -> Answer:
        """Store an answer before anything acts on it; return the first stored answer, which is the effective one."""
        ...

    async def find_grants(self, binding: str) -> list[tuple[Question, Answer]]:
        """Return the standing approvals (for a session, or always) of exactly this call."""
        ...


class _OpenQuestion(NamedTuple):
    """An open question: a call waits for its answer until the deadline by the monotonic clock."""

    question: Question
    reply: "asyncio.Future[_Reply]"
    deadline: float


class Approvals:
    """Asks for approval, and remembers standing approvals (for a session, or always) of exactly the same call.

    With `approve`, that function decides. With `wait`, a question stays open until `atlas.answer(…)` is called.

    Args:
        approve: Function that decides, sync or async.
        deadline: Seconds to wait for an answer; then the call is denied.
        two_person: Whether users may not approve calls of their own turns.
        wait: Keep the question open until `atlas.answer` is called.
    """

    def __init__(
        self, approve: Approve | None = None, *, deadline: float = 300.0, two_person: bool = False, wait: bool = False
    ) -> None:
        self.approve = approve
        self.deadline = deadline
        self.two_person = two_person
        self.wait = wait
        self._grants: dict[tuple[str | None, ...], str] = {}
        self._open: dict[str, _OpenQuestion] = {}

    @property
    def pending(self) -> list[Question]:
        """Questions to people that wait for an answer in this process, oldest first."""
        return [question for question in self.waiting if question.kind == "approval"]

    @property
    def waiting(self) -> list[Question]:
        """Internal: all questions of this process that wait for an answer, including those to clients."""
        return [waiting.question for waiting in self._open.values()]

    def find_waiting(self, id: str, clock: Clock) -> Question | None:
        """Internal: return a question for whose answer a call in this process waits.

        Its deadline is by the current time: the call waits by the monotonic clock, so the deadline that was stored is
        wrong after the system clock jumped.
        """
        waiting = self._open.get(id)
        if waiting is None or waiting.reply.done():
            return None
        question, expires_at = waiting.question, clock.time() + max(0.0, waiting.deadline - clock.monotonic())
        jumped = abs(expires_at - question.expires_at) > _CLOCK_JUMP
        return msgspec.structs.replace(question, expires_at=expires_at) if jumped else question

    async def find_grant(self, question: Question, store: ApprovalStore | None = None) -> str | None:
        """Internal: return the person who gave a standing approval of exactly this call; None without one."""
        if store is not None:
            for asked, answer in await store.find_grants(question.binding):
                self._remember(answer, asked, question.binding)
        for session in (question.session, None):
            by = self._grants.get(_grant_key(question, session, question.binding))
            if by is not None:
                return by
        return None

    def is_waiting(self, id: str) -> bool:
        """Internal: return whether a call in this process waits for the answer to this question."""
        return id in self._open and not self._open[id].reply.done()

    def deliver(self, id: str, answer: Answer) -> bool:
        """Internal: pass a stored answer to the call in this process that waits for it; False if none does."""
        waiting = self._open.get(id)
        if waiting is None or waiting.reply.done():
            return False
        waiting.reply.set_result((answer, None, False))
        return True

    def effective_answer(self, question: Question, answer: Answer) -> Answer:
        """Internal: return the effective answer: under the two-person rule, users cannot approve their own calls.

        A form is answered once.
        """
        if question.kind == "client_tool":
            return answer
        if question.form is not None:
            return answer if answer.decision in REFUSALS else msgspec.structs.replace(answer, decision="once")
        own = _normalize(answer.by) in ("", _normalize(question.asked_by), _normalize(question.agent_id))
        if self.two_person and own and answer.decision != "no":
            return Answer("no", by=answer.by, reason="a second person must approve this call")
        return answer

    async def request_approval(
        self, question: Question, clock: Clock, store: ApprovalStore | None = None, on_asked: OnAsked | None = None
    ) -> Answer:
        """Internal: ask and return the approval; raises Declined if it is denied, not given in time, or no one can
        be asked.
        """
        saved = await self.save_question(question, store)
        return await self.wait_for_approval(saved, clock, store, on_asked)

    async def ask(
        self, question: Question, clock: Clock, store: ApprovalStore | None = None, on_asked: OnAsked | None = None
    ) -> Answer:
        """Ask and return the answer, including a refusal; raises Declined if no one can be asked.

        `on_asked` is called once the question is stored and waits for an answer.
        """
        return await self._wait_for_answer(await self.save_question(question, store), clock, store, on_asked)

    async def save_question(self, question: Question, store: ApprovalStore | None) -> SavedQuestion:
        """Internal: store a question before it is asked; raises Declined if no one can be asked.

        If it was asked before, return it as it was stored, with its answer if there is one.
        """
        if self.approve is None and not self.wait and question.kind == "approval":
            raise Declined(f"{question.tool} requires approval, and no one can be asked")
        return (question, None) if store is None else await store.save_question(question)

    async def wait_for_approval(
        self, saved: SavedQuestion, clock: Clock, store: ApprovalStore | None, on_asked: OnAsked | None
    ) -> Answer:
        """Internal: ask a stored question and return the approval; raises Declined if it is denied."""
        question, answer = saved[0], await self._wait_for_answer(saved, clock, store, on_asked)
        if answer.decision in REFUSALS:
            raise Declined(f"{question.tool} was not approved{_describe_refusal(answer)}", answer.reason, answer.by)
        granted = granted_binding(question, answer)
        self._remember(answer, question, granted)
        self._approve_same(answer, question, granted)
        return answer

    async def _wait_for_answer(
        self, saved: SavedQuestion, clock: Clock, store: ApprovalStore | None, on_asked: OnAsked | None
    ) -> Answer:
        """Ask a stored question, unless its answer is known, and return the answer, including a refusal."""
        question, answer = saved
        new = answer is None
        if answer is None:
            if on_asked is not None:
                on_asked(question)
            answer, new = await self._wait_for_reply(question, clock)
        answer = self.effective_answer(question, answer)
        if store is not None:
            answer = await store.save_answer(question, answer, granted_binding(question, answer), new=new)
        return answer

    def _approve_same(self, answer: Answer, question: Question, binding: str) -> None:
        """Apply a standing approval to waiting calls with the same hash."""
        if not binding:
            return
        session = question.session if answer.decision == "session" else None
        for other, reply, _ in self._open.values():
            key = _grant_key(other, other.session if session is not None else None, other.binding)
            is_approval = other.form is None and other.kind == "approval"
            if not reply.done() and is_approval and key == _grant_key(question, session, binding):
                reply.set_result((Answer(answer.decision, by=answer.by), None, True))

    def _remember(self, answer: Answer, question: Question, binding: str) -> None:
        """Remember a standing approval: of this hash, for the same user, agent and tenant."""
        if answer.decision in ("session", "always") and binding:
            session = question.session if answer.decision == "session" else None
            self._grants[_grant_key(question, session, binding)] = answer.by

    @property
    def _no_answer(self) -> str:
        return f"no answer within {self.deadline:g} s"

    async def _wait_for_reply(self, question: Question, clock: Clock) -> tuple[Answer, bool]:
        """Return the answer, a refusal after the deadline, and whether the answer still has to be stored.

        An `approve` function that is still running after the deadline or a cancellation is cancelled and ignored.
        """
        reply: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()
        of_client = question.kind == "client_tool"
        remaining = question.expires_at - clock.time()
        remaining = max(0.0, remaining if of_client else min(self.deadline, remaining))
        expired = Answer("no", reason="the client posted none in time" if of_client else self._no_answer)
        approve = None if of_client else self.approve
        task = _tasks.spawn(_call_approve(approve, question, reply)) if approve is not None else None
        timer = clock.call_later(remaining, lambda: reply.done() or reply.set_result((expired, None, True)))
        self._open[question.id] = _OpenQuestion(question, reply, clock.monotonic() + remaining)
        try:
            answer, error, new = await reply
        finally:
            del self._open[question.id]
            timer.cancel()
            if task is not None:
                task.cancel()
        if error is not None:
            raise error
        return _to_answer(answer), new


async def _call_approve(approve: Approve, question: Question, reply: "asyncio.Future[_Reply]") -> None:
    """Call the user's function. Errors go to `reply`: a SystemExit raised in this task would stop the event loop."""
    answer: Any = None
    error: BaseException | None = None
    try:
        answer = await call_user(approve, question)
    except asyncio.CancelledError:
        error = Declined(f"the approval request for {question.tool} was cancelled")
    except BaseException as caught:  # noqa: BLE001 - raised again where the answer is awaited
        error = caught
    if not reply.done():
        reply.set_result((answer, error, True))


def granted_binding(question: Question, answer: Answer) -> str:
    """Return the hash that a standing approval covers: that of the edited arguments, if they were edited.

    It is empty for an answer that is valid once, and for a form.
    """
    if answer.decision not in ("session", "always") or question.form is not None:
        return ""
    if answer.arguments is None:
        return question.binding
    if question.facts is not None:  # those of the edited arguments are not known here
        return ""
    return compute_binding(question.tool, answer.arguments, question.policy, question.working_directory)


def _grant_key(question: Question, session: str | None, binding: str) -> tuple[str | None, ...]:
    return question.tenant, question.agent_id, question.asked_by, session, binding


def _normalize(name: str) -> str:
    return name.strip().casefold()


def describe_answer(answer: Answer) -> str:
    """Describe a decision: the outcome, the person and the reason."""
    decided = {"no": "denied", "dismiss": "dismissed"}.get(answer.decision, "allowed")
    return decided + _describe_refusal(answer)


def _describe_refusal(answer: Answer) -> str:
    return (f" by {answer.by}" if answer.by else "") + (f": {answer.reason}" if answer.reason else "")


def _to_answer(given: Any) -> Answer:
    if isinstance(given, Answer):
        return given if given.decision in _DECISIONS else Answer("no", by=given.by, reason=given.reason)
    if given is True:
        return Answer("once")
    return Answer(cast(Decision, given)) if given in _DECISIONS else Answer("no")


def form_values(form: Form, answer: Answer) -> dict[str, Any]:
    """Return the values of an answer to a form; raises BadArguments for invalid ones."""
    values = form.suggested if answer.arguments is None else answer.arguments
    compile_check("form", form.schema, formats=True)(values)
    return values


async def answer_stored_question(
    store: Store, tenant: str, approvals: Approvals, approval_id: str, answer: Answer, clock: Clock
) -> Question:
    """Store an answer and pass it to the call in this process that waits for it; other processes read it later.

    Raises BadArguments for values that do not match a form, which then stays open.
    """
    row = await store.approval(tenant, approval_id)
    if row is None or _questions.decode(row.question).kind != "approval":
        raise NotFound(f"not found: approval {approval_id!r}")
    run = await store.run(tenant, row.run_id)
    if run is None or run.status not in OPEN:
        raise Conflict(f"the turn that requested approval {approval_id!r} has ended")
    if row.answer is not None:
        first = _answers.decode(row.answer)
        approvals.deliver(approval_id, first)  # in case the waiting call was not notified
        raise Conflict(f"approval {approval_id!r} is already answered: {describe_answer(first)}")
    if clock.time() * 1000 >= row.expires_at and not approvals.is_waiting(approval_id):
        raise Conflict(f"approval {approval_id!r} has expired")
    question = _questions.decode(row.question)
    effective = approvals.effective_answer(question, answer)
    if question.form is not None and effective.decision not in REFUSALS:
        form_values(question.form, effective)
    write = AnswerApproval(approval_id, encode(effective), granted_binding(question, effective))
    try:
        await store.commit(tenant, [write])
    except StoreLost as lost:
        found = await store.approval(tenant, approval_id) if lost.unclear else None
        if found is None or found.answer != write.answer:
            raise
    approvals.deliver(approval_id, effective)
    return question


async def deliver_stored_answer(store: Store, tenant: str, approvals: Approvals, approval_id: str) -> None:
    """Pass a stored answer to the call in this process that waits for it, if there is one."""
    if approvals.is_waiting(approval_id):
        row = await store.approval(tenant, approval_id)
        if row is not None and row.answer is not None:
            approvals.deliver(approval_id, _answers.decode(row.answer))


async def stored_pending_questions(store: Store, tenant: str, approvals: Approvals, clock: Clock) -> list[Question]:
    """Return the stored questions that have not expired, oldest first. Calls in this process know their deadline."""
    found: list[Question] = []
    for row in await store.pending_approvals(tenant):
        if (waiting := approvals.find_waiting(row.id, clock)) is not None:
            found.append(waiting)
        elif row.expires_at > clock.time() * 1000:
            found += decode_readable(_questions, [(f"approval {row.id}", row.question)])
    return [question for question in found if question.kind == "approval"]
