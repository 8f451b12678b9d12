"""Checks before a tool may act: the tool exists, it is permitted, no hook refuses the call, its arguments are valid,
a person approved it."""

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from atlas_agents.core.aio import invoke as call_user
from atlas_agents.core.errors import BadArguments, Declined, NotPermitted, ToolFault, ToolNotFound
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked
from atlas_agents.core.json import copy_json, parse_object
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.core.telemetry import APPROVAL_DECISION, APPROVAL_ID, TOOL_CALL_ID, TOOL_NAME
from atlas_agents.core.text import clean, one_line
from atlas_agents.tools.approvals import Answer, Question, SavedQuestion, compute_binding, question_id
from atlas_agents.tools.governance import Approved, ToolScope
from atlas_agents.tools.journal import HookRecord
from atlas_agents.tools.policy import Verdict
from atlas_agents.tools.redact import find_secrets
from atlas_agents.tools.tool import Tool

logger = logging.getLogger(__name__)
MAX_PREVIEW = 20_000
_MAX_SOURCE, _MAX_SOURCES = 80, 3
_STALE_APPROVAL = "Something that this call depends on has changed since it was approved, so it was not run."


class Rejected(msgspec.Struct, frozen=True):
    """A tool call that may not act.

    `error` is None if the turn was cancelled before the call could act, or if an earlier process already ran it; then
    `known_result` is the tool's report about it. `known_result` is also the answer of a hook in place of running the
    call.
    """

    call: ToolCall
    error: Exception | None = None
    tool: Tool | None = None
    verdict: Verdict | None = None
    known_result: ToolResult | None = None
    hooks: HookRecord | None = None


class Unanswered(msgspec.Struct, frozen=True):
    """A tool call that a person must approve. The question is stored, and an earlier process may know the answer."""

    approved: Approved
    saved: SavedQuestion


async def check_call(call: ToolCall, scope: ToolScope, sources: tuple[str, ...]) -> Approved | Rejected | Unanswered:
    """Check a call in the order find, permit, hooks, validate, confirm.

    `sources` are those of untrusted content in the session.

    If people can answer at any time, the call is returned unanswered, so that all questions of a reply are open at the
    same time; an `approve` function is called at once. Hooks run before validation and confirmation: a person approves
    the call as changed by the hooks.
    """
    tool: Tool | None = None
    verdict: Verdict | None = None
    hooks: HookRecord | None = None
    try:
        tool = _find_tool(call, scope)
        verdict = scope.governance.verdict(tool, scope.actor)
        _require_permission(tool, verdict, scope)
        if scope.hooks is not None and call.malformed is None:
            hooks = await _run_hooks(call, scope)
        if hooks is not None:
            call = apply_hooks(call, hooks)
            if hooks.refusal:
                raise NotPermitted(f"{tool.name} was not run: {hooks.refusal}")
            if hooks.answer is not None:
                return Rejected(call, None, tool, verdict, hooks.answer, hooks)
        values = _validate(tool, call)
        tainted = await _check_taint(tool, call, scope, sources) if sources else ""
        approved = Approved(call, tool, values, verdict, tainted=tainted, hooks=hooks)
        if tainted or verdict.cell == "ask" or tool.confirm:
            return await _confirm(approved, scope)
    except Exception as error:  # noqa: BLE001 - also from a user's own validator; the other calls must go on
        return Rejected(call, error, tool, verdict, hooks=hooks)
    return approved


async def wait_for_approval(unanswered: Unanswered, scope: ToolScope) -> Approved | Rejected:
    """Ask a person about a call, and return the call bound to exactly the arguments that were approved."""
    approved, saved, governance = unanswered.approved, unanswered.saved, scope.governance
    asking = governance.approvals.wait_for_approval(
        saved, governance.clock, scope.approval_store, lambda asked: scope.emit(ApprovalAsked(scope.run_id, asked))
    )
    try:
        with _decline_on_failure(approved, scope):
            return await _with_answer(approved, await _report_answer(asking, saved[0], scope), saved[0])
    except Exception as error:  # noqa: BLE001 - also from a user's own validator; the other calls must go on
        return Rejected(approved.call, error, approved.tool, approved.verdict, hooks=approved.hooks)


