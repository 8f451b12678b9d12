"""Pipeline of every tool call: find, permit, hooks, validate, confirm, limit, run, hooks, audit, result.

All calls of a round are checked one after another, in the model's order, before the first of them acts.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import finish_despite_cancel
from atlas_agents.core.aio import invoke as call_user
from atlas_agents.core.approvals import Action, Answer, Filled, Form, Question
from atlas_agents.core.budgets import ModelCall, Reservation
from atlas_agents.core.errors import (
    AtlasError,
    BadArguments,
    DailyLimitExceeded,
    Declined,
    ToolFailed,
    ToolFault,
    ToolTimeout,
)
from atlas_agents.core.events import (
    NO_USAGE,
    ApprovalAnswered,
    ApprovalAsked,
    ToolAnswered,
    ToolCalled,
    ToolProgress,
    Usage,
)
from atlas_agents.core.json import encode
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.core.store import Write
from atlas_agents.core.telemetry import (
    NO_SPAN,
    OPERATION,
    TOOL_ARGUMENTS,
    TOOL_CALL_ID,
    TOOL_NAME,
    TOOL_RESULT,
    TOOL_STATUS,
    TOOL_TYPE,
    Span,
    ToolMeasurement,
)
from atlas_agents.core.text import clean, one_line
from atlas_agents.tools.approvals import REFUSALS, compute_binding, form_values, question_id
from atlas_agents.tools.audit import MAX_NOTE, MAX_NOTES, MAX_RESULT, AuditEntry
from atlas_agents.tools.checks import Rejected, Unanswered, apply_hooks, check_call, wait_for_approval
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.execute import CANCEL_GRACE, MAX_MESSAGE, Attempt, fault_message, to_json_value
from atlas_agents.tools.governance import Approved, ToolHooks, ToolScope
from atlas_agents.tools.journal import HookAction, Journal, ShuttingDown
from atlas_agents.tools.redact import StreamRedactor, find_secrets
from atlas_agents.tools.schema import compile_check
from atlas_agents.tools.tool import Tool

if TYPE_CHECKING:
    from atlas_agents.tools.client_tools import ClientCalls

logger = logging.getLogger(__name__)
MAX_FORMS_PER_CALL = 20
"""Maximum number of forms of one call; further ones are cancelled without asking."""
_WITHDRAWN = Answer("dismiss", reason="the question was withdrawn")
_MAX_SOURCES = 10
NEUTRAL = "Tool execution failed. The error has been logged for investigation."
_CRASHED = "This call was interrupted when the process ended; it may have happened. It was not retried."


async def run_tools(
    calls: Sequence[ToolCall], scope: ToolScope, results: list[ToolResult | None], *, parallel: bool
) -> None:
    """Execute calls and fill `results` in the model's order; even when cancelled, every call gets a result."""
    executions: list[ToolCallExecution] = []
    sources = scope.untrusted_sources()
    for call in calls:
        scope.emit_of_call(ToolCalled(scope.run_id, scope.display_name(call), call.arguments, call.id))
    try:
        decisions = await _decide_all(calls, scope, sources)
        executions = [ToolCallExecution(decision, scope, sources) for decision in decisions]
        for execution in executions:
            if scope.client is None or not execution.runs_at_client:
                await execution.start()
                if not parallel:
                    await execution.wait()
        if scope.client is not None:
            await _start_client_calls(executions, scope, scope.client)
        for execution in executions:  # each is recorded when it completes, not when it is awaited here
            await execution.wait()
    finally:
        # empty if the turn was cancelled while a person was asked
        executions = executions or [ToolCallExecution(Rejected(call), scope, sources) for call in calls]
        try:
            if any([execution.result is None for execution in executions]):
                await _stop(executions)
        finally:  # also when cancelled a second time
            results[:] = [execution.final_result() for execution in executions]


async def _start_client_calls(
    executions: "Sequence[ToolCallExecution]", scope: ToolScope, client: "ClientCalls"
) -> None:
    """Start the calls that the client runs after all others have ended, and announce them once all are stored."""
    waiting = [execution for execution in executions if execution.runs_at_client]
    client.begin([execution.call for execution in waiting])
    if not waiting:
        return
    for execution in executions:
        if not execution.runs_at_client:
            await execution.wait()
    for number, execution in enumerate(waiting):
        if number and not client.offer.parallel:
            execution.refuse(ToolFailed("Only one of these tools can be called at a time: call it again if needed."))
        await execution.start()
        await client.wait_reached(execution.call.id)
    client.announce(scope)


