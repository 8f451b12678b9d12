"""Output of commands: tables and JSON, tool calls and errors in one line each, times, and progress."""

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from atlas_agents.core.errors import AtlasError, ConfigError, GatewayError, ProviderError

_ERROR_LIMIT = 400
_GAP = "  "
_NARROWEST_COLUMN = 8
_REDRAW_SECONDS = 0.1
_BIDI_CONTROLS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_CONTROLS: dict[int, int | str | None] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **{code: f"\\u{code:04x}" for code in _BIDI_CONTROLS},
    0x0D: None,
    0x7F: 0x2421,
}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *_BIDI_CONTROLS)}
"""Controls that JSON does not escape."""
_STATUS_SIGNS = {"ok": "✓", "error": "✗", "unknown": "?"}
_TIME_UNITS = ((60, "s"), (3600, "min"), (86400, "h"))


# Text


def printable(text: str) -> str:
    """Replace control characters with visible ones, so that text from a model cannot control the terminal."""
    return text.translate(_CONTROLS)


def one_line(text: str, limit: int = 160) -> str:
    """Put a text on one line of at most `limit` characters."""
    line = re.sub(r"\s+", " ", printable(text)).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def format_call(name: str, arguments: dict[str, Any]) -> str:
    """Format a tool call."""
    from atlas_agents.core.text import escape_invisible

    inside = ", ".join(f"{key}={escape_invisible(value)}" for key, value in arguments.items())
    return one_line(f"→ {name}({inside})")


def format_result(name: str, status: str, result: Any, error: str | None, seconds: float | None = None) -> str:
    """Format the result of a tool call, with its duration if known."""
    from atlas_agents.core.text import escape_invisible

    shown = result if isinstance(result, str) else escape_invisible(_without_image_data(result))
    text = shown if status == "ok" else f"{error}: {shown}"
    duration = "" if seconds is None else f" · {f'{seconds * 1000:.0f} ms' if seconds < 1 else f'{seconds:.1f} s'}"
    return f"{_STATUS_SIGNS.get(status, '?')} {one_line(f'{name}: {text}')}{duration}"


def _without_image_data(value: Any) -> Any:
    """Replace each image in a result by its type and size."""
    match value:
        case {"type": "image", "data": str(data), "media_type": str(kind)}:
            return f"({kind}, {len(data) * 3 // 4:,} bytes)"
        case dict():
            return {name: _without_image_data(each) for name, each in cast(dict[str, Any], value).items()}
        case list():
            return [_without_image_data(each) for each in cast(list[Any], value)]
        case _:
            return value


