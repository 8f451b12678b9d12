"""Hooks: interceptors, which may change or refuse messages, requests and tool calls, and event subscribers."""

import asyncio
import copy
import inspect
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec

from atlas_agents.agents.context import describe_function
from atlas_agents.core.aio import BackgroundTasks, invoke, is_async
from atlas_agents.core.errors import ConfigError, Refused
from atlas_agents.core.events import Event, EventName
from atlas_agents.core.json import copy_json
from atlas_agents.core.messages import Message, ToolCall, ToolResult
from atlas_agents.core.text import clean
from atlas_agents.providers.base import Chunk, Request, ResetChunk, TextChunk, ThinkingChunk
from atlas_agents.tools.execute import to_json_value
from atlas_agents.tools.governance import ToolHooks
from atlas_agents.tools.journal import HookAction, HookRecord
from atlas_agents.tools.policy import Actor

logger = logging.getLogger(__name__)
T = TypeVar("T")
OnMessage: TypeAlias = Callable[[Message], Any] | Callable[[Message, Any], Any]
OnRequest: TypeAlias = Callable[[Request], Any] | Callable[[Request, Any], Any]
OnText: TypeAlias = Callable[[str], Any] | Callable[[str, Any], Any]
Hold: TypeAlias = Literal["sentence", "answer"]
OnTurn: TypeAlias = Callable[[Message, Actor], Any] | Callable[[Message, Actor, Any], Any]
OnToolCall: TypeAlias = Callable[[ToolCall], Any] | Callable[[ToolCall, Any], Any]
OnToolResult: TypeAlias = Callable[[ToolCall, ToolResult], Any] | Callable[[ToolCall, ToolResult, Any], Any]
FormatTrace: TypeAlias = Callable[[BaseException], str]
HOOK_TIMEOUT = 30.0
_SENTENCE_END = re.compile(
    r"""[.!?\u2026]["'\u201d\u2019)\]]{0,3}\s{1,8}(?=[^\s\d])|[\u3002\uff01\uff1f]{1,3}(?=[^\s\d])|\n\s{0,8}(?=[^\s\d])"""
)
_SENTENCE_TAIL = 8
_MAX_REASON = 500
SUBSCRIBER_TIMEOUT = 1.0
DRAIN_TIMEOUT = 0.25
CLOSE_TIMEOUT = 5.0
MAX_QUEUE = 1000
_EVENT_NAMES: tuple[str, ...] = get_args(EventName)
_hung = BackgroundTasks("listener that timed out")
"""References to tasks of listeners that timed out, until they end."""


class Interceptor(msgspec.Struct, frozen=True):
    """Hooks: up to seven functions, sync or async, that see messages, requests and tool calls on their way.

    A hook returns None (no change) or a changed value, or raises `Refused`. It may take one more parameter, the context
    of the turn (`TurnContext`), with the user, session, metadata and `deps`.

    Attributes:
        outgoing: Called with the user's message. May return a message, or a list: all but the last are added to the
            conversation before it. `Refused`, or any other error, stops the turn.
        incoming: Called with the model's message, and may return the same as `outgoing`.
        request: Called with a request to the model. May return a changed request, or a message of the assistant, which
            is the reply instead of the model's. `Refused`, or any other error, stops the turn.
        before: Called with the user's message as it will be sent and the actor of the turn. May return one message to
            insert before it.
        output: Called with the model's text and thinking. Text is held back until it is checked, so nothing unchecked
            is streamed or stored. May return another text. `Refused`, or any other error, stops the turn.
        hold: How much text is held back and passed to `output` at a time: `sentence`, or `answer` for all of it.
        tool_call: Called with a tool call that is permitted, before its arguments are validated and a person is asked.
            May return the call with other arguments, or a `ToolResult`, which answers the call without running it.
            `Refused`, or any other error, refuses this call; the model reads why.
        tool_result: Called with a tool call and its result, before it is recorded. May return another result.
            `Refused`, or any other error, withholds the result; the model reads why.
        name: Name in errors and in the audit log; by default that of the function.
        timeout: Seconds that each function may take; one that takes longer counts as failed.
    """

    outgoing: OnMessage | None = None
    incoming: OnMessage | None = None
    request: OnRequest | None = None
    before: OnTurn | None = None
    tool_call: OnToolCall | None = None
    tool_result: OnToolResult | None = None
    output: OnText | None = None
    hold: Hold = "sentence"
    name: str = ""
    timeout: float = HOOK_TIMEOUT

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ConfigError(f"invalid timeout {self.timeout!r} of an interceptor: expected a positive number")
        if self.hold not in get_args(Hold):
            raise ConfigError(f"invalid hold {self.hold!r} of an interceptor: expected 'sentence' or 'answer'")


