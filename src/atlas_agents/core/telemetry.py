"""Telemetry of turns: trace context, and OpenTelemetry spans and metrics with their names.

Names follow the OpenTelemetry GenAI semantic conventions (repository semantic-conventions-genai, schema 1.42.0-dev);
our additions begin with `atlas.`. The spans of a turn, its rounds and a job have ids that derive from the ids of the
run and the job: a process that resumes a run continues the spans of the process that crashed. Without `OpenTelemetry`,
nothing is recorded, and the traceparent of a caller is only passed on.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import msgspec

from atlas_agents.core import install_command, package_version
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, failure_kind
from atlas_agents.core.events import NO_USAGE, Usage
from atlas_agents.core.messages import Message, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from opentelemetry import context as otel_context
    from opentelemetry import metrics as otel_metrics
    from opentelemetry import trace as otel_trace

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
SCOPE = "atlas_agents"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - the name of an attribute
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
ERROR_TYPE = "error.type"
MCP_METHOD = "mcp.method.name"
MCP_SERVER = "atlas.mcp.server"
RUN_ID = "atlas.run.id"
RUN_STATUS = "atlas.run.status"
RESUMED = "atlas.run.resumed"
TENANT = "atlas.tenant"
ROUND = "atlas.round"
COST = "atlas.usage.cost"
TOOL_STATUS = "atlas.tool.status"
APPROVAL_ID = "atlas.approval.id"
APPROVAL_DECISION = "atlas.approval.decision"
JOB_ID = "atlas.job.id"
JOB_KIND = "atlas.job.kind"
JOB_STATE = "atlas.job.state"
JOB_ATTEMPTS = "atlas.job.attempts"
COMPACTED_MESSAGES = "atlas.compaction.messages"

TOKEN_USAGE_METRIC = "gen_ai.client.token.usage"  # noqa: S105 - the name of a metric
MODEL_DURATION_METRIC = "gen_ai.client.operation.duration"
FIRST_CHUNK_METRIC = "gen_ai.client.operation.time_to_first_chunk"
TURN_DURATION_METRIC = "gen_ai.invoke_agent.duration"
TOOL_DURATION_METRIC = "gen_ai.execute_tool.duration"
COST_METRIC = "atlas.usage.cost"
QUEUE_METRIC = "atlas.run.queue_time"

_PROVIDER_NAMES = {"google": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai", "moonshot": "moonshot_ai"}
"""Well-known values of `gen_ai.provider.name` that differ from the id of the provider."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_\-*/]{0,255}(@[a-z][a-z0-9_\-*/]{0,13})?=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MAX_STATE, _MAX_GIVEN_STATE, _MAX_MEMBERS, _LONG_MEMBER = 512, 20_000, 32, 128
_NO_TRACE, _NO_PARENT = "0" * 32, "0" * 16
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4**power for power in range(14))
_MAX_KNOWN = 1000
MAX_CONTENT = 20_000
"""Maximum number of captured characters of a text."""
Attributes: TypeAlias = dict[str, Any]
SpanKind: TypeAlias = Literal["INTERNAL", "CLIENT", "CONSUMER"]
Redact: TypeAlias = Callable[[Any, int, Iterable[str]], str]
"""Returns data as a text of at most this many characters, without secrets and without these texts."""
FindSecrets: TypeAlias = Callable[[Any], list[str]]
"""Returns the secrets in plain data, found by field name."""

_wanted_ids: "ContextVar[tuple[int, int] | None]" = ContextVar("atlas_span_ids", default=None)


def read_trace_context(traceparent: object, tracestate: object = "") -> str:
    """Return the trace context of a caller (W3C) as one text; empty if it is invalid, which starts a new trace.

    It is the traceparent in its current version, followed by a space and the tracestate, if there is a valid one.
    """
    short = isinstance(traceparent, str) and len(traceparent) < 200
    match = _TRACEPARENT.fullmatch(traceparent.strip()) if isinstance(traceparent, str) and short else None
    if match is None or match[1] == _NO_TRACE or match[2] == _NO_PARENT or match[0].startswith("ff"):
        return ""
    if match[0].startswith("00") and match[4]:
        return ""
    return f"00-{match[1]}-{match[2]}-{match[3]} {read_tracestate(tracestate)}".rstrip()


