"""All that must hold before a tool may act: it exists, it is permitted, its arguments fit, a person said yes."""

import asyncio
import copy
import logging
import os
from typing import Any

import msgspec

from atlas_agents.core.calling import call as call_user
from atlas_agents.core.errors import BadArguments, Declined, NotPermitted, ToolFault, ToolNotFound
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked
from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.tools.approvals import Answer, Question, binding, question_id
from atlas_agents.tools.desk import Cleared, Desk
from atlas_agents.tools.permissions import Verdict
from atlas_agents.tools.redact import secrets_in
from atlas_agents.tools.tool import Tool

logger = logging.getLogger(__name__)


class Denied(msgspec.Struct, frozen=True):
    """A call that may not act; without a fault, because the turn was cancelled before it could, or because it acted in
    an earlier life, when `known` is what is known of it."""

    call: ToolCall
    fault: Exception | None = None
    tool: Tool | None = None
    verdict: Verdict | None = None
    known: ToolResult | None = None


async def clear(call: ToolCall, desk: Desk) -> Cleared | Denied:
    """find → permit → validate → confirm. Nothing has happened yet when this returns."""
    tool: Tool | None = None
    verdict: Verdict | None = None
    try:
        tool = _find(call, desk)
        verdict = desk.house.verdict(tool, desk.actor)
        permit(tool, verdict, desk)
        values = _validate(tool, call)
        if verdict.cell == "ask" or tool.confirm:
            return await _confirm(Cleared(call, tool, values, verdict), desk)
    except Exception as fault:  # noqa: BLE001 - also what a type's own validator raised: its siblings go on
        return Denied(call, fault, tool, verdict)
    return Cleared(call, tool, values, verdict)


def still_holds(ticket: Cleared, desk: Desk) -> None:
    """The last look before the tool acts: permitted as things are now, and exactly what the yes was for."""
    tool, verdict = ticket.tool, desk.house.verdict(ticket.tool, desk.actor)
    permit(tool, verdict, desk)
    if ticket.bound:
        if ticket.bound != binding(tool.name, ticket.call.arguments, desk.house.version):
            raise Declined(f"{tool.name} was approved for something else than it would do now")
    elif verdict.cell == "ask":
        raise Declined(f"{tool.name} needs a yes since it was cleared: {verdict.rule}")


def permit(tool: Tool, verdict: Verdict, desk: Desk) -> None:
    if verdict.cell == "no":
        raise NotPermitted(f"{tool.name} is not permitted for {desk.actor.agent_id}: {verdict.rule}.")


def _find(call: ToolCall, desk: Desk) -> Tool:
    tool = desk.tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(tool.wire_name for tool in desk.shown())) or "none"
        raise ToolNotFound(f"There is no tool {call.name[:80]!r}. There are: {known}.")
    return tool


def _validate(tool: Tool, call: ToolCall) -> dict[str, Any]:
    if call.malformed is not None:
        raise BadArguments(_why_malformed(call.malformed))
    tool.check(call.arguments)
    return tool.convert(call.arguments)


def _why_malformed(written: str) -> str:
    try:
        parse_object(written)
    except ValueError as error:
        return f"The arguments are not valid JSON ({error}). Nothing was run; call again with one JSON object."
    return "The call was cut off before it was complete. Nothing was run; call again, with less text."


async def _confirm(ticket: Cleared, desk: Desk) -> Cleared:
    """Ask, if it must be asked. What comes back is bound to the very arguments that were approved: copies that neither
    the predicate, nor who is asked, nor who listens holds in hands."""
    call = msgspec.structs.replace(ticket.call, arguments=copy.deepcopy(ticket.call.arguments))
    ticket = msgspec.structs.replace(ticket, call=call)
    try:
        if not await _must_ask(ticket):
            return ticket
        approvals, question = desk.house.approvals, _question(ticket, desk)
        if (by := await approvals.allowed(question, desk.book)) is not None:
            return msgspec.structs.replace(ticket, bound=question.binding, approved_by=by)
        if not desk.asks:
            raise Declined(f"{ticket.tool.name} needs approval, and nobody can be asked from here")
        ticket = _approved(ticket, await _asked(question, desk), question)
    except (ToolFault, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # a user's own functions; whoever could not be asked has not said yes
        trace = desk.house.redactor.trace(error, secrets_in(call.arguments))
        logger.error("asking about the tool %r failed in run %s\n%s", ticket.tool.name, desk.run_id, trace)
        raise Declined(f"{ticket.tool.name} was not approved") from error
    return ticket


async def _must_ask(ticket: Cleared) -> bool:
    confirm = ticket.tool.confirm
    if ticket.verdict.cell == "ask" or confirm is True:
        return True
    return bool(await call_user(confirm, copy.deepcopy(ticket.call.arguments))) if callable(confirm) else False


async def _asked(question: Question, desk: Desk) -> Answer:
    """The answer; who listens hears of a question that waits, and of what became of it."""
    approvals, emit, id = desk.house.approvals, desk.emit, desk.run_id
    if not approvals.wait and desk.book is None:
        return await approvals.ask(question, desk.house.clock)
    try:
        answer = await approvals.ask(question, desk.house.clock, desk.book, lambda kept: emit(ApprovalAsked(id, kept)))
    except Declined:
        emit(ApprovalAnswered(id, question.id, "no"))
        raise
    emit(ApprovalAnswered(id, question.id, answer.decision, answer.by))
    return answer


def _approved(ticket: Cleared, answer: Answer, question: Question) -> Cleared:
    """The call as it was approved: bound to what was shown, or to the arguments that the person put in their place,
    which must fit, too. Either way where it was asked about, and under the policy of then."""
    tool, bound = ticket.tool, question.binding
    if answer.arguments is not None:
        edited = copy.deepcopy(answer.arguments)
        tool.check(edited)
        bound = binding(tool.name, edited, question.policy, question.working_directory)
        if bound != question.binding:
            call = msgspec.structs.replace(ticket.call, arguments=edited)
            ticket = msgspec.structs.replace(ticket, call=call, values=tool.convert(edited), edited=True)
    return msgspec.structs.replace(ticket, bound=bound, approved_by=answer.by)


def _question(ticket: Cleared, desk: Desk) -> Question:
    house, where = desk.house, os.path.realpath(os.curdir)
    bound = binding(ticket.tool.name, ticket.call.arguments, house.version, where)
    return Question(
        title=f"Confirm execution of {ticket.tool.name}",
        message="About to execute:",
        tool=ticket.tool.name,
        arguments=copy.deepcopy(ticket.call.arguments),
        binding=bound,
        call_id=ticket.call.id,
        run_id=desk.run_id,
        agent_id=desk.actor.agent_id,
        session=desk.conversation.id,
        asked_by=desk.actor.user,
        expires_at=house.clock.time() + house.approvals.deadline,
        working_directory=where,
        reason=ticket.verdict.rule if ticket.verdict.cell == "ask" else "",
        tenant=desk.actor.tenant,
        id=question_id(desk.run_id, ticket.call.id, bound),
        policy=house.version,
    )