class _Hook:
    """One function of an interceptor, called with its time limit, and with the context if it takes that."""

    __slots__ = ("_function", "_takes_context", "_timeout", "name")

    def __init__(self, function: Callable[..., Any], interceptor: Interceptor, parameters: int) -> None:
        self._function = function
        self._timeout = interceptor.timeout
        self._takes_context = _count_parameters(function) > parameters
        self.name = interceptor.name or describe_function(function).rpartition("<locals>.")[2]

    async def __call__(self, *arguments: Any, context: Any) -> Any:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await invoke(self._function, *arguments, *([context] if self._takes_context else []))
        except TimeoutError as error:
            if limit.expired():
                raise _HookTimeout(f"the hook {self.name!r} did not return within {self._timeout:g} seconds") from error
            raise


class _HookTimeout(Refused):
    """A hook took too long."""


class _HeldChunks:
    """Chunks of a reply that are held back until they can be checked: text up to the end of a sentence, or all of it,
    and whole blocks of thinking."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._text: list[str] = []
        """Text since the last end of a sentence."""
        self._thinking: list[str] = []

    def add(self, chunk: Chunk) -> list[Chunk]:
        """Return the chunks that are complete now, in order."""
        if type(chunk) is TextChunk:
            return [*self._end_thinking(), *self._add_text(chunk.text)]
        if type(chunk) is ThinkingChunk:
            ended = self._end_text()
            self._thinking.append(chunk.text)
            return [*ended, *self._end_thinking(chunk.signature)] if chunk.signature else ended
        if type(chunk) is ResetChunk:
            self._text, self._thinking = [], []
            return [chunk]
        return [*self._end_text(), *self._end_thinking(), chunk]

    def _add_text(self, text: str) -> list[Chunk]:
        """Only the new characters and the last few before them are searched for the end of a sentence."""
        before = self._text.pop() if self._text else ""
        kept, searched = before[:-_SENTENCE_TAIL], before[-_SENTENCE_TAIL:] + text
        if kept:
            self._text.append(kept)
        ends = [found.end() for found in _SENTENCE_END.finditer(searched)] if not self._whole else []
        if not ends:
            self._text.append(searched)
            return []
        complete = "".join([*self._text, searched[: ends[-1]]])
        self._text = [searched[ends[-1] :]]
        return [TextChunk(complete)]

    def _end_text(self) -> list[Chunk]:
        text, self._text = "".join(self._text), []
        return [TextChunk(text)] if text else []

    def _end_thinking(self, signature: str = "") -> list[Chunk]:
        if not self._thinking:
            return []
        text, self._thinking = "".join(self._thinking), []
        return [ThinkingChunk(text, signature)]


def read_interceptors(interceptors: Iterable[Interceptor]) -> tuple[Interceptor, ...]:
    """Check the interceptors of an Atlas or an agent."""
    if not isinstance(cast(object, interceptors), Iterable):
        raise ConfigError(f"interceptors=… takes a list of interceptors, got {interceptors!r}")
    for item in (found := tuple(interceptors)):
        if not isinstance(cast(object, item), Interceptor):
            raise ConfigError(f"expected an Interceptor(outgoing=…, incoming=…, request=…), got {item!r}")
    return found


class Interceptors:
    """The interceptors of an Atlas and of an agent, applied in the order in which they were given."""

    def __init__(self, interceptors: Sequence[Interceptor], format_trace: FormatTrace) -> None:
        self._outgoing = [_Hook(item.outgoing, item, 1) for item in interceptors if item.outgoing]
        self._incoming = [_Hook(item.incoming, item, 1) for item in interceptors if item.incoming]
        self._request = [_Hook(item.request, item, 1) for item in interceptors if item.request]
        self._before = [_Hook(item.before, item, 2) for item in interceptors if item.before]
        self._output = [_Hook(item.output, item, 1) for item in interceptors if item.output]
        self._holds_answer = any([item.hold == "answer" for item in interceptors if item.output])
        self._tool_call = [_Hook(item.tool_call, item, 1) for item in interceptors if item.tool_call]
        self._tool_result = [_Hook(item.tool_result, item, 2) for item in interceptors if item.tool_result]
        self._format_trace = format_trace
        self.has_outgoing = bool(self._outgoing or self._before)
        self.has_incoming, self.has_request = bool(self._incoming), bool(self._request)
        self.has_output = bool(self._output)

    async def outgoing(self, message: Message, actor: Actor, context: Any) -> list[Message]:
        """Return the messages that were added, followed by the user's message as it will be sent."""
        *added, message = await _apply(self._outgoing, message, context)
        for hook in self._before:
            inserted = await hook(message, actor, context=context)
            if inserted is not None:
                added.append(_require(Message, inserted, hook))
        return [*added, message]

    async def incoming(self, message: Message, context: Any) -> list[Message]:
        """Return the messages that were added, followed by the model's message as it will be stored.

        The names of the hooks that changed it are in its metadata.
        """
        names: list[str] = []
        *added, changed = await _apply(self._incoming, message, context, names)
        return [*added, _with_hooks(changed, names) if changed is not message else changed]

    async def request(self, request: Request, context: Any) -> Request | Message:
        """Return the request as it will be sent, or the reply of a hook in place of the model's."""
        for hook in self._request:
            changed = await hook(request, context=context)
            if isinstance(changed, Message) and changed.role == "assistant":
                return _with_hooks(changed, [hook.name], provider="hook")
            if changed is not None:
                request = _require(Request, changed, hook)
        return request

    async def filter_output(
        self, chunks: AsyncGenerator[Chunk], context: Any, names: list[str]
    ) -> AsyncGenerator[Chunk]:
        """Yield the chunks of a reply, each text only after the `output` hooks checked it.

        The names of hooks that change a text are added to `names`. Thinking that is changed loses its signature.
        """
        held = _HeldChunks(whole=self._holds_answer)
        async with aclosing(chunks):
            async for chunk in chunks:
                for ready in held.add(chunk):
                    if type(ready) is TextChunk:
                        yield TextChunk(await self.check_output(ready.text, context, names))
                    elif type(ready) is ThinkingChunk:
                        text = await self.check_output(ready.text, context, names)
                        yield ThinkingChunk(text, ready.signature if text == ready.text else "")
                    else:
                        yield ready

    async def check_output(self, text: str, context: Any, names: list[str]) -> str:
        """Return a text as changed by the `output` hooks."""
        for hook in self._output if text else ():
            changed = await hook(text, context=context)
            if changed is not None and _require(str, changed, hook) != text:
                text = changed
                names.append(hook.name)
        return text

    @property
    def tool_hooks(self) -> ToolHooks | None:
        """The hooks around tool calls; None if no interceptor has one."""
        return self if self._tool_call or self._tool_result else None

    async def before_call(self, call: ToolCall, context: Any) -> HookRecord | None:
        """Return the decision of the `tool_call` hooks: they run up to the first that answers, refuses or fails."""
        actions: list[HookAction] = []
        changed = call
        answer: ToolResult | None = None
        refusal = ""
        for hook in self._tool_call:
            try:
                found = await hook(_copy(changed), context=context)
                if isinstance(found, ToolResult):
                    answer = _checked_result(found, call)
                    actions.append(HookAction(hook.name, "answered"))
                elif found is not None and (given := _checked_call(found, call, hook)).arguments != changed.arguments:
                    changed = given
                    actions.append(HookAction(hook.name, "changed arguments"))
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - a user's function: without its consent the call is refused
                action, refusal = self._diagnose(error, hook, call, "refused")
                actions.append(action)
            if answer is not None or refusal:
                break
        if not actions:
            return None
        arguments, requested = (changed.arguments, call.arguments) if changed is not call else (None, None)
        return HookRecord(tuple(actions), arguments, answer, refusal, requested)

    async def after_call(
        self, call: ToolCall, result: ToolResult, context: Any
    ) -> tuple[ToolResult, tuple[HookAction, ...]]:
        """Return the result as changed by the `tool_result` hooks, up to the first that refuses it or fails."""
        actions: list[HookAction] = []
        for hook in self._tool_result:
            try:
                found = await hook(_copy(call), copy.deepcopy(result), context=context)
                if found is None:
                    continue
                changed = _checked_result(_require(ToolResult, found, hook), call)
                sources = [each for each in (result.untrusted, changed.untrusted) if each]
                changed = msgspec.structs.replace(changed, untrusted="; ".join(dict.fromkeys(sources)))
                if changed != result:
                    result = changed
                    actions.append(HookAction(hook.name, "changed result"))
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - a user's function: what it did not check is withheld
                action, reason = self._diagnose(error, hook, call, "withheld result")
                actions.append(action)
                text = f"The call ended with status {result.status!r}, but its result was withheld: {reason}"
                status = "unknown" if result.status == "unknown" else "error"
                kind = "unknown" if status == "unknown" else "not_permitted"
                return ToolResult(call.id, status, text, kind, result.untrusted), tuple(actions)
        return result, tuple(actions)

    def _diagnose(
        self, error: BaseException, hook: _Hook, call: ToolCall, did: Literal["refused", "withheld result"]
    ) -> tuple[HookAction, str]:
        """Describe a hook's exception for the audit log and for the model, without a stack trace."""
        if isinstance(error, _HookTimeout):
            return HookAction(hook.name, "failed", str(error)), f"{error}."
        if isinstance(error, Refused):
            reason = clean(str(error))[:_MAX_REASON]
            return HookAction(hook.name, did, reason), f"the hook {hook.name!r} refused it: {reason}"
        logger.error("hook failed: hook=%s tool=%s\n%s", hook.name, call.name, self._format_trace(error))
        return HookAction(hook.name, "failed", type(error).__name__), f"the hook {hook.name!r} failed."


