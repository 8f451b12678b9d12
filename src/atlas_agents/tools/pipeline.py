"""The way of every tool call: find → permit → validate → confirm → limit → run → audit → result.

`clear` asks every question and has no effect; `Settling` has the effect. They are apart so that all calls of a round
are cleared, one by one and in the model's order, before the first of them acts.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from atlas_agents.core.events import ToolCalled
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.tools.clear import Denied, clear
from atlas_agents.tools.desk import Cleared, Desk
from atlas_agents.tools.execute import GRACE
from atlas_agents.tools.reconcile import NotHappened, as_result, find_out
from atlas_agents.tools.settle import Settling


async def run_tools(calls: Sequence[ToolCall], desk: Desk, results: list[ToolResult | None], *, parallel: bool) -> None:
    """Answer every call into `results`, in the order the model made them; cancelled or not, none stays unanswered."""
    underway: list[Settling] = []
    for call in calls:
        desk.emit(ToolCalled(desk.run_id, desk.shown_name(call), call.arguments, call.id))
    try:
        tickets = [await _ticket(call, desk) for call in calls]
        underway = [Settling(ticket, desk) for ticket in tickets]
        for settling in underway:
            await settling.begin()
            if not parallel:
                await settling.wait()
        for settling in underway:  # each is written down and told when it is there, not when it is its turn here
            await settling.wait()
    finally:
        underway = underway or [Settling(Denied(call), desk) for call in calls]  # cancelled while a person was asked
        try:
            if any(settling.result is None for settling in underway):
                await _stop(underway)
        finally:  # also when it is cancelled once more
            results[:] = [settling.given() for settling in underway]


async def _stop(underway: Sequence[Settling]) -> None:
    """End what has not ended; neither a tool nor a log that hangs is waited for long."""
    for settling in underway:
        settling.halt()
    with suppress(TimeoutError):
        async with asyncio.timeout(2 * GRACE):
            for settling in underway:
                await settling.over()


async def _ticket(call: ToolCall, desk: Desk) -> Cleared | Denied:
    """Clear a call, unless a run that was cut short had settled it, or had begun it and nobody knows its end."""
    tool, journal = desk.tools.get(call.name), desk.journal
    repeatable = tool is not None and tool.effect != "unsafe"
    if journal is not None and journal.given_up:
        return Denied(call, tool=tool)
    if journal is None or not journal.settled_before(call, repeatable=repeatable):
        return await clear(call, desk)
    found = await find_out(tool, call, desk) if tool is not None and journal.outcome(call) is None else None
    if isinstance(found, NotHappened):
        return await clear(call, desk)
    return Denied(call, tool=tool, known=as_result(found, call, desk))