def plural(number: int, noun: str) -> str:
    """`1 turn`, `1,200 turns`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Errors


def without_code_hints(message: str) -> str:
    """Remove advice that only applies to library code, such as passing `api_key=`."""
    return message.replace(" or pass api_key=", "")


def describe_error(error: Exception) -> str:
    """Describe an error in one line, with a remedy."""
    match error:
        case ProviderError():
            return describe_model_error(str(error), error.kind)
        case GatewayError() if error.kind == "UNREACHABLE":
            message = f"{error}; check that it is running, or run: atlas doctor"
        case GatewayError() if error.kind == "NOT_LET_IN":
            message = f"{error}; set ATLAS_TOKEN to a valid token, or unset it to use the token file"
        case ConfigError():
            message = without_code_hints(str(error))
        case AtlasError():
            message = str(error)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"cannot write {error.filename or 'the output'}: {error.strerror}; free some space and try again"
        case OSError(filename=str(file)):
            folder = os.path.dirname(os.path.abspath(file))
            message = f"cannot access {file}: {error.strerror}; check that {folder} exists, and its permissions"
        case _:
            message = f"internal error: {type(error).__name__}: {error}"
    return one_line(message, _ERROR_LIMIT)


def describe_model_error(message: str, kind: str, url: str = "") -> str:
    """Explain why a model did not answer; `url` is the address of its provider."""
    at = f" at {url}" if url else ""
    match kind:
        case "network" if "Cannot connect" in message:
            shown = f"cannot connect to the model server{at}; check the URL and that the server is running"
        case "network":
            shown = f"the connection{at} failed: {message}"
        case "timeout":
            shown = f"the server{at} timed out: {message}"
        case "auth":
            shown = f"the API key was rejected{at}: {message}"
        case "model_not_found":
            shown = f"model or URL not found{at}; most base URLs end with /v1 ({message})"
        case "bad_request" if "tool" in message.lower():
            shown = f"{message} (pass --no-tools for a model without tool support)"
        case _:
            shown = message
    return one_line(shown, _ERROR_LIMIT)


# Tables and JSON


def print_json(value: Any) -> None:
    """Print one JSON document, indented on a terminal. Control characters are escaped."""
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=str)
    text = (msgspec.json.format(encoded) if sys.stdout.isatty() else encoded).decode()
    print(escape_json(text))


def escape_json(text: str) -> str:
    """Escape the control characters that JSON may contain as they are; the value stays the same."""
    return text.translate(_JSON_ESCAPES)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], if_empty: str) -> None:
    """Print aligned columns. In a terminal too narrow for them, the widest are shortened; a pipe gets them whole.

    If that is not enough, each row is printed as a block: its first cell, and below it the others with their headers.
    """
    if not rows:
        print(if_empty, file=sys.stderr)
        return
    headers = [one_line(header, 200) for header in headers]
    cells = [[one_line(str(cell), 2000) for cell in row] for row in rows]
    widths = [max(_width(header), *(_width(row[at]) for row in cells)) for at, header in enumerate(headers)]
    if sys.stdout.isatty():
        columns = _columns()
        widths = fit_columns(widths, columns)
        if _row_width(widths) > columns:
            _print_blocks(headers, cells, columns)
            return
    for row in ([header.upper() for header in headers], *cells):
        fitted = [_shortened(cell, width) for cell, width in zip(row, widths, strict=False)]
        padded = [cell + " " * (width - _width(cell)) for cell, width in zip(fitted, widths, strict=False)]
        print(_GAP.join(padded).rstrip())


def fit_columns(widths: list[int], columns: int) -> list[int]:
    """Shorten the widest columns until the row fits. The first one, often an id to copy, stays whole."""
    fitted = [*widths]
    while _row_width(fitted) > columns:
        at = max(range(min(1, len(fitted) - 1), len(fitted)), key=lambda place: (fitted[place], place))
        if fitted[at] <= _NARROWEST_COLUMN:
            break
        fitted[at] -= 1
    return fitted


def _row_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _print_blocks(headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> None:
    import textwrap

    for first, *others in rows:
        print(first)
        cells = [f"{header}: {cell}" for header, cell in zip(headers[1:], others, strict=False) if cell]
        text = " · ".join(cells)
        print(textwrap.fill(text, columns, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def _shortened(text: str, limit: int) -> str:
    if _width(text) <= limit:
        return text
    while _width(text) >= limit:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    """Return how many terminal cells a text takes."""
    import unicodedata

    return sum(
        2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text if unicodedata.combining(char) == 0
    )


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


# Times


def format_age(milliseconds: int, now: float | None = None) -> str:
    """Format a time as `just now`, `5 min ago` or `3 h ago`; as a date after one day."""
    seconds = (time.time() if now is None else now) - milliseconds / 1000
    if seconds < 5:
        return "just now"
    size = 1
    for limit, unit in _TIME_UNITS:
        if seconds < limit:
            return f"{seconds / size:.0f} {unit} ago"
        size = limit
    return time.strftime("%Y-%m-%d", time.localtime(milliseconds / 1000))


def format_duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `5 min`, `3 h`, `9 days`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    size = 1
    for limit, unit in _TIME_UNITS:
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
        size = limit
    return f"{seconds / size:.0f} days" if seconds >= 1.5 * size else "1 day"


def format_time(milliseconds: int) -> str:
    """Format a date and time in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


# Progress


@contextmanager
def progress_line() -> Generator[Callable[[str], None], None, None]:
    """Progress line: `with progress_line() as show: show("half of it")`. Silent when stderr is not a terminal."""
    shown_at = 0.0

    def show(text: str) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown_at >= _REDRAW_SECONDS:
            shown_at = now
            rewrite_line(text)

    try:
        yield show
    finally:
        if shown_at:
            rewrite_line("")


def rewrite_line(text: str, end: str = "") -> None:
    """Replace the current line of the terminal on standard error."""
    sys.stderr.write(f"\r\x1b[K{text[: _columns() - 1]}{end}")
    sys.stderr.flush()


def show_download(model_id: str) -> Callable[[int, int, str], None]:
    """Return a callback that shows the progress of a download: a bar on a terminal, otherwise one line per step."""
    on_terminal = sys.stderr.isatty()
    last_step, shown_at, width = "", 0.0, 24

    def show(done: int, total: int, step: str) -> None:
        nonlocal last_step, shown_at
        now = time.monotonic()
        if step == last_step and (not on_terminal or now - shown_at < 2 * _REDRAW_SECONDS):
            return
        last_step, shown_at = step, now
        line = f"{model_id}: {step}, {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        if not on_terminal:
            print(line, file=sys.stderr, flush=True)
            return
        filled = round(width * done / max(total, 1))
        rewrite_line(f"[{'#' * filled}{'.' * (width - filled)}] {line}", "\n" if step == "ready" else "")

    return show
