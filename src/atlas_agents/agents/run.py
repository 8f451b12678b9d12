"""One turn in progress: its state, and the operations that the agent loop performs on it."""

import asyncio
import hashlib
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, cast

import msgspec

from atlas_agents.agents.context import DepsFactory, TurnContext, call_with_context, choose_tools, render_text
from atlas_agents.agents.history import (
    History,
    RequestRecorder,
    SentRequest,
    apply_summary,
    clear_results,
    context_state,
    digest_conversation,
    has_summary,
    repair_history,
)
from atlas_agents.agents.hooks import Interceptors
from atlas_agents.agents.options import AgentSettings, Mode, TurnOptions, WhenBusy
from atlas_agents.agents.output import Output
from atlas_agents.core.aio import finish_despite_cancel
from atlas_agents.core.budgets import BudgetLike, Reservation, read_budgets
from atlas_agents.core.errors import (
    AtlasError,
    BudgetExceeded,
    Cancelled,
    ConfigError,
    ProviderError,
    SessionBusy,
    StoreError,
    StoreLost,
    UnreadableRow,
    failure_kind,
)
from atlas_agents.core.events import (
    NO_USAGE,
    Event,
    FailedAttempt,
    HandedOff,
    MessageSent,
    PlanStep,
    StreamChunk,
    StreamReset,
    Usage,
)
from atlas_agents.core.json import check_memory, encode
from atlas_agents.core.messages import (
    OUTPUT,
    STEERING_RUN,
    Conversation,
    Message,
    Opaque,
    Part,
    Status,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    assistant,
    memo,
    user,
)
from atlas_agents.core.store import NO_CHAIN, AcceptRun, Chain, PutRecord, RunRow, RunStatus
from atlas_agents.core.telemetry import RESUMED, RUN_STATUS, TurnMeasurement, check_trace_context, usage_attributes
from atlas_agents.providers.base import Price, Prices, Provider
from atlas_agents.providers.failover import ContextLimit, Failover, TurnProvider
from atlas_agents.providers.settings import GivenSettings, read_settings
from atlas_agents.tools.client_tools import ClientRound, ClientTool, ClientTools
from atlas_agents.tools.governance import ToolScope
from atlas_agents.tools.journal import Journal, ShuttingDown, read_first_messages
from atlas_agents.tools.pipeline import run_tools
from atlas_agents.tools.tool import Tool

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
logger = logging.getLogger(__name__)
HAND_OFF = "hand_off"
_ANSWER_NEXT = "Now answer your part of the request, which was handed off to you as well."
_JOIN_ANSWERS = "The agents that you handed off to have answered above. Join their answers into one for the user."
_END_TIMEOUT = 2.0
_MAX_METADATA = 16_000
"""Maximum size in bytes of session metadata that is recorded with a request."""
_MAX_UNREADABLE_ROUNDS = _MAX_DEMANDS = 2


class Accepted(msgspec.Struct, frozen=True):
    """Acknowledgement of a message: its run, and the run's status.

    `in_flight` and `done` belong to a run that was accepted earlier under the same idempotency key.

    Attributes:
        run_id: Id of the run.
        status: `started`; `queued` behind the running turn; `in_flight` or `done` if the key was used before.
    """

    run_id: str
    status: Literal["started", "queued", "in_flight", "done"]


class DuplicateRun(Exception):
    """Raised if the idempotency key of the message belongs to this earlier run."""

    def __init__(self, row: RunRow) -> None:
        super().__init__(f"already accepted as run {row.id!r}")
        self.row = row


class Steered(Exception):
    """Raised if the message entered this turn, which was running."""

    def __init__(self, run: "Run", message_id: str) -> None:
        super().__init__(f"entered run {run.id!r}")
        self.run = run
        self.message_id = message_id


class Step(msgspec.Struct, frozen=True):
    """One tool call and its result; `timestamp` is in milliseconds since 1970.

    Attributes:
        tool: Name of the tool.
        input: Arguments of the call.
        output: The result.
        status: `ok`, `error`, or `unknown` if the call may have taken effect.
        timestamp: When it was called, in milliseconds since 1970.
        type: Always `tool_call`.
    """

    tool: str
    input: dict[str, Any]
    output: Any
    status: Status
    timestamp: int
    type: Literal["tool_call"] = "tool_call"


class RunResult(msgspec.Struct, Generic[T], frozen=True):
    """Result of `run`. When the round limit is reached, `success` is False and the rest is the partial result.

    Attributes:
        success: Whether the turn has an answer.
        answer: The text of the answer.
        error: Why there is no complete answer; None if there is one.
        steps: The tool calls and their results.
        usage: Tokens and cost of the turn.
        message: The message with the answer.
        intermediate: The messages between the prompt and the answer.
        output: The value of an answer that was requested with `output=T`, of the type `T`; None otherwise.
        plan: The steps of a turn in the mode `plan`.
    """

    success: bool
    answer: str
    error: str | None
    steps: tuple[Step, ...]
    usage: Usage
    message: Message
    intermediate: tuple[Message, ...]
    output: T = cast(Any, None)
    plan: tuple[PlanStep, ...] = ()


class CallResult(NamedTuple):
    """Result of `Agent.call`: `messages, success, error = await agent.call(…)`.

    Attributes:
        messages: All messages of the agent.
        success: Whether the turn has an answer.
        error: Why there is none; None if there is one.
    """

    messages: list[Message]
    success: bool
    error: str | None = None


