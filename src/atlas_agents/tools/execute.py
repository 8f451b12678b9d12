"""One call under way: let in by the limits, run under a timeout where it can be stopped, tried again where allowed."""

import asyncio
import inspect
import logging
import math
import random
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from enum import Enum
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import Alarm, BackgroundTasks, in_thread
from atlas_agents.core.errors import DailyLimitExceeded, OutcomeUnknown, ToolFailed, ToolFault, ToolTimeout, Transient
from atlas_agents.core.store import Reserve
from atlas_agents.core.text import clean
from atlas_agents.tools.checks import recheck
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.governance import Approved, ToolScope
from atlas_agents.tools.journal import Journal
from atlas_agents.tools.limits import Slots, process_slots
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.worker_pool import WorkerDied

_BUSY = (408, 429, 503)
_LONGEST_WAIT = 60
_LOST = (
    "ConnectionError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ServerTimeoutError",
    "TransportError",
    "Timeout",
    "ReadError",
    "URLError",
)


class Diagnosis(msgspec.Struct, frozen=True):
    """The error to go on with, and whether (and not before when) the tool may be tried again."""

    error: Exception
    again: bool = False
    retry_after: float | None = None
    nothing_happened: bool = False


def diagnose(error: Exception, tool: Tool) -> Diagnosis:
    """Judge by class: it says itself that nothing happened, it was refused, it was lost on the way, or it is a bug."""
    harmless = tool.effect != "unsafe"
    if isinstance(error, Transient):
        return _refused(ToolFailed(str(error)), error.retry_after)
    if isinstance(error, ToolTimeout):
        return Diagnosis(error, again=harmless)
    if isinstance(error, ToolFault):
        return Diagnosis(error)
    status = _status(error)
    if status in _BUSY:
        return _refused(ToolFailed(_words(error)), _retry_after(error))
    if status is not None and 400 <= status < 500:
        return Diagnosis(ToolFailed(_words(error)))
    if isinstance(error, WorkerDied):
        return Diagnosis(error if tool.effect == "pure" else _maybe(tool, "process ended"))
    if status is not None or _is_lost(error):
        lost = ToolFailed(_words(error)) if tool.effect == "pure" else _maybe(tool, "connection was lost")
        return Diagnosis(lost, again=harmless)
    return Diagnosis(error)


def _refused(error: ToolFailed, retry_after: float | None) -> Diagnosis:
    """Nothing happened; unless the wait is too long to sit out, it may be tried again."""
    patient = retry_after is None or 0 <= retry_after <= _LONGEST_WAIT
    return Diagnosis(error, again=patient, retry_after=retry_after, nothing_happened=True)


def _maybe(tool: Tool, what: str) -> OutcomeUnknown:
    retried = "It was not retried." if tool.effect == "unsafe" else "It was retried under the same key."
    return OutcomeUnknown(f"The {what} while {tool.name} ran; it may have happened. {retried}")


def _is_lost(error: Exception) -> bool:
    """A timeout or a broken connection, by its kind or, for libraries that are not imported here, by its name."""
    if isinstance(error, TimeoutError | ConnectionError | EOFError):
        return True
    return any(kind.__name__ in _LOST for kind in type(error).__mro__)


def _status(error: Exception) -> int | None:
    """The HTTP status that the errors of most clients carry somewhere."""
    response: Any = getattr(error, "response", None)
    for holder in (error, response):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
                return value
    return None


def _retry_after(error: Exception) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None) or {}
    try:
        seconds = float(headers.get("retry-after") or headers.get("Retry-After"))
    except (AttributeError, TypeError, ValueError):
        return None
    return seconds if seconds >= 0 else None


