"""One call under way: let in by the limits, run under a timeout where it can be stopped, tried again where allowed."""

import asyncio
import inspect
import logging
import random
from functools import partial
from typing import Any

from atlas_agents.core.calling import in_thread
from atlas_agents.core.clock import Alarm
from atlas_agents.core.errors import OutcomeUnknown, ToolFailed, ToolFault, ToolTimeout
from atlas_agents.tools.clear import still_holds
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.desk import Cleared, Desk
from atlas_agents.tools.faults import diagnose
from atlas_agents.tools.limits import Slots, process_slots

logger = logging.getLogger(__name__)
GRACE = 0.25
abandoned: set[asyncio.Task[Any]] = set()
"""Tools that ignored their cancellation and still run; a growing set is a bug in one of them."""


class Crashed(Exception):
    """The function tried to end the process."""


class Attempt:
    """A tool at work in a task of its own. It starts at once; whoever waits for it is not held up by one that hangs."""

    def __init__(self, ticket: Cleared, context: ToolContext, desk: Desk) -> None:
        self._ticket = ticket
        self._desk = desk
        self._alarm: Alarm | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stopped = self._late = False
        self._held: list[Slots] = []
        self.ended = False
        self.resting = True
        """It waits, for its turn or to try again: nothing has happened so far."""
        self.tries = 0
        self._value: Any = None
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._work(context))

    async def result(self) -> Any:
        """What the function gave back, or what came of it instead."""
        await self.until_ended()
        if self._error is not None:
            raise self._error
        return self._value

    def halt(self) -> None:
        """End it: asked first, and left behind if it does not listen."""
        self._stopped = True
        self._halt()

    async def until_ended(self) -> None:
        """A future per waiter: cancelling the wait cancels what is awaited, and must not count as an end."""
        if not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _end(self) -> None:
        self.ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._grace is not None:
            self._grace.cancel()
        for slot in self._held:
            slot.give_back()
        self._held.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _halt(self) -> None:
        if not self.ended and self._grace is None:
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
            self._error = self._too_late()
            self._end()

    async def _work(self, context: ToolContext) -> None:
        """Keep what comes of it. Told from inside the task: a done-callback would come a round of the loop later."""
        try:
            value, error = await self._let_in(context), None
        except asyncio.CancelledError:
            value, error = None, ToolFailed(f"{self._ticket.tool.name} was cancelled from inside")
        except Exception as caught:  # noqa: BLE001 - raised again where the result is awaited
            value, error = None, caught
        except BaseException as end:  # noqa: BLE001 - SystemExit and its kin would end the loop itself
            value, error = None, Crashed(f"{self._ticket.tool.name} raised {type(end).__name__}")
        if not self.ended:
            self._value, self._error = value, error
            self._end()

    async def _let_in(self, context: ToolContext) -> Any:
        """Wait for the tick and a free place, count the day, look once more whether all still holds; then act."""
        limiter, actor = self._desk.house.limiter, self._desk.actor
        if limiter.ticks is not None:
            await limiter.ticks.turn(actor.agent_id)
        for slots in (self._desk.slots, process_slots()):
            if not slots.take():
                await slots.wait()
            self._held.append(slots)
        day = await limiter.reserve(actor.tenant, actor.agent_id) if limiter.counts_days else None
        try:
            still_holds(self._ticket, self._desk)
        except ToolFault:
            if day is not None:
                await limiter.days.release(actor.tenant, actor.agent_id, day)
            raise
        if self._desk.journal is not None:
            await self._desk.journal.intend(self._ticket.call)
        return await self._tries(context)

    async def _tries(self, context: ToolContext) -> Any:
        house, tool = self._desk.house, self._ticket.tool
        for pause in (*house.retries, None):
            self.tries += 1
            self.resting = False
            try:
                return await self._once(context)
            except Exception as caught:  # noqa: BLE001 - judged by its class
                found = diagnose(caught, tool)
            if not found.again:
                raise found.error
            if pause is None:
                raise _spent(found.error, self.tries)
            self.resting = found.nothing_happened
            wished = found.retry_after
            await house.clock.sleep(wished if wished is not None else pause * random.uniform(1, 1.2))
            still_holds(self._ticket, self._desk)
        raise AssertionError("unreachable")

    async def _once(self, context: ToolContext) -> Any:
        tool = self._ticket.tool
        self._alarm = self._desk.house.clock.call_later(tool.timeout, self._time_out)
        try:
            return await self._call(context)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._late or self._stopped or task is None:
                raise
            task.uncancel()
            self._late = False
            if self._grace is not None:
                self._grace.cancel()
                self._grace = None
            raise self._too_late() from None
        finally:
            self._alarm.cancel()

    def _too_late(self) -> ToolTimeout:
        tool = self._ticket.tool
        return ToolTimeout(f"{tool.name} took longer than {tool.timeout:g} s and was stopped")

    async def _call(self, context: ToolContext) -> Any:
        tool = self._ticket.tool
        positional, named = tool.bind(self._ticket.values, context)
        if tool.is_async:
            return await tool.function(*positional, **named)
        if tool.in_process:
            result = await in_thread(lambda: tool.function(*positional, **named))
            return await result if inspect.isawaitable(result) else result
        function = partial(tool.function, *positional) if positional else tool.function
        return await self._desk.house.workers.run(function, named, report=context.progress)


def _spent(error: Exception, tries: int) -> Exception:
    """The same fault, saying that it was tried often enough."""
    words = f"{error} (tried {tries} times; try again later, or another way)"
    return type(error)(words) if isinstance(error, ToolTimeout | OutcomeUnknown) else ToolFailed(words)
