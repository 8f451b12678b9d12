"""A cleared call being carried out, or a denied one being told so: limit → run → audit → result."""

import asyncio
import logging
from functools import partial
from typing import Any

import msgspec

from atlas_agents.core.errors import Declined, LimitSpent, ToolFault, ToolTimeout
from atlas_agents.core.events import ToolAnswered, ToolProgress
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.core.store import Write
from atlas_agents.core.text import clean
from atlas_agents.tools.asking import Asking
from atlas_agents.tools.audit import MAX_NOTE, MAX_NOTES, MAX_RESULT, Entry
from atlas_agents.tools.clear import Cleared, Denied
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.desk import Desk
from atlas_agents.tools.execute import Attempt
from atlas_agents.tools.patience import Left
from atlas_agents.tools.reconcile import as_result, find_out
from atlas_agents.tools.redact import secrets_in
from atlas_agents.tools.results import MAX_WORDS, fault_words
from atlas_agents.tools.spending import Spending

logger = logging.getLogger(__name__)
NEUTRAL = "Tool execution failed. The error has been logged for investigation."
_CUT_SHORT = "This call was interrupted when the process ended; it may have happened. It was not retried."


class Settling:
    """One call on its way to its result; whatever happens it gets exactly one, and one line in the audit log.

    It is settled in the task of its attempt, or in one made for it, and never in the turn's: a turn that is cancelled
    while the line is written neither loses it nor writes it twice.
    """

    __slots__ = (
        *("_attempt", "_began", "_desk", "_failure", "_fault", "_halted", "_over", "_refused", "_ticket", "_untouched"),
        *("_asking", "_notes", "_spending", "_took", "_waiter", "_writes", "_written", "result"),
    )

    def __init__(self, ticket: Cleared | Denied, desk: Desk) -> None:
        self._ticket = ticket
        self._desk = desk
        self._began = desk.house.clock.monotonic()
        self._attempt: Attempt | None = None
        self._asking = Asking(ticket.call, desk)
        self._spending = Spending(desk)
        self._fault: Exception | None = ticket.fault if isinstance(ticket, Denied) else self._repeated(ticket)
        self._refused = self._halted = self._untouched = self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self._written = desk.journal.outcome(ticket.call) if desk.journal is not None else None
        self._writes: list[Write] | None = None if desk.journal is None else []
        self._failure: Exception | None = None
        self._took: float | None = None
        self._notes: dict[str, Any] = {}
        self.result: ToolResult | None = None

    async def begin(self) -> None:
        """Set it going. What acts is not begun while its line could not be written.

        A call of a run that was cut short has its recorded outcome, or none that anybody knows.
        """
        if self._written is not None:
            self.result, self._over = self._tell(self._written), True
        elif self._fault is not None or not isinstance(self._ticket, Cleared):
            self._refuse()
        else:
            if self._ticket.tool.effect != "pure":
                await self._desk.house.audit.ready()
            self._attempt = Attempt(self._ticket, self._context(self._ticket), self._desk, self._settle)
            self._asking.attempt = self._attempt

    async def wait(self) -> None:
        """Until it is written down and told; raises what the log raised."""
        await self.over()
        if self._failure is not None:
            raise self._failure

    async def over(self) -> None:
        """A future per waiter: cancelling the wait cancels what is awaited, and must not count as an end."""
        if not self._over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def halt(self) -> None:
        """Tell it to end, if it has not ended by itself."""
        if self._written is not None:
            self._over = True
        elif self._attempt is None:
            self._halted = True
            self._refuse()
        elif not self._attempt.ended:
            self._halted, self._untouched = True, self._attempt.resting
            self._asking.leaving = True
            self._attempt.halt()

    def given(self) -> ToolResult:
        """The result. Of a call that could not be written down or even stopped so far, that it was interrupted."""
        if self.result is None:
            unknown = _interrupted(self._ticket) if self._attempt else self._unbegun()
            self.result = self._written or unknown
            if self._written is not None or self._desk.journal is None or not self._desk.journal.left:
                self._tell(self.result)
            if not self._over:
                self._desk.house.keep(self.over())
        return self.result

    def _repeated(self, ticket: Cleared) -> Exception | None:
        if self._desk.repeats is None:
            return None
        try:
            self._desk.repeats.see(
                msgspec.json.encode((ticket.tool.name, ticket.call.arguments), order="deterministic")
            )
        except Exception as fault:  # noqa: BLE001 - one too many, or arguments that are no JSON
            return fault
        return None

    def _refuse(self) -> None:
        """Settle without an attempt."""
        if not self._refused:
            self._refused = True
            self._desk.house.keep(self._settle(None, self._fault))

    async def _settle(self, value: Any, error: Exception | None) -> None:
        """Written down, then told. Of a turn that was halted, `given` tells, in the model's order."""
        try:
            await self._asking.close()
            result = self.result or await self._found_out(self._outcome(value, error))
            self._written = result = await self._record(result)
            if not self._halted and self.result is None:
                self.result = self._tell(result)
        except Left as failure:
            self._failure = failure
        except Exception as failure:  # noqa: BLE001 - raised again to who waits
            self._failure = failure
            what = type(failure).__name__
            logger.error("a call of %r in run %s could not be written down: %s", self._name, self._desk.run_id, what)
        finally:
            self._over = True
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def _outcome(self, value: Any, error: Exception | None) -> ToolResult:
        call = self._ticket.call
        if self._halted and self._attempt is not None:
            return self._unbegun() if self._untouched else _interrupted(self._ticket)
        if error is not None:
            return self._faulty(error)
        if self._attempt is None:
            return self._unbegun()
        if isinstance(self._ticket, Cleared) and self._ticket.edited:
            value = {"edited_arguments": call.arguments, "result": value}
        return ToolResult(call.id, "ok", self._desk.house.redactor.known_in(value))

    async def _found_out(self, result: ToolResult) -> ToolResult:
        """Nobody saw the end of it; perhaps the tool can find out."""
        ticket = self._ticket
        if result.status != "unknown" or self._halted or not isinstance(ticket, Cleared) or not ticket.tool.reconcile:
            return result
        return as_result(await find_out(ticket.tool, ticket.call, self._desk), ticket.call, self._desk) or result

    async def _record(self, result: ToolResult) -> ToolResult:
        """Where there is a journal, the outcome, its audit row and what the tool wants written are one step; what is
        refused then was not done, and that is the outcome."""
        journal, call = self._desk.journal, self._ticket.call
        if journal is None:
            await self._desk.house.audit.append(self._entry(result))
            return result
        more = self._writes if self._writes and result.status == "ok" else ()
        try:
            await journal.settle(call, result, self._entry(result), *more)
        except LimitSpent as spent:
            result = ToolResult(call.id, "error", str(spent), "limit")
            await journal.settle(call, result, self._entry(result))
        if more and self._desk.house.office is not None:
            self._desk.house.office.wake()
        return result

    def _unbegun(self) -> ToolResult:
        """Of a call that was not begun: nothing happened, unless it was in a run that was cut short."""
        journal, call = self._desk.journal, self._ticket.call
        if isinstance(self._ticket, Denied) and self._ticket.known is not None:
            return self._ticket.known
        if journal is not None and journal.intended(call):
            return ToolResult(call.id, "unknown", _CUT_SHORT, "unknown")
        return never_run(call)

    def _faulty(self, error: Exception) -> ToolResult:
        """What a model reads: a fault's own words, sanitised; of a bug only that there was one."""
        call, redactor = self._ticket.call, self._desk.house.redactor
        if isinstance(error, Declined) and self._desk.asks:
            return ToolResult(call.id, "error", {"cancelled": True, **self._reason(error)}, error.kind)
        if not isinstance(error, ToolFault):
            trace = redactor.trace(error, secrets_in(call.arguments))
            logger.error("the tool %r failed in run %s\n%s", self._name, self._desk.run_id, trace)
            return ToolResult(call.id, "error", NEUTRAL, "internal")
        pure = isinstance(self._ticket, Cleared) and self._ticket.tool.effect == "pure"
        open_end = error.kind == "unknown" or (isinstance(error, ToolTimeout) and not pure)
        words = redactor.text(fault_words(error), secrets_in(call.arguments))
        if open_end and "may have happened" not in words:
            words += "; it may have happened"
        return ToolResult(call.id, "unknown" if open_end else "error", words, error.kind)

    def _reason(self, error: Declined) -> dict[str, str]:
        """Why it was declined, for the model, if a reason was given."""
        redactor, hidden = self._desk.house.redactor, secrets_in(self._ticket.call.arguments)
        reason = redactor.text(clean(error.reason.strip())[:MAX_WORDS], hidden)
        return {"reason": reason} if reason else {}

    def _tell(self, result: ToolResult) -> ToolResult:
        call, desk = self._ticket.call, self._desk
        took = desk.took[call.id] = round(self._duration())
        desk.emit(
            ToolAnswered(
                desk.run_id, self._name, call.arguments, call.id, result.status, result.error, result.result, took
            )
        )
        return result

    def _duration(self) -> float:
        """Milliseconds from its beginning to its end, without the wait for a person; asked again, the same. Of a call
        of an earlier life, as its journal has it."""
        if self._took is None:
            journal, call = self._desk.journal, self._ticket.call
            before = journal.took(call) if journal is not None else None
            now = self._desk.house.clock.monotonic()
            self._took = (now - self._began - self._asking.waited) * 1000 if before is None else before
        return self._took

    @property
    def _name(self) -> str:
        return self._desk.shown_name(self._ticket.call)

    def _entry(self, result: ToolResult) -> Entry:
        ticket, desk, house = self._ticket, self._desk, self._desk.house
        ok = result.status == "ok"
        tool, verdict = ticket.tool, ticket.verdict
        arguments = house.redactor.value(ticket.call.arguments)
        named = secrets_in(ticket.call.arguments) if arguments != ticket.call.arguments else ()
        meta: dict[str, Any] = {
            "arguments": arguments,
            "result": house.redactor.head(result.result, MAX_RESULT, named),
            "duration_ms": round(self._duration(), 3),
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
        if self._notes:
            meta["notes"] = {key: house.redactor.head(value, MAX_NOTE, named) for key, value in self._notes.items()}
        if self._asking.asked:
            meta["asked"] = house.redactor.value(self._asking.asked)
        if self._spending.spent:
            meta["models"] = self._spending.spent
        if isinstance(self._fault, Declined):
            meta["declined"] = house.redactor.text(fault_words(self._fault))
        if isinstance(ticket, Cleared) and ticket.bound:
            meta |= {"approved_by": ticket.approved_by, "approval": ticket.bound, "edited": ticket.edited}
        agent, name = desk.actor.agent_id, tool.name if tool else house.redactor.head(self._name, 200)
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
            approved=bool(ticket.bound),
            note=self._note,
            ask=self._asking.ask,
            spend=self._spending.add,
            user=desk.actor.user,
            chain=desk.chain,
            office=desk.house.office,
            writes=self._writes,
        )

    def _note(self, key: str, value: Any) -> None:
        if len(self._notes) < MAX_NOTES or key in self._notes:
            self._notes[key[:MAX_NOTE]] = value

    def _report(self, message: str) -> None:
        """Pass on how far the tool is; one that was left behind is not heard any more."""
        if self.result is None:
            desk, call = self._desk, self._ticket.call
            words = desk.house.redactor.head(message, MAX_WORDS)
            desk.emit(ToolProgress(desk.run_id, self._name, call.id, words))


def never_run(call: ToolCall) -> ToolResult:
    words = "The turn was cancelled before this call ran; nothing happened."
    return ToolResult(call.id, "error", words, "declined")


def _interrupted(ticket: Cleared | Denied) -> ToolResult:
    """A tool that was stopped in the middle: only one without effects is known not to have had any."""
    if isinstance(ticket, Cleared) and ticket.tool.effect == "pure":
        return ToolResult(ticket.call.id, "error", "The turn was cancelled while this call ran.", "declined")
    words = "The turn was cancelled while this call ran; it may have happened. It was not retried."
    return ToolResult(ticket.call.id, "unknown", words, "unknown")
