"""What the command says: calls, results and errors, each in one line, and nothing that could hide in them."""

import re
from typing import Any, cast

from atlas_agents.core.errors import AtlasError, ConfigError, GatewayError, ProviderError
from atlas_agents.core.text import escape_invisible

_LONGEST_ERROR = 400
_TURNS_TEXT = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_CONTROLS: dict[int, int | str | None] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **{code: f"\\u{code:04x}" for code in _TURNS_TEXT},
    0x0D: None,
    0x7F: 0x2421,
}
_SIGNS = {"ok": "✓", "error": "✗", "unknown": "?"}


def printable(text: str) -> str:
    """The text with control characters made visible: a model's words must not steer the terminal, nor turn its lines
    around."""
    return text.translate(_CONTROLS)


def one_line(text: str, longest: int = 160) -> str:
    """The text on one line, shortened where it is long."""
    line = re.sub(r"\s+", " ", printable(text)).strip()
    return line if len(line) <= longest else line[: longest - 1] + "…"


def called(name: str, arguments: dict[str, Any]) -> str:
    """The line of a call."""
    inside = ", ".join(f"{key}={escape_invisible(value)}" for key, value in arguments.items())
    return one_line(f"→ {name}({inside})")


def answered(name: str, status: str, result: Any, error: str | None, seconds: float | None = None) -> str:
    """The line of a result, and how long it took."""
    told = result if isinstance(result, str) else escape_invisible(_without_pictures(result))
    words = told if status == "ok" else f"{error}: {told}"
    took = "" if seconds is None else f" · {duration(seconds)}"
    return f"{_SIGNS.get(status, '?')} {one_line(f'{name}: {words}')}{took}"


def _without_pictures(value: Any) -> Any:
    """A result with a word in the place of each picture in it."""
    match value:
        case {"type": "image", "data": str(data), "media_type": str(kind)}:
            return f"({kind}, {len(data) * 3 // 4:,} bytes)"
        case dict():
            return {name: _without_pictures(each) for name, each in cast(dict[str, Any], value).items()}
        case list():
            return [_without_pictures(each) for each in cast(list[Any], value)]
        case _:
            return value


def for_people(words: str) -> str:
    """Without what is only for those who write code."""
    return words.replace(" or pass api_key=", "")


def sentence(error: Exception) -> str:
    """What went wrong and what to do about it."""
    match error:
        case ProviderError():
            return trouble(str(error), error.kind)
        case GatewayError() if error.kind == "UNREACHABLE":
            words = f"{error}: is it running? atlas doctor looks"
        case GatewayError() if error.kind == "NOT_LET_IN":
            words = f"{error}; set ATLAS_TOKEN to the right one, or take it away so that the token file counts"
        case ConfigError():
            words = for_people(str(error))
        case AtlasError():
            words = str(error)
        case _:
            words = f"something broke inside atlas: {type(error).__name__}: {error}"
    return one_line(words, _LONGEST_ERROR)


def trouble(words: str, kind: str, address: str = "") -> str:
    """Why a model gave no answer; `address` is where it was asked."""
    where = f" at {address}" if address else ""
    match kind:
        case "network" if "Cannot connect" in words:
            told = f"no server answers{where}: is it running, and is the address right?"
        case "network":
            told = f"the connection{where} broke: {words}"
        case "timeout":
            told = f"the server{where} took too long: {words}"
        case "auth":
            told = f"the key was refused{where}: {words}"
        case "bad_request" if words.startswith("HTTP 404"):
            told = f"no such model or address{where}; most addresses end with /v1 ({words})"
        case "bad_request" if "tool" in words.lower():
            told = f"{words} (a model without tools can be asked with --no-tools)"
        case _:
            told = words
    return one_line(told, _LONGEST_ERROR)


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
