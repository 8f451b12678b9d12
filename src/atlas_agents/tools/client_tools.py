"""Client tools: tools of a turn that its caller runs. A call pauses the turn until its result is posted.

The caller passes `ClientTools` with a turn, stored with the run. A call takes the same path as every other one; only
its execution differs: a question of the kind `client_tool` is stored, `ClientToolsCalled` names its id, and the
call waits like one that needs an approval, after a restart too. `post_client_results` answers the question.
"""

import asyncio
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import Clock
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.errors import (
    BadArguments,
    BadTool,
    Conflict,
    NotFound,
    OutcomeUnknown,
    StoreLost,
    ToolFailed,
    ToolFault,
)
from atlas_agents.core.events import ClientToolsCalled
from atlas_agents.core.json import encode
from atlas_agents.core.messages import ToolCall
from atlas_agents.core.store import OPEN, AnswerApproval, ApprovalRow, Store
from atlas_agents.tools.approvals import REFUSALS, Approvals, deliver_stored_answer, question_id
from atlas_agents.tools.tool import Tool

if TYPE_CHECKING:
    from atlas_agents.tools.governance import Approved, ToolScope

SOURCE = "client"
"""Source of the tools: a policy knows them as `client/NAME`, and all of them as `client/*`."""
RUNNABLE = ("file_read", "file_write", "file_edit")
"""Tools of the gateway that a client can run in its place."""
MAX_TOOLS = 128
MAX_DEFINITIONS = 64 * 1024
MAX_RESULT = 1024 * 1024
MAX_DEADLINE = 7 * 86_400.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BINDING = "client_tool"
_CHOICES = ("none", "auto", "required")
_CANCELLED = "a new message was sent before the result was posted"
_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)
WhenUnanswered: TypeAlias = Literal["continue", "end"]


class ClientTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that the caller of a turn runs.

    Attributes:
        name: Name of the tool: 1 to 64 letters, digits, `_` and `-`.
        description: What the model reads about it.
        parameters: JSON schema of its arguments; the arguments of every call are checked against it.
        strict: Whether the caller asked for arguments that match the schema exactly. They always do.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class ClientTools(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tools that the caller of a turn runs, and how the model may call them.

    They belong to the turn: an agent that it is handed off to has them, too, as far as the policy allows; a delegated
    task does not.

    Attributes:
        tools: The tools, at most 128 with definitions of 64 KiB.
        tool_choice: `auto`; `none` to offer none of them; `required` if the turn must call one of them before it
            answers; or the name of the one that it must call.
        allowed: Names of the tools that may be called; None for all.
        parallel: Whether one reply may call several of them.
        deadline: Seconds until a call without a result fails, at most 7 days.
        unanswered: Whether the turn continues without the result of a call that failed in this way, or ends.
        runs: Server-side tools that the client runs instead, for the files in `folder`, because it knows unsaved text:
            `file_read`, `file_write` and `file_edit`. Their policy and approvals stay.
        folder: Absolute path of the folder that the client has open.
    """

    tools: tuple[ClientTool, ...]
    tool_choice: str = "auto"
    allowed: tuple[str, ...] | None = None
    parallel: bool = True
    deadline: float = 600.0
    unanswered: WhenUnanswered = "continue"
    runs: tuple[str, ...] = ()
    folder: str = ""

    @property
    def offered(self) -> tuple[ClientTool, ...]:
        """The tools that the model is shown."""
        if self.tool_choice == "none":
            return ()
        return tuple([each for each in self.tools if self.allowed is None or each.name in self.allowed])

    @property
    def is_forced(self) -> bool:
        return self.tool_choice not in ("none", "auto")


class ClientResult(msgspec.Struct, frozen=True):
    """The result of a call that the caller ran.

    Attributes:
        call_id: Id of the call, as in `ClientToolsCalled`.
        result: What the tool returned, as plain JSON.
        error: Whether the tool failed; the result then says why.
    """

    call_id: str
    result: Any
    error: bool = False


def check_client_tools(given: ClientTools, registered: Iterable[str]) -> ClientTools:
    """Return the tools that a caller offers; raises BadTool for tools that cannot be offered.

    `registered` are the names of all tools on this side: a client tool never takes the place of one of them.
    """
    if len(given.tools) > MAX_TOOLS:
        raise BadTool(f"{len(given.tools)} client tools were given; the maximum is {MAX_TOOLS}")
    if (size := len(encode(given.tools))) > MAX_DEFINITIONS:
        raise BadTool(
            f"the definitions of the client tools are {size:,} bytes long; the maximum is {MAX_DEFINITIONS:,}"
        )
    taken = {_fold(name): name for name in registered}
    names: dict[str, str] = {}
    for each in given.tools:
        if not _NAME.fullmatch(each.name):
            raise BadTool(f"invalid name {each.name!r} of a client tool: expected 1 to 64 letters, digits, '_' and '-'")
        folded = _fold(each.name)
        if folded in taken:
            raise BadTool(
                f"client tool {each.name!r} has the name of the server-side tool {taken[folded]!r}: rename it"
            )
        if folded in names:
            raise BadTool(f"duplicate client tool {each.name!r}: it has the same name as {names[folded]!r}")
        names[folded] = each.name
        build_client_tool(each)
    _check_choice(given)
    _check_runs(given)
    return given


def _check_choice(given: ClientTools) -> None:
    known = {each.name for each in given.tools}
    if unknown := [name for name in given.allowed or () if name not in known]:
        raise BadTool(f"invalid allowed client tool {unknown[0]!r}: it is not among the tools")
    if given.tool_choice not in _CHOICES and given.tool_choice not in {each.name for each in given.offered}:
        raise BadTool(f"invalid tool_choice {given.tool_choice!r}: expected none, auto, required or a client tool")
    if given.tool_choice == "required" and not given.offered:
        raise BadTool("tool_choice 'required' needs at least one client tool")
    if not 0 < given.deadline <= MAX_DEADLINE:
        raise BadTool(f"invalid deadline {given.deadline!r} of client tools: expected up to {MAX_DEADLINE:g} seconds")


def _check_runs(given: ClientTools) -> None:
    if unknown := [name for name in given.runs if name not in RUNNABLE]:
        raise BadTool(f"a client cannot run the server-side tool {unknown[0][:80]!r}: expected {', '.join(RUNNABLE)}")
    if given.runs and (not os.path.isabs(given.folder) or "\0" in given.folder):
        raise BadTool(f"a client that runs file tools needs the absolute path of its folder, got {given.folder[:80]!r}")


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def build_client_tool(given: ClientTool) -> Tool:
    """Build the tool that the pipeline knows; raises BadTool for an invalid schema."""
    schema = given.parameters or {"type": "object", "properties": {}}
    if schema.get("type", "object") != "object":
        raise BadTool(f"the parameters of client tool {given.name!r} must be a JSON schema of an object")
    built = Tool(
        f"{SOURCE}/{given.name}",
        _run_by_client,
        description=given.description,
        parameters={"type": "object", **schema},
        effect="keyed",
        untrusted=SOURCE,
    )
    built.runs_at_client = built.of_client = True
    built.__dict__["wire_name"] = given.name  # the model uses the name that the caller gave
    return built


async def _run_by_client(**arguments: Any) -> None:
    """Placeholder: the pipeline runs `ClientCalls.wait` in its place."""


class ClientRound(Enum):
    """Outcome of the client's calls in one reply."""

    NO_CALLS = "no calls"
    ANSWERED = "answered"
    UNANSWERED = "unanswered"
    """Whether a call has no result: it was not posted in time, or a new message was sent first."""


class ClientCalls:
    """The client tools of one run, and the calls of the current reply that wait for their results."""

    def __init__(self, offer: ClientTools) -> None:
        self.offer = offer
        self._pending: dict[str, Question] = {}
        self._reached: dict[str, asyncio.Event] = {}
        self._answers: dict[str, Answer] = {}

    def add_to(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """Return the tools of an agent with those that the client offers; its own ones take precedence."""
        own = {name: tool for name, tool in tools.items() if not tool.of_client}
        return {**{each.name: build_client_tool(each) for each in self.offer.offered}, **own}

    def place(self, tool: Tool, call: ToolCall, user: str) -> Tool:
        """Return the tool that a call executes: the server-side one, or the client's for the file of the call."""
        if tool.name not in self.offer.runs or call.malformed is not None:
            return tool
        try:
            return tool.for_user(user).at_client(call.arguments, self.offer.folder)
        except ToolFault:  # raised again when the tool is called
            return tool

    def begin(self, calls: Sequence[ToolCall]) -> None:
        """Start a reply with these calls of client tools."""
        self._pending.clear()
        self._reached = {call.id: asyncio.Event() for call in calls}

    def mark_reached(self, call_id: str) -> None:
        """Note that a call waits for its result, or has ended."""
        if (event := self._reached.get(call_id)) is not None:
            event.set()

    async def wait_reached(self, call_id: str) -> None:
        await self._reached[call_id].wait()

    def announce(self, scope: "ToolScope") -> None:
        """Emit the calls that wait for the client, once all of them are stored."""
        if self._pending:
            scope.emit(ClientToolsCalled(scope.run_id, tuple(self._pending.values())))

    async def wait(self, approved: "Approved", scope: "ToolScope") -> Any:
        """Store a call, wait until the client posts its result, and return it; raises ToolFailed if there is none."""
        governance, call = scope.governance, approved.call

        def on_asked(question: Question) -> None:
            self._pending[call.id] = question
            self.mark_reached(call.id)

        question = self._build_question(approved, scope)
        answer = await governance.approvals.ask(question, governance.clock, scope.approval_store, on_asked)
        self._answers[question.id] = answer
        if answer.decision in REFUSALS or answer.arguments is None:
            what = "was cancelled" if answer.decision == "dismiss" else "has no result"
            raise ClientCallFailed(f"the call of {call.name} {what}: {answer.reason}; it may have happened")
        if answer.arguments.get("error"):
            result = answer.arguments["result"]
            raise ToolFailed(result if isinstance(result, str) else encode(result).decode())
        return answer.arguments["result"]

    def end_round(self, calls: Sequence[ToolCall], scope: "ToolScope") -> "ClientRound":
        """Return the outcome of the client's calls in a reply, including calls of an earlier process.

        From now on, the client offers the tools that it posted with the results, or the same ones. A forced choice was
        obeyed.
        """
        answers = [answer for call in calls if (answer := self._find_answer(call, scope)) is not None]
        if not answers:
            return ClientRound.NO_CALLS
        offers = [given for answer in answers if (given := (answer.arguments or {}).get("offer")) is not None]
        if offers:
            self.offer = msgspec.convert(offers[-1], ClientTools)
            scope.set_tools(self.add_to(scope.tools))
        elif self.offer.is_forced:
            self.offer = msgspec.structs.replace(self.offer, tool_choice="auto")
        unanswered = any(answer.decision in REFUSALS for answer in answers)
        return ClientRound.UNANSWERED if unanswered else ClientRound.ANSWERED

    def _find_answer(self, call: ToolCall, scope: "ToolScope") -> Answer | None:
        id = client_call_id(scope.run_id, call.id)
        if (answer := self._answers.pop(id, None)) is not None:
            return answer
        return scope.journal.approvals.restored_answer(id) if scope.journal is not None else None

    def _build_question(self, approved: "Approved", scope: "ToolScope") -> Question:
        governance, call = scope.governance, approved.call
        return Question(
            title=f"Run {call.name} in the client",
            message=approved.tool.description,
            tool=call.name,
            arguments=call.arguments,
            binding=_BINDING,
            call_id=call.id,
            run_id=scope.run_id,
            agent_id=scope.actor.agent_id,
            session=scope.conversation.id,
            asked_by=scope.actor.user,
            expires_at=governance.clock.time() + self.offer.deadline,
            working_directory="",
            options=(),
            tenant=scope.actor.tenant,
            id=client_call_id(scope.run_id, call.id),
            policy=governance.policy_version,
            kind="client_tool",
            facts={"file": file} if (file := approved.tool.locate_at_client(call.arguments)) else None,
        )


class ClientCallFailed(OutcomeUnknown):
    """The client posted no result, though it may have run the call."""

    untrusted = False


def client_call_id(run_id: str, call_id: str) -> str:
    """Return the id under which the client knows a call. The run's id is random, so it cannot be guessed."""
    return f"call_{question_id(run_id, call_id, _BINDING)}"


def encode_client_answer(given: ClientResult, user: str, offer: ClientTools | None) -> Answer:
    """Check a posted result and return it as the answer to its question; raises BadArguments."""
    values: dict[str, Any] = {"result": given.result}
    if given.error:
        values["error"] = True
    try:
        size = len(encode(values))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadArguments(f"the result of call {given.call_id!r} is not plain JSON: {error}") from error
    if size > MAX_RESULT:
        raise BadArguments(
            f"the result of call {given.call_id!r} is {size:,} bytes long; the maximum is {MAX_RESULT:,}"
        )
    if offer is not None:
        values["offer"] = msgspec.to_builtins(offer)
    return Answer("once", values, user)


def _same_result(first: Answer, second: Answer) -> bool:
    """Return whether two answers are the same result, regardless of the tools offered with them."""
    left, right = first.arguments or {}, second.arguments or {}
    return first.decision == "once" and all(left.get(key) == right.get(key) for key in ("result", "error"))


async def post_client_results(
    store: Store, tenant: str, approvals: Approvals, posted: Mapping[str, Answer], clock: Clock
) -> list[Question]:
    """Store the results of calls in one transaction, and pass them to the calls in this process that wait for them.

    A result that was posted before has no effect; another one for the same call raises Conflict, as does one that comes
    too late. An unknown call and one of another user raise the same NotFound.
    """
    rows = await _read_rows(store, tenant, posted)
    questions = [_questions.decode(row.question) for row in rows]
    writes: list[AnswerApproval] = []
    for row, question in zip(rows, questions, strict=True):
        if row.answer is None:
            await _check_open(store, tenant, row, question, approvals, clock)
            writes.append(AnswerApproval(row.id, encode(posted[row.id])))
        else:
            _check_same(row, posted[row.id])
    if writes:
        try:
            await store.commit(tenant, writes)
        except (Conflict, StoreLost):  # answered in the meantime, or it is unknown whether this was stored
            for row in await _read_rows(store, tenant, posted):
                if row.answer is None:
                    raise
                _check_same(row, posted[row.id])
    for id in posted:
        await deliver_stored_answer(store, tenant, approvals, id)
    return questions


async def _read_rows(store: Store, tenant: str, posted: Mapping[str, Answer]) -> list[ApprovalRow]:
    found: list[ApprovalRow] = []
    for id, answer in posted.items():
        row = await store.approval(tenant, id)
        question = _questions.decode(row.question) if row is not None else None
        if row is None or question is None or question.kind != "client_tool" or question.asked_by != answer.by:
            raise unknown_call(id)
        found.append(row)
    return found


def unknown_call(id: str) -> NotFound:
    """Return the error for a call that does not exist or belongs to another user."""
    return NotFound(f"not found: tool call {id!r} that waits for a result of this client")


def _check_same(row: ApprovalRow, answer: Answer) -> None:
    first = _answers.decode(cast(bytes, row.answer))
    if first.decision in REFUSALS:
        raise Conflict(f"tool call {row.id!r} no longer accepts a result: {first.reason}")
    if not _same_result(first, answer):
        raise Conflict(f"tool call {row.id!r} is already answered with another result")


async def _check_open(
    store: Store, tenant: str, row: ApprovalRow, question: Question, approvals: Approvals, clock: Clock
) -> None:
    run = await store.run(tenant, row.run_id)
    if run is None or run.status not in OPEN:
        raise Conflict(f"the turn that made tool call {row.id!r} has ended")
    if clock.time() >= question.expires_at and not approvals.is_waiting(row.id):
        raise Conflict(f"tool call {row.id!r} has expired: its result was not posted in time")


async def find_client_calls(store: Store, tenant: str, ids: Iterable[str], user: str) -> list[Question]:
    """Return calls by their ids, whether or not they have a result; raises NotFound as `post_client_results` does."""
    found = await _read_rows(store, tenant, {id: Answer("once", by=user) for id in ids})
    return [_questions.decode(row.question) for row in found]


async def stored_client_calls(store: Store, tenant: str, session: str, until: float = math.inf) -> list[Question]:
    """Return the calls of a session's turns that wait for results of the client, oldest first.

    `until` is the time, in seconds since 1970, until which they were made.
    """
    rows = [row for row in await store.pending_approvals(tenant) if row.session == session and row.binding == _BINDING]
    return [_questions.decode(row.question) for row in rows if row.created_at <= until * 1000]


async def cancel_stored_calls(
    store: Store, tenant: str, approvals: Approvals, session: str, sent_at: float
) -> list[str]:
    """Answer the calls of a session that wait for the client when a new message is sent; return their ids."""
    answer = Answer("dismiss", reason=_CANCELLED)
    cancelled: list[str] = []
    for question in await stored_client_calls(store, tenant, session, sent_at):
        try:
            await store.commit(tenant, [AnswerApproval(question.id, encode(answer))])
        except Conflict:  # its result was posted in the meantime
            continue
        approvals.deliver(question.id, answer)
        cancelled.append(question.id)
    return cancelled


def cancel_calls_in_memory(approvals: Approvals, session: str) -> None:
    """Answer the calls of a session without a store that wait for the client."""
    for question in approvals.waiting:
        if question.kind == "client_tool" and question.session == session:
            approvals.deliver(question.id, Answer("dismiss", reason=_CANCELLED))
