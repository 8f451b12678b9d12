"""One call under way: let in by the limits, run under a timeout where it can be stopped, tried again where allowed."""

import asyncio
import inspect
import logging
import random
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

from atlas_agents.core.calling import in_thread
from atlas_agents.core.clock import Alarm
from atlas_agents.core.errors import LimitSpent, OutcomeUnknown, ToolFailed, ToolFault, ToolTimeout
from atlas_agents.core.store import Reserve
from atlas_agents.tools.clear import still_holds
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.desk import Cleared, Desk
from atlas_agents.tools.faults import Diagnosis, diagnose
from atlas_agents.tools.journal import Journal
from atlas_agents.tools.limits import Slots, process_slots
from atlas_agents.tools.results import json_value

logger = logging.getLogger(__name__)
GRACE = 0.25
abandoned: set[asyncio.Task[Any]] = set()
"""Tools that ignored their cancellation and still run; a growing set is a bug in one of them."""
Settle: TypeAlias = Callable[[Any, Exception | None], Coroutine[Any, Any, None]]
_inside: ContextVar[bool] = ContextVar("atlas_inside_a_call", default=False)


class Crashed(Exception):
    """The function tried to end the process."""


class Attempt:
    """A tool at work in a task of its own, which starts at once and settles what came of it, too.

    Nothing of that is the turn's: who waits is not held up by a tool that hangs, and giving up cuts no row short.
    """

    def __init__(self, ticket: Cleared, context: ToolContext, desk: Desk, settle: Settle) -> None:
        self._ticket = ticket
        self._desk = desk
        self._settle = settle
        self._alarm: Alarm | None = None
        self._due = self._left = 0.0
        self._pauses = 0
        self._grace: asyncio.TimerHandle | None = None
        self._begun = self._stopped = self._late = False
        self._held: list[Slots] = []
        self.ended = False
        self.resting = True
        """It waits, for its turn or to try again: nothing has happened so far."""
        self.tries = 0
        self._task = asyncio.create_task(self._work(context))

    def pause(self) -> None:
        """A person is asked something: until they have answered, its time stands still."""
        self._pauses += 1
        if self._pauses == 1 and self._alarm is not None:
            self._alarm.cancel()
            self._left = max(0.0, self._due - self._desk.house.clock.monotonic())

    def go_on(self) -> None:
        self._pauses -= 1
        if not self._pauses and self._alarm is not None and not self.ended:
            self._set_alarm(self._left)

    def halt(self) -> None:
        """End it: asked first, and left behind if it does not listen."""
        self._stopped = True
        self._halt()

    def _end(self) -> None:
        self.ended = True
        self._disarm()
        if self._grace is not None:
            self._grace.cancel()
        for slot in self._held:
            slot.give_back()
        self._held.clear()

    def _set_alarm(self, seconds: float) -> None:
        clock = self._desk.house.clock
        self._due = clock.monotonic() + seconds
        self._alarm = clock.call_later(seconds, self._time_out)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _halt(self) -> None:
        if not self.ended and self._grace is None:
            if self._begun:  # cancelled before its first step, a task would not even say that it ended
                self._task.cancel()
            self._grace = asyncio.get_running_loop().call_later(GRACE, self._abandon)

    def _time_out(self) -> None:
        self._late = True
        self._halt()

    def _abandon(self) -> None:
        if not self.ended:
            abandoned.add(self._task)
            self._task.add_done_callback(abandoned.discard)
            logger.warning("the tool %r ignores its cancellation and is left behind", self._ticket.tool.name)
            self._end()
            self._desk.house.keep(self._settle(None, self._too_late()))

    async def _work(self, context: ToolContext) -> None:
        """See to an end, whatever comes. From inside the task: a done-callback would come a round of the loop later."""
        value: Any = None
        error: Exception | None = None
        self._begun = True
        try:
            value = await self._let_in(context)
        except asyncio.CancelledError:
            error = ToolFailed(f"{self._ticket.tool.name} was cancelled from inside")
        except Exception as caught:  # noqa: BLE001 - judged where the call is settled
            error = caught
        except BaseException as end:  # noqa: BLE001 - SystemExit and its kin would end the loop itself
            crashed = Crashed(f"{self._ticket.tool.name} raised {type(end).__name__}")
            error = crashed.with_traceback(end.__traceback__)
        if self.ended:  # left behind
            return
        self._end()
        if self._task.cancelling():  # it would strike at the next await
            self._desk.house.keep(self._settle(value, error))
        else:
            await self._settle(value, error)

    async def _let_in(self, context: ToolContext) -> Any:
        """Wait for the tick and a free place, count the day, look once more whether all still holds; then act."""
        limiter, actor = self._desk.house.limiter, self._desk.actor
        if self._stopped:
            raise asyncio.CancelledError
        if limiter.ticks is not None:
            await limiter.ticks.turn(actor.agent_id)
        await self._take_places()
        await still_holds(self._ticket, self._desk)
        if self._desk.journal is not None:
            await self._intend(self._desk.journal)
        elif limiter.counts_days:
            await self._count()
        return await self._tries(context)

    async def _intend(self, journal: Journal) -> None:
        """Write down that it is about to act, which counts against the day, too; that took time, so look once more."""
        limiter, actor = self._desk.house.limiter, self._desk.actor
        reserve = Reserve(actor.agent_id, limiter.today(), limiter.limits.per_day or 0) if limiter.counts_days else None
        try:
            await journal.intend(self._ticket.call, reserve)
        except LimitSpent:
            raise limiter.spent() from None
        await still_holds(self._ticket, self._desk)

    async def _count(self) -> None:
        """Count it against the day; what did not act after all does not count."""
        limiter, actor = self._desk.house.limiter, self._desk.actor
        day = await limiter.reserve(actor.tenant, actor.agent_id)
        try:
            await still_holds(self._ticket, self._desk)
        except Exception:
            await limiter.days.release(actor.tenant, actor.agent_id, day)
            raise

    async def _take_places(self) -> None:
        """One of the session's, and one of the process's unless a tool that holds one made this call: it would wait for
        itself as soon as all of them do."""
        for slots in (self._desk.slots,) if _inside.get() else (self._desk.slots, process_slots()):
            if not slots.take():
                await slots.wait()
            self._held.append(slots)
        _inside.set(True)

    async def _tries(self, context: ToolContext) -> Any:
        house, tool, values = self._desk.house, self._ticket.tool, self._ticket.values
        certain = True  # that no try before this one can have happened
        for pause in (*house.retries, None):
            self.tries += 1
            self.resting = False
            context.begin_again()
            try:
                return json_value(await self._once(values, context))
            except Exception as caught:
                if self._stopped or self.ended:  # nobody wants another try
                    raise
                found = diagnose(caught, tool)
            if pause is None or not found.again:
                raise _last(found, self.tries, certain or tool.effect == "pure")
            self.resting = certain = certain and found.nothing_happened
            wished = found.retry_after
            await house.clock.sleep(wished if wished is not None else pause * random.uniform(1, 1.2))
            await still_holds(self._ticket, self._desk)
            values = tool.convert(self._ticket.call.arguments)  # the function may have changed those it was given
        raise AssertionError("unreachable")

    async def _once(self, values: dict[str, Any], context: ToolContext) -> Any:
        self._set_alarm(self._ticket.tool.timeout)
        try:
            return await self._call(values, context)
        except (asyncio.CancelledError, Exception):
            if not self._late or self._stopped:
                raise
            raise self._too_late() from None
        finally:
            self._disarm()
            if self._late and not self._stopped:
                self._calm()

    def _calm(self) -> None:
        """It did stop when it was late: the cancellation has done its work, and nobody is left behind."""
        self._task.uncancel()
        self._late = False
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _too_late(self) -> ToolTimeout:
        tool = self._ticket.tool
        return ToolTimeout(f"{tool.name} took longer than {tool.timeout:g} s and was stopped")

    async def _call(self, values: dict[str, Any], context: ToolContext) -> Any:
        tool = self._ticket.tool
        positional, named = tool.bind(values, context)
        if tool.is_async:
            return await tool.function(*positional, **named)
        if tool.in_process:
            result = await in_thread(lambda: tool.function(*positional, **named))
            return await result if inspect.isawaitable(result) else result
        function = partial(tool.function, *positional) if positional else tool.function
        return await self._desk.house.workers.run(function, named, report=context.progress)


def _last(found: Diagnosis, tries: int, certain: bool) -> Exception:
    """The fault to end with: that it was tried often enough, and what an earlier try may have done all the same."""
    error = found.error
    if not isinstance(error, ToolFault) or (certain and not found.again):
        return error
    words = f"{error} (tried {tries} times; try again later, or another way)"
    if isinstance(error, ToolTimeout):
        return ToolTimeout(words)
    return ToolFailed(words) if certain and not isinstance(error, OutcomeUnknown) else OutcomeUnknown(words)
