"""A cleared call being carried out, or a denied one being told so: limit → run → audit → result."""

import asyncio
import logging
import traceback
from functools import partial
from typing import Any

import msgspec

from atlas_agents.core.errors import Declined, LimitReached, ToolFault, ToolTimeout
from atlas_agents.core.events import ToolAnswered, ToolProgress
from atlas_agents.core.json import encode
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.tools.audit import MAX_RESULT, Entry
from atlas_agents.tools.clear import Cleared, Denied
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.desk import Desk
from atlas_agents.tools.execute import Attempt
from atlas_agents.tools.redact import secrets_in
from atlas_agents.tools.results import fault_words, json_value

logger = logging.getLogger(__name__)
NEUTRAL = "Tool execution failed. The error has been logged for investigation."
_CUT_SHORT = "This call was interrupted when the process ended; it may have happened. It was not retried."
_late_entries: set[asyncio.Task[Any]] = set()


class Settling:
    """One call on its way to its result; whatever happens it gets exactly one, and one line in the audit log."""

    __slots__ = ("_attempt", "_began", "_desk", "_fault", "_halted", "_ticket", "_untouched", "result")

    def __init__(self, ticket: Cleared | Denied, desk: Desk) -> None:
        self._ticket = ticket
        self._desk = desk
        self._began = desk.house.clock.monotonic()
        self._attempt: Attempt | None = None
        self._halted = self._untouched = False
        self._fault: ToolFault | None = ticket.fault if isinstance(ticket, Denied) else self._repeated(ticket)
        self.result: ToolResult | None = None

    async def begin(self) -> None:
        """Set a cleared call going. What acts is not begun while its line could not be written.

        A call of a run that was cut short has its recorded outcome, or none that anybody knows.
        """
        journal, call = self._desk.journal, self._ticket.call
        if journal is not None and (recorded := journal.outcome(call)) is not None:
            self.result = self._tell(recorded)
        elif journal is not None and journal.intended(call) and not self._may_repeat():
            await self._close(ToolResult(call.id, "unknown", _CUT_SHORT, "unknown"))
        elif self._fault is None and isinstance(self._ticket, Cleared):
            if self._ticket.tool.effect != "pure":
                await self._desk.house.audit.ready()
            self._attempt = Attempt(self._ticket, self._context(self._ticket), self._desk)

    def _may_repeat(self) -> bool:
        return self._ticket.tool is not None and self._ticket.tool.effect != "unsafe"

    @property
    def ended(self) -> bool:
        return self.result is not None

    async def wait(self) -> None:
        if self.result is None:
            await self._close(await self._outcome())

    def halt(self) -> None:
        """Tell it to end, if it has not ended by itself."""
        if self.result is None and self._attempt is not None and not self._attempt.ended:
            self._untouched = self._attempt.resting
            self._attempt.halt()
            self._halted = True

    async def stop(self) -> None:
        """See it end after `halt`, and write down what is known of it."""
        if self.result is not None:
            return
        if not self._halted or self._attempt is None:
            await self.wait()
            return
        await self._attempt.until_ended()
        await self._close(never_run(self._ticket.call) if self._untouched else _interrupted(self._ticket))

    def given(self) -> ToolResult:
        """The result; of a call that could not even be stopped, that it was interrupted."""
        if self.result is None:
            self.result = self._tell(_interrupted(self._ticket) if self._attempt else never_run(self._ticket.call))
            task = asyncio.ensure_future(self._record(self.result))
            _late_entries.add(task)
            task.add_done_callback(_late_entries.discard)
        return self.result

    def _repeated(self, ticket: Cleared) -> LimitReached | None:
        if self._desk.repeats is None:
            return None
        try:
            self._desk.repeats.see(
                msgspec.json.encode((ticket.tool.name, ticket.call.arguments), order="deterministic")
            )
        except LimitReached as fault:
            return fault
        return None

    async def _outcome(self) -> ToolResult:
        if self._fault is not None or self._attempt is None:
            return _refusal(self._ticket.call, self._fault)
        try:
            value = json_value(await self._attempt.result())
        except Exception as error:  # noqa: BLE001 - the border to a tool's body
            return self._failure(error)
        if isinstance(self._ticket, Cleared) and self._ticket.edited:
            value = {"edited_arguments": self._ticket.call.arguments, "result": value}
        return ToolResult(self._ticket.call.id, "ok", self._desk.house.redactor.known_in(value))

    def _failure(self, error: Exception) -> ToolResult:
        """What a model reads: a fault's own words, sanitised; of a bug only that there was one."""
        call, redactor = self._ticket.call, self._desk.house.redactor
        if isinstance(error, Declined):
            return _refusal(call, error)
        if not isinstance(error, ToolFault):
            trace = redactor.text("".join(traceback.format_exception(error)), secrets_in(call.arguments))
            logger.error("the tool %r failed in run %s\n%s", self._name, self._desk.run_id, trace)
            return ToolResult(call.id, "error", NEUTRAL, "internal")
        pure = isinstance(self._ticket, Cleared) and self._ticket.tool.effect == "pure"
        open_end = error.kind == "unknown" or (isinstance(error, ToolTimeout) and not pure)
        words = redactor.text(fault_words(error), secrets_in(call.arguments))
        if open_end and "may have happened" not in words:
            words += "; it may have happened"
        return ToolResult(call.id, "unknown" if open_end else "error", words, error.kind)

    async def _close(self, result: ToolResult) -> None:
        """Written down, then told."""
        await self._record(result)
        self.result = self._tell(result)

    async def _record(self, result: ToolResult) -> None:
        """Where there is a journal, the outcome and its audit row are one step."""
        journal, entry = self._desk.journal, self._entry(result)
        if journal is None:
            await self._desk.house.audit.append(entry)
        else:
            await journal.settle(self._ticket.call, result, entry)

    def _tell(self, result: ToolResult) -> ToolResult:
        call, desk = self._ticket.call, self._desk
        desk.emit(
            ToolAnswered(desk.run_id, self._name, call.arguments, call.id, result.status, result.error, result.result)
        )
        return result

    @property
    def _name(self) -> str:
        return self._desk.shown_name(self._ticket.call)

    def _entry(self, result: ToolResult) -> Entry:
        ticket, desk, house = self._ticket, self._desk, self._desk.house
        ok = result.status == "ok"
        tool, verdict = ticket.tool, ticket.verdict
        told, arguments = result.result, house.redactor.value(ticket.call.arguments)
        said = told if isinstance(told, str) else encode(house.redactor.value(told)).decode()
        named = secrets_in(ticket.call.arguments) if arguments != ticket.call.arguments else ()
        meta: dict[str, Any] = {
            "arguments": arguments,
            "result": house.redactor.text(said[: 4 * MAX_RESULT], named)[:MAX_RESULT],
            "duration_ms": round((house.clock.monotonic() - self._began) * 1000, 3),
            "error": result.error,
            "retry_count": max(0, self._attempt.tries - 1) if self._attempt else 0,
            "status": result.status,
            "run_id": desk.run_id,
            "call_id": ticket.call.id,
            "verdict": verdict.cell if verdict else None,
            "rule": verdict.rule if verdict else None,
            "policy": house.version,
            "role": desk.actor.role,
            "user": desk.actor.user,
            "needs": list(tool.permissions) if tool else [],
            "acts": tool is None or tool.effect != "pure",
        }
        if isinstance(self._fault, Declined):
            meta["declined"] = house.redactor.text(fault_words(self._fault))
        if isinstance(ticket, Cleared) and ticket.bound:
            meta |= {"approved_by": ticket.approved_by, "approval": ticket.bound, "edited": ticket.edited}
        agent, name = desk.actor.agent_id, self._name[:200]
        return Entry(
            tenant_id=desk.actor.tenant,
            actor_external_id=agent,
            entity_id=name,
            level="info" if ok else "error",
            message=f"Agent {agent} called {name}: {'success' if ok else 'failed'}",
            success=ok,
            meta=meta,
            timestamp=int(house.clock.time() * 1000),
        )

    def _context(self, ticket: Cleared) -> ToolContext:
        desk, tool = self._desk, ticket.tool
        in_thread = tool.in_process and not tool.is_async
        loop = asyncio.get_running_loop()
        return ToolContext(
            conversation=desk.conversation,
            agent=desk.agent,
            run_id=desk.run_id,
            call_id=ticket.call.id,
            tenant_id=desk.actor.tenant,
            metadata=desk.metadata,
            report=partial(loop.call_soon_threadsafe, self._report) if in_thread else self._report,
        )

    def _report(self, message: str) -> None:
        """Pass on how far the tool is; one that was left behind is not heard any more."""
        if self.result is None:
            desk, call = self._desk, self._ticket.call
            desk.emit(ToolProgress(desk.run_id, self._name, call.id, message))


def never_run(call: ToolCall) -> ToolResult:
    words = "The turn was cancelled before this call ran; nothing happened."
    return ToolResult(call.id, "error", words, "declined")


def _refusal(call: ToolCall, fault: ToolFault | None) -> ToolResult:
    if fault is None:
        return never_run(call)
    words: Any = {"cancelled": True} if isinstance(fault, Declined) else fault_words(fault)
    return ToolResult(call.id, "error", words, fault.kind)


def _interrupted(ticket: Cleared | Denied) -> ToolResult:
    """A tool that was stopped in the middle: only one without effects is known not to have had any."""
    if isinstance(ticket, Cleared) and ticket.tool.effect == "pure":
        return ToolResult(ticket.call.id, "error", "The turn was cancelled while this call ran.", "declined")
    words = "The turn was cancelled while this call ran; it may have happened. It was not retried."
    return ToolResult(ticket.call.id, "unknown", words, "unknown")
