"""All that must hold before a tool may act: it exists, it is permitted, its arguments fit, a person said yes."""

from typing import Any

import msgspec

from atlas_agents.core.errors import BadArguments, Declined, NotPermitted, ToolNotFound
from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.tools.approvals import binding
from atlas_agents.tools.confirm import command_rule, confirm, facts_of
from atlas_agents.tools.desk import Cleared, Desk
from atlas_agents.tools.permissions import Verdict
from atlas_agents.tools.tool import Tool

_CHANGED = "Something that it depends on has changed since the yes, so it was not done."


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
            return await confirm(Cleared(call, tool, values, verdict), desk)
    except Exception as fault:  # noqa: BLE001 - also what a type's own validator raised: its siblings go on
        return Denied(call, fault, tool, verdict)
    return Cleared(call, tool, values, verdict)


async def still_holds(ticket: Cleared, desk: Desk) -> None:
    """The last look before the tool acts: permitted as things are now, and exactly what the yes was for."""
    tool, arguments = ticket.tool, ticket.call.arguments
    facts = await facts_of(tool, arguments) if ticket.bound else None
    ruled = ticket.ruled and await command_rule(ticket, desk) is not None
    verdict = desk.house.verdict(tool, desk.actor)
    permit(tool, verdict, desk)
    if ticket.bound:
        if ticket.bound != binding(tool.name, arguments, desk.house.version, facts=facts):
            raise Declined(f"{tool.name} was approved for something else than it would do now", _CHANGED)
    elif ticket.ruled != ruled or (verdict.cell == "ask" and not ruled):
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
