"""Log lines that no stranger can forge: one JSON object each, short fields, no secrets."""

import logging
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

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
