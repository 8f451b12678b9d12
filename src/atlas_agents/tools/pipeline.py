"""The way of one tool call: clear it, act on it, answer the model.

`clear` asks every question and has no effect; `Settling` has the effect. They are apart so that all calls of a round
are cleared, one by one and in the model's order, before the first of them acts.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.calling import call as call_user
from atlas_agents.core.clock import Clock
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import BadArguments, Declined, NotPermitted, ToolFault, ToolNotFound, ToolTimeout
from atlas_agents.core.events import Event, ToolAnswered, ToolCalled, ToolProgress
from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.core.metadata import Metadata
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.execute import Attempt
from atlas_agents.tools.results import fault_words, json_value
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.workers import WorkerDied, Workers

logger = logging.getLogger(__name__)
NEUTRAL = "Tool execution failed. The error has been logged for investigation."


class Question(msgspec.Struct, frozen=True):
    """What a person is asked before a tool acts: the tool and the exact arguments."""

    title: str
    message: str
    tool: str
    arguments: dict[str, Any]
    call_id: str
    run_id: str
    agent_id: str


Approve: TypeAlias = Callable[[Question], Any]
"""Sync or async; True or "once" is yes, anything else is no."""


class Desk:
    """Where one run's tool calls are handled: the tools it has, whose calls they are, whom to ask and to tell."""

    __slots__ = (
        "agent",
        "approve",
        "clock",
        "conversation",
        "emit",
        "metadata",
        "run_id",
        "tenant",
        "tools",
        "workers",
    )

    def __init__(
        self,
        *,
        run_id: str,
        agent: Any,
        tools: Mapping[str, Tool],
        conversation: Conversation,
        metadata: Metadata,
        emit: Callable[[Event], None],
        approve: Approve | None,
        clock: Clock,
        workers: Workers,
        tenant: str,
    ) -> None:
        self.run_id = run_id
        self.agent = agent
        self.tools = tools
        self.conversation = conversation
        self.metadata = metadata
        self.emit = emit
        self.approve = approve
        self.clock = clock
        self.workers = workers
        self.tenant = tenant

    def shown_name(self, call: ToolCall) -> str:
        """The tool's own name for the name that the model used."""
        tool = self.tools.get(call.name)
        return tool.name if tool else call.name


class Cleared(msgspec.Struct, frozen=True):
    """A call that may act."""

    call: ToolCall
    tool: Tool
    values: dict[str, Any]


class Denied(msgspec.Struct, frozen=True):
    """A call that may not."""

    call: ToolCall
    fault: ToolFault


async def run_tools(calls: Sequence[ToolCall], desk: Desk, results: list[ToolResult | None], *, parallel: bool) -> None:
    """Answer every call into `results`, in the order the model made them; cancelled or not, none stays unanswered."""
    underway: list[Settling] = []
    for call in calls:
        desk.emit(ToolCalled(desk.run_id, desk.shown_name(call), call.arguments, call.id))
    try:
        for ticket in [await clear(call, desk) for call in calls]:
            underway.append(Settling(ticket, desk))
            if not parallel:
                await underway[-1].wait()
        for settling in underway:
            await settling.wait()
    finally:
        try:
            if any(not settling.ended for settling in underway):
                await asyncio.gather(*(settling.stop() for settling in underway))
        finally:  # also when it is cancelled once more
            for place, call in enumerate(calls):
                begun = place < len(underway)
                results[place] = underway[place].given() if begun else _tell(call, _never_run(call), desk)


async def clear(call: ToolCall, desk: Desk) -> Cleared | Denied:
    """Ask all that must hold before a tool may act; nothing has happened yet when this returns."""
    try:
        tool = _find(call, desk)
        _permit(tool)
        values = _validate(tool, call)
        await _confirm(tool, call, desk)
    except ToolFault as fault:
        return Denied(call, fault)
    return Cleared(call, tool, values)


class Settling:
    """A cleared call being carried out, or a denied one being told so; `result` stands whatever happens.

    The result is told when it is there, whichever other call is being waited for.
    """

    __slots__ = ("_attempt", "_desk", "_ticket", "result")

    def __init__(self, ticket: Cleared | Denied, desk: Desk) -> None:
        self._ticket = ticket
        self._desk = desk
        self._attempt: Attempt | None = None
        self.result: ToolResult | None = None
        if isinstance(ticket, Denied):
            self._settle(_refusal(ticket.call, ticket.fault))
        else:
            context = _context(ticket, desk, self._report)
            self._attempt = Attempt(ticket.tool, ticket.values, context, desk.clock, desk.workers, self._finish)

    @property
    def ended(self) -> bool:
        return self.result is not None

    async def wait(self) -> None:
        if self.result is None and self._attempt is not None:
            await self._attempt.until_ended()

    async def stop(self) -> None:
        """End it, if it has not ended by itself."""
        attempt, self._attempt = self._attempt, None
        if self.result is None and attempt is not None:
            untouched = attempt.resting
            await attempt.stop()
            self._settle(_never_run(self._ticket.call) if untouched else _interrupted(self._ticket))

    def given(self) -> ToolResult:
        """The result; of a call that could not even be stopped, that it was interrupted."""
        return self.result or self._settle(_interrupted(self._ticket))

    def _finish(self) -> None:
        if self._attempt is not None and isinstance(self._ticket, Cleared):  # and not being stopped
            self._settle(_outcome(self._attempt, self._ticket, self._desk))

    def _settle(self, result: ToolResult) -> ToolResult:
        self.result = _tell(self._ticket.call, result, self._desk)
        return result

    def _report(self, message: str) -> None:
        """Pass on how far the tool is; one that was left behind is not heard any more."""
        if self.result is None:
            call, desk = self._ticket.call, self._desk
            desk.emit(ToolProgress(desk.run_id, desk.shown_name(call), call.id, message))