def describe_answer(reply: Message) -> str:
    """Return an answer as another agent reads it: its text, why the model refused, and a note if it is incomplete."""
    note = f"(The answer is incomplete: {reply.incomplete}.)" if reply.incomplete else ""
    return "\n\n".join([piece for piece in (reply.text.strip(), reply.refusal, note) if piece])


def read_options(
    *,
    output: Any = None,
    output_retries: int | None = None,
    model: str = "",
    mode: Mode | None = None,
    max_rounds: int | None = None,
    when_busy: WhenBusy = "queue",
    idempotency_key: str = "",
    asks: bool = True,
    settings: GivenSettings | None = None,
    budget: BudgetLike | Sequence[BudgetLike] | None = None,
    deps: Any = None,
    metadata: Mapping[str, Any] | None = None,
    client_tools: ClientTools | Sequence[ClientTool] | None = None,
    chain: Chain = NO_CHAIN,
    call: ToolCall | msgspec.UnsetType = msgspec.UNSET,
    traceparent: str = "",
    tracestate: str = "",
) -> TurnOptions:
    """Convert the arguments of a turn to its options; an argument that is None is not set."""
    options = TurnOptions(
        output,
        model,
        asks,
        mode or "",
        chain=chain,
        call=call,
        deps=deps,
        when_busy=when_busy,
        idempotency_key=idempotency_key,
    )
    has_limits = not (output_retries is None and max_rounds is None and budget is None)
    if not (has_limits or traceparent) and settings is None and metadata is None and client_tools is None:
        return options  # as most turns
    return msgspec.structs.replace(
        options,
        output_retries=msgspec.UNSET if output_retries is None else output_retries,
        max_rounds=msgspec.UNSET if max_rounds is None else max_rounds,
        settings=msgspec.UNSET if settings is None else read_settings(settings),
        budget=msgspec.UNSET if budget is None else read_budgets(budget, ("turn",)),
        metadata=_read_metadata(metadata),
        client_tools=_read_client_tools(client_tools),
        traceparent=check_trace_context(traceparent, tracestate) if traceparent else msgspec.UNSET,
    )


def _read_client_tools(given: ClientTools | Sequence[ClientTool] | None) -> ClientTools | msgspec.UnsetType:
    if given is None:
        return msgspec.UNSET
    return given if isinstance(given, ClientTools) else ClientTools(tuple(given))


def _read_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any] | msgspec.UnsetType:
    if metadata is None:
        return msgspec.UNSET
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"invalid metadata {metadata!r} of a turn: expected names and values, as {{'plan': 1}}")
    try:
        encode(values := dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"metadata=… of a turn must be JSON: {error}; pass objects with deps=…") from error
    return values


_ACCEPTANCE_ONLY = ("when_busy", "idempotency_key", "deps", "history")
_STORED_OPTIONS = tuple(name for name in TurnOptions.__struct_fields__ if name not in _ACCEPTANCE_ONLY)


def encode_run_request(messages: Sequence[Message], options: TurnOptions, output_schema: bytes = b"null") -> bytes:
    """Encode the first messages and the options of a run as JSON, for the `request` column of its row."""
    request: dict[str, Any] = {"messages": [msgspec.Raw(message.to_json()) for message in messages]}
    if options.when_busy == "steer":  # it may enter a running turn at any time until its own starts
        request["when_busy"] = options.when_busy
    for name in _STORED_OPTIONS:
        if (value := getattr(options, name)) is not msgspec.UNSET:
            request[name] = value
    if options.deps is not None:
        request["has_deps"] = True
    request["output"] = msgspec.Raw(output_schema)
    return encode(request)


def decode_options(row: RunRow) -> TurnOptions:
    """Decode the options of a stored run."""
    try:
        return msgspec.json.decode(row.request, type=TurnOptions)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRow(f"the request of run {row.id!r} cannot be read: {error}") from error


class MessageDraft:
    """Draft of a model's message during streaming: chunks become parts, except the pending `text_chunks`."""

    __slots__ = ("_parts", "_thinking_chunks", "text_chunks")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._thinking_chunks: list[str] = []
        """The current thinking part; it precedes `text_chunks`."""
        self.text_chunks: list[str] = []

    def add_thinking(self, text: str, signature: str) -> None:
        """Extend the current thinking part, or start one. A signature ends it."""
        if self.text_chunks:
            self._flush_text()
        self._thinking_chunks.append(text)
        if signature:
            self._parts.append(Thinking("".join(self._thinking_chunks), signature))
            self._thinking_chunks.clear()

    def add_part(self, part: Part) -> None:
        """Append a part, after the text that precedes it."""
        self._flush_text()
        self._parts.append(part)

    def add_call(self, call: ToolCall, after: int) -> None:
        """Add a tool call: at the end, or after a number of signed or opaque parts if others follow it."""
        self.add_part(call)
        if after < 0:
            return
        fixed = [
            index
            for index, part in enumerate(self._parts)
            if isinstance(part, Opaque) or (isinstance(part, Thinking) and part.signature)
        ]
        if after < len(fixed):
            self._parts.insert(fixed[after], self._parts.pop())

    def clear(self) -> None:
        self._parts.clear()
        self._thinking_chunks.clear()
        self.text_chunks.clear()

    def parts(self) -> tuple[Part, ...]:
        self._flush_text()
        return tuple(self._parts)

    def take_parts(self) -> tuple[Part, ...]:
        """Return the parts and start a new draft."""
        self._flush_text()
        parts = tuple(self._parts)
        self._parts.clear()
        return parts

    def partial_parts(self) -> tuple[Text | Thinking, ...]:
        """Return the parts of an incomplete message that are kept: text and thinking, but no tool calls."""
        self._flush_text()
        return tuple([part for part in self._parts if isinstance(part, Text | Thinking)])

    @property
    def text(self) -> str:
        return "".join([part.text for part in self._parts if isinstance(part, Text)]) + "".join(self.text_chunks)

    @property
    def size(self) -> int:
        """Number of characters of text and thinking."""
        kept = sum([len(part.text) for part in self._parts if isinstance(part, Text | Thinking)])
        return kept + sum(map(len, self.text_chunks)) + sum(map(len, self._thinking_chunks))

    def _flush_text(self) -> None:
        if self._thinking_chunks:
            self._parts.append(Thinking("".join(self._thinking_chunks)))
            self._thinking_chunks.clear()
        if self.text_chunks:
            self._parts.append(Text("".join(self.text_chunks)))
            self.text_chunks.clear()