async def _stop(executions: "Sequence[ToolCallExecution]") -> None:
    """Stop executions that have not ended, and wait a short time for those that hang."""
    for execution in executions:
        execution.stop()
    with suppress(TimeoutError):
        async with asyncio.timeout(2 * CANCEL_GRACE):
            for execution in executions:
                await execution.wait_done()


async def _decide_all(
    calls: Sequence[ToolCall], scope: ToolScope, sources: tuple[str, ...]
) -> list[Approved | Rejected]:
    """Check the calls one after another, then wait for all answers of people at the same time.

    All questions are stored before the first one is asked, so that clients can show them together.
    """
    decide = check_call if scope.journal is None else _decide
    checked = [await decide(call, scope, sources) for call in calls]
    unanswered = [each for each in checked if isinstance(each, Unanswered)]
    if not unanswered:
        return [each for each in checked if not isinstance(each, Unanswered)]
    if len(unanswered) < 2:
        answered = [await wait_for_approval(each, scope) for each in unanswered]
    else:
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(wait_for_approval(each, scope)) for each in unanswered]
        answered = [task.result() for task in waiting]
    answers = iter(answered)
    return [next(answers) if isinstance(each, Unanswered) else each for each in checked]


async def _decide(call: ToolCall, scope: ToolScope, sources: tuple[str, ...]) -> Approved | Rejected | Unanswered:
    """Check a call of a journaled run, unless an earlier process settled it, or left it started without an outcome."""
    tool, journal = scope.find_tool(call), cast(Journal, scope.journal)
    repeatable = tool is not None and tool.effect != "unsafe"
    if journal.crash_looping:
        return Rejected(call, tool=tool)
    if not journal.is_settled(call, repeatable=repeatable):
        return await check_call(call, scope, sources)
    hooks, requested = journal.hook_record(call), call
    if hooks is not None:
        call = apply_hooks(call, hooks)
    finding = await query_outcome(tool, call, scope) if tool is not None and journal.outcome(call) is None else None
    if isinstance(finding, NotHappened):
        return await check_call(requested, scope, sources)
    return Rejected(call, tool=tool, known_result=_as_result(finding, call, scope), hooks=hooks)


class Happened(msgspec.Struct, frozen=True):
    """The call took effect; `result` is what the tool would have returned.

    Attributes:
        result: What the tool would have returned.
    """

    result: Any = None


class NotHappened(msgspec.Struct, frozen=True):
    """The call did not take effect and no longer can, so it may be repeated."""


Finding: TypeAlias = Happened | NotHappened | None
"""Result of a tool's `reconcile`; None, or any other value, means that the outcome stays unknown."""


async def query_outcome(tool: Tool, call: ToolCall, scope: ToolScope) -> Finding:
    """Query the outcome of an interrupted call with the tool's `reconcile(key)` or `reconcile(key, arguments)`."""
    if tool.reconcile is None:
        return None
    key = f"{scope.run_id}:{call.id}"
    try:
        reconcile = tool.for_user(scope.actor.user).reconcile or tool.reconcile
        arguments = (key, call.arguments) if _takes_arguments(reconcile) else (key,)
        async with asyncio.timeout(tool.timeout):
            finding = await call_user(reconcile, *arguments)
        if isinstance(finding, Happened):
            return Happened(to_json_value(finding.result))
    except Exception as error:  # noqa: BLE001 - a user's function; the outcome stays unknown
        trace = scope.governance.redactor.trace(error)
        logger.error("reconcile failed: tool=%s run=%s\n%s", tool.name, scope.run_id, trace)
        return None
    return finding if isinstance(finding, NotHappened) else None


def _as_result(finding: Finding, call: ToolCall, scope: ToolScope) -> ToolResult | None:
    if isinstance(finding, Happened):
        return ToolResult(call.id, "ok", scope.governance.redactor.remove_known(finding.result))
    if isinstance(finding, NotHappened):
        text = "The call was interrupted before it took effect: nothing was done. Call again if it is still needed."
        return ToolResult(call.id, "error", text, "failed")
    return None


def _takes_arguments(reconcile: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(reconcile).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional for each in parameters) > 1