def _outcome(attempt: Attempt, ticket: Cleared, desk: Desk) -> ToolResult:
    call, tool = ticket.call, ticket.tool
    try:
        return ToolResult(call.id, "ok", json_value(attempt.result()))
    except ToolTimeout as fault:
        return ToolResult(call.id, "error" if tool.effect == "pure" else "unknown", str(fault), fault.kind)
    except ToolFault as fault:
        return ToolResult(call.id, "unknown" if fault.kind == "unknown" else "error", fault_words(fault), fault.kind)
    except WorkerDied:
        logger.exception("the process of the tool %r ended in run %s", tool.name, desk.run_id)
        if tool.effect == "pure":
            return ToolResult(call.id, "error", NEUTRAL, "internal")
        words = f"The process of {tool.name} ended while it ran; it may have happened. It was not retried."
        return ToolResult(call.id, "unknown", words, "unknown")
    except Exception:  # the border to a tool's body: the log gets the trace, the model a neutral sentence
        logger.exception("the tool %r failed in run %s", tool.name, desk.run_id)
        return ToolResult(call.id, "error", NEUTRAL, "internal")


def _context(ticket: Cleared, desk: Desk, report: Callable[[str], None]) -> ToolContext:
    call, tool = ticket.call, ticket.tool
    in_thread = tool.in_process and not tool.is_async
    return ToolContext(
        conversation=desk.conversation,
        agent=desk.agent,
        run_id=desk.run_id,
        call_id=call.id,
        tenant_id=desk.tenant,
        metadata=desk.metadata,
        report=partial(asyncio.get_running_loop().call_soon_threadsafe, report) if in_thread else report,
    )


def _find(call: ToolCall, desk: Desk) -> Tool:
    tool = desk.tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(desk.tools)) or "none"
        raise ToolNotFound(f"There is no tool {call.name[:80]!r}. There are: {known}.")
    return tool


def _permit(tool: Tool) -> None:
    """Handing a tool to an agent is the grant, unless the tool names what it needs: then something must grant that."""
    if tool.permissions:
        raise NotPermitted(f"{tool.name} needs {', '.join(tool.permissions)}, and nothing grants it to this agent.")


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


async def _confirm(tool: Tool, call: ToolCall, desk: Desk) -> None:
    try:
        approved = await _approved(tool, call, desk)
    except Exception:  # a user's own functions; whoever could not be asked has not said yes
        logger.exception("asking about the tool %r failed in run %s", tool.name, desk.run_id)
        approved = False
    if not approved:
        raise Declined(f"{tool.name} was not approved")


async def _approved(tool: Tool, call: ToolCall, desk: Desk) -> bool:
    wanted = tool.confirm if isinstance(tool.confirm, bool) else await call_user(tool.confirm, call.arguments)
    if not wanted:
        return True
    question = Question(
        title=f"Confirm execution of {tool.name}",
        message="About to execute:",
        tool=tool.name,
        arguments=call.arguments,
        call_id=call.id,
        run_id=desk.run_id,
        agent_id=desk.agent.id,
    )
    answer = await call_user(desk.approve, question) if desk.approve else "no"
    return answer is True or answer == "once"


def _refusal(call: ToolCall, fault: ToolFault) -> ToolResult:
    words: Any = {"cancelled": True} if isinstance(fault, Declined) else fault_words(fault)
    return ToolResult(call.id, "error", words, fault.kind)


def _never_run(call: ToolCall) -> ToolResult:
    words = "The turn was cancelled before this call ran; nothing happened."
    return ToolResult(call.id, "error", words, "declined")


def _interrupted(ticket: Cleared | Denied) -> ToolResult:
    """A tool that was stopped in the middle: only one without effects is known not to have had any."""
    if isinstance(ticket, Cleared) and ticket.tool.effect == "pure":
        return ToolResult(ticket.call.id, "error", "The turn was cancelled while this call ran.", "declined")
    words = "The turn was cancelled while this call ran; it may have happened. It was not retried."
    return ToolResult(ticket.call.id, "unknown", words, "unknown")


def _tell(call: ToolCall, result: ToolResult, desk: Desk) -> ToolResult:
    name = desk.shown_name(call)
    desk.emit(ToolAnswered(desk.run_id, name, call.arguments, call.id, result.status, result.error, result.result))
    return result
