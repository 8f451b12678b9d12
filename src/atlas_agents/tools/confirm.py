"""Asking a person about a call: whether they must be asked, what they are shown, and what their yes is bound to."""

import asyncio
import copy
import logging
import os
from typing import Any

import msgspec

from atlas_agents.core.calling import call as call_user
from atlas_agents.core.errors import Declined, ToolFault
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked
from atlas_agents.core.text import clean
from atlas_agents.tools.approvals import Answer, Question, binding, question_id
from atlas_agents.tools.desk import Cleared, Desk
from atlas_agents.tools.redact import secrets_in
from atlas_agents.tools.tool import Tool

logger = logging.getLogger(__name__)
LONGEST_PREVIEW = 20_000


async def confirm(ticket: Cleared, desk: Desk) -> Cleared:
    """Ask, if it must be asked. What comes back is bound to the very arguments that were approved: copies that neither
    the predicate, nor who is asked, nor who listens holds in hands."""
    call = msgspec.structs.replace(ticket.call, arguments=copy.deepcopy(ticket.call.arguments))
    ticket = msgspec.structs.replace(ticket, call=call)
    try:
        if not await _must_ask(ticket):
            return ticket
        approvals, question = (
            desk.house.approvals,
            _question(ticket, desk, await facts_of(ticket.tool, ticket.call.arguments)),
        )
        if (by := await approvals.allowed(question, desk.book)) is not None:
            return msgspec.structs.replace(ticket, bound=question.binding, approved_by=by)
        if not desk.asks:
            raise Declined(f"{ticket.tool.name} needs approval, and nobody can be asked from here")
        question = msgspec.structs.replace(question, preview=await _preview(ticket, desk))
        ticket = await _approved(ticket, await _asked(question, desk), question)
    except (ToolFault, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # a user's own functions; whoever could not be asked has not said yes
        trace = desk.house.redactor.trace(error, secrets_in(call.arguments))
        logger.error("asking about the tool %r failed in run %s\n%s", ticket.tool.name, desk.run_id, trace)
        raise Declined(f"{ticket.tool.name} was not approved") from error
    return ticket


async def _must_ask(ticket: Cleared) -> bool:
    must = ticket.tool.confirm
    if ticket.verdict.cell == "ask" or must is True:
        return True
    return bool(await call_user(must, copy.deepcopy(ticket.call.arguments))) if callable(must) else False


async def facts_of(tool: Tool, arguments: dict[str, Any]) -> Any:
    """What else than its arguments a call depends on, as it is now; None of a tool that depends on nothing else."""
    return None if tool.binds is None else await call_user(tool.binds, copy.deepcopy(arguments))


async def _preview(ticket: Cleared, desk: Desk) -> str:
    """What the call would change, as its tool tells it: all that is too long for a person is said to be missing."""
    preview = ticket.tool.preview
    if preview is None:
        return ""
    words = clean(str(await call_user(preview, copy.deepcopy(ticket.call.arguments))))
    words = str(desk.house.redactor.known_in(words))
    left = len(words) - LONGEST_PREVIEW
    return words if left <= 0 else f"{words[:LONGEST_PREVIEW]}\n… {left:,} more characters are not shown"


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


async def _approved(ticket: Cleared, answer: Answer, question: Question) -> Cleared:
    """The call as it was approved: bound to what was shown, or to the arguments that the person put in their place,
    which must fit, too. Either way where it was asked about, and under the policy of then."""
    tool, bound = ticket.tool, question.binding
    if answer.arguments is not None:
        edited = copy.deepcopy(answer.arguments)
        tool.check(edited)
        facts = await facts_of(tool, edited)
        bound = binding(tool.name, edited, question.policy, question.working_directory, facts)
        if bound != question.binding:
            call = msgspec.structs.replace(ticket.call, arguments=edited)
            ticket = msgspec.structs.replace(ticket, call=call, values=tool.convert(edited), edited=True)
    return msgspec.structs.replace(ticket, bound=bound, approved_by=answer.by)


def _question(ticket: Cleared, desk: Desk, facts: Any) -> Question:
    house, where = desk.house, os.path.realpath(os.curdir)
    bound = binding(ticket.tool.name, ticket.call.arguments, house.version, where, facts)
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
        facts=facts,
    )
