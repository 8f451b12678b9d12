"""Telemetry: Prometheus metrics and JSON log lines that are escaped, shortened, redacted and part of a trace."""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from atlas_agents.core.errors import BudgetExceeded
from atlas_agents.core.telemetry import ModelMeasurement, ToolMeasurement, TurnMeasurement, trace_fields
from atlas_agents.providers.failover import WINDOW, RecentValues

if TYPE_CHECKING:
    from atlas_agents.agents.atlas import Atlas

_LONG_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_TIMES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
MAX_FIELD = 256
"""Maximum length of values from clients in log lines."""
MAX_MESSAGE = 4096
"""Maximum length of a log line."""
_MAX_LINES = 1000
_encoder = msgspec.json.Encoder()
Hide: TypeAlias = Callable[[str], str]


class Metrics:
    """The Prometheus metrics of a process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self.sockets = Gauge("atlas_sockets", "Open authenticated WebSockets", registry=registry)
        self.refused = Counter("atlas_refused", "Connections refused", ["reason"], registry=registry)
        self.requests = Histogram(
            "atlas_request_seconds", "Duration of WebSocket requests", ["method"], registry=registry, buckets=_BUCKETS
        )
        self.faults = Counter("atlas_faults", "Requests that failed", ["kind"], registry=registry)
        self.slow = Counter("atlas_slow_consumers", "Sockets closed because the client did not read", registry=registry)
        self.runs = Gauge("atlas_runs", "Running turns", registry=registry)
        self.ended = Counter("atlas_runs_ended", "Finished turns", ["how"], registry=registry)
        self.quarantined = Gauge(
            "atlas_runs_quarantined", "Turns resumed one at a time after repeated crashes", registry=registry
        )
        self.budgets = Counter(
            "atlas_budgets_exceeded", "Turns that ran out of a budget", ["scope", "measure"], registry=registry
        )
        self.events = Counter("atlas_run_events", "Events of turns", registry=registry)
        self.turns = RecentTurns(registry)
        self.calls = TurnMetrics(registry)

    def add(self, collector: Collector) -> None:
        """Add a collector that is read on each scrape."""
        self.registry.register(collector)

    def follow(self, atlas: "Atlas") -> None:
        """Count the turns that this Atlas executes."""
        self.quarantined.set_function(lambda: len(atlas.quarantined))
        atlas.on_budget_exceeded(self.count_exceeded)
        atlas.telemetry.recorders.append(self.calls)

    def count_exceeded(self, exceeded: BudgetExceeded) -> None:
        """Count a turn that ran out of a budget."""
        self.budgets.labels(exceeded.scope, exceeded.measure).inc()

    def text(self) -> tuple[bytes, str]:
        """Return the metrics in text format and their content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class RecentCounts:
    """Sliding window of counts: events in each of the last 15 minutes."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, int]] = deque(maxlen=int(WINDOW / 60) + 1)

    def add(self, now: float) -> None:
        minute, count = int(now / 60), 1
        if self._minutes and self._minutes[-1][0] == minute:
            count += self._minutes.pop()[1]
        self._minutes.append((minute, count))

    def since(self, now: float) -> int:
        """Return the sum of the window that ends now, in whole minutes."""
        return sum(count for minute, count in self._minutes if minute > int((now - WINDOW) / 60))


class RecentTurns:
    """Turns of the last 15 minutes: how they ended, their duration, and the time to their first output."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.first_output, self.durations = RecentValues(), RecentValues()
        self._ends = {status: RecentCounts() for status in ("done", "failed", "cancelled")}
        self._started: dict[str, float] = {}
        self._silent: set[str] = set()
        self._first = Histogram(
            "atlas_turn_first_output_seconds", "Time to the first output of a turn", registry=registry, buckets=_TIMES
        )

    def start(self, run_id: str, age: float = 0.0) -> None:
        """Note that a turn was accepted this many seconds ago; only the first time counts."""
        if run_id not in self._started:
            self._started[run_id] = time.monotonic() - age
            self._silent.add(run_id)

    def note_output(self, run_id: str) -> None:
        """Note that a turn has produced text or reasoning; only the first time counts."""
        if run_id in self._silent:
            self._silent.discard(run_id)
            now = time.monotonic()
            self.first_output.add(now, seconds := now - self._started[run_id])
            self._first.observe(seconds)

    def end(self, run_id: str, status: str) -> None:
        """Note that a turn ended; its duration counts if its start was seen here."""
        now = time.monotonic()
        self._ends[status].add(now)
        started = self._started.get(run_id)
        self.forget(run_id)
        if started is not None:
            self.durations.add(now, now - started)

    def forget(self, run_id: str) -> None:
        """Stop measuring a turn."""
        self._started.pop(run_id, None)
        self._silent.discard(run_id)

    def ended(self) -> dict[str, int]:
        """Return the number of recent turns by how they ended."""
        now = time.monotonic()
        return {status: counts.since(now) for status, counts in self._ends.items()}


