"""Execution of one tool call: admission by the limits, timeout, retries, and conversion of the result to JSON."""

import asyncio
import inspect
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from contextvars import ContextVar
from enum import Enum
from functools import partial
from io import BytesIO
from pathlib import PurePath
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import Alarm, BackgroundTasks, run_in_thread
from atlas_agents.core.budgets import TurnBudget
from atlas_agents.core.errors import (
    BudgetExceeded,
    BudgetUnavailable,
    DailyLimitExceeded,
    LimitExceeded,
    OutcomeUnknown,
    ToolFailed,
    ToolFault,
    ToolTimeout,
    Transient,
)
from atlas_agents.core.messages import File, Image
from atlas_agents.core.store import Reserve, ReserveBudget
from atlas_agents.core.text import clean
from atlas_agents.tools.checks import recheck
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.governance import Approved, ToolScope
from atlas_agents.tools.journal import Journal
from atlas_agents.tools.limits import Slots, process_slots
from atlas_agents.tools.tool import Around, Function, Tool
from atlas_agents.tools.worker_codec import NotSendable
from atlas_agents.tools.worker_pool import WorkerDied, progress_text, run_generator

if TYPE_CHECKING:
    from atlas_agents.tools.client_tools import ClientCalls

logger = logging.getLogger(__name__)
CANCEL_GRACE = 0.25
_abandoned = BackgroundTasks("abandoned tool call")
"""Calls that ignored their cancellation and are still running."""
Finish: TypeAlias = Callable[[Any, Exception | None], Coroutine[Any, Any, None]]
_inside_call: ContextVar[bool] = ContextVar("atlas_inside_tool_call", default=False)
MAX_RESULT = 1024 * 1024
MAX_MESSAGE = 10_000
_MAX_DEPTH = 100
_BINARY = (bytes, bytearray, memoryview)
_IMAGE_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_RETRYABLE_STATUSES = (408, 429, 503)
_MAX_RETRY_AFTER = 60
_OTHER_THREAD = (
    "Each call of this tool runs in a new thread: open the SQLite connection with check_same_thread=False, "
    "or make the tool async"
)
_CONNECTION_ERRORS = (
    *("ConnectionError", "ClientConnectionError", "ClientPayloadError", "ServerTimeoutError", "TransportError"),
    *("Timeout", "ReadError", "URLError"),
)


async def _finished(value: Any, error: Exception | None) -> None:
    """Placeholder for `finish` of an attempt that has ended."""


class ToolExited(Exception):
    """The function raised SystemExit or another exception that would end the process."""