class ToolCallExecution:
    """Execution of one call: it gets exactly one result and one audit row, whatever happens.

    The result is recorded in the task of the attempt, or in a background task, never in the task of the turn: a turn
    that is cancelled meanwhile neither loses the row nor writes it twice.
    """

    __slots__ = (
        *("_attempt", "_cancelled", "_decision", "_done", "_duration", "_elicitation", "_error", "_failure", "_notes"),
        "_actions",
        *("_recorded", "_refused", "_scope", "_source", "_started", "_tainted_by", "_untouched", "_usage", "_waiter"),
        *("_progress", "_reservations", "_span", "_total_usage", "_writes", "result"),
    )

    def __init__(self, decision: Approved | Rejected, scope: ToolScope, sources: tuple[str, ...]) -> None:
        self._decision = decision
        self._scope = scope
        self._started = scope.governance.clock.monotonic()
        self._attempt: Attempt | None = None
        self._span: Span = NO_SPAN
        self._elicitation: ToolElicitation | None = None
        self._usage: list[dict[str, Any]] = []
        self._total_usage = NO_USAGE
        self._reservations: list[Reservation] = []
        self._error: Exception | None = (
            decision.error if isinstance(decision, Rejected) else self._check_repeats(decision)
        )
        self._refused = self._cancelled = self._untouched = self._done = False
        self._waiter: asyncio.Future[None] | None = None
        self._recorded = scope.journal.outcome_of(decision) if scope.journal is not None else None
        self._writes: list[Write] | None = None if scope.journal is None else []
        self._failure: Exception | None = None
        self._duration: float | None = None
        self._notes: dict[str, Any] = {}
        self._actions: tuple[HookAction, ...] = decision.hooks.actions if decision.hooks is not None else ()
        self._tainted_by = sources
        """Sources of untrusted content in the session when the call was made."""
        self._source = ""
        self._progress: StreamRedactor | None = None
        self.result: ToolResult | None = None

    @property
    def call(self) -> ToolCall:
        return self._decision.call

    @property
    def runs_at_client(self) -> bool:
        """Whether the client has to run the call: it passed the checks, and has no recorded outcome."""
        decision = self._decision
        return isinstance(decision, Approved) and decision.tool.runs_at_client and self._recorded is None

    def refuse(self, error: Exception) -> None:
        """Refuse a call that has not started."""
        self._error = self._error or error

    async def start(self) -> None:
        """Start the call, unless it was rejected or an earlier process recorded its outcome.

        A tool that acts is not started while the audit log cannot be written.
        """
        if self._recorded is not None:
            self.result, self._done = self._emit_result(self._recorded), True
        elif self._error is not None or not isinstance(self._decision, Approved):
            self._refuse()
        else:
            if self._decision.tool.effect != "pure":
                await self._scope.governance.audit.ready()
            if self._scope.trace.span.recording:
                self._span = self._start_span(self._decision)
            token = self._span.activate() if self._span is not NO_SPAN else None  # the task of the attempt inherits it
            self._attempt = Attempt(self._decision, self._tool_context, self._scope, self._finish)
            if self._span is not NO_SPAN:
                self._span.deactivate(token)

    def _start_span(self, approved: Approved) -> Span:
        scope, call = self._scope, approved.call
        named = {OPERATION: "execute_tool", TOOL_NAME: approved.tool.name, TOOL_CALL_ID: call.id, TOOL_TYPE: "function"}
        span = scope.trace.start(f"execute_tool {approved.tool.name}", named)
        scope.trace.capture(span, TOOL_ARGUMENTS, call.arguments, [call.arguments])
        return span

    def _end_span(self) -> None:
        """End the span of the call, and record its outcome, if that could be stored."""
        self._done = True
        if self._span is not NO_SPAN or self._scope.trace.telemetry.recorders:
            if self._recorded is not None:
                self._measure(self._recorded)
            self._span.end()

    def _measure(self, result: ToolResult) -> None:
        scope, span, telemetry = self._scope, self._span, self._scope.trace.telemetry
        if span.recording:
            span.set({TOOL_STATUS: result.status})
            if result.status != "ok":
                span.fail(result.error or result.status)
            scope.trace.capture(span, TOOL_RESULT, result.result, [result.result])
        if telemetry.recorders:
            tool, seconds = self._decision.tool, self._milliseconds() / 1000
            name = tool.name if tool is not None else "unknown"
            agent, error = scope.actor.agent_id, result.error or ""
            telemetry.record_tool(ToolMeasurement(name, agent, result.status, error, seconds))

    async def wait(self) -> None:
        """Wait until the result is recorded and emitted; raises the error if recording it failed."""
        if not self._done:
            await self._create_waiter()
        if self._failure is not None:
            raise self._failure

    async def wait_done(self) -> None:
        """Wait until the call has ended."""
        if not self._done:
            await self._create_waiter()

    def _create_waiter(self) -> "asyncio.Future[None]":
        """Return a future for the end. A wait that is cancelled cancels only its own future, which is not the end."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def stop(self) -> None:
        """Cancel the call if it has not ended."""
        if self._recorded is not None:
            self._done = True
        elif self._attempt is None:
            self._cancelled = True
            self._refuse()
        elif not self._attempt.ended:
            self._cancelled, self._untouched = True, self._attempt.idle
            if self._elicitation is not None:
                self._elicitation.abandoned = True
            self._attempt.stop()

    def final_result(self) -> ToolResult:
        """Return the result; for a call that could not be recorded or stopped in time, an interrupted one."""
        if self.result is None:
            may_have_run = self._attempt is not None and not self._untouched
            unknown = _interrupted_result(self._decision) if may_have_run else self._not_started_result()
            self.result = self._recorded or unknown
            if self._recorded is not None or self._scope.journal is None or not self._scope.journal.detached:
                self._emit_result(self.result)
            if not self._done:
                self._scope.governance.spawn(self.wait_done())
        return self.result

    def pause(self) -> None:
        """Pause the timeout of the call while a person is asked."""
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        if self._attempt is not None:
            self._attempt.resume()

    def _check_repeats(self, approved: Approved) -> Exception | None:
        if self._scope.repeats is None:
            return None
        try:
            self._scope.repeats.check(
                msgspec.json.encode((approved.tool.name, approved.call.arguments), order="deterministic")
            )
        except Exception as error:  # noqa: BLE001 - one repeat too many, or arguments that are not JSON
            return error
        return None

    def _refuse(self) -> None:
        """Finish without an attempt."""
        if not self._refused:
            self._refused = True
            self._scope.governance.spawn(self._finish(None, self._error))

    async def _finish(self, value: Any, error: Exception | None) -> None:
        """Record the result, then emit it. After `stop`, `final_result` emits results in the model's order instead."""
        try:
            if self._elicitation is not None or self._reservations:
                await self._close_open()
            self._flush_progress()
            result = self.result or self._to_result(value, error)
            if result.status == "unknown" and result is not self.result:
                result = await self._query_unknown(result)
            ran_ok = result.status == "ok"
            result = await self._with_source(result, error)
            if self._scope.hooks is not None:
                result = await self._apply_after_hooks(self._scope.hooks, result)
            self._recorded = result = await self._record(result, ran_ok=ran_ok)
            if not self._cancelled and self.result is None:
                self.result = self._emit_result(result)
        except ShuttingDown as failure:
            self._failure = failure
        except Exception as failure:  # noqa: BLE001 - raised again in `wait`
            self._failure = failure
            kind = type(failure).__name__
            logger.error("failed to record a tool call: tool=%s run=%s error=%s", self._name, self._scope.run_id, kind)
        finally:
            self._end_span()
            if self._scope.client is not None:
                self._scope.client.mark_reached(self._decision.call.id)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def _close_open(self) -> None:
        """Withdraw open forms, and release unused reservations."""
        if self._elicitation is not None:
            await self._elicitation.close()
        while self._reservations and self._scope.budget is not None:
            await self._scope.budget.settle(self._reservations.pop(), None)

    def _to_result(self, value: Any, error: Exception | None) -> ToolResult:
        call = self._decision.call
        if self._cancelled and self._attempt is not None:
            return self._not_started_result() if self._untouched else _interrupted_result(self._decision)
        if error is not None:
            return self._error_result(error)
        if self._attempt is None:
            return self._not_started_result()
        if isinstance(self._decision, Approved) and self._decision.edited:
            value = {"edited_arguments": call.arguments, "result": value}
        return ToolResult(call.id, "ok", self._scope.governance.redactor.remove_known(value))

    async def _with_source(self, result: ToolResult, error: Exception | None) -> ToolResult:
        """Mark the result of a call that was run, also if it failed, with the source of its untrusted content."""
        decision = self._decision
        if isinstance(error, ToolFault) and not error.untrusted:
            return result
        known = decision.known_result if isinstance(decision, Rejected) else None
        if (self._attempt is None and known is None) or decision.tool is None:
            return result
        if not self._source and not decision.tool.untrusted:
            return result
        source = self._source or await self._find_source(decision.tool)
        if source:
            source = self._scope.governance.redactor.text(self._source or one_line(source, MAX_NOTE))
        return msgspec.structs.replace(result, untrusted=source) if source else result

    async def _find_source(self, tool: Tool) -> str:
        """Return the source that the tool declares. If its function fails, the result counts as untrusted."""
        try:
            return await tool.find_source(self._decision.call.arguments)
        except Exception as error:  # noqa: BLE001 - a user's function; the call must be recorded all the same
            trace = self._scope.governance.redactor.trace(error, find_secrets(self._decision.call.arguments))
            logger.error("untrusted failed: tool=%s run=%s\n%s", tool.name, self._scope.run_id, trace)
            return tool.name

    def _mark_untrusted(self, source: str) -> None:
        known = self._source.split("; ") if self._source else []
        found = dict.fromkeys((*known, one_line(source, MAX_NOTE)))
        self._source = "; ".join([*found][:_MAX_SOURCES])

    async def _query_unknown(self, result: ToolResult) -> ToolResult:
        """Replace an unknown outcome by the finding of the tool's `reconcile`."""
        decision = self._decision
        if self._cancelled or not isinstance(decision, Approved) or not decision.tool.reconcile:
            return result
        finding = await query_outcome(decision.tool, decision.call, self._scope)
        return _as_result(finding, decision.call, self._scope) or result

    async def _apply_after_hooks(self, hooks: ToolHooks, result: ToolResult) -> ToolResult:
        """Let hooks change the result of a call that ran, or that a hook answered."""
        decision = self._decision
        known = decision.known_result if isinstance(decision, Rejected) else None
        if self._cancelled or (self._attempt is None and known is None):
            return result
        result, actions = await hooks.after_call(decision.call, result, self._scope.context)
        if actions:
            self._actions += actions
            value = self._scope.governance.redactor.remove_known(result.result)
            result = msgspec.structs.replace(result, result=value)
        return result

    async def _record(self, result: ToolResult, *, ran_ok: bool) -> ToolResult:
        """Record the outcome, its audit row and the writes of a tool that succeeded in one transaction.

        If the transaction is refused by a limit, nothing was written, and the refusal is the result.
        """
        journal, call = self._scope.journal, self._decision.call
        governance = self._scope.governance
        if journal is None:
            await governance.audit.append(self._audit_entry(result))
            return result
        writes = self._writes if self._writes and ran_ok else ()
        try:
            await journal.record_outcome(call, result, self._audit_entry(result), self._total_usage, *writes)
        except DailyLimitExceeded as exceeded:
            result = ToolResult(call.id, "error", str(exceeded), "limit")
            await journal.record_outcome(call, result, self._audit_entry(result), self._total_usage)
        if writes and governance.team_services is not None:
            governance.team_services.wake()
        return result

    def _not_started_result(self) -> ToolResult:
        """Return the result of a call not started here: nothing happened, unless an earlier process started it."""
        journal, call = self._scope.journal, self._decision.call
        if isinstance(self._decision, Rejected) and self._decision.known_result is not None:
            return self._decision.known_result
        if journal is not None and journal.has_intent(call):
            return ToolResult(call.id, "unknown", _CRASHED, "unknown")
        text = "The turn was cancelled before this call ran; nothing happened."
        return ToolResult(call.id, "error", text, "declined")

    def _error_result(self, error: Exception) -> ToolResult:
        """Return the result for the model: the redacted message of an expected error; for a bug, a generic message."""
        call, redactor = self._decision.call, self._scope.governance.redactor
        if isinstance(error, Declined) and self._scope.asks:
            return ToolResult(call.id, "error", {"cancelled": True, **self._decline_reason(error)}, error.kind)
        if not isinstance(error, ToolFault):
            trace = redactor.trace(error, find_secrets(call.arguments))
            logger.error("tool failed: tool=%s run=%s\n%s", self._name, self._scope.run_id, trace)
            return ToolResult(call.id, "error", NEUTRAL, "internal")
        pure = isinstance(self._decision, Approved) and self._decision.tool.effect == "pure"
        uncertain = error.kind == "unknown" or (isinstance(error, ToolTimeout) and not pure)
        text = redactor.text(fault_message(error), find_secrets(call.arguments))
        if uncertain and "may have happened" not in text:
            text += "; it may have happened"
        return ToolResult(call.id, "unknown" if uncertain else "error", text, error.kind)

    def _decline_reason(self, error: Declined) -> dict[str, str]:
        redactor, secrets = self._scope.governance.redactor, find_secrets(self._decision.call.arguments)
        reason = redactor.text(clean(error.reason.strip())[:MAX_MESSAGE], secrets)
        return {"reason": reason} if reason else {}

    def _emit_result(self, result: ToolResult) -> ToolResult:
        call, scope = self._decision.call, self._scope
        duration = scope.durations[call.id] = round(self._milliseconds())
        scope.emit_of_call(
            ToolAnswered(
                scope.run_id, self._name, call.arguments, call.id, result.status, result.error, result.result, duration
            )
        )
        return result

    def _milliseconds(self) -> float:
        """Return how long the call took, without the time a person took to answer; computed once.

        For a call of an earlier process, the duration comes from the journal.
        """
        if self._duration is None:
            journal, call = self._scope.journal, self._decision.call
            recorded = journal.duration(call) if journal is not None else None
            now = self._scope.governance.clock.monotonic()
            waited = self._elicitation.seconds_waited if self._elicitation is not None else 0.0
            self._duration = (now - self._started - waited) * 1000 if recorded is None else recorded
        return self._duration

    @property
    def _name(self) -> str:
        return self._scope.display_name(self._decision.call)

    def _audit_entry(self, result: ToolResult) -> AuditEntry:
        decision, scope, governance = self._decision, self._scope, self._scope.governance
        redactor = governance.redactor
        ok = result.status == "ok"
        tool, verdict = decision.tool, decision.verdict
        arguments = redactor.value(decision.call.arguments)
        secrets = find_secrets(decision.call.arguments) if arguments != decision.call.arguments else ()
        meta: dict[str, Any] = {
            "arguments": arguments,
            "result": redactor.head(result.result, MAX_RESULT, secrets),
            "duration_ms": round(self._milliseconds(), 3),
            "error": result.error,
            "retry_count": max(0, self._attempt.tries - 1) if self._attempt else 0,
            "status": result.status,
            "run_id": scope.run_id,
            "call_id": decision.call.id,
            "verdict": verdict.cell if verdict else None,
            "rule": verdict.rule if verdict else None,
            "policy": governance.policy_version,
            "role": scope.actor.role,
            "user": scope.actor.user,
            "needs": list(tool.permissions) if tool else [],
            "acts": tool is None or tool.effect != "pure",
        }
        if tool is not None and tool.runs_at_client:
            meta["source"] = "client"
        self._add_details(meta, result, secrets)
        agent, name = scope.actor.agent_id, tool.name if tool else redactor.head(self._name, 200)
        return AuditEntry(
            tenant_id=scope.actor.tenant,
            actor_external_id=agent,
            entity_id=name,
            level="info" if ok else "error",
            message=f"Agent {agent} called {name}: {'success' if ok else 'failed'}",
            success=ok,
            meta=meta,
            timestamp=int(governance.clock.time() * 1000),
        )

    def _add_details(self, meta: dict[str, Any], result: ToolResult, secrets: Sequence[str]) -> None:
        """Add the details that only some calls have to an audit entry."""
        decision, redactor = self._decision, self._scope.governance.redactor
        if self._tainted_by:
            meta["tainted_by"] = redactor.value(list(self._tainted_by))
        if result.untrusted:
            meta["untrusted"] = result.untrusted
        if self._actions:
            meta["hooks"] = redactor.value(msgspec.to_builtins(self._actions))
            if decision.hooks is not None and decision.hooks.requested is not None:
                meta["requested"] = redactor.value(decision.hooks.requested)
        if self._notes:
            meta["notes"] = {key: redactor.head(value, MAX_NOTE, secrets) for key, value in self._notes.items()}
        if self._elicitation is not None and self._elicitation.log:
            meta["asked"] = redactor.value(self._elicitation.log)
        if self._usage:
            meta["models"] = self._usage
        if isinstance(self._error, Declined):
            meta["declined"] = redactor.text(fault_message(self._error))
            meta["denied"] = {"by": self._error.by, **self._decline_reason(self._error)}
        if isinstance(decision, Approved) and decision.binding:
            meta |= {"approved_by": decision.approved_by, "approval": decision.binding, "edited": decision.edited}

    def _tool_context(self) -> ToolContext:
        scope, approved = self._scope, cast(Approved, self._decision)
        traceparent, _, tracestate = (self._span.traceparent or scope.trace.traceparent).partition(" ")
        return ToolContext(
            conversation=scope.conversation,
            agent=scope.agent,
            run_id=scope.run_id,
            call_id=approved.call.id,
            tenant_id=scope.actor.tenant,
            metadata=scope.metadata,
            deps=scope.deps,
            report=self._report_progress,
            approved=bool(approved.binding),
            untrusted=self._tainted_by,
            note=self._add_note,
            mark=self._mark_untrusted,
            ask=self._ask,
            spend=self._add_usage,
            count=self._add_turn_usage,
            reserve=self._reserve_tokens,
            user=scope.actor.user,
            chain=scope.chain,
            delegation=scope.delegation,
            traceparent=traceparent,
            tracestate=tracestate,
            team_services=scope.governance.team_services,
            writes=self._writes,
        )

    def _add_note(self, key: str, value: Any) -> None:
        if len(self._notes) < MAX_NOTES or key in self._notes:
            self._notes[key[:MAX_NOTE]] = value

    async def _ask(self, form: Form) -> Filled:
        if self._elicitation is None:
            self._elicitation = ToolElicitation(self._decision.call, self._scope, self)
        return await self._elicitation.ask(form)

    async def _reserve_tokens(self, tokens: int) -> None:
        budget = await self._scope.refresh_budget()
        if budget is not None:
            self._reservations.append(await budget.reserve(ModelCall(tokens, 1, least=0)))

    async def _add_usage(self, model: str, usage: Usage) -> None:
        """Count the tokens of a model that the tool called, whether or not the call succeeds."""
        scope = self._scope
        usage = scope.count_usage(model, usage)
        self._total_usage += usage
        if scope.budget is not None:
            await scope.budget.settle(self._reservations.pop() if self._reservations else None, usage)
        cost = {"cost": round(usage.cost, 8)} if usage.cost is not None else {}
        self._usage.append({"model": model, "input": usage.input_tokens, "output": usage.output_tokens, **cost})
        if scope.journal is not None:
            await finish_despite_cancel(scope.journal.record_usage(scope.actor.agent_id, model, usage))

    def _add_turn_usage(self, usage: Usage) -> None:
        """Count the usage of another turn that the tool ran; it is recorded as usage of that turn's session."""
        self._scope.count_usage("", usage)
        self._total_usage += usage

    def _report_progress(self, message: str) -> None:
        """Emit progress. Text that may be the start of a secret is held back until the next message."""
        if self._progress is None:
            self._progress = self._scope.governance.redactor.stream()
        self._emit_progress(self._progress.add(message[: MAX_MESSAGE * 4])[:MAX_MESSAGE])

    def _flush_progress(self) -> None:
        if self._progress is not None:
            self._emit_progress(self._progress.flush())

    def _emit_progress(self, text: str) -> None:
        """Emit a redacted text; a tool that was abandoned is ignored."""
        if text and self.result is None:
            scope, call = self._scope, self._decision.call
            scope.emit(ToolProgress(scope.run_id, self._name, call.id, text))