async def _run_hooks(call: ToolCall, scope: ToolScope) -> HookRecord | None:
    """Return the decision of the hooks about a call, possibly recorded by an earlier process."""
    journal = scope.journal
    if journal is not None and (journal.has_intent(call) or journal.hook_record(call) is not None):
        return journal.hook_record(call)
    found = await scope.hooks.before_call(call, scope.context) if scope.hooks is not None else None
    if found is not None:
        redactor = scope.governance.redactor
        if found.answer is not None:
            answer = msgspec.structs.replace(found.answer, result=redactor.remove_known(found.answer.result))
            found = msgspec.structs.replace(found, answer=answer)
        if journal is not None:
            await journal.record_hooks(call, found)
    return found


def apply_hooks(call: ToolCall, hooks: HookRecord) -> ToolCall:
    """Return the call with its arguments as changed by hooks."""
    return call if hooks.arguments is None else msgspec.structs.replace(call, arguments=hooks.arguments)


async def recheck(approved: Approved, scope: ToolScope) -> None:
    """Check again right before the tool acts: the call is still permitted, and still exactly as approved."""
    tool, arguments = approved.tool, approved.call.arguments
    facts = await _read_facts(tool, arguments) if approved.binding else None
    has_rule = approved.by_command_rule and await _find_command_rule(approved, scope) is not None
    verdict = scope.governance.verdict(tool, scope.actor)
    _require_permission(tool, verdict, scope)
    if approved.binding:
        if approved.binding != compute_binding(tool.name, arguments, scope.governance.policy_version, facts=facts):
            raise Declined(f"the approval of {tool.name} no longer matches what it would do", _STALE_APPROVAL)
    elif approved.by_command_rule != has_rule or (verdict.cell == "ask" and not has_rule):
        raise Declined(f"{tool.name} now requires approval: {verdict.rule}")


def _find_tool(call: ToolCall, scope: ToolScope) -> Tool:
    tool = scope.find_tool(call)
    if tool is None:
        known = ", ".join(sorted(tool.wire_name for tool in scope.visible_tools())) or "none"
        raise ToolNotFound(f"Unknown tool {call.name[:80]!r}. Available tools: {known}.")
    return tool.for_user(scope.actor.user)


def _require_permission(tool: Tool, verdict: Verdict, scope: ToolScope) -> None:
    if verdict.cell == "no":
        raise NotPermitted(f"{tool.name} is not permitted for {scope.actor.agent_id}: {verdict.rule}.")


async def _check_taint(tool: Tool, call: ToolCall, scope: ToolScope, sources: tuple[str, ...]) -> str:
    """Return the reason why untrusted content of these sources makes an approval necessary; empty if it does not.

    Raises NotPermitted if such a call is denied. The results of other calls in the same reply do not count: the model
    had not read them when it wrote the arguments.
    """
    sends = tool.sends
    if callable(sends):
        sends = bool(await call_user(sends, copy_json(call.arguments), scope.conversation))
        if not sends and tool.effect == "pure":
            return ""
    rule = scope.governance.when_tainted(tool, scope.actor, sends=sends)
    if rule == "allow":
        return ""
    does = "sends data out" if sends else "has side effects" if tool.effect != "pure" else "is restricted by the policy"
    reason = f"{_describe_sources(sources)}: {tool.name} {does}"
    if rule == "deny":
        raise NotPermitted(f"{tool.name} is not permitted, because of {reason}. Start a new session without it.")
    return reason


def _describe_sources(sources: tuple[str, ...]) -> str:
    """Describe the sources of untrusted content for a person: the latest ones, and the number of others."""
    shown = [one_line(source, _MAX_SOURCE) for source in sources[-_MAX_SOURCES:]]
    others = f" and {len(sources) - len(shown)} more" if len(sources) > len(shown) else ""
    return f"untrusted content in this session ({', '.join(shown)}{others})"