def _copy(call: ToolCall) -> ToolCall:
    """Copy a call, so that a hook cannot change its arguments in place."""
    return msgspec.structs.replace(call, arguments=copy_json(call.arguments))


def _checked_call(found: Any, call: ToolCall, hook: _Hook) -> ToolCall:
    changed = _require(ToolCall, found, hook)
    if (changed.id, changed.name) != (call.id, call.name):
        raise ConfigError(f"hook {hook.name!r} returned a call of {changed.name!r}: only the arguments can be changed")
    return msgspec.structs.replace(call, arguments=to_json_value(changed.arguments))


def _checked_result(result: ToolResult, call: ToolCall) -> ToolResult:
    """Return a hook's result as that of this call, with a JSON value."""
    return msgspec.structs.replace(result, call_id=call.id, result=to_json_value(result.result))


async def _apply(
    hooks: Sequence[_Hook], message: Message, context: Any, names: list[str] | None = None
) -> list[Message]:
    """Apply hooks to a message, and add those that change it to `names`."""
    added: list[Message] = []
    for hook in hooks:
        changed = await hook(message, context=context)
        if changed is None:
            continue
        *before, last = [_require(Message, item, hook) for item in _as_list(changed, hook)]
        if names is not None and last is not message:
            names.append(hook.name)
        message = last
        added += before
    return [*added, message]