def read_tracestate(text: object) -> str:
    """Return a tracestate without empty members, shortened to 512 characters; empty if a member is invalid."""
    if not isinstance(text, str) or len(text) > _MAX_GIVEN_STATE:
        return ""
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    names = {member.partition("=")[0] for member in members}
    if len(members) > _MAX_MEMBERS or len(names) < len(members) or not all(map(_STATE_MEMBER.fullmatch, members)):
        return ""
    while len(",".join(members)) > _MAX_STATE:
        members.remove(next((each for each in reversed(members) if len(each) > _LONG_MEMBER), members[-1]))
    return ",".join(members)


def split_trace_context(context: str) -> dict[str, str]:
    """Return the header fields of a trace context: `traceparent` and, if present, `tracestate`."""
    traceparent, _, tracestate = context.partition(" ")
    found = {"traceparent": traceparent, "tracestate": tracestate}
    return {name: value for name, value in found.items() if value}


def check_trace_context(traceparent: str, tracestate: str = "") -> str:
    """Return a trace context; raises ConfigError if its traceparent is invalid."""
    found = read_trace_context(traceparent, tracestate)
    if not found:
        raise ConfigError(
            f"invalid traceparent {traceparent!r}: expected '00-<32 hex digits>-<16 hex digits>-<2 hex digits>' (W3C "
            "Trace Context)"
        )
    return found


def _format_trace_context(span: "otel_trace.SpanContext") -> str:
    if not span.is_valid:
        return ""
    found = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 1:02x}"
    return f"{found} {span.trace_state.to_header()}" if span.trace_state else found


def _derive(size: int, *parts: str) -> int:
    """Return an id of `size` bytes that is the same for the same parts; it is never zero."""
    return int.from_bytes(hashlib.blake2b("\n".join(parts).encode(), digest_size=size).digest()) or 1


def provider_name(ref: str) -> str:
    """Return the value of `gen_ai.provider.name` for a reference such as `google/gemini-3`."""
    provider = ref.partition("/")[0]
    return _PROVIDER_NAMES.get(provider, provider)


def usage_attributes(usage: Usage) -> Attributes:
    """Return the attributes of a span for tokens and cost."""
    found: Attributes = {INPUT_TOKENS: usage.input_tokens, OUTPUT_TOKENS: usage.output_tokens}
    if usage.cached_tokens:
        found[CACHE_READ_TOKENS] = usage.cached_tokens
    if usage.cache_write_tokens:
        found[CACHE_WRITE_TOKENS] = usage.cache_write_tokens
    if usage.reasoning_tokens:
        found[REASONING_TOKENS] = usage.reasoning_tokens
    if usage.cost is not None:
        found[COST] = usage.cost
    return found


def describe_messages(messages: Sequence[Message]) -> list[Any]:
    """Return messages in the format of the conventions, for content that is captured; images and files by type only."""
    return [{"role": each.role, "parts": [_describe_part(part) for part in each.parts]} for each in messages]