def _validate(tool: Tool, call: ToolCall) -> dict[str, Any]:
    if call.malformed is not None:
        raise BadArguments(_describe_malformed(call.malformed))
    tool.check(call.arguments)
    return tool.convert(call.arguments)


def _describe_malformed(text: str) -> str:
    try:
        parse_object(text)
    except ValueError as error:
        return f"The arguments are not valid JSON ({error}). Nothing was run; call again with one JSON object."
    return "The call was cut off before it was complete. Nothing was run; call again with shorter arguments."


async def _confirm(approved: Approved, scope: ToolScope) -> Approved | Unanswered:
    """Prepare a question if necessary, or ask it if a function answers it.

    The arguments are copied, so that neither the `confirm` predicate, nor the approver, nor a subscriber can change
    them after the approval.
    """
    call = msgspec.structs.replace(approved.call, arguments=copy_json(approved.call.arguments))
    approved = msgspec.structs.replace(approved, call=call)
    with _decline_on_failure(approved, scope):
        if not await _must_ask(approved):
            return approved
        if (rule := await _find_command_rule(approved, scope)) is not None:
            return msgspec.structs.replace(approved, verdict=rule, by_command_rule=True)
        question = _build_question(approved, scope, await _read_facts(approved.tool, approved.call.arguments))
        approvals, store = scope.governance.approvals, scope.approval_store
        by = await approvals.find_grant(question, store)
        if by is not None:
            return msgspec.structs.replace(approved, binding=question.binding, approved_by=by)
        if not scope.asks:
            raise Declined(f"{approved.tool.name} requires approval, and no one can be asked in this turn")
        question = msgspec.structs.replace(question, preview=await _build_preview(approved, scope))
        if approvals.wait and approvals.approve is None and store is not None:
            return Unanswered(approved, await approvals.save_question(question, store))
        return await _with_answer(approved, await _ask(question, scope), question)