def _with_hooks(message: Message, names: Sequence[str], **more: str) -> Message:
    """Name the hooks that wrote or changed a reply in its metadata."""
    earlier = message.metadata.get("hooks") or ()
    return msgspec.structs.replace(message, metadata={**message.metadata, **more, "hooks": [*earlier, *names]})


def _as_list(changed: Any, hook: _Hook) -> list[Any]:
    if not isinstance(changed, (list, tuple)):
        return [changed]
    if not changed:
        raise ConfigError(f"hook {hook.name!r} returned an empty list; raise Refused to stop a turn")
    return [*changed]


def _require(kind: type[T], value: Any, hook: _Hook) -> T:
    if not isinstance(value, kind):
        raise ConfigError(f"hook {hook.name!r} returned {value!r}, expected a {kind.__name__}")
    return value


def _count_parameters(function: Callable[..., Any]) -> int:
    """Return the number of positional parameters of a function."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)


class Listener:
    """A function that `atlas.on` subscribed; call it to unsubscribe.

    It receives one event at a time. `skipped` is the number of events that it did not receive because it was too slow.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        remove: Callable[["Listener"], None],
        format_trace: FormatTrace,
        *,
        timeout: float,
        max_queue: int,
    ) -> None:
        self.function = function
        self.skipped = 0
        """Number of events that it did not receive because it was too slow."""
        self._remove = remove
        self._format_trace = format_trace
        self._timeout = timeout
        self._max_queue = max_queue
        """Maximum queue length of a listener in the background; 0 for others."""
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self._late: asyncio.Task[None] | None = None
        """The delivery that timed out last, until it ends."""
        self._is_full = False

    def __call__(self) -> None:
        """Unsubscribe the function."""
        self._remove(self)

    def publish(self, event: Event) -> None:
        """Internal: queue an event for the function, or skip it."""
        if self.late is not None:
            self.skipped += 1
            return
        self._late = None
        self._queue.append(event)
        if 0 < self._max_queue < len(self._queue):
            self._skip_oldest()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._deliver_queued())

    def _skip_oldest(self) -> None:
        event = self._queue.popleft()
        self.skipped += 1
        if not self._is_full:
            self._is_full = True
            self._warn("skipping events of a listener whose queue is full", event)

    @property
    def late(self) -> "asyncio.Task[None] | None":
        """Internal: the delivery that still runs after its time limit; events are skipped until it ends."""
        return self._late if self._late is not None and not self._late.done() else None

    def running(self, *, background: bool = False) -> "asyncio.Task[None] | None":
        """Internal: return the task to wait for if it is of the wanted kind; None for a listener that timed out."""
        if background is not bool(self._max_queue) or self._late is not None or self._task is None:
            return None
        return None if self._task.done() else self._task

    async def _deliver_queued(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            if self._max_queue:
                await self._deliver(event)
                continue
            task = asyncio.create_task(self._deliver(event))
            await asyncio.wait({task}, timeout=self._timeout)
            if not task.done():
                self._give_up(event, task)
        self._is_full = False

    def _give_up(self, event: Event, task: "asyncio.Task[None]") -> None:
        """Skip an event, and those behind it, until the function ends; a thread cannot be stopped."""
        self.skipped += 1 + len(self._queue)
        self._queue.clear()
        self._late = task
        _hung.adopt(task)
        if is_async(self.function):  # it is not awaited, because it may ignore the cancellation
            task.cancel()
        self._warn("skipped an event of a listener that timed out: subscribe it with background=True", event)

    def _warn(self, what: str, event: Event) -> None:
        logger.warning("%s: listener=%r event=%s skipped=%d", what, self.function, event.type, self.skipped)

    async def _deliver(self, event: Event) -> None:
        try:
            await invoke(self.function, event)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - a user's function must not harm the turn, even with SystemExit
            trace = self._format_trace(error)
            logger.error("listener failed: listener=%r event=%s\n%s", self.function, event.type, trace)


class Subscribers:
    """Event listeners of an Atlas, by event name: `atlas.on(name, function)`.

    Each listener has its own queue and its own task (a thread for a sync function), so one that raises, hangs or is
    slow delays neither the others nor the turn. `format_trace` formats an exception for the log.
    """

    def __init__(self, format_trace: FormatTrace, timeout: float = SUBSCRIBER_TIMEOUT) -> None:
        self._by_name: dict[str, list[Listener]] = {}
        self._format_trace = format_trace
        self._timeout = timeout

    def on(
        self, name: str, function: Callable[[Any], Any], *, background: bool = False, max_queue: int = MAX_QUEUE
    ) -> Listener:
        """Call a function for each event of that name; call the result to unsubscribe."""
        _check_event_name(name)
        if not callable(function):
            raise ConfigError(f"expected a function that takes an event, got {function!r}")
        if max_queue < 1:
            raise ConfigError(f"max_queue must be at least 1, got {max_queue}")
        listener = Listener(
            function,
            self._remove,
            self._format_trace,
            timeout=self._timeout,
            max_queue=max_queue if background else 0,
        )
        self._by_name.setdefault(name, []).append(listener)
        return listener

    def off(self, name: str, function: Callable[[Any], Any]) -> None:
        """Unsubscribe a function; one that is not subscribed is ignored."""
        _check_event_name(name)
        for subscriber in [item for item in self._by_name.get(name, ()) if item.function == function]:
            self._remove(subscriber)

    @property
    def has_listeners(self) -> bool:
        return bool(self._by_name)

    def publish(self, event: Event) -> None:
        if self._by_name:
            for subscriber in self._by_name.get(event.type, ()):
                subscriber.publish(event)

    async def drain(self) -> None:
        """Wait a short time until listeners have received the queued events; not for those in the background."""
        if self._by_name:
            await self._wait(DRAIN_TIMEOUT)

    async def close(self) -> None:
        """Wait until listeners, also those in the background, have received the queued events; then cancel them."""
        if self._by_name:
            await self._wait(DRAIN_TIMEOUT)
            for task in await self._wait(CLOSE_TIMEOUT, background=True):
                task.cancel()

    async def _wait(self, seconds: float, *, background: bool = False) -> "Iterable[asyncio.Task[None]]":
        listeners = [item for items in self._by_name.values() for item in items]
        running = [task for item in listeners if (task := item.running(background=background))]
        return (await asyncio.wait(running, timeout=seconds))[1] if running else ()

    def _remove(self, subscriber: Listener) -> None:
        for name in list(self._by_name):
            remaining = [item for item in self._by_name[name] if item is not subscriber]
            if remaining:
                self._by_name[name] = remaining
            else:
                del self._by_name[name]


def _check_event_name(name: str) -> None:
    if name not in _EVENT_NAMES:
        raise ConfigError(f"unknown event {name!r}, expected one of {', '.join(_EVENT_NAMES)}")


def offered_on(keywords: Mapping[str, Sequence[str]]) -> Callable[[Request], Awaitable[Request | None]]:
    """Return a function for `Interceptor(request=…)` that offers each tool only if it is wanted.

    A tool is offered if the user's last message contains one of its keywords, or if the conversation already has a call
    of it, because a provider may reject a history with calls of unknown tools. Without keywords it is never offered.
    This is not access control: a call of a hidden tool is checked as any other.
    """
    patterns = {
        name: re.compile("|".join(rf"\b{re.escape(word)}\b" for word in words), re.IGNORECASE) if words else None
        for name, words in keywords.items()
    }

    async def filter_tools(request: Request) -> Request | None:
        text = next((message.text for message in reversed(request.messages) if message.role == "user"), "")
        called = {call.name for message in request.messages for call in message.tool_calls}

        def is_hidden(name: str) -> bool:
            if name not in patterns or name in called:
                return False
            pattern = patterns[name]
            return pattern is None or pattern.search(text) is None

        tools = tuple(spec for spec in request.tools if not is_hidden(spec.name))
        return msgspec.structs.replace(request, tools=tools) if len(tools) < len(request.tools) else None

    return filter_tools