def _never() -> bool:
    return False


class TurnPhase(msgspec.Struct, frozen=True):
    """Tool restrictions for a part of a turn.

    `only` lists the offered tools, None offers all. The phase ends early when `is_complete` returns True after tool
    results. `final` marks the phase whose reply is the answer of the turn.
    """

    only: tuple[str, ...] | None = None
    tool_choice: str | None = None
    final: bool = False
    is_complete: Callable[[], bool] = _never

    def offered(self, tools: Sequence[Tool]) -> tuple[ToolSpec, ...]:
        return tuple([tool.spec for tool in tools if self.only is None or tool.name in self.only])


WHOLE_TURN = TurnPhase(final=True)


class SessionLock:
    """Two locks that the turns of a session pass in order: one to be accepted, one to run.

    `steering` are turns that wait for the second one, and whose messages may enter the turn that holds it.
    """

    __slots__ = ("accept", "run", "steering")

    def __init__(self) -> None:
        self.accept = asyncio.Lock()
        self.run = asyncio.Lock()
        self.steering: dict[str, SteeringTurn] = {}


class SteeringTurn(NamedTuple):
    """A turn that waits for its session, and the timeout with which its wait ends once its message has entered."""

    run: "Run"
    messages: Sequence[Message]
    wait: asyncio.Timeout


_locks: weakref.WeakKeyDictionary[object, tuple[asyncio.AbstractEventLoop, SessionLock]] = weakref.WeakKeyDictionary()


def session_lock(owner: object) -> SessionLock:
    """Return the lock of a conversation or context. Each event loop gets its own, as asyncio locks require."""
    loop = asyncio.get_running_loop()
    found = _locks.get(owner)
    if found is None or found[0] is not loop:
        found = _locks[owner] = (loop, SessionLock())
    return found[1]


class UsageMeter:
    """Sums the tokens and the cost of a turn."""

    __slots__ = ("_prices", "total")

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.total = NO_USAGE

    def price(self, model: str) -> Price | None:
        """Return the price of a model; None if it is unknown."""
        return self._prices.find(model)

    def add(self, model: str, usage: Usage, requested: str = "") -> Usage:
        """Add the usage of one model call and return it with its cost.

        `model` is the name in the answer. Deployments and proxies often give a name of their own; if its price is
        unknown, the price of the `requested` model (provider/model) counts.
        """
        price = self._prices.find(model)
        if price is None and (named := requested.partition("/")[2]):
            price = self._prices.find(named)
        if price is not None:
            saved = price.savings(usage) if usage.cached_tokens or usage.cache_write_tokens else None
            usage = msgspec.structs.replace(usage, cost=price.cost(usage), saved=saved)
        self.total = usage if self.total is NO_USAGE else self.total + usage
        return usage


class RunServices(Protocol):
    """Port: services of the runtime that created a run."""

    history: History
    system_prompt: str
    request_recorder: RequestRecorder
    make_deps: DepsFactory | None

    def switch_agent(self, run: "Run", agent_id: str) -> None:
        """Continue a run with the prompt, model, tools and role of another agent."""
        ...

    def failover_for(self, agent: Any, settings: AgentSettings, model: Any = "") -> Failover:
        """Return the models of an agent, or the single model that replaces them for one turn."""
        ...

    async def ask_beside(self, run: "Run", provider: Provider, prompt: str, system: str) -> str:
        """Ask a model a question outside the conversation; the usage counts as usage of the turn."""
        ...

    async def cancel_client_calls(self, session: str) -> None:
        """End the wait of a session's turn for results of its client, because a new message was sent."""
        ...


