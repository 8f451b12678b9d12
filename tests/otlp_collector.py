"""An OTLP collector in this process: it receives what the exporter of the OpenTelemetry SDK sends over HTTP."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from checks import TIMEOUT


class CollectedSpan(NamedTuple):
    """One span as a backend stores it; times in nanoseconds, ids in hex."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    failed: bool
    service: str
    state: str
    """The tracestate."""


class Collector:
    """Stores the spans and metrics that it receives, and wakes those who wait for some."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.metrics: dict[str, list[Any]] = {}
        """The data points by metric, of all exports."""
        self.url = ""
        self._changed = threading.Condition()

    def named(self, start: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name.startswith(start)]

    def one(self, start: str) -> CollectedSpan:
        (found,) = self.named(start)
        return found

    def wait_for(self, start: str, count: int = 1) -> list[CollectedSpan]:
        """Wait until spans whose names start like this have arrived."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.named(start)) >= count, TIMEOUT)
        assert arrived, f"no span {start!r} among {[span.name for span in self.spans]}"
        return self.named(start)

    def add_spans(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {each.key: _value(each.value) for each in resource.resource.attributes}.get("service.name", "")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found = CollectedSpan(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        {each.key: _value(each.value) for each in span.attributes},
                        span.status.code == 2,
                        service,
                        span.trace_state,
                    )
                    self.spans.append(found)
        with self._changed:
            self._changed.notify_all()

    def add_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = metric.histogram.data_points or metric.sum.data_points
                    self.metrics.setdefault(metric.name, []).extend(points)

    def tree(self, trace_id: str) -> list[str]:
        """Return the spans of a trace as indented lines, children by their start; all parents must be there."""
        spans = [span for span in self.spans if span.trace_id == trace_id]
        known = {span.span_id for span in spans}
        roots = [span for span in spans if span.parent_id not in known]
        return [line for root in roots for line in self._lines(root, spans, 0)]

    def _lines(self, span: CollectedSpan, spans: list[CollectedSpan], depth: int) -> list[str]:
        below = sorted((each for each in spans if each.parent_id == span.span_id), key=lambda each: each.start)
        return ["  " * depth + span.name, *[line for each in below for line in self._lines(each, spans, depth + 1)]]


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def collector(status: int = 200) -> Generator[Collector]:
    """Run a collector on a free port of this machine; it answers with this status."""
    collected = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            (collected.add_spans if self.path.endswith("/v1/traces") else collected.add_metrics)(body)
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the output of the tests clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join(TIMEOUT)
        server.server_close()