def _describe_part(part: Any) -> Attributes:
    if isinstance(part, Text):
        return {"type": "text", "content": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
    if isinstance(part, ToolResult):
        return {"type": "tool_call_response", "id": part.call_id, "response": part.result}
    return {"type": part.type}


class ModelMeasurement(msgspec.Struct, frozen=True):
    """Duration and outcome of one model call; `first_chunk` is None if nothing arrived, `error` is empty on success."""

    model: str
    """Reference of the requested model: `openai/gpt-5.6`."""
    agent: str
    usage: Usage
    seconds: float
    first_chunk: float | None = None
    error: str = ""


class ToolMeasurement(msgspec.Struct, frozen=True):
    """Outcome of one tool call; `status` is `ok`, `error` or `unknown`, and `error` is the kind of the error."""

    tool: str
    agent: str
    status: str
    error: str
    seconds: float


class TurnMeasurement(msgspec.Struct, frozen=True):
    """Outcome of one turn. `queued` is the number of seconds from its acceptance to its start."""

    agent: str
    status: str
    seconds: float
    queued: float


class Recorder(Protocol):
    """Receives measurements: the metrics of OpenTelemetry, or those of Prometheus in the gateway."""

    def record_model(self, call: ModelMeasurement) -> None: ...

    def record_tool(self, call: ToolMeasurement) -> None: ...

    def record_turn(self, turn: TurnMeasurement) -> None: ...


class Span:
    """No-op span, for turns without telemetry; `OtelSpan` is recorded.

    As a context manager it is the current span of the block, and ends with it. `discard` drops it: another process
    continues the same span.
    """

    __slots__ = ()
    recording = False

    @property
    def traceparent(self) -> str:
        """The trace context that is passed on; see `read_trace_context`."""
        return ""

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes."""

    def event(self, name: str) -> None:
        """Add an event."""

    def fail(self, kind: str) -> None:
        """Mark the span as failed, with the kind of the error."""

    def end(self, at: float | None = None) -> None:
        """End and export the span; `at` is in seconds since 1970."""

    def discard(self) -> None:
        """Drop the span."""

    def start(self, name: str, attributes: Attributes, kind: SpanKind = "INTERNAL") -> "Span":
        """Start a child span."""
        return NO_SPAN

    def activate(self) -> Any:
        """Make it the current span of this task and return a token for `deactivate`."""

    def deactivate(self, token: Any) -> None: ...

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


NO_SPAN = Span()
_current: ContextVar[Span] = ContextVar("atlas_span", default=NO_SPAN)


def current_span() -> Span:
    """Return the innermost span of this task. Without telemetry, it only has the traceparent of the caller."""
    return _current.get()


def trace_fields() -> dict[str, str]:
    """Return the ids of the innermost span, for log lines; empty outside of a trace."""
    found = _current.get().traceparent
    return {"trace_id": found[3:35], "span_id": found[36:52]} if found else {}


class CallerSpan(Span):
    """Remote span of the caller, which is only propagated."""

    __slots__ = ("_traceparent",)

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent

    @property
    def traceparent(self) -> str:
        return self._traceparent


class OtelSpan(Span):
    """A span of OpenTelemetry that is being recorded."""

    __slots__ = ("_clock", "_ended", "_otel", "_span", "_token", "_traceparent", "context", "recording")

    def __init__(
        self, otel: "OpenTelemetry", span: "otel_trace.Span", context: "otel_context.Context", clock: Clock
    ) -> None:
        self._otel = otel
        self._span = span
        self.context = context
        self._clock = clock
        self._token: Any = None
        self._ended = False
        self.recording = span.is_recording()
        """False if the sampler dropped the span: its children are not recorded either."""
        self._traceparent = ""

    @property
    def traceparent(self) -> str:
        if not self._traceparent:
            self._traceparent = _format_trace_context(self._span.get_span_context())
        return self._traceparent

    def set(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def fail(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute(ERROR_TYPE, kind)
        self._span.set_status(StatusCode.ERROR)

    def end(self, at: float | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._span.end(int((self._clock.time() if at is None else at) * 1e9))

    def discard(self) -> None:
        self._ended = True

    def start(self, name: str, attributes: Attributes, kind: SpanKind = "INTERNAL") -> Span:
        if not self.recording:
            return NO_SPAN
        return self._otel.start(name, attributes, self._clock, parent=self, kind=kind)

    def activate(self) -> Any:
        return self._otel.attach(self.context), _current.set(self)

    def deactivate(self, token: Any) -> None:
        attached, current = token
        _current.reset(current)
        self._otel.detach(attached)

    def __enter__(self) -> "Span":
        self._token = self.activate()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.deactivate(self._token)
        if error is not None:
            self.fail(error_kind(error))
        self.end()


def error_kind(error: BaseException) -> str:
    """Return the value of `error.type` for an exception. Its message may contain secrets and is not exported."""
    return "cancelled" if isinstance(error, asyncio.CancelledError) else failure_kind(error)


class _SpanIds:
    """Id generator of the SDK's tracer that uses derived ids for spans that have them."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_span_id(self) -> int:
        wanted = _wanted_ids.get()
        return wanted[1] if wanted is not None and wanted[1] else self._generator.generate_span_id()

    def generate_trace_id(self) -> int:
        wanted = _wanted_ids.get()
        return wanted[0] if wanted is not None and wanted[0] else self._generator.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        wanted = _wanted_ids.get()
        return False if wanted is not None and wanted[0] else self._generator.is_trace_id_random()


def _derive_ids(tracer: Any) -> None:
    """Make the SDK's tracer use derived ids. Without them, a resumed turn would get a second span in the same trace."""
    generator = getattr(tracer, "id_generator", None)
    if generator is not None and not isinstance(generator, _SpanIds):
        tracer.id_generator = _SpanIds(generator)


class OpenTelemetry:
    """Record turns with OpenTelemetry: `Atlas(telemetry=OpenTelemetry())`.

    Needs the extra `otel`. The providers are those that you have set up with the SDK, by default the global ones.

    Args:
        capture_content: Whether messages, arguments and results of tools are exported as well. Secrets in them are
            redacted.
        tracer_provider: Where spans go; the global tracer provider if None.
        meter_provider: Where metrics go; the global meter provider if None.
    """

    def __init__(
        self,
        *,
        capture_content: bool = False,
        tracer_provider: "otel_trace.TracerProvider | None" = None,
        meter_provider: "otel_metrics.MeterProvider | None" = None,
    ) -> None:
        try:
            from opentelemetry import context, metrics, trace
        except ImportError as error:
            raise ConfigError(f"telemetry needs an extra; run: {install_command('otel')}") from error
        self.capture_content = capture_content
        self._trace, self._new_context = trace, context.Context
        self._kinds = {kind: trace.SpanKind[kind] for kind in get_args(SpanKind)}
        self.attach, self.detach = context.attach, context.detach
        self._given = tracer_provider
        self._provider: otel_trace.TracerProvider | None = None
        self._tracer: otel_trace.Tracer | None = None
        self.metrics = OtelMetrics((meter_provider or metrics.get_meter_provider()).get_meter(SCOPE, package_version()))

    def _find_tracer(self) -> "otel_trace.Tracer":
        """Return the tracer, also of a provider that was set up after this object."""
        provider = self._given or self._trace.get_tracer_provider()
        if self._tracer is None or provider is not self._provider:
            self._provider, self._tracer = provider, provider.get_tracer(SCOPE, package_version(), SCHEMA_URL)
            _derive_ids(self._tracer)
        return self._tracer

    def current_traceparent(self) -> str:
        """Internal: return the traceparent of the current span of this task, also if it is not one of ours."""
        found = self._trace.get_current_span().get_span_context()
        if not found.is_valid:
            return _current.get().traceparent
        return _format_trace_context(found)

    def start(
        self,
        name: str,
        attributes: Attributes,
        clock: Clock,
        *,
        parent: str | Span = "",
        ids: tuple[int, int] | None = None,
        kind: SpanKind = "INTERNAL",
        at: float | None = None,
    ) -> Span:
        """Internal: start a span below `parent`, or a new trace. `ids` are derived ids of the trace and the span."""
        if isinstance(parent, OtelSpan):
            context = parent.context
        else:
            context = self._remote_context(parent if isinstance(parent, str) else parent.traceparent)
        token: Token[tuple[int, int] | None] | None = _wanted_ids.set(ids) if ids is not None else None
        try:
            span = self._find_tracer().start_span(
                name, context, self._kinds[kind], attributes, start_time=int((at or clock.time()) * 1e9)
            )
        finally:
            if token is not None:
                _wanted_ids.reset(token)
        return OtelSpan(self, span, self._trace.set_span_in_context(span), clock)

    def _remote_context(self, traceparent: str) -> "otel_context.Context":
        """Return a context with the span of another process; an empty one for an empty traceparent."""
        trace, context = self._trace, self._new_context()
        if not traceparent:
            return context
        flags = trace.TraceFlags(int(traceparent[53:55], 16))
        state = trace.TraceState.from_header([traceparent[56:]]) if len(traceparent) > 56 else None
        above = trace.SpanContext(int(traceparent[3:35], 16), int(traceparent[36:52], 16), True, flags, state)
        return trace.set_span_in_context(trace.NonRecordingSpan(above), context)


class OtelMetrics:
    """The metrics of OpenTelemetry, as a recorder."""

    def __init__(self, meter: "otel_metrics.Meter") -> None:
        def seconds(name: str, description: str) -> "otel_metrics.Histogram":
            return meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=_SECONDS
            )

        self._tokens = meter.create_histogram(
            TOKEN_USAGE_METRIC,
            unit="{token}",
            description="Tokens of model calls.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._models = seconds(MODEL_DURATION_METRIC, "Duration of model calls.")
        self._first_chunks = seconds(FIRST_CHUNK_METRIC, "Time to the first chunk of a reply.")
        self._turns = seconds(TURN_DURATION_METRIC, "Duration of turns.")
        self._tools = seconds(TOOL_DURATION_METRIC, "Duration of tool calls.")
        self._queued = seconds(QUEUE_METRIC, "Time from the acceptance of a turn to its start.")
        self._cost = meter.create_counter(COST_METRIC, unit="USD", description="Cost of model calls.")

        from opentelemetry import context

        self._quiet = context.set_value("atlas.no_exemplar", True, context.Context())
        """A context without a span: only turns and model calls have exemplars. An empty one counts as none given."""
        self._known: dict[tuple[str, ...], tuple[Attributes, ...]] = {}
        """Attributes of measurements, built once; those of a model with a copy for input and for output tokens."""

    def _remember(self, key: tuple[str, ...], *attributes: Attributes) -> tuple[Attributes, ...]:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        found = self._known[key] = tuple([{name: each[name] for name in each if each[name]} for each in attributes])
        return found

    def _model_attributes(self, model: str, error: str) -> tuple[Attributes, ...]:
        provider, _, name = model.partition("/")
        named = {OPERATION: "chat", PROVIDER: provider_name(provider), REQUEST_MODEL: name or provider}
        kinds = [{**named, TOKEN_TYPE: kind} for kind in ("input", "output")]
        return self._remember(("model", model, error), {**named, ERROR_TYPE: error}, named, *kinds)

    def record_model(self, call: ModelMeasurement) -> None:
        known = self._known.get(("model", call.model, call.error)) or self._model_attributes(call.model, call.error)
        ended, named, input_tokens, output_tokens = known
        self._models.record(call.seconds, ended)
        if call.first_chunk is not None:
            self._first_chunks.record(call.first_chunk, named, self._quiet)
        if not call.error:
            self._tokens.record(call.usage.input_tokens, input_tokens, self._quiet)
            self._tokens.record(call.usage.output_tokens, output_tokens, self._quiet)
        if call.usage.cost:
            self._cost.add(call.usage.cost, named, self._quiet)

    def record_tool(self, call: ToolMeasurement) -> None:
        key = ("tool", call.tool, call.status, call.error)
        known = self._known.get(key)
        if known is None:
            named = {OPERATION: "execute_tool", TOOL_NAME: call.tool, TOOL_STATUS: call.status, ERROR_TYPE: call.error}
            known = self._remember(key, named)
        self._tools.record(call.seconds, known[0], self._quiet)

    def record_turn(self, turn: TurnMeasurement) -> None:
        key = ("turn", turn.agent, turn.status)
        known = self._known.get(key)
        if known is None:
            named = {OPERATION: "invoke_agent", AGENT_NAME: turn.agent}
            known = self._remember(key, {**named, RUN_STATUS: turn.status}, named)
        self._turns.record(turn.seconds, known[0])
        self._queued.record(turn.queued, known[1], self._quiet)


class Telemetry:
    """Telemetry of an Atlas, to which its turns report. It does nothing until it has OpenTelemetry or a recorder."""

    def __init__(
        self,
        otel: OpenTelemetry | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        redact: Redact | None = None,
        find_secrets: FindSecrets | None = None,
    ) -> None:
        self.otel = otel
        self.clock = clock
        self._redact = redact
        self._find_secrets = find_secrets
        self.recorders: list[Recorder] = [otel.metrics] if otel is not None else []

    def start(
        self,
        name: str,
        attributes: Attributes,
        *,
        parent: str | Span = "",
        kind: SpanKind = "INTERNAL",
        at: float | None = None,
        seed: tuple[str, ...] = (),
        trace_seed: tuple[str, ...] = (),
    ) -> Span:
        """Start a span; the ids of the span and of a new trace derive from the seeds, if they are given."""
        if self.otel is None:
            return NO_SPAN
        ids = (_derive(16, *trace_seed) if trace_seed else 0, _derive(8, *seed)) if seed else None
        return self.otel.start(name, attributes, self.clock, parent=parent, ids=ids, kind=kind, at=at)

    def capture(self, span: Span, name: str, content: Any, data: Iterable[Any], secrets: set[str]) -> None:
        """Set an attribute to content without its secrets, if content is captured.

        Secrets in the data of tool calls are added to `secrets`, which are removed everywhere in the content.
        """
        if not (span.recording and self.otel is not None and self.otel.capture_content) or self._redact is None:
            return
        if self._find_secrets is not None:
            secrets.update(found for each in data for found in self._find_secrets(each))
        span.set({name: self._redact(content, MAX_CONTENT, sorted(secrets, key=len, reverse=True))})

    def incoming(self, given: str) -> str:
        """Return the traceparent of a new turn: the given one, or that of the current span."""
        if given or self.otel is None:
            return given or _current.get().traceparent
        return self.otel.current_traceparent()

    def record_model(self, call: ModelMeasurement) -> None:
        for recorder in self.recorders:
            recorder.record_model(call)

    def record_tool(self, call: ToolMeasurement) -> None:
        for recorder in self.recorders:
            recorder.record_tool(call)

    def record_turn(self, turn: TurnMeasurement) -> None:
        for recorder in self.recorders:
            recorder.record_turn(turn)


def job_traceparent(job_id: str, given: str) -> str:
    """Return the trace context of a job's span, the parent of the spans of its turns."""
    trace = given[3:35] if given else f"{_derive(16, 'job', job_id):032x}"
    flags = given[53:55] if given else "01"
    return f"00-{trace}-{_derive(8, 'job', job_id):016x}-{flags}{given[55:]}"


class TurnTrace:
    """The spans of one turn. As a context manager it is the span of the turn, below the caller's.

    A round lasts from one model call to the next. If an earlier process received the reply of a round, this process
    records a span for the round only if a tool call runs in it again.
    """

    __slots__ = (
        *("_at", "_attributes", "_parent", "_pending", "_root", "_run_id", "_token"),
        *("_secrets", "number", "round", "span", "telemetry"),
    )

    def __init__(
        self,
        telemetry: Telemetry,
        run_id: str,
        *,
        parent: str = "",
        root: str = "",
        at: float | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        self.telemetry = telemetry
        self._run_id, self._root = run_id, root or run_id
        self._parent = parent
        self._at = at
        self._attributes = attributes
        self._pending: float | None = None
        self._token: Any = None
        self._secrets: set[str] | None = None
        """Secrets in arguments of the turn; None before content is captured."""
        self.span = self.round = NO_SPAN
        self.number = 0
        """Number of model replies so far."""

    def __enter__(self) -> "TurnTrace":
        if self.telemetry.otel is not None:
            found: Attributes = {OPERATION: "invoke_agent", RUN_ID: self._run_id, **(self._attributes or {})}
            self.span = self.telemetry.start(
                f"invoke_agent {found.get(AGENT_NAME, '')}".rstrip(),
                found,
                parent=self._parent,
                at=self._at,
                seed=("turn", self._run_id),
                trace_seed=("trace", self._root),
            )
            self._token = self.span.activate()
        elif self._parent:
            self._token = _current.set(CallerSpan(self._parent))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.span is NO_SPAN:
            if self._token is not None:
                _current.reset(self._token)
            return
        self.span.deactivate(self._token)
        if error is not None:
            self.span.fail(error_kind(error))
        self.round.end()
        self.span.end()

    def discard(self) -> None:
        """Drop the open spans: another process continues them, or there is no turn."""
        self.round.discard()
        self.span.discard()

    @property
    def traceparent(self) -> str:
        """The traceparent of the current round, of the turn before its first round, or of the caller."""
        return self._innermost().traceparent or self._parent

    def _innermost(self) -> Span:
        if self._pending is not None:
            self._start_round(self._pending)
        return self.round if self.round is not NO_SPAN else self.span

    def next_round(self) -> None:
        """Start the round of the next model call."""
        self.number += 1
        if self.span.recording:
            self.round.end()
            self._start_round(None)

    def replay_round(self, at: float | None) -> None:
        """Enter the round of a reply that an earlier process received; `at` is when it began."""
        self.number += 1
        if self.span.recording:
            self.round.end()
            self.round, self._pending = NO_SPAN, at or self.telemetry.clock.time()

    def _start_round(self, at: float | None) -> None:
        self._pending = None
        self.round = self.telemetry.start(
            f"round {self.number}",
            {ROUND: self.number},
            parent=self.span,
            at=at,
            seed=("round", self._run_id, str(self.number)),
        )

    def start(self, name: str, attributes: Attributes, *, kind: SpanKind = "INTERNAL", at: float | None = None) -> Span:
        """Start a child of the current span, or of the current round if there is none."""
        if not self.span.recording:
            return NO_SPAN
        current = _current.get()
        above = current if current.recording and current is not self.span else self._innermost()
        return self.telemetry.start(name, attributes, parent=above, kind=kind, at=at)

    def capture(self, span: Span, name: str, content: Any, data: Iterable[Any] = ()) -> None:
        """Set an attribute to content, if content is captured, without secrets and those in tool calls of the turn.

        `data` are the arguments and results of the tool calls that the content has or belongs to.
        """
        if span.recording:
            self._secrets = set() if self._secrets is None else self._secrets
            self.telemetry.capture(span, name, content, data, self._secrets)

    def capture_messages(self, span: Span, name: str, messages: Sequence[Message]) -> None:
        """Set an attribute to messages, if content is captured."""
        if span.recording and self.telemetry.otel is not None and self.telemetry.otel.capture_content:
            parts = [part for each in messages for part in each.parts]
            arguments = [part.arguments for part in parts if isinstance(part, ToolCall)]
            results = [part.result for part in parts if isinstance(part, ToolResult)]
            self.capture(span, name, describe_messages(messages), [*arguments, *results])


class NamedModel(Protocol):
    """The model that answers; its id may change until the reply is complete."""

    @property
    def id(self) -> str: ...


class ModelCallTrace:
    """Times one model call, and records it as a span and a measurement when the block ends."""

    __slots__ = ("_agent", "_asked", "_began", "_clock", "_model", "_trace", "_usage", "first", "seconds", "span")

    def __init__(self, trace: TurnTrace, model: NamedModel, agent: str) -> None:
        self._trace, self._model, self._agent = trace, model, agent
        self._clock = clock = trace.telemetry.clock
        self._began, self._usage = clock.monotonic(), NO_USAGE
        self.first: float | None = None
        """Seconds until the first chunk; None if nothing has arrived."""
        self.seconds = 0.0
        """Seconds until the reply was complete."""
        self.span, self._asked = NO_SPAN, ""
        if trace.span.recording:
            self._asked = model.id
            self.span = trace.start(f"chat {self._asked}", self._request(), kind="CLIENT")

    def _request(self) -> Attributes:
        provider, _, name = self._model.id.partition("/")
        return {
            OPERATION: "chat",
            PROVIDER: provider_name(provider),
            REQUEST_MODEL: name or provider,
            REQUEST_STREAM: True,
            AGENT_ID: self._agent,
        }

    def mark_first(self) -> bool:
        """Note that the first chunk has arrived. Returns False, because no later chunk is the first."""
        self.first = self._clock.monotonic() - self._began
        return False

    def restart(self) -> None:
        """The attempt was withdrawn, and another one follows."""
        self.first = None
        self.span.event("atlas.attempt_withdrawn")

    def complete(self, reply: Message, usage: Usage) -> dict[str, int]:
        """The reply is complete; return the milliseconds until its first chunk and until its end, for its metadata."""
        self.seconds = seconds = self._clock.monotonic() - self._began
        self._usage = usage
        if self.span.recording:
            self._describe(reply, usage)
        total = round(seconds * 1000)
        return {"total": total} if self.first is None else {"first": round(self.first * 1000), "total": total}

    def _describe(self, reply: Message, usage: Usage) -> None:
        found = usage_attributes(usage)
        if self._model.id != self._asked:  # another model answered after this one had failed
            found |= self._request()
        if self.first is not None:
            found[TIME_TO_FIRST_CHUNK] = self.first
        if model := reply.metadata.get("model"):
            found[RESPONSE_MODEL] = str(model)
        if reason := reply.metadata.get("stop_reason"):
            found[FINISH_REASONS] = (str(reason),)
        self.span.set(found)
        self._trace.capture_messages(self.span, OUTPUT_MESSAGES, [reply])

    def __enter__(self) -> "ModelCallTrace":
        if self.span is not NO_SPAN:
            self.span.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.span is not NO_SPAN:
            self.span.__exit__(kind, error, trace)
        telemetry = self._trace.telemetry
        if telemetry.recorders:
            failed = error_kind(error) if error is not None else ""
            seconds = self.seconds or self._clock.monotonic() - self._began
            telemetry.record_model(
                ModelMeasurement(self._model.id, self._agent, self._usage, seconds, self.first, failed)
            )