class TurnMetrics:
    """The Prometheus metrics of turns and their model and tool calls that this process executes; a `Recorder`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tokens = Counter("atlas_tokens", "Tokens of model calls", ["model", "type"], registry=registry)
        self._cost = Counter("atlas_cost_dollars", "Cost of model calls", ["model"], registry=registry)
        self._model_seconds = Histogram(
            "atlas_model_seconds", "Duration of model calls", ["model"], registry=registry, buckets=_LONG_BUCKETS
        )
        self._first_chunk = Histogram(
            "atlas_model_first_chunk_seconds",
            "Time to the first chunk of a reply",
            ["model"],
            registry=registry,
            buckets=_LONG_BUCKETS,
        )
        self._model_errors = Counter("atlas_model_errors", "Failed model calls", ["model", "kind"], registry=registry)
        self._tools = Counter("atlas_tool_calls", "Tool calls by outcome", ["tool", "status"], registry=registry)
        self._tool_seconds = Histogram(
            "atlas_tool_seconds", "Duration of tool calls", ["tool"], registry=registry, buckets=_LONG_BUCKETS
        )
        self._turn_seconds = Histogram(
            "atlas_turn_seconds", "Duration of turns", ["status"], registry=registry, buckets=_LONG_BUCKETS
        )
        self._queued = Histogram(
            "atlas_queue_seconds",
            "Time from the acceptance of a turn to its start",
            registry=registry,
            buckets=_LONG_BUCKETS,
        )

    def record_model(self, call: ModelMeasurement) -> None:
        self._model_seconds.labels(call.model).observe(call.seconds)
        if call.first_chunk is not None:
            self._first_chunk.labels(call.model).observe(call.first_chunk)
        if call.error:
            self._model_errors.labels(call.model, call.error).inc()
            return
        self._tokens.labels(call.model, "input").inc(call.usage.input_tokens)
        self._tokens.labels(call.model, "output").inc(call.usage.output_tokens)
        if call.usage.cost:
            self._cost.labels(call.model).inc(call.usage.cost)

    def record_tool(self, call: ToolMeasurement) -> None:
        self._tools.labels(call.tool, call.status).inc()
        self._tool_seconds.labels(call.tool).observe(call.seconds)

    def record_turn(self, turn: TurnMeasurement) -> None:
        self._turn_seconds.labels(turn.status).observe(turn.seconds)
        self._queued.observe(turn.queued)


class JsonLines(logging.Formatter):
    """Log formatter: one JSON object per line, with control characters escaped.

    `extra={"fields": {…}}` adds fields to the line. `hide` redacts secrets. A line of a turn that belongs to a trace
    has its `trace_id` and `span_id`.
    """

    def __init__(self, hide: Hide = str) -> None:
        super().__init__()
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._text(record.getMessage(), MAX_MESSAGE),
        }
        fields = {**trace_fields(), **cast("dict[str, Any]", getattr(record, "fields", {}))}
        line |= {key: self._text(value) if isinstance(value, str) else value for key, value in fields.items()}
        if record.exc_info:
            line["trace"] = self._text(self.formatException(record.exc_info), MAX_MESSAGE)
        return _encoder.encode(line).decode()

    def _text(self, text: str, limit: int = MAX_FIELD) -> str:
        text = escape(self._hide(text[: 4 * limit]))
        return text if len(text) <= limit else text[: limit - 1] + "…"


class LoggedLine(NamedTuple):
    """A line of the log. Its text is not redacted or shortened yet."""

    time: float
    level: int
    source: str
    text: str


class RecentLog(logging.Handler):
    """Keeps the latest lines that the product logs in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LoggedLine] = deque(maxlen=_MAX_LINES)

    @contextmanager
    def attached(self) -> Generator[None]:
        """Receive log records while the block runs."""
        log = logging.getLogger("atlas_agents")
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        fields = cast("dict[str, Any]", getattr(record, "fields", {}))
        text = record.getMessage() + "".join(f" {key}={value}" for key, value in fields.items())
        source = record.name.removeprefix("atlas_agents.")
        self._lines.append(LoggedLine(record.created, record.levelno, source, text[: 2 * MAX_MESSAGE]))

    def latest(self, limit: int, level: int) -> list[LoggedLine]:
        """Return the latest lines of at least this level, newest first."""
        found = (line for line in reversed(tuple(self._lines)) if line.level >= level)
        return list(islice(found, limit))


def escape(text: str) -> str:
    """Escape all characters that are not visible as \\u…, including those that change the text direction."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)


def printable(header: bytes | None) -> str:
    """Return a header for a log line, escaped and shortened."""
    text = escape((header or b"")[: 4 * MAX_FIELD].decode("latin-1"))
    return text if len(text) <= MAX_FIELD else text[: MAX_FIELD - 1] + "…"


def configure_logging(hide: Hide = str, level: int = logging.INFO) -> None:
    """Write JSON log lines to standard error, for gateway processes."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(hide))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its other lines contain URLs with query strings