def _words(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a foreign class may do anything in its `__str__`
        return type(error).__name__


MAX_RESULT = 1024 * 1024
MAX_WORDS = 10_000
_DEEPEST = 100
_BINARY = (bytes, bytearray, memoryview)


class BadResult(ToolFault):
    """The tool gave back something that no model can read."""

    kind = "failed"


def json_value(value: Any) -> Any:
    """The value as plain JSON, or BadResult saying what stands in the way."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return clean(str(_sized(value, len(value))))
    if value is None or type(value) in (bool, int):
        return value
    try:
        plain = msgspec.to_builtins(value, enc_hook=_known, str_keys=True, builtin_types=_BINARY)
        written = msgspec.json.encode(plain)
        _sized(written, len(written))
        _forbid(plain)
    except RecursionError:
        raise BadResult("the result refers to itself or is nested too deeply") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadResult(f"the result cannot be written as JSON: {str(error)[:200]}") from None
    return msgspec.json.decode(written)


def fault_words(fault: ToolFault) -> str:
    """What a model reads of a fault: its message, if it has one that can be made, up to a limit."""
    try:
        words = clean(str(fault))
    except BaseException:  # noqa: BLE001 - a tool's own class may do anything in its `__str__`
        return type(fault).__name__
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}… ({len(words):,} characters)"


def _sized(value: Any, size: int) -> Any:
    if size > MAX_RESULT:
        raise BadResult(f"the result is {size:,} characters long; at most {MAX_RESULT:,} can be taken")
    return value


def _known(value: Any) -> Any:
    """Objects that know how to become plain values: pydantic's models."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _forbid(value: Any, levels: int = _DEEPEST) -> None:
    """Bytes, NaN and infinities have no JSON, and lone surrogates no UTF-8: better refused here than lost later."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not JSON")
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, _BINARY):
        raise TypeError("bytes are no JSON value; decode them to text first")
    elif isinstance(value, dict | list | tuple):
        if not levels:
            raise RecursionError
        inner = cast(dict[Any, Any] | list[Any], value)
        for item in (*inner, *inner.values()) if isinstance(inner, dict) else inner:
            _forbid(item, levels - 1)


logger = logging.getLogger(__name__)
GRACE = 0.25
_abandoned = BackgroundTasks("abandoned tool call")
"""Tools that ignored their cancellation and still run; a growing set is a bug in one of them."""
Settle: TypeAlias = Callable[[Any, Exception | None], Coroutine[Any, Any, None]]
_inside: ContextVar[bool] = ContextVar("atlas_inside_a_call", default=False)


class Crashed(Exception):
    """The function tried to end the process."""


class Attempt:
    """A tool at work in a task of its own, which starts at once and settles what came of it, too.

    Nothing of that is the turn's: who waits is not held up by a tool that hangs, and giving up cuts no row short.
    """

    def __init__(self, approved: Approved, context: ToolContext, scope: ToolScope, settle: Settle) -> None:
        self._approved = approved
        self._scope = scope
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
            self._left = max(0.0, self._due - self._scope.governance.clock.monotonic())

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
        clock = self._scope.governance.clock
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
            _abandoned.adopt(self._task)
            logger.warning("the tool %r ignores its cancellation and is left behind", self._approved.tool.name)
            self._end()
            self._scope.governance.spawn(self._settle(None, self._too_late()))

    async def _work(self, context: ToolContext) -> None:
        """See to an end, whatever comes. From inside the task: a done-callback would come a round of the loop later."""
        value: Any = None
        error: Exception | None = None
        self._begun = True
        try:
            value = await self._let_in(context)
        except asyncio.CancelledError:
            error = ToolFailed(f"{self._approved.tool.name} was cancelled from inside")
        except Exception as caught:  # noqa: BLE001 - judged where the call is settled
            error = caught
        except BaseException as end:  # noqa: BLE001 - SystemExit and its kin would end the loop itself
            crashed = Crashed(f"{self._approved.tool.name} raised {type(end).__name__}")
            error = crashed.with_traceback(end.__traceback__)
        if self.ended:  # left behind
            return
        self._end()
        if self._task.cancelling():  # it would strike at the next await
            self._scope.governance.spawn(self._settle(value, error))
        else:
            await self._settle(value, error)

    async def _let_in(self, context: ToolContext) -> Any:
        """Wait for the tick and a free place, count the day, look once more whether all still holds; then act."""
        limiter, actor = self._scope.governance.limiter, self._scope.actor
        if self._stopped:
            raise asyncio.CancelledError
        if limiter.ticks is not None:
            await limiter.ticks.turn(actor.agent_id)
        await self._take_places()
        await recheck(self._approved, self._scope)
        if self._scope.journal is not None:
            await self._intend(self._scope.journal)
        elif limiter.counts_days:
            await self._count()
        return await self._tries(context)

    async def _intend(self, journal: Journal) -> None:
        """Write down that it is about to act, which counts against the day, too; that took time, so look once more."""
        limiter, actor = self._scope.governance.limiter, self._scope.actor
        reserve = Reserve(actor.agent_id, limiter.today(), limiter.limits.per_day or 0) if limiter.counts_days else None
        try:
            await journal.record_intent(self._approved.call, reserve)
        except DailyLimitExceeded:
            raise limiter.spent() from None
        await recheck(self._approved, self._scope)

    async def _count(self) -> None:
        """Count it against the day; what did not act after all does not count."""
        limiter, actor = self._scope.governance.limiter, self._scope.actor
        day = await limiter.reserve(actor.tenant, actor.agent_id)
        try:
            await recheck(self._approved, self._scope)
        except Exception:
            await limiter.days.release(actor.tenant, actor.agent_id, day)
            raise

    async def _take_places(self) -> None:
        """One of the session's, and one of the process's unless a tool that holds one made this call: it would wait for
        itself as soon as all of them do."""
        for slots in (self._scope.slots,) if _inside.get() else (self._scope.slots, process_slots()):
            if not slots.take():
                await slots.wait()
            self._held.append(slots)
        _inside.set(True)

    async def _tries(self, context: ToolContext) -> Any:
        governance, tool, values = self._scope.governance, self._approved.tool, self._approved.values
        certain = True  # that no try before this one can have happened
        for pause in (*governance.retries, None):
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
            await governance.clock.sleep(wished if wished is not None else pause * random.uniform(1, 1.2))
            await recheck(self._approved, self._scope)
            values = tool.convert(self._approved.call.arguments)  # the function may have changed those it was given
        raise AssertionError("unreachable")

    async def _once(self, values: dict[str, Any], context: ToolContext) -> Any:
        self._set_alarm(self._approved.tool.timeout)
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
        tool = self._approved.tool
        return ToolTimeout(f"{tool.name} took longer than {tool.timeout:g} s and was stopped")

    async def _call(self, values: dict[str, Any], context: ToolContext) -> Any:
        tool = self._approved.tool
        positional, named = tool.bind(values, context)
        if tool.is_async:
            return await tool.function(*positional, **named)
        if tool.in_process:
            result = await in_thread(lambda: tool.function(*positional, **named))
            return await result if inspect.isawaitable(result) else result
        function = partial(tool.function, *positional) if positional else tool.function
        return await self._scope.governance.workers.run(function, named, report=context.progress)


def _last(found: Diagnosis, tries: int, certain: bool) -> Exception:
    """The fault to end with: that it was tried often enough, and what an earlier try may have done all the same."""
    error = found.error
    if not isinstance(error, ToolFault) or (certain and not found.again):
        return error
    words = f"{error} (tried {tries} times; try again later, or another way)"
    if isinstance(error, ToolTimeout):
        return ToolTimeout(words)
    return ToolFailed(words) if certain and not isinstance(error, OutcomeUnknown) else OutcomeUnknown(words)