class _CallContext:
    """Lazy context of a call: created when the tool first needs it, which most tools never do."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], ToolContext]) -> None:
        self._make = make
        self._made: ToolContext | None = None

    def get(self) -> ToolContext:
        if self._made is None:
            self._made = self._make()
        return self._made

    def discard_writes(self) -> None:
        """Discard the writes of an earlier try."""
        if self._made is not None:
            self._made.discard_writes()


class Attempt:
    """Runs one call in its own task, with timeout and retries, and then calls `finish` in the same task.

    The turn does not run in this task: a tool that hangs does not block it, and cancelling it does not interrupt
    `finish`.
    """

    def __init__(
        self, approved: Approved, make_context: Callable[[], ToolContext], scope: ToolScope, finish: Finish
    ) -> None:
        self._approved = approved
        self._scope = scope
        self._finish = finish
        self._timer: Alarm | None = None
        self._deadline = self._remaining = 0.0
        self._pauses = 0
        self._grace_timer: asyncio.TimerHandle | None = None
        self._started = self._stopped = self._timed_out = False
        self._held_slots: list[Slots] = []
        self.ended = False
        self.idle = True
        """Whether the call waits to start or to be retried, and has had no effect so far."""
        self.tries = 0
        self._task = asyncio.create_task(self._run(_CallContext(make_context)))

    def pause(self) -> None:
        """Stop the timeout while a person is asked something."""
        self._pauses += 1
        if self._pauses == 1 and self._timer is not None:
            self._timer.cancel()
            self._remaining = max(0.0, self._deadline - self._scope.governance.clock.monotonic())

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses and self._timer is not None and not self.ended:
            self._start_timer(self._remaining)

    def stop(self) -> None:
        """Cancel the call, and abandon it if it ignores the cancellation."""
        self._stopped = True
        self._cancel()

    def _mark_ended(self) -> None:
        self.ended = True
        self._stop_timer()
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        self._release_slots()

    def _release_slots(self) -> None:
        for slot in self._held_slots:
            slot.release()
        self._held_slots.clear()

    def _start_timer(self, seconds: float) -> None:
        clock = self._scope.governance.clock
        self._deadline = clock.monotonic() + seconds
        self._timer = clock.call_later(seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel(self) -> None:
        if not self.ended and self._grace_timer is None:
            if self._started:  # a task that is cancelled before its first step would never call `finish`
                self._task.cancel()
            self._grace_timer = asyncio.get_running_loop().call_later(CANCEL_GRACE, self._abandon)

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._cancel()

    def _abandon(self) -> None:
        if not self.ended:
            _abandoned.adopt(self._task)
            logger.warning("tool ignored its cancellation and was abandoned: tool=%s", self._approved.tool.name)
            self._mark_ended()
            self._scope.governance.spawn(self._take_finish()(None, self._timeout_error()))

    def _take_finish(self) -> Finish:
        """Return `finish` and drop the reference, which would be a cycle; `finish` is called only once."""
        finish, self._finish = self._finish, _finished
        return finish

    async def _run(self, context: _CallContext) -> None:
        """Run the call and finish it, whatever happens. A done-callback would run one iteration of the loop later."""
        value: Any = None
        error: Exception | None = None
        self._started = True
        try:
            value = await self._admit_and_run(context)
        except asyncio.CancelledError:
            error = ToolFailed(f"{self._approved.tool.name} cancelled itself")
        except Exception as caught:  # noqa: BLE001 - classified in `finish`
            error = caught
        except BaseException as end:  # noqa: BLE001 - SystemExit would stop the event loop
            exited = ToolExited(f"{self._approved.tool.name} raised {type(end).__name__}")
            error = exited.with_traceback(end.__traceback__)
        if self.ended:  # abandoned
            return
        self._mark_ended()
        if self._task.cancelling():  # the cancellation would be raised at the next await
            self._scope.governance.spawn(self._take_finish()(value, error))
        else:
            await self._take_finish()(value, error)

    async def _admit_and_run(self, context: _CallContext) -> Any:
        """Wait for the limits, check the call again, record the intent, and run it."""
        limiter, actor = self._scope.governance.limiter, self._scope.actor
        if self._stopped:
            raise asyncio.CancelledError
        if limiter.tick_limiter is not None and not limiter.tick_limiter.take(actor.agent_id):
            await self._write_held_reply()
            await limiter.tick_limiter.acquire(actor.agent_id)
        await self._acquire_slots()
        await recheck(self._approved, self._scope)
        if self._scope.budget is not None:
            await self._check_budget(self._scope.budget)
        if self._scope.journal is not None:
            await self._record_intent(self._scope.journal)
        elif limiter.has_daily_limit:
            await self._count_call()
        return await self._run_with_retries(context)

    async def _write_held_reply(self) -> None:
        """Write the reply that has the call before a wait, instead of with the intent."""
        if self._scope.journal is not None and self._scope.journal.holds_reply:
            await asyncio.shield(self._scope.journal.write_held_reply())

    async def _record_intent(self, journal: Journal) -> None:
        """Record the intent and count the call against the daily limit, then check again, because that took time."""
        limiter, actor = self._scope.governance.limiter, self._scope.actor
        counts: list[Reserve | ReserveBudget] = []
        if limiter.has_daily_limit:
            counts.append(Reserve(actor.agent_id, limiter.today(), limiter.limits.per_day or 0))
        budget = self._scope.budget
        if budget is not None and (count := budget.tool_call_write()) is not None:
            counts.append(count)
        try:
            await journal.record_intent(self._approved.call, *counts)
        except DailyLimitExceeded:
            raise limiter.daily_limit_error() from None
        except BudgetUnavailable as refusal:
            raise LimitExceeded(_budget_text(budget.exceeded(refusal) if budget else refusal)) from None
        await recheck(self._approved, self._scope)

    async def _check_budget(self, budget: TurnBudget) -> None:
        """Count the call against the budgets that are not counted with its intent."""
        try:
            if budget.exhausted is not None:
                raise budget.exhausted
            await budget.start_time()
            await budget.count_outer_tool_call()
            if self._scope.journal is None:
                await budget.count_tool_call()
        except BudgetExceeded as exceeded:
            raise LimitExceeded(_budget_text(exceeded)) from None

    async def _count_call(self) -> None:
        """Count the call against the daily limit, unless the second check rejects it."""
        limiter, actor = self._scope.governance.limiter, self._scope.actor
        day = await limiter.reserve(actor.tenant, actor.agent_id)
        try:
            await recheck(self._approved, self._scope)
        except Exception:
            await limiter.day_counter.release(actor.tenant, actor.agent_id, day)
            raise

    async def _acquire_slots(self) -> None:
        """Acquire a slot of the session and one of the process.

        A call made by a tool needs no second process slot: it could deadlock if tools hold all of them.
        """
        for slots in (self._scope.slots,) if _inside_call.get() else (self._scope.slots, process_slots()):
            if not slots.take():
                await self._write_held_reply()
                await slots.acquire()
            self._held_slots.append(slots)
        _inside_call.set(True)

    async def _run_with_retries(self, context: _CallContext) -> Any:
        governance, tool, values = self._scope.governance, self._approved.tool, self._approved.values
        unexecuted = True  # no earlier try can have had an effect
        for delay in (*governance.retries, None):
            self.tries += 1
            self.idle = False
            context.discard_writes()
            try:
                return to_json_value(await self._run_once(values, context))
            except Exception as caught:
                if self._stopped or self.ended:  # do not retry
                    raise
                diagnosis = diagnose(caught, tool, self.tries)
            if delay is None or not diagnosis.retryable:
                raise _final_error(diagnosis, self.tries, unexecuted or tool.effect == "pure")
            self.idle = unexecuted = unexecuted and diagnosis.nothing_happened
            given = diagnosis.retry_after
            await governance.clock.sleep(given if given is not None else delay * random.uniform(1, 1.2))
            await recheck(self._approved, self._scope)
            values = tool.convert(self._approved.call.arguments)  # the function may have modified them
        raise AssertionError("unreachable")

    async def _run_once(self, values: dict[str, Any], context: _CallContext) -> Any:
        self._start_timer(self._approved.tool.timeout)
        try:
            return await self._call(values, context)
        except (asyncio.CancelledError, Exception):
            if not self._timed_out or self._stopped:
                raise
            raise self._timeout_error() from None
        finally:
            self._stop_timer()
            if self._timed_out and not self._stopped:
                self._clear_timeout()

    def _clear_timeout(self) -> None:
        """Undo the cancellation of a call that stopped when it timed out, so that it can be retried."""
        self._task.uncancel()
        self._timed_out = False
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None

    def _timeout_error(self) -> ToolTimeout:
        tool = self._approved.tool
        end = "; it runs in a thread, which cannot be stopped" if tool.runs_in_thread else " and was stopped"
        return ToolTimeout(f"{tool.name} took longer than {tool.timeout:g} s{end}")

    def _call(self, values: dict[str, Any], context: _CallContext) -> Awaitable[Any]:
        tool = self._approved.tool
        if self._scope.client is not None and tool.runs_at_client:
            return self._wait_for_client(self._scope.client)
        if tool.around is None:
            return self._call_function(values, context)
        return self._call_around(tool.around, values, context)

    async def _call_around(self, around: Around, values: dict[str, Any], context: _CallContext) -> Any:
        async with around(context.get()):
            return await self._call_function(values, context)

    async def _wait_for_client(self, client: "ClientCalls") -> Any:
        """Wait for the result of the client, without a timeout and without the slots that limit running calls."""
        self._release_slots()
        self.pause()
        try:
            return await client.wait(self._approved, self._scope)
        finally:
            self.resume()

    async def _call_function(self, values: dict[str, Any], context: _CallContext) -> Any:
        tool = self._approved.tool
        positional, named = tool.bind(values, context.get() if tool.takes_context else None)
        if tool.is_async:
            return await _complete(tool.function(*positional, **named), context)
        function = partial(tool.function, *positional) if positional else tool.function
        if not tool.runs_in_thread:
            try:
                return await self._scope.governance.workers.run(function, named, report=context.get().progress)
            except NotSendable as error:
                tool.move_to_thread(str(error))
                logger.info("tool runs in a thread: tool=%s reason=%s", tool.name, error)
        context.get().enter_thread()
        try:
            result = await run_in_thread(self._run_function, function, named, context)
        except Exception as error:
            if type(error).__name__ == "ProgrammingError" and "thread" in _error_message(error):
                error.add_note(_OTHER_THREAD)
            raise
        return await _complete(result, context)

    def _run_function(self, function: Function, named: dict[str, Any], context: _CallContext) -> Any:
        """Call a function in a thread. A generator is stopped at its next yield once the call has ended."""

        def report(text: str) -> None:
            if self.ended or self._stopped or self._timed_out:
                raise ToolExited(f"{self._approved.tool.name} was stopped")
            context.get().progress(text)

        result = function(**named)
        return run_generator(cast(Any, result), report) if inspect.isgenerator(result) else result


async def _complete(result: Any, context: _CallContext) -> Any:
    """Wait for the value of an awaitable or of an async generator, whose yields are progress; the last is the value."""
    if isinstance(result, CoroutineType) or inspect.isawaitable(result):
        result = await result
    if not isinstance(result, AsyncGeneratorType):
        return run_generator(cast(Any, result), context.get().progress) if isinstance(result, GeneratorType) else result
    last: Any = None
    async with aclosing(cast(Any, result)) as values:
        async for last in values:
            context.get().progress(progress_text(last))
    return last


def _budget_text(error: Exception) -> str:
    return f"Nothing was run: {error}."


class Diagnosis(msgspec.Struct, frozen=True):
    """The error to report, and whether, and after how many seconds, the call may be retried."""

    error: Exception
    retryable: bool = False
    retry_after: float | None = None
    nothing_happened: bool = False


def diagnose(error: Exception, tool: Tool, tries: int) -> Diagnosis:
    """Classify an error: not executed, rejected by a server, connection lost, or a bug in the tool."""
    repeatable = tool.effect != "unsafe"
    if isinstance(error, Transient):
        return _diagnose_not_executed(ToolFailed(str(error)), error.retry_after)
    if isinstance(error, ToolTimeout):
        return Diagnosis(error, retryable=repeatable and not tool.runs_in_thread)  # the thread still runs
    if isinstance(error, ToolFault):
        return Diagnosis(error)
    status = _http_status(error)
    if status in _RETRYABLE_STATUSES:
        return _diagnose_not_executed(ToolFailed(_error_message(error)), _retry_after(error))
    if status is not None and 400 <= status < 500:
        return Diagnosis(ToolFailed(_error_message(error)))
    if isinstance(error, WorkerDied):
        return Diagnosis(error if tool.effect == "pure" else _unknown_outcome_error(tool, "process ended", tries))
    if status is not None or _is_connection_error(error):
        what = "connection was lost" if status is None else f"server answered HTTP {status}"
        pure = tool.effect == "pure"
        lost = ToolFailed(_error_message(error)) if pure else _unknown_outcome_error(tool, what, tries)
        return Diagnosis(lost, retryable=repeatable)
    return Diagnosis(error)


def _diagnose_not_executed(error: ToolFailed, retry_after: float | None) -> Diagnosis:
    """Diagnose a call that was not executed: it is retried unless the server asks for too long a delay."""
    retryable = retry_after is None or 0 <= retry_after <= _MAX_RETRY_AFTER
    return Diagnosis(error, retryable=retryable, retry_after=retry_after, nothing_happened=True)


def _unknown_outcome_error(tool: Tool, what: str, tries: int) -> OutcomeUnknown:
    retried = ". It was not retried." if tries == 1 else ""
    return OutcomeUnknown(f"The {what} while {tool.name} ran; it may have happened{retried}")


def _is_connection_error(error: Exception) -> bool:
    """Return whether an error is a timeout or a broken connection; errors of other libraries are matched by name."""
    if isinstance(error, TimeoutError | ConnectionError | EOFError):
        return True
    return any(kind.__name__ in _CONNECTION_ERRORS for kind in type(error).__mro__)


def _http_status(error: Exception) -> int | None:
    """Return the HTTP status that the errors of most clients carry."""
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


def _error_message(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - `__str__` of a user's class may raise anything
        return type(error).__name__


def _final_error(diagnosis: Diagnosis, tries: int, unexecuted: bool) -> Exception:
    """Return the error after the last try, which also says if an earlier try may have had an effect."""
    error = diagnosis.error
    if not isinstance(error, ToolFault) or tries == 1 or (unexecuted and not diagnosis.retryable):
        return error
    text = f"{error} (tried {tries} times; try again later, or use another approach)"
    if isinstance(error, ToolTimeout):
        return ToolTimeout(text)
    return ToolFailed(text) if unexecuted and not isinstance(error, OutcomeUnknown) else OutcomeUnknown(text)


class BadResult(ToolFault):
    """The tool returned a value that cannot be sent to a model."""

    kind = "failed"


def to_json_value(value: Any) -> Any:
    """Convert a value to plain JSON; raises BadResult if that is not possible."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return clean(str(_check_size(value, len(value))))
    if value is None or type(value) in (bool, int):
        return value
    try:
        plain = msgspec.to_builtins(value, enc_hook=_encode_object, str_keys=True, builtin_types=_BINARY)
        written = msgspec.json.encode(plain)
        _check_size(written, len(written))
        if _check_encodable(plain):
            written = msgspec.json.encode(_replace_binary(plain))
            _check_size(written, len(written))
    except RecursionError:
        raise BadResult("the result contains itself or is nested too deeply") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadResult(f"the result cannot be encoded as JSON: {str(error)[:200]}") from None
    return msgspec.json.decode(written)


