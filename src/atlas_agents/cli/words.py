"""What the command says: calls, results and errors, each in one line."""

import json
import re
from typing import Any

from atlas_agents.core.errors import AtlasError, ProviderError
from atlas_agents.core.events import ToolAnswered, ToolCalled

_LONGEST = 160
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_CONTROLS |= {0x0D: None, 0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_SIGNS = {"ok": "✓", "error": "✗", "unknown": "?"}


def printable(text: str) -> str:
    """The text with control characters made visible: a model's words must not steer the terminal."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """The text on one line, shortened where it is long."""
    line = re.sub(r"\s+", " ", printable(text)).strip()
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def called(event: ToolCalled) -> str:
    arguments = ", ".join(f"{name}={_brief(value)}" for name, value in event.arguments.items())
    return one_line(f"→ {event.name}({arguments})")


def answered(event: ToolAnswered, seconds: float) -> str:
    result = event.result if isinstance(event.result, str) else _brief(event.result)
    words = result if event.status == "ok" else f"{event.error}: {result}"
    return f"{_SIGNS[event.status]} {one_line(f'{event.name}: {words}')} · {_duration(seconds)}"


def sentence(error: Exception, address: str = "") -> str:
    """What went wrong and what to do about it."""
    if not isinstance(error, ProviderError):
        known = isinstance(error, AtlasError)
        return one_line(str(error) if known else f"something broke inside atlas: {type(error).__name__}: {error}")
    where = f" at {address}" if address else ""
    match error.kind:
        case "network":
            words = f"no server answers{where}: is it running, and is the address right? ({error})"
        case "timeout":
            words = f"the server{where} took too long: {error}"
        case "auth":
            words = f"the key was refused{where}: check it, and which one is set ({error})"
        case "rate_limit" | "quota" | "overloaded":
            words = f"the provider wants no more requests for now: {error}"
        case "bad_request" if error.status == 404:
            words = f"there is no such model or address{where}; an address mostly ends with /v1 ({error})"
        case "bad_request" if "tool" in str(error).lower():
            words = f"{error} (a model without tools can be asked with --no-tools)"
        case _:
            words = str(error)
    return one_line(words)


def _brief(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