class Run:
    """One turn. The conversation outlives it; `messages` are the candidates for requests to the model."""

    __slots__ = (
        *("__weakref__", "_accepted_at", "_call_ids", "_demands", "_prompt_tail", "_recorded_metadata", "_services"),
        *("_started_at", "_unreadable_rounds", "_written_prompts", "accepted", "added", "context", "conversation"),
        *("draft", "emit", "entered", "first_agent_id", "first_step", "handoffs", "history", "id", "inherited_count"),
        *("inherited_messages", "interceptors", "journal", "lock", "max_rounds", "messages", "meter", "options"),
        *("outcome", "output", "output_value", "phase", "plan", "provider", "reply_usage", "request_recorder"),
        *("reserved", "resumed", "rounds_exhausted", "scope", "sent_request", "settings", "shortened_to", "steps"),
        *("summary_tried", "system_prompt", "texts", "to_ask", "trace", "user_message", "warnings"),
    )
    messages: list[Message]
    added: list[Message]
    steps: list[Step]
    texts: list[str]
    accepted: "asyncio.Future[Accepted] | None"
    user_message: Message | None
    output_value: Any
    phase: TurnPhase
    plan: tuple[PlanStep, ...]
    handoffs: int
    to_ask: tuple[tuple[str, bool], ...]
    """Agents that still have to answer after a hand-off to several; True marks the one that joins the answers."""
    first_step: int
    """Number of tool calls before the current agent took over."""
    rounds_exhausted: bool
    reserved: Reservation | None
    """Reservation for the model call in progress."""
    inherited_count: int
    """Number of messages of the agent's context before those of the conversation."""
    resumed: bool
    """Whether the run was accepted earlier, possibly by another process, and is being resumed."""
    summary_tried: bool
    """Whether writing a summary was tried before the next reply, successfully or not."""
    entered: "Run | None"
    """The running turn that the message of this one entered."""
    outcome: "asyncio.Future[Message] | None"
    """The answer, for turns whose messages entered this one."""
    reply_usage: Usage
    """Usage of the last reply."""
    sent_request: SentRequest | None
    """The request that the last reply answers; None if a hook gave the reply."""
    shortened_to: int
    """Tokens that were available for the messages of the last request, if these did not fit; 0 if they did."""
    warnings: dict[str, str]
    """Model settings that are not sent as given, by name, with the reason."""
    _prompt_tail: str
    """Digest of the turn-specific text in the last recorded request."""
    _recorded_metadata: bytes
    """Metadata of the session in the last recorded request."""
    _call_ids: set[str]
    _written_prompts: dict[str, str]

    def __init__(
        self,
        *,
        id: str,
        settings: AgentSettings,
        context: TurnContext[Any],
        conversation: Conversation,
        lock: SessionLock,
        inherited_messages: Sequence[Message],
        provider: Provider,
        scope: ToolScope,
        emit: Callable[[Event], None],
        interceptors: Interceptors,
        output: Output | None,
        meter: UsageMeter,
        options: TurnOptions,
        services: RunServices,
        resumed: bool = False,
    ) -> None:
        self.id, self.first_agent_id = id, settings.id
        self.settings, self.options, self.max_rounds = settings, options, settings.max_rounds
        self.context, self.conversation, self.lock = context.bind(self), conversation, lock
        self.provider, self.emit, self.interceptors = provider, emit, interceptors
        self.scope, self.journal, self.trace = scope, scope.journal, scope.trace
        self.output, self.meter, self._services = output, meter, services
        self.history, self.system_prompt = services.history, services.system_prompt
        self.request_recorder = services.request_recorder
        self.inherited_messages, self.resumed = inherited_messages, resumed
        self.messages, self.added, self.steps = [], [], []
        self.texts, self.draft = [], MessageDraft()
        self.accepted = self.entered = self.outcome = self.user_message = None
        self.output_value = self.reserved = self.sent_request = None
        self.phase, self.plan, self.to_ask = WHOLE_TURN, (), ()
        self.handoffs = self.first_step = self.inherited_count = self.shortened_to = 0
        self.rounds_exhausted = self.summary_tried = False
        self.reply_usage, self.warnings = NO_USAGE, {}
        self._prompt_tail, self._recorded_metadata = "", b""
        self._call_ids, self._written_prompts = set(), {}
        self._unreadable_rounds = self._demands = 0
        self._accepted_at, self._started_at = _accepted_at(scope), 0.0

    def record_end(self, status: str) -> None:
        """Record the turn as a measurement; without a status there is no turn, and another process may continue it."""
        trace, clock = self.trace, self.scope.governance.clock
        if not status or self.detached:
            trace.discard()
            return
        if trace.span.recording:
            trace.span.set({RUN_STATUS: status, RESUMED: self.resumed, **usage_attributes(self.usage)})
        if trace.telemetry.recorders:
            accepted, first = self._accepted_at
            queued = max(0.0, (self._started_at or clock.time()) - accepted) if first else 0.0
            seconds = max(0.0, clock.time() - accepted)
            trace.telemetry.record_turn(TurnMeasurement(self.first_agent_id, status, seconds, queued))

    def take_request_record(self) -> tuple[bytes, list[PutRecord]]:
        """Return the record of the request that the last reply answers, as JSON, and the writes that belong to it."""
        sent, self.sent_request = self.sent_request, None
        if sent is None:
            return b"", []
        metadata, messages = self._changed_metadata(), digest_conversation(self.conversation)
        record, contents = self.request_recorder.record(sent, self._prompt_tail, metadata, messages)
        self._prompt_tail = record.tail
        return encode(record), contents

    def _changed_metadata(self) -> dict[str, Any] | None:
        """Return the metadata of the session; None if it is as it was last recorded, or too large to be recorded."""
        try:
            encoded = encode(self.conversation.metadata)
        except (TypeError, ValueError, RecursionError):  # a value was changed in place to one that JSON does not have
            return None
        if encoded == self._recorded_metadata or len(encoded) > _MAX_METADATA:
            return None
        self._recorded_metadata = encoded
        return msgspec.json.decode(encoded)

    def take_failed_attempts(self) -> tuple[FailedAttempt, ...]:
        """Return the requests to the model that failed since the last reply."""
        return self.provider.take_failed() if isinstance(self.provider, TurnProvider) else ()

    def find_provider(self, model: Any) -> Provider:
        """Return another model for a part of the turn."""
        models = self._services.failover_for(self.scope.agent, self.settings, model)
        return models.for_turn(self.scope.governance.clock)

    async def ask_model(self, prompt: str, model: Any, system: str) -> str:
        """Ask another model within the turn's budget; its usage counts as usage of the turn."""
        return await self._services.ask_beside(self, self.find_provider(model), prompt, system)

    async def collect(self, turn: Awaitable[Message]) -> RunResult[Any]:
        """Wait for the turn and return everything it produced; an error's `result` has the partial result."""
        error = None
        try:
            reply = await turn
        except BudgetExceeded as exceeded:
            reply, error = assistant(exceeded.partial), str(exceeded)
        except AtlasError as failure:
            failure.result = self.build_result(None, str(failure))
            raise
        return self.build_result(reply, "Max iterations reached" if self.rounds_exhausted else error)

    def read_output(self, reply: Message) -> None:
        """Read the requested value of an answer, for the result and the message; raises BadOutput."""
        if self.output is not None:
            self.output_value = memo(reply)[OUTPUT] = self.output.parse(reply.text)

    def build_result(self, reply: Message | None, error: str | None) -> RunResult[Any]:
        """Return the result of the turn so far. `error` says why it is incomplete; then the result has the last reply,
        or the beginning of one."""
        if reply is None:
            ended = bool(self.added) and self.added[-1].role == "assistant"
            reply = self.added[-1] if ended else Message("assistant", (Text("".join(self.draft.text_chunks)),))
        return RunResult(
            success=error is None,
            answer=reply.text,
            error=error,
            steps=tuple(self.steps),
            usage=self.usage,
            message=reply,
            intermediate=tuple(each for each in self.added if each is not reply and each is not self.user_message),
            output=self.output_value,
            plan=self.plan,
        )

    @property
    def output_retries(self) -> int:
        """How often an answer that does not match the output type may be corrected."""
        given = self.options.output_retries
        return self.settings.output_retries if isinstance(given, msgspec.UnsetType) else given

    @property
    def limits(self) -> Sequence[ContextLimit]:
        """Context limits of the agent's models."""
        return self.provider.limits if isinstance(self.provider, TurnProvider) else ()

    @property
    def available(self) -> list[float]:
        """Maximum number of estimated tokens of a request to each of the agent's models."""
        window = self.history.compaction.window if self.history.compaction is not None else None
        return [limit.within(window) for limit in self.limits]

    @property
    def usage(self) -> Usage:
        return self.meter.total

    async def accept(self, message: Message) -> list[Message]:
        """Accept the user's message, as changed by interceptors. With a journal it is durable when this returns."""
        sent, interceptors = [message], self.interceptors
        if interceptors.has_outgoing:
            sent = await interceptors.outgoing(message, self.scope.actor, self.context)
        messages = [*self.options.history, *sent]
        busy, journal, when_busy = self.lock.run.locked(), self.journal, self.options.when_busy
        if busy and when_busy == "reject":
            raise SessionBusy("a turn of this session is running; wait for it, or send with when_busy='queue'")
        if journal is not None:
            await self._check_quota()
            request = self._accept_write(message, messages)
            try:
                row = await finish_despite_cancel(
                    journal.accept(request, messages, wait=when_busy != "reject", idle=not busy)
                )
            except StoreLost:  # it may have been accepted: the next turn reloads the session
                journal.invalidate(self.conversation)
                raise
            if row.id != self.id:
                raise DuplicateRun(row)
            busy = row.status == "queued"
        self._acknowledge(Accepted(self.id, "queued" if busy else "started"))
        if busy:
            self.scope.governance.spawn(self._services.cancel_client_calls(self.conversation.id))
        return messages

    async def _check_quota(self) -> None:
        """Check that quota and budgets allow another turn; a resumed run is not checked again."""
        services = self.scope.governance.team_services
        if services is not None:
            await services.tenancy.admit(self.settings.id, [each.id for each in services.agents()])
        if (budget := self.scope.open_budget()) is not None:
            await budget.check()

    def _accept_write(self, message: Message, messages: Sequence[Message]) -> AcceptRun:
        options, schema = self.options, self.output.schema if self.output else None
        return AcceptRun(
            self.id,
            self.conversation.id,
            self.settings.id,
            self.scope.actor.user,
            options.idempotency_key,
            self._fingerprint(message, schema) if options.idempotency_key else "",
            encode_run_request(messages, options, schema.encode() if schema else b"null"),
            urgency=options.chain.urgency,
        )

    def _fingerprint(self, message: Message, schema: str | None) -> str:
        """Hash the parts of a request that must be equal when an idempotency key is repeated."""
        options = self.options
        given = (options.mode, options.requested, options.settings, options.instructions, options.client_tools)
        chosen = [each for each in given if each]
        matched = [self.settings.id, message.role, message.parts, schema, options.model, *chosen]
        return hashlib.sha256(encode(matched)).hexdigest()

    def _acknowledge(self, accepted: Accepted) -> None:
        if self.accepted is not None and not self.accepted.done():
            self.accepted.set_result(accepted)

    async def wait_in_order(self, messages: Sequence[Message]) -> None:
        """Acquire the session after its earlier turns. Raises Steered if the message enters a running turn instead."""
        if self.options.when_busy != "steer":
            await self.lock.run.acquire()
        else:
            await self._wait_or_steer(messages)
        self._started_at = self.scope.governance.clock.time()

    async def _wait_or_steer(self, messages: Sequence[Message]) -> None:
        lock = self.lock
        with suppress(UnreadableRow):  # it fails when its own turn starts
            if self.resumed and self.journal is not None and self.journal.row is not None:
                messages = read_first_messages(self.journal.row)
        try:
            async with asyncio.timeout(None) as wait:
                if messages:
                    lock.steering[self.id] = SteeringTurn(self, messages, wait)
                await lock.run.acquire()
        except TimeoutError:
            raise Steered(cast(Run, self.entered), messages[-1].id) from None
        finally:
            lock.steering.pop(self.id, None)

    async def take_steering_messages(self) -> None:
        """Add the messages that were sent to steer this turn since its last model call."""
        journal = self.journal
        if journal is not None and (recorded := journal.recorded_steering()) is not None:
            for message in recorded:
                self.add(message)
            return
        shared = journal is not None and journal.is_shared
        if not (self.lock.steering or shared):
            return
        waiting = await self._read_steering() if shared else self._waiting_steering()
        entering = {id: [_with_run(message, id) for message in messages] for id, messages in waiting.items()}
        if entering:
            await finish_despite_cancel(self._enter(entering))

    async def _enter(self, entering: dict[str, list[Message]]) -> None:
        """Record that these messages enter this turn, and add them to the conversation."""
        taken = list(entering) if self.journal is None else await self.journal.record_steering(entering)
        for id in taken:
            for message in entering[id]:
                self.append(message)
            self.emit(MessageSent(self.id, entering[id][-1]))
            self._release_steering(id)

    def _waiting_steering(self) -> dict[str, Sequence[Message]]:
        """Return the messages by run that wait in this process and may enter this turn."""
        return {
            id: each.messages
            for id, each in self.lock.steering.items()
            if self._may_enter(each.run.options, each.run.first_agent_id, each.run.scope.actor.user)
            and not (each.run.journal is not None and each.run.journal.epoch)
        }

    async def _read_steering(self) -> dict[str, Sequence[Message]]:
        """Return the messages by run that any process has accepted and that may enter this turn."""
        found: dict[str, Sequence[Message]] = {}
        for row in await cast(Journal, self.journal).read_queued_runs():
            with suppress(UnreadableRow):  # it fails when its own turn starts
                if self._may_enter(decode_options(row), row.agent_id, row.user):
                    found[row.id] = read_first_messages(row)
        return found

    def _may_enter(self, options: TurnOptions, agent_id: str, user: str) -> bool:
        """Return whether a message may steer this turn: one of the same user to the same agent, for a plain answer."""
        return (
            options.when_busy == "steer"
            and options.output is None
            and user == self.scope.actor.user
            and agent_id in (self.first_agent_id, self.settings.id)
        )

    def _release_steering(self, run_id: str) -> None:
        """End the wait of a turn whose message has entered this one."""
        waiting = self.lock.steering.pop(run_id, None)
        if waiting is None:
            return
        if self.outcome is None:
            self.outcome = asyncio.get_running_loop().create_future()
        waiting.run.entered = self
        if waiting.run.journal is not None:
            waiting.run.journal.mark_merged()
        waiting.wait.reschedule(asyncio.get_running_loop().time())

    def resolve_outcome(self, reply: Message | None, failure: BaseException | None = None) -> None:
        """Pass the answer or the failure to the turns whose messages entered this one."""
        if self.outcome is None or self.outcome.done():
            return
        if reply is not None:
            self.outcome.set_result(reply)
            return
        self.outcome.set_exception(failure if isinstance(failure, Exception) else Cancelled("the turn was cancelled"))
        self.outcome.exception()  # also if none of them waits any more

    async def begin(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Load and repair the conversation; return the messages the run starts with, from the journal if it has one."""
        journal = self.journal
        if journal is not None and self.resumed:
            await self._wait_in_quarantine(journal)
        first = messages
        if journal is not None:
            begin = journal.begin(self.conversation)
            first = await (finish_despite_cancel(begin) if journal.must_read(self.conversation) else begin)
            self.meter.total += journal.restored_usage
        given = self.inherited_messages
        inherited = [message for message in given if message.role != "system"] if given else []
        if inherited or self.conversation.messages:
            self._show_messages(inherited)
        if self.options.team.stays and (speaker := _last_speaker(self.conversation.messages)):
            self._services.switch_agent(self, speaker)
        if self.options.deps is None and (self._services.make_deps is not None or self.options.has_deps is True):
            await self._prepare_deps()
        if not self.scope.has_chosen:
            await self.choose_tools()
        return first

    def _show_messages(self, inherited: list[Message]) -> None:
        """Show the model the messages of the agent's context and of the conversation, repaired if necessary."""
        index = self.conversation.index
        if inherited or not index.is_paired:
            self.messages = repair_history([*inherited, *self.conversation.messages])
            self._call_ids = {call.id for message in self.messages for call in message.tool_calls}
        else:
            self.messages, self._call_ids = list(self.conversation.messages), set(index.call_ids)
        self.inherited_count = len(inherited)
        self.refresh_messages()

    async def choose_tools(self) -> None:
        """Leave out the tools that the choices of toolsets do not include in this turn; once for each agent."""
        self.scope.set_chosen_tools(await choose_tools(self.scope.tools, self.context))

    async def _prepare_deps(self) -> None:
        """Have the developer's function make `deps` for a turn that was sent without them, or is resumed."""
        if (make_deps := self._services.make_deps) is not None:
            made: Any = await call_with_context(make_deps, self.context, "the deps function of the Atlas")
            self.context.deps = self.scope.deps = made
        elif self.options.has_deps is True:
            raise ConfigError(
                "the turn was sent with deps=…, which are not stored, and cannot be resumed without them: pass "
                "Atlas(deps=…) a function that makes them"
            )

    async def dynamic_prompt(self) -> str:
        """Call the agent's system prompt function, once per turn; return an empty text for a plain prompt."""
        prompt, agent_id = self.settings.system_prompt, self.settings.id
        if not callable(prompt):
            return ""
        if agent_id not in self._written_prompts:
            written = await render_text(prompt, self.context, f"the system prompt of agent {agent_id!r}")
            self._written_prompts[agent_id] = written
        return self._written_prompts[agent_id]

    def refresh_messages(self) -> None:
        """Apply the newest summary, and the notes for cleared tool results, to the messages for the model."""
        if not self.conversation.messages:
            return
        state = context_state(self.conversation)
        if not has_summary(self.conversation) and not state.cleared:
            return
        inherited, own = self.messages[: self.inherited_count], self.messages[self.inherited_count :]
        own = apply_summary(own)
        if state.cleared:
            own = clear_results(own, state.cleared)
        self.messages = [*inherited, *own]

    def restore_summary(self, recorded: Sequence[Message]) -> None:
        """Use the summary that an earlier process recorded before the next reply, or remember that it failed."""
        self.summary_tried = True
        if not recorded:
            context_state(self.conversation).failed_at = self.history.tokens(self.messages)
        for summary in recorded:
            self.add_summary(summary)

    def add_summary(self, summary: Message) -> None:
        """Add a summary to the conversation; the model gets it in place of the messages that it covers."""
        self.add(summary)
        self.refresh_messages()

    async def _wait_in_quarantine(self, journal: Journal) -> None:
        try:
            await journal.wait_in_quarantine()
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if journal.detached or caller is None:
                raise
            caller.uncancel()  # cancelled again once the run is claimed and its calls have results
            caller.cancel()

    async def end(self, status: RunStatus, failure: Exception | None = None) -> None:
        """Record how the turn ended, before any event reports it."""
        journal = self.journal
        if journal is None or journal.row is None:
            return
        if journal.detached:
            if status == "done":  # not recorded as done, so it must not be reported as done
                raise ShuttingDown("the process is shutting down; the turn resumes at the next start")
            return
        try:
            async with asyncio.timeout(None if status == "done" else _END_TIMEOUT):
                error, kind = (str(failure), failure_kind(failure)) if failure is not None else (None, "")
                self._drop_large_draft()
                failed = self.request_recorder.redact_failed(self.take_failed_attempts())
                ending = journal.end(status, error, self.draft.partial_parts(), kind, self.usage, failed)
                await (finish_despite_cancel(ending) if status == "done" else asyncio.shield(ending))
        except (StoreError, TimeoutError) as failed:
            journal.detach()
            journal.invalidate(self.conversation)
            if status == "done":
                raise
            logger.error("failed to record the end of a run, it will be resumed: run=%s error=%s", self.id, failed)

    def _drop_large_draft(self) -> None:
        """Drop the draft of a long reply if there is not enough memory left to record it."""
        try:
            check_memory(self.draft.size)
        except MemoryError:
            self.draft.clear()

    def append(self, message: Message) -> Message:
        """Append a message to the conversation."""
        self.messages.append(message)
        self.conversation.messages.append(message)
        self.added.append(message)
        if calls := message.tool_calls:
            self._call_ids.update([call.id for call in calls])  # also those of a replayed reply
        return message

    def add(self, message: Message) -> Message:
        """Append a message to the conversation and to the journal."""
        if self.journal is not None:
            self.journal.add(message)
        return self.append(message)

    def add_own(self, message: Message) -> Message:
        """Add a message that the run itself made. Its id derives from the run, so a resumed run makes the same one."""
        return self.add(msgspec.structs.replace(message, id=self._next_own_id()))

    def _next_own_id(self) -> str:
        return f"{self.id}.{len(self.added)}"

    async def run_tool_calls(self, calls: Sequence[ToolCall]) -> ClientRound:
        """Run the tools and add their results; even when cancelled, every call gets a result.

        Returns the outcome of the calls that the client runs.
        """
        results: list[ToolResult | None] = [None] * len(calls)
        scope = self.scope
        handed: list[str] = []
        try:
            await run_tools(calls, scope, results, parallel=self.settings.parallel_tools)
        finally:
            done = [result for result in results if result is not None]
            took = scope.durations
            durations = {id: took[id] for each in done if (id := each.call_id) in took}
            self.add(Message("tool", tuple(done), self._next_own_id(), metadata={"durations": durations}))
            now = int(time.time() * 1000)
            for call, result in zip(calls, done, strict=True):
                self.steps.append(Step(scope.display_name(call), call.arguments, result.result, result.status, now))
                if call.name == HAND_OFF and result.status == "ok":
                    handed.append(_handed_to(result.result))
        if handed:
            first, *others = dict.fromkeys(handed)
            if others:
                self.to_ask = (*[(each, False) for each in others], (self.settings.id, True), *self.to_ask)
            self.hand_off(first)
        unreadable = all([call.malformed is not None for call in calls])
        self._unreadable_rounds = self._unreadable_rounds + 1 if unreadable else 0
        if self._unreadable_rounds > _MAX_UNREADABLE_ROUNDS:
            raise ProviderError("the model wrote malformed tool calls three times in a row", "protocol")
        return scope.client.end_round(calls, scope) if scope.client is not None else ClientRound.NO_CALLS

    def must_end(self, round: ClientRound) -> bool:
        """Return whether the turn must end: the client posted no result, and asked not to continue without one."""
        return round is ClientRound.UNANSWERED and self.client_may_end

    @property
    def client_may_end(self) -> bool:
        """Whether the client ends the turn by posting no result."""
        client = self.scope.client
        return client is not None and client.offer.unanswered == "end"

    def demand_client_call(self, reply: Message) -> bool:
        """Ask the model again for the call that the client requires, in place of its answer; False if none is required.

        Raises ProviderError if the model does not obey.
        """
        client = self.scope.client
        if client is None or not client.offer.is_forced or not self.phase.final:
            return False
        if reply.metadata.get("refused") or reply.metadata.get("truncated"):
            return False
        wanted = _describe_forced(client.offer)
        if self._demands >= _MAX_DEMANDS:
            raise ProviderError(f"the model answered, but the client requires a call of {wanted}", "protocol")
        self._demands += 1
        self.replace_last_text(reply.text, "")
        self.add_own(user(f"Do not answer with text: call {wanted}.", synthetic=True))
        return True

    def hand_off(self, agent_id: str) -> None:
        """Continue this turn with another agent."""
        before = self.settings.id
        self._services.switch_agent(self, agent_id)
        if self.settings.id != before:
            self.handoffs += 1
            self.first_step = len(self.steps)
            self.emit(HandedOff(self.id, before, self.settings.id))

    def ask_next_agent(self) -> bool:
        """Continue with the next agent that has to answer after a hand-off to several; False if there is none."""
        if not self.to_ask:
            return False
        (agent_id, joins), *rest = self.to_ask
        self.to_ask = tuple(rest)
        self.hand_off(agent_id)
        self.add_own(user(_JOIN_ANSWERS if joins else _ANSWER_NEXT, synthetic=True))
        return True

    @property
    def is_final(self) -> bool:
        """Whether the next reply is the answer of the turn, unless it calls tools."""
        return self.phase.final and not self.to_ask

    @property
    def tool_choice(self) -> str:
        """The agent's tool choice. A forced tool is forced until its first call; a model that obeys never answers."""
        settings, client = self.settings, self.scope.client
        if client is not None and client.offer.is_forced:
            return client.offer.tool_choice
        called = len(self.steps) > self.first_step
        return (
            "auto" if called and settings.reset_tool_choice and settings.tool_choice != "none" else settings.tool_choice
        )

    def finish_draft(self) -> tuple[Part, ...]:
        """Return the parts of the completed message and start a new draft."""
        parts = self.draft.take_parts()
        self.texts.append("".join([part.text for part in parts if type(part) is Text]))
        return parts

    def replace_last_text(self, old: str, new: str) -> None:
        """Withdraw the streamed text of the last message and stream another one, so that streams match the history."""
        if new != old:
            self.texts[-1] = new
            self.emit(StreamReset(self.id, 0))
            if new:
                self.emit(StreamChunk(self.id, new))

    def unique_call_id(self, call_id: str) -> str:
        """Return the id unchanged, or a new one if it is empty or already used in this conversation."""
        number = len(self._call_ids)
        while not call_id or call_id in self._call_ids:  # the numbers of a resumed run may have gaps
            number += 1
            call_id = f"call_{self.id}_{number}"
        self._call_ids.add(call_id)
        return call_id

    @property
    def detached(self) -> bool:
        """The process is shutting down: the turn has not ended and will be resumed."""
        return self.journal is not None and self.journal.detached

    @property
    def fenced(self) -> bool:
        """Another process has taken over the turn and continues it."""
        return self.journal is not None and self.journal.fenced

    @property
    def text(self) -> str:
        """All text that the model produced in this turn, without withdrawn text."""
        return "".join(self.texts) + self.draft.text


def _accepted_at(scope: ToolScope) -> tuple[float, bool]:
    """Return when a run was accepted, in seconds since 1970, and whether this process is the first to execute it."""
    row = scope.journal.row if scope.journal is not None else None
    return (scope.governance.clock.time(), True) if row is None else (row.created_at / 1000, not row.epoch)


def _with_run(message: Message, run_id: str) -> Message:
    """Return a steering message with the run under which it was accepted, so that clients recognise it."""
    return msgspec.structs.replace(message, metadata={**message.metadata, STEERING_RUN: run_id})


def _describe_forced(offer: ClientTools) -> str:
    """Name the client tools, one of which must be called."""
    names = [each.name for each in offer.offered] if offer.tool_choice == "required" else [offer.tool_choice]
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _handed_to(result: Any) -> str:
    """Return the agent that a hand-off named: a hook or a person may have changed the arguments of the call."""
    if isinstance(result, dict) and "edited_arguments" in result:
        result = cast(dict[str, Any], result)["result"]
    return str(cast(dict[str, Any], result).get("handed_to")) if isinstance(result, dict) else ""


def _last_speaker(messages: Sequence[Message]) -> str:
    """Return the agent that answered last, if its reply names one."""
    replies = [message for message in messages if message.role == "assistant"]
    return str(replies[-1].metadata.get("agent") or "") if replies else ""