@contextmanager
def _decline_on_failure(approved: Approved, scope: ToolScope) -> Generator[None]:
    """Decline the call if a function of the developer fails: without an answer there is no approval."""
    try:
        yield
    except (ToolFault, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        trace = scope.governance.redactor.trace(error, find_secrets(approved.call.arguments))
        logger.error("approval failed: tool=%s run=%s\n%s", approved.tool.name, scope.run_id, trace)
        raise Declined(f"{approved.tool.name} was not approved") from error


async def _must_ask(approved: Approved) -> bool:
    confirm = approved.tool.confirm
    if approved.tainted or approved.verdict.cell == "ask":
        return True
    return bool(await call_user(confirm, copy_json(approved.call.arguments)) if callable(confirm) else confirm)


async def _find_command_rule(approved: Approved, scope: ToolScope) -> Verdict | None:
    """Return the command rule of the current policy that allows this call without asking."""
    tool, policy = approved.tool, scope.governance.policy
    if tool.argv is None or policy is None or approved.tainted:
        return None
    argv = await call_user(tool.argv, copy_json(approved.call.arguments))
    return None if argv is None else policy.command(argv, scope.actor)


async def _read_facts(tool: Tool, arguments: dict[str, Any]) -> Any:
    """Return the current facts that a call depends on besides its arguments; None if the tool declares none."""
    return None if tool.binds is None else await call_user(tool.binds, copy_json(arguments))


async def _build_preview(approved: Approved, scope: ToolScope) -> str:
    """Return the tool's preview of the call's changes, cut to a readable length."""
    preview = approved.tool.preview
    if preview is None:
        return ""
    text = clean(str(await call_user(preview, copy_json(approved.call.arguments))))
    text = str(scope.governance.redactor.remove_known(text))
    hidden = len(text) - MAX_PREVIEW
    return text if hidden <= 0 else f"{text[:MAX_PREVIEW]}\n… {hidden:,} more characters are not shown"


async def _ask(question: Question, scope: ToolScope) -> Answer:
    """Return the answer, and emit events for a question that waits and for its answer."""
    governance, emit, run_id = scope.governance, scope.emit, scope.run_id
    approvals, store = governance.approvals, scope.approval_store
    if not approvals.wait and store is None:
        return await _time_answer(approvals.request_approval(question, governance.clock), question, scope)
    asking = approvals.request_approval(
        question, governance.clock, store, lambda asked: emit(ApprovalAsked(run_id, asked))
    )
    return await _report_answer(asking, question, scope)


async def _report_answer(asking: Awaitable[Answer], question: Question, scope: ToolScope) -> Answer:
    """Return the answer, and emit an event for it."""
    try:
        answer = await _time_answer(asking, question, scope)
    except Declined as refusal:
        scope.emit(ApprovalAnswered(scope.run_id, question.id, "no", refusal.by))
        raise
    scope.emit(ApprovalAnswered(scope.run_id, question.id, answer.decision, answer.by))
    return answer


async def _time_answer(asking: Awaitable[Answer], question: Question, scope: ToolScope) -> Answer:
    """Return the answer, and record the waiting time as a span, even if an earlier process asked."""
    if not scope.trace.span.recording:
        return await asking
    named = {TOOL_NAME: question.tool, TOOL_CALL_ID: question.call_id, APPROVAL_ID: question.id}
    asked_at = question.expires_at - scope.governance.approvals.deadline
    started = asked_at if math.isfinite(asked_at) else None
    with scope.trace.start(f"wait_for_approval {question.tool}", named, at=started) as span:
        answer = await asking
        span.set({APPROVAL_DECISION: answer.decision})
        return answer


async def _with_answer(approved: Approved, answer: Answer, question: Question) -> Approved:
    """Bind the call to the arguments that were shown, or to the person's edited ones.

    Edited arguments must be valid, too. The binding keeps the directory and the policy version of the question.
    """
    tool, bound = approved.tool, question.binding
    if answer.arguments is not None:
        edited = copy_json(answer.arguments)
        tool.check(edited)
        facts = await _read_facts(tool, edited)
        bound = compute_binding(tool.name, edited, question.policy, question.working_directory, facts)
        if bound != question.binding:
            call = msgspec.structs.replace(approved.call, arguments=edited)
            approved = msgspec.structs.replace(approved, call=call, values=tool.convert(edited), edited=True)
    return msgspec.structs.replace(approved, binding=bound, approved_by=answer.by)


def _reasons(approved: Approved, scope: ToolScope) -> list[str]:
    """Return the reasons for a question. Untrusted content is always named, because it may have caused the call."""
    sources = scope.untrusted_sources()
    tainted = approved.tainted or (_describe_sources(sources) if sources else "")
    return [reason for reason in (tainted, _rule(approved)) if reason]


def _rule(approved: Approved) -> str:
    """Return the rule that requires approval; empty if the tool itself requires it."""
    return approved.verdict.rule if approved.verdict.cell == "ask" else ""


def _build_question(approved: Approved, scope: ToolScope, facts: Any) -> Question:
    governance, directory = scope.governance, os.path.realpath(os.curdir)
    bound = compute_binding(approved.tool.name, approved.call.arguments, governance.policy_version, directory, facts)
    return Question(
        title=f"Confirm execution of {approved.tool.name}",
        message="About to execute:",
        tool=approved.tool.name,
        arguments=copy_json(approved.call.arguments),
        binding=bound,
        call_id=approved.call.id,
        run_id=scope.run_id,
        agent_id=scope.actor.agent_id,
        session=scope.conversation.id,
        asked_by=scope.actor.user,
        expires_at=governance.clock.time() + governance.approvals.deadline,
        working_directory=directory,
        reason="; ".join(_reasons(approved, scope)),
        tenant=scope.actor.tenant,
        id=question_id(scope.run_id, approved.call.id, bound),
        policy=governance.policy_version,
        facts=facts,
        rule=_rule(approved),
    )
