"""A form in a terminal: what is asked and who gets it, field after field, and the words that become values."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from atlas_agents.cli.page import Page
from atlas_agents.core.errors import BadArguments
from atlas_agents.core.text import escape_invisible, seen
from atlas_agents.gateway.protocol.types import FieldShape, FormShape

Read: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Reads a line: after these words, beginning with this text."""
_YES, _NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")


def show_form(form: FormShape, page: Page) -> None:
    """Who asks, in their words, what for, and where the answer goes."""
    for line in seen(form.message).split("\n"):
        page.line(f"  │ {line}")
    if form.url:
        page.line(f"  it wants you to open {escape_invisible(form.url)}", "bold")
    for field in form.fields:
        page.line(f"  {about(field)}")
    page.line(f"  what you answer is sent to {seen(form.asker)}", "yellow")


def about(field: FieldShape) -> str:
    """A field in one line, with nothing hidden in it."""
    kind = " | ".join(seen(choice.value) for choice in field.choices) or field.format or field.kind
    title, words = _piece(field.title), _piece(field.description)
    return f"{_piece(field.name)} ({_piece(kind)}{', needed' if field.required else ''}){_after(title)}{_after(words)}"


async def fill(form: FormShape, page: Page, read: Read) -> dict[str, Any]:
    """Ask for each value until it can be one."""
    values: dict[str, Any] = {}
    for field in form.fields:
        default = "" if field.default is None else _written(field.default)
        while True:
            text = await read(f"{_piece(field.name)}: ", default)
            try:
                value = value_of(field, text)
            except BadArguments as error:
                page.line(f"  {error}", "red")
                continue
            if value is not None:
                values[field.name] = value
            break
    return values


def value_of(field: FieldShape, text: str) -> Any:
    """The value that was written; None where nothing was, and nothing needs to be. BadArguments says what is wrong."""
    if not text.strip():
        if field.required and field.kind != "text":
            raise BadArguments(f"{_piece(field.name)} is needed")
        return "" if field.required else None
    match field.kind:
        case "integer" | "number":
            return _number(field, text)
        case "boolean":
            if text.lower() not in _YES + _NO:
                raise BadArguments("say yes or no")
            return text.lower() in _YES
        case "choice":
            return _choice(field, text)
        case "choices":
            return [_choice(field, each) for each in text.split(",") if each.strip()]
        case _:
            return text


def _number(field: FieldShape, text: str) -> float:
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        raise BadArguments(f"{_piece(text)} is no {'whole number' if field.kind == 'integer' else 'number'}") from None


def _choice(field: FieldShape, text: str) -> str:
    said = text.strip()
    for choice in field.choices:
        if said in (choice.value, choice.title) and said:
            return choice.value
    known = ", ".join(seen(choice.value) for choice in field.choices)
    raise BadArguments(f"{_piece(said)} cannot be chosen; there are {known}")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)


def _piece(text: str) -> str:
    return escape_invisible(text)[1:-1][:200]


def _after(words: str) -> str:
    return f" · {words}" if words else ""