def _interrupted_result(decision: Approved | Rejected) -> ToolResult:
    """Return the result of a call that was stopped while it ran: only a pure tool is known to have had no effect."""
    if isinstance(decision, Approved) and decision.tool.effect == "pure":
        return ToolResult(decision.call.id, "error", "The turn was cancelled while this call ran.", "declined")
    text = "The turn was cancelled while this call ran; it may have happened. It was not retried."
    return ToolResult(decision.call.id, "unknown", text, "unknown")


class Timeout(Protocol):
    """The timeout of a call, which does not run while a person is asked."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ToolElicitation:
    """The forms of one tool call. A form that is still open when the call ends is withdrawn."""

    def __init__(self, call: ToolCall, scope: ToolScope, timeout: Timeout) -> None:
        self.seconds_waited = 0.0
        """How long the user took to answer, in total."""
        self.log: list[dict[str, Any]] = []
        """For the audit log: who asked for which fields, and the outcome, without the values."""
        self.abandoned = False
        """Whether the whole turn ends, and its questions with it: then nothing more is written."""
        self._call = call
        self._scope = scope
        self._timeout = timeout
        self._count = 0
        self._open: set[asyncio.Task[Filled]] = set()

    async def ask(self, form: Form) -> Filled:
        """Show a form and return its checked values; raises BadTool for an invalid form.

        The result is a cancel if no one can be asked or no one answers in time.
        """
        compile_check("form", form.schema, formats=True)
        self._count += 1
        filled = Filled("cancel")
        if self._scope.asks and self._count <= MAX_FORMS_PER_CALL:
            task = asyncio.create_task(self._ask(form, self._count))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            with self._paused():
                try:
                    await asyncio.wait((task,))
                finally:
                    task.cancel()
            filled = filled if task.cancelled() else task.result()
        self.log.append(_log_entry(form, filled))
        return filled

    async def close(self) -> None:
        """Withdraw open forms."""
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    @contextmanager
    def _paused(self) -> Generator[None, None, None]:
        clock = self._scope.governance.clock
        start = clock.monotonic()
        self._timeout.pause()
        try:
            yield
        finally:
            self.seconds_waited += clock.monotonic() - start
            self._timeout.resume()

    async def _ask(self, form: Form, number: int) -> Filled:
        scope, question = self._scope, self._question(form, number)
        governance, store = scope.governance, scope.approval_store
        waits = governance.approvals.wait or store is not None

        def on_asked(asked: Question) -> None:
            if waits:
                scope.emit(ApprovalAsked(scope.run_id, asked))

        try:
            answer = await governance.approvals.ask(question, governance.clock, store, on_asked)
        except Declined:
            return Filled("cancel")
        except asyncio.CancelledError:
            if not self.abandoned:
                await self._withdraw(question)
            raise
        if waits:
            scope.emit(ApprovalAnswered(scope.run_id, question.id, answer.decision, answer.by))
        return _to_filled(form, answer)

    async def _withdraw(self, question: Question) -> None:
        scope = self._scope
        try:
            if scope.approval_store is not None:
                await scope.approval_store.save_answer(question, _WITHDRAWN, "", new=True)
        except AtlasError as error:
            logger.warning("failed to withdraw a question: tool=%s error=%s", question.tool, error)
        scope.emit(ApprovalAnswered(scope.run_id, question.id, _WITHDRAWN.decision))

    def _question(self, form: Form, number: int) -> Question:
        """Build the question. Its id is the same when a resumed run asks the same form of the same call again."""
        scope, call = self._scope, self._call
        governance, tool = scope.governance, scope.display_name(call)
        bound = compute_binding(tool, {"form": encode(form).decode(), "number": number}, governance.policy_version)
        return Question(
            title=f"{form.asker[:1].upper()}{form.asker[1:]} requests your input",
            message=form.message,
            tool=tool,
            arguments=form.suggested,
            binding=bound,
            call_id=call.id,
            run_id=scope.run_id,
            agent_id=scope.actor.agent_id,
            session=scope.conversation.id,
            asked_by=scope.actor.user,
            expires_at=governance.clock.time() + governance.approvals.deadline,
            working_directory="",
            options=("once", "no", "dismiss"),
            tenant=scope.actor.tenant,
            id=question_id(scope.run_id, call.id, bound),
            policy=governance.policy_version,
            preview=str(governance.redactor.remove_known(clean(form.text))),
            form=form,
        )


def _to_filled(form: Form, answer: Answer) -> Filled:
    """Convert an answer. An `approve` function may return values that were not checked: invalid ones are a cancel."""
    if answer.decision in REFUSALS:
        action: Action = "decline" if answer.decision == "no" and answer.by else "cancel"
        return Filled(action, by=answer.by)
    try:
        return Filled("accept", form_values(form, answer), answer.by)
    except BadArguments as error:
        logger.warning("answer does not match the form: asker=%s error=%s", form.asker, error)
        return Filled("cancel", by=answer.by)


def _log_entry(form: Form, filled: Filled) -> dict[str, Any]:
    entry = {"asker": form.asker, "fields": [field.name for field in form.fields], "answer": filled.action}
    return {**entry, **({"by": filled.by} if filled.by else {}), **({"url": form.url} if form.url else {})}
