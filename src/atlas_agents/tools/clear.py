"""All that must hold before a tool may act: it exists, it is permitted, its arguments fit, a person said yes."""

import asyncio
import copy
import logging
import os
import traceback
from typing import Any

import msgspec

from atlas_agents.core.calling import call as call_user
from atlas_agents.core.errors import BadArguments, Declined, NotPermitted, ToolFault, ToolNotFound
from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import ToolCall
from atlas_agents.tools.approvals import Answer, Question, binding
from atlas_agents.tools.desk import Cleared, Desk
from atlas_agents.tools.permissions import Verdict
from atlas_agents.tools.redact import secrets_in
from atlas_agents.tools.tool import Tool

logger = logging.getLogger(__name__)


class Denied(msgspec.Struct, frozen=True):
    """A call that may not act; without a fault, because the turn was cancelled before it could."""

    call: ToolCall
    fault: ToolFault | None = None
    tool: Tool | None = None
    verdict: Verdict | None = None


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
    except ToolFault as fault:
        return Denied(call, fault, tool, verdict)
    return Cleared(call, tool, values, verdict)


def still_holds(ticket: Cleared, desk: Desk) -> None:
    """The last look before the tool acts: permitted as things are now, and exactly what the yes was for."""
    permit(ticket.tool, desk.house.verdict(ticket.tool, desk.actor), desk)
    if ticket.bound and ticket.bound != _bound(ticket.tool, ticket.call.arguments, desk):
        raise Declined(f"{ticket.tool.name} was approved for something else than it would do now")


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
    """Ask, if it must be asked. What comes back is bound to the very arguments that were approved."""
    tool, call = ticket.tool, ticket.call
    try:
        if not await _must_ask(ticket):
            return ticket
        approvals = desk.house.approvals
        bound = _bound(tool, call.arguments, desk)
        question = _question(ticket, bound, desk)
        if (by := approvals.allowed(question)) is not None:
            return msgspec.structs.replace(ticket, bound=bound, approved_by=by)
        answer = await approvals.ask(question, desk.house.clock)
    except (ToolFault, asyncio.CancelledError):
        raise
    except Exception as error:  # a user's own functions; whoever could not be asked has not said yes
        trace = desk.house.redactor.text("".join(traceback.format_exception(error)), secrets_in(call.arguments))
        logger.error("asking about the tool %r failed in run %s\n%s", tool.name, desk.run_id, trace)
        raise Declined(f"{tool.name} was not approved") from error
    ticket, bound = _edited(ticket, answer, bound, desk)
    approvals.remember(answer, question, bound)
    return msgspec.structs.replace(ticket, bound=bound, approved_by=answer.by)


async def _must_ask(ticket: Cleared) -> bool:
    confirm = ticket.tool.confirm
    if ticket.verdict.cell == "ask" or confirm is True:
        return True
    return bool(await call_user(confirm, ticket.call.arguments)) if callable(confirm) else False


def _edited(ticket: Cleared, answer: Answer, bound: str, desk: Desk) -> tuple[Cleared, str]:
    """The call with the arguments that the person put in place of the model's: they must fit, too."""
    if answer.arguments is None or answer.arguments == ticket.call.arguments:
        return ticket, bound
    ticket.tool.check(answer.arguments)
    call = msgspec.structs.replace(ticket.call, arguments=answer.arguments)
    values = ticket.tool.convert(answer.arguments)
    changed = msgspec.structs.replace(ticket, call=call, values=values, edited=True)
    return changed, _bound(ticket.tool, answer.arguments, desk)


def _bound(tool: Tool, arguments: dict[str, Any], desk: Desk) -> str:
    return binding(tool.name, arguments, desk.house.version)


def _question(ticket: Cleared, bound: str, desk: Desk) -> Question:
    house = desk.house
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
        working_directory=os.path.realpath(os.curdir),
        reason=ticket.verdict.rule if ticket.verdict.cell == "ask" else "",
    )
