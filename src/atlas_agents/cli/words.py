"""What the command says: calls, results and errors, each in one line."""

import json
import re
from typing import Any

from atlas_agents.core.errors import AtlasError, ProviderError
from atlas_agents.core.events import ToolAnswered, ToolCalled
from atlas_agents.core.messages import ToolCall, ToolResult

_LONGEST_ERROR = 400
_CONTROLS: dict[int, int | None] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    0x0D: None,
    0x7F: 0x2421,
}
_SIGNS = {"ok": "✓", "error": "✗", "unknown": "?"}


def printable(text: str) -> str:
    """The text with control characters made visible: a model's words must not steer the terminal."""
    return text.translate(_CONTROLS)


def one_line(text: str, longest: int = 160) -> str:
    """The text on one line, shortened where it is long."""
    line = re.sub(r"\s+", " ", printable(text)).strip()
    return line if len(line) <= longest else line[: longest - 1] + "…"


def called(call: ToolCalled | ToolCall) -> str:
    """The line of a call."""
    arguments = ", ".join(f"{name}={_brief(value)}" for name, value in call.arguments.items())
    return one_line(f"→ {call.name}({arguments})")


def answered(name: str, answer: ToolAnswered | ToolResult, seconds: float | None = None) -> str:
    """The line of a result, and how long it took."""
    result = answer.result if isinstance(answer.result, str) else _brief(answer.result)
    words = result if answer.status == "ok" else f"{answer.error}: {result}"
    took = "" if seconds is None else f" · {_duration(seconds)}"
    return f"{_SIGNS[answer.status]} {one_line(f'{name}: {words}')}{took}"


def sentence(error: Exception, address: str = "") -> str:
    """What went wrong and what to do about it; `address` is where the provider was asked."""
    if isinstance(error, ProviderError):
        words = _provider_trouble(error, f" at {address}" if address else "")
    elif isinstance(error, AtlasError):
        words = str(error).removesuffix(" or pass api_key=")  # that is for those who write code
    else:
        words = f"something broke inside atlas: {type(error).__name__}: {error}"
    return one_line(words, _LONGEST_ERROR)


def _provider_trouble(error: ProviderError, where: str) -> str:
    words = str(error)
    match error.kind:
        case "network" if "Cannot connect" in words:
            return f"no server answers{where}: is it running, and is the address right?"
        case "network":
            return f"the connection{where} broke: {words}"
        case "timeout":
            return f"the server{where} took too long: {words}"
        case "auth":
            return f"the key was refused{where}: {words}"
        case "bad_request" if error.status == 404:
            return f"no such model or address{where}; most addresses end with /v1 ({words})"
        case "bad_request" if "tool" in words.lower():
            return f"{words} (a model without tools can be asked with --no-tools)"
        case _:
            return words


def _brief(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