def fault_message(fault: ToolFault) -> str:
    """Return the message of a fault for the model, cut to `MAX_MESSAGE` characters."""
    try:
        text = clean(str(fault))
    except BaseException:  # noqa: BLE001 - `__str__` of a tool's class may raise anything
        return type(fault).__name__
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… ({len(text):,} characters)"


def _check_size(value: Any, size: int) -> Any:
    if size > MAX_RESULT:
        raise BadResult(f"the result is {size:,} characters long; the maximum is {MAX_RESULT:,}")
    return value


def _encode_object(value: Any) -> Any:
    """Encode a pydantic model, a path, or an image of PIL."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BytesIO):
        return value.getvalue()
    if type(value).__module__.partition(".")[0] == "PIL" and callable(save := getattr(value, "save", None)):
        save(written := BytesIO(), "PNG")
        return written.getvalue()
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _encode_binary(content: bytes) -> Any:
    """Encode bytes: text if they are UTF-8, an image for a model with vision, else a file."""
    media_type = next((kind for start, kind in _IMAGE_SIGNATURES if content.startswith(start)), "")
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        media_type = "image/webp"
    if media_type:
        return msgspec.to_builtins(Image.of(content, media_type))
    try:
        return clean(content.decode())
    except UnicodeDecodeError:
        return msgspec.to_builtins(File.of(content, "result.bin", "application/octet-stream"))


def _replace_binary(value: Any) -> Any:
    if isinstance(value, _BINARY):
        return _encode_binary(bytes(cast(bytes, value)))
    if isinstance(value, dict):
        return {key: _replace_binary(item) for key, item in cast(dict[Any, Any], value).items()}
    return [_replace_binary(item) for item in cast(list[Any], value)] if isinstance(value, (list, tuple)) else value


def _check_encodable(value: Any, levels: int = _MAX_DEPTH) -> bool:
    """Return whether a value contains bytes; raise for values that JSON or UTF-8 cannot encode: NaN, infinities and
    lone surrogates."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not JSON")
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, (dict, list, tuple)):
        if not levels:
            raise RecursionError
        inner = cast(dict[Any, Any] | list[Any], value)
        items = (*inner, *inner.values()) if isinstance(inner, dict) else inner
        return any([_check_encodable(item, levels - 1) for item in items])
    return isinstance(value, _BINARY)
