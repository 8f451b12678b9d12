"""Log lines that no stranger can forge: one JSON object each, short fields, no secrets."""

import logging
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec
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


LONGEST = 256
"""Characters of anything that came from outside."""
_MESSAGE = 4096
_encoder = msgspec.json.Encoder()
Hide: TypeAlias = Callable[[str], str]


class JsonLines(logging.Formatter):
    """A record as one line; what a line break or an escape sequence would do to a terminal, it does not do here.

    `extra={"fields": {…}}` puts further fields into the line. `hide` takes secrets out.
    """

    def __init__(self, hide: Hide = str) -> None:
        super().__init__()
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._text(record.getMessage(), _MESSAGE),
        }
        fields = cast("dict[str, Any]", getattr(record, "fields", {}))
        line |= {key: self._text(value) if isinstance(value, str) else value for key, value in fields.items()}
        if record.exc_info:
            line["trace"] = self._text(self.formatException(record.exc_info), _MESSAGE)
        return _encoder.encode(line).decode()

    def _text(self, text: str, longest: int = LONGEST) -> str:
        shown = escaped(self._hide(text[: 4 * longest]))
        return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def escaped(text: str) -> str:
    """Visible characters as they are; all others, also those that turn text around, as \\u…"""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)


def shown(header: bytes | None) -> str:
    """A header for a log line: escaped and cut."""
    text = escaped((header or b"")[: 4 * LONGEST].decode("latin-1"))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def set_up(hide: Hide = str, level: int = logging.INFO) -> None:
    """Write JSON lines to standard error, for a process that is a gateway and nothing else."""
    lines = logging.StreamHandler()
    lines.setFormatter(JsonLines(hide))
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its other lines hold addresses with their queries
