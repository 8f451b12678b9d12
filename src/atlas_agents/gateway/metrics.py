"""What is counted, for Prometheus. Each process has its own registry, so that two gateways in one do not mix."""

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Counters, gauges and one histogram."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self.sockets = Gauge("atlas_sockets", "Open WebSockets that have shown a token", registry=registry)
        self.refused = Counter("atlas_refused", "Connections refused", ["reason"], registry=registry)
        self.requests = Histogram(
            "atlas_request_seconds", "Requests over a WebSocket", ["method"], registry=registry, buckets=_QUICK
        )
        self.faults = Counter("atlas_faults", "Requests that got no result", ["kind"], registry=registry)
        self.slow = Counter("atlas_slow_consumers", "Sockets closed because nobody read", registry=registry)
        self.runs = Gauge("atlas_runs", "Turns under way", registry=registry)
        self.ended = Counter("atlas_runs_ended", "Turns that have ended", ["how"], registry=registry)
        self.events = Counter("atlas_run_events", "Events of turns", registry=registry)

    def add(self, figures: Collector) -> None:
        """Figures that are looked up when somebody asks."""
        self.registry.register(figures)

    def text(self) -> tuple[bytes, str]:
        """(the page, its content type)."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
