"""One call under way: run under its timeout where it can be stopped, and again if it says that nothing happened."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from atlas_agents.core.calling import in_thread
from atlas_agents.core.clock import Alarm, Clock
from atlas_agents.core.errors import ToolFailed, ToolTimeout, Transient
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.workers import Workers

logger = logging.getLogger(__name__)
BACKOFF = (1.0, 3.0, 9.0)
GRACE = 0.25
abandoned: set[asyncio.Task[Any]] = set()
"""Tools that ignored their cancellation and still run; a growing set is a bug in one of them."""


class Crashed(Exception):
    """The function tried to end the process."""


class Attempt:
    """A tool at work in a task of its own. It starts at once; whoever waits for it is not held up by one that hangs.

    `then` is called when it has ended, once.
    """

    def __init__(
        self,
        tool: Tool,
        values: dict[str, Any],
        context: ToolContext,
        clock: Clock,
        workers: Workers,
        then: Callable[[], None],
    ) -> None:
        self._tool = tool
        self._clock = clock
        self._alarm: Alarm | None = None
        self._then = then
        self._waiter: asyncio.Future[None] | None = None
        self._stopped = self._late = False
        self.ended = False
        self.resting = False
        """It waits to try again: nothing has happened so far."""
        self._value: Any = None
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._work(values, context, workers))

    def result(self) -> Any:
        """What the function gave back, or raise what it raised; ToolTimeout when it took too long."""
        if self._late:
            raise ToolTimeout(f"{self._tool.name} took longer than {self._tool.timeout:g} s and was stopped")
        if self._error is not None:
            raise self._error
        return self._value

    async def stop(self) -> None:
        """End it: asked first, and left behind if it does not listen."""
        self._halt()
        await self.until_ended()

    async def until_ended(self) -> None:
        """A future per wait: cancelling the wait cancels what is awaited, and must not count as an end."""
        if not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _end(self) -> None:
        if self.ended:  # it was left behind, and has ended after all
            return
        self.ended = True
        self._then()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _halt(self) -> None:
        if not self._stopped and not self.ended:
            self._stopped = True
            self._task.cancel()
            asyncio.get_running_loop().call_later(GRACE, self._abandon)

    def _time_out(self) -> None:
        self._late = True
        self._halt()

    def _abandon(self) -> None:
        if not self.ended:
            abandoned.add(self._task)
            self._task.add_done_callback(abandoned.discard)
            logger.warning("the tool %r ignores its cancellation and is left behind", self._tool.name)
            self._end()

    async def _work(self, values: dict[str, Any], context: ToolContext, workers: Workers) -> None:
        """Keep what comes of it. Told from inside the task: a done-callback would come a round of the loop later."""
        try:
            self._value = await self._tries(values, context, workers)
        except asyncio.CancelledError:
            self._error = ToolFailed(f"{self._tool.name} was cancelled from inside")
        except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
            self._error = error
        except BaseException as end:  # noqa: BLE001 - SystemExit and its kin would end the loop itself
            self._error = Crashed(f"{self._tool.name} raised {type(end).__name__}")
        if self._alarm is not None:
            self._alarm.cancel()
        self._end()

    async def _tries(self, values: dict[str, Any], context: ToolContext, workers: Workers) -> Any:
        for pause in (*BACKOFF, None):
            self._alarm = self._clock.call_later(self._tool.timeout, self._time_out)
            try:
                return await _call(self._tool, values, context, workers)
            except Transient as fault:
                self._alarm.cancel()
                if pause is None:
                    raise ToolFailed(f"{fault} (tried {len(BACKOFF) + 1} times; try later or another way)") from fault
                self.resting = True
                await self._clock.sleep(max(pause, fault.retry_after or 0))
                self.resting = False
        raise AssertionError("unreachable")


async def _call(tool: Tool, values: dict[str, Any], context: ToolContext, workers: Workers) -> Any:
    positional, named = tool.bind(values, context)
    if tool.is_async:
        return await tool.function(*positional, **named)
    if tool.in_process:
        result = await in_thread(lambda: tool.function(*positional, **named))
        return await result if inspect.isawaitable(result) else result
    function = partial(tool.function, *positional) if positional else tool.function
    return await workers.run(function, named, report=context.progress)
