"""Approval prompts in the terminal: show a tool call or form with nothing hidden in it, and read the answer."""

import json
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from atlas_agents.cli.output import one_line
from atlas_agents.core.errors import BadArguments, GatewayError
from atlas_agents.core.text import escape_invisible, escape_text
from atlas_agents.gateway.protocol.types import FieldShape, FormShape

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from atlas_agents.cli.terminal import TerminalView
    from atlas_agents.cli.turn import ApprovalRequest
    from atlas_agents.client import GatewayClient

ReadLine: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Reads a line: takes the prompt and the text to start with."""
_DISPLAY_LIMIT = 8000
_CHOICES = {"allow-once": "once", "allow-session": "session", "allow-always": "always", "deny": "no"}
_DECISIONS = {word: decision for decision, word in _CHOICES.items()}
_FORM_DECISIONS = {"send": "allow-once", "no": "deny", "dismiss": "dismiss"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "dim"}
_YES, _NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")


class ApprovalReply(msgspec.Struct, frozen=True):
    """The user's answer; `arguments` if they were edited or filled in."""

    decision: str
    arguments: dict[str, Any] | None = None


async def ask_user(request: "ApprovalRequest", view: "TerminalView") -> ApprovalReply:
    """Show an approval request and wait for the answer; Ctrl-C raises KeyboardInterrupt."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import DummyHistory

    prompt: PromptSession[str] = PromptSession(history=DummyHistory())
    view.end()
    try:
        _show_request(request, request.details, view)
        if request.form is not None:
            return await _ask_form(request.form, view, prompt)
        return await _ask_call(request, view, prompt)
    finally:
        view.begin()


async def send_reply(
    client: "GatewayClient", request: "ApprovalRequest", reply: ApprovalReply, view: "TerminalView"
) -> bool:
    """Send the answer. Return False if the values of a form were rejected; an earlier answer from elsewhere wins."""
    try:
        await client.call(
            "approvals.resolve", approval_id=request.approval_id, decision=reply.decision, arguments=reply.arguments
        )
    except GatewayError as error:
        if request.form is not None and error.kind == "INVALID_PARAMS":
            view.print_line(f"  {one_line(str(error))}", "red")
            return False
    return True


def _show_request(
    request: "ApprovalRequest", arguments: dict[str, Any], view: "TerminalView", *, whole: bool = False
) -> None:
    """Print the tool, each argument, the working folder, the reason and the time left."""
    if request.form is not None:
        view.print_line(f"? {one_line(request.summary)}", "bold yellow")
        _show_form(request.form, view)
        view.print_line(f"  dismissed without an answer in {_seconds_left(request)} s", "dim")
        return
    for line, style in describe_call(request, arguments, whole=whole):
        view.print_line(line, style)


def describe_call(
    request: "ApprovalRequest", arguments: dict[str, Any], *, whole: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield the lines that describe a call, each with its style. Unless `whole`, long values are shortened."""
    yield f"? {one_line(request.summary)}", "bold yellow"
    for name, value in arguments.items():
        yield f"  {escape_invisible(name)[1:-1]} = {_shortened(escape_invisible(value), whole=whole)}", ""
    if not arguments:
        yield "  (no arguments)", ""
    if request.preview and arguments == request.details:  # the preview does not apply to edited arguments
        for line in _shortened(escape_text(request.preview), whole=whole).split("\n"):
            yield f"  │ {line}", _DIFF_STYLES.get(line[:1], "")
    if request.working_dir:
        yield f"  in {escape_invisible(request.working_dir)}", "dim"
    if request.risk:
        yield f"  because of {one_line(request.risk)}", "dim"
    yield f"  denied without an answer in {_seconds_left(request)} s", "dim"


def _is_shortened(request: "ApprovalRequest", arguments: dict[str, Any]) -> bool:
    lines = [[line for line, _ in describe_call(request, arguments, whole=whole)] for whole in (False, True)]
    return len("".join(lines[0])) != len("".join(lines[1]))


def _seconds_left(request: "ApprovalRequest") -> int:
    return max(0, round(request.expires_at / 1000 - time.time()))


def _shortened(text: str, *, whole: bool) -> str:
    if whole or len(text) <= _DISPLAY_LIMIT:
        return text
    half = _DISPLAY_LIMIT // 2
    hidden = f"{len(text) - _DISPLAY_LIMIT:,} characters are hidden; type 'show' to see them"
    return f"{text[:half]} …… {hidden} …… {text[-half:]}"


async def _ask_call(request: "ApprovalRequest", view: "TerminalView", prompt: "PromptSession[str]") -> ApprovalReply:
    arguments, edited, seen = request.details, False, False
    allowed = [_CHOICES[option] for option in request.options if option in _CHOICES and option != "deny"]
    while True:
        choices = ["once", "edit", "no"] if edited else [*allowed, "edit", "no"]
        typed = await _read(prompt, f"y/n, or {_question(choices)}", keys=_single_keys())
        answer = "once" if typed.lower() in ("y", "yes") else _match_choice(typed, [*choices, "show"])
        if answer == "edit":
            changed = await _edit(arguments, view, prompt)
            if changed is not None:
                arguments, edited, seen = changed, changed != request.details, False
                _show_request(request, arguments, view)
        elif answer == "show":
            _show_request(request, arguments, view, whole=True)
            seen = True
        elif answer not in (None, "no") and not seen and _is_shortened(request, arguments):
            view.print_line("  a part of this call is hidden; type 'show' to see it before you allow it", "red")
        elif answer is not None:
            return ApprovalReply(_DECISIONS[answer], arguments if edited and answer != "no" else None)


async def _edit(arguments: dict[str, Any], view: "TerminalView", prompt: "PromptSession[str]") -> dict[str, Any] | None:
    """Let the user edit the arguments as JSON; None if the result is not a JSON object."""
    text = await _read(prompt, "arguments: ", escape_invisible(arguments))
    try:
        changed = json.loads(text)
    except ValueError as error:
        view.print_line(f"  invalid JSON ({error}); nothing was changed", "red")
        return None
    if not isinstance(changed, dict):
        view.print_line("  expected a JSON object; nothing was changed", "red")
        return None
    return cast(dict[str, Any], changed)


async def _ask_form(form: FormShape, view: "TerminalView", prompt: "PromptSession[str]") -> ApprovalReply:
    """Read the values one by one, and show them again before they are sent."""

    async def read(text: str, default: str) -> str:
        return await _read(prompt, text, default)

    values: dict[str, Any] | None = None if form.fields else {}
    while True:
        choices = [*(["send"] if values is not None else []), *(["answer"] if form.fields else []), "no", "dismiss"]
        answer = _match_choice(await _read(prompt, _question(choices)), choices)
        if answer == "answer":
            values = await _read_values(form, view, read)
            view.print_line(f"  {escape_invisible(values)}")
        elif answer is not None:
            return ApprovalReply(_FORM_DECISIONS[answer], values if answer == "send" else None)


def _question(choices: list[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}? "


def _match_choice(answer: str, choices: list[str]) -> str | None:
    """Return the choice that was typed in full or by its first letter; None for anything else."""
    return next((choice for choice in choices if answer.lower() in (choice, choice[0])), None) if answer else None


async def _read(prompt: "PromptSession[str]", text: str, default: str = "", keys: "KeyBindings | None" = None) -> str:
    """Read a line, or one of the keys. Keys that were typed before the question was shown are discarded."""
    from prompt_toolkit.key_binding import KeyBindings

    discard_typed(prompt)
    keys = KeyBindings() if keys is None else keys  # those of the last question would stay
    try:
        line = await prompt.prompt_async([("bold", text)], default=default, handle_sigint=False, key_bindings=keys)
        return line.strip()
    except EOFError:
        return "no"


def _single_keys() -> "KeyBindings":
    """Bind y and n at the beginning of the line to an answer without Enter."""
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @Condition
    def is_empty() -> bool:
        return not get_app().current_buffer.text

    def answer(event: "KeyPressEvent") -> None:
        event.current_buffer.insert_text(event.data)
        event.current_buffer.validate_and_handle()

    for key in "ynYN":
        bindings.add(key, filter=is_empty)(answer)
    return bindings


def discard_typed(prompt: "PromptSession[str]") -> None:
    """Discard the keys that were typed and not read yet, such as the rest of a word after a single key."""
    from prompt_toolkit.input.typeahead import clear_typeahead

    clear_typeahead(prompt.app.input)
    if sys.stdin is not None and sys.stdin.isatty():
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


# Forms


def _show_form(form: FormShape, view: "TerminalView") -> None:
    """Show the message, the URL to open, the fields, and who receives the answer."""
    for line in escape_text(form.message).split("\n"):
        view.print_line(f"  │ {line}")
    if form.url:
        view.print_line(f"  asks you to open {escape_invisible(form.url)}", "bold")
    for field in form.fields:
        view.print_line(f"  {describe_field(field)}")
    view.print_line(f"  your answer is sent to {escape_text(form.asker)}", "yellow")


def describe_field(field: FieldShape) -> str:
    """Describe a form field in one line, with invisible characters escaped."""
    kind = " | ".join(escape_text(choice.value) for choice in field.choices) or field.format or field.kind
    details = [escaped for text in (field.title, field.description) if (escaped := _escaped(text))]
    required = ", required" if field.required else ""
    return " · ".join([f"{_escaped(field.name)} ({_escaped(kind)}{required})", *details])


async def _read_values(form: FormShape, view: "TerminalView", read: ReadLine) -> dict[str, Any]:
    """Ask for each value until it is valid."""
    values: dict[str, Any] = {}
    for field in form.fields:
        default = "" if field.default is None else _default_text(field.default)
        while True:
            text = await read(f"{_escaped(field.name)}: ", default)
            try:
                value = parse_field(field, text)
            except BadArguments as error:
                view.print_line(f"  {error}", "red")
                continue
            if value is not None:
                values[field.name] = value
            break
    return values


def parse_field(field: FieldShape, text: str) -> Any:
    """Parse the input for a field; None if an optional field was left empty. Raises BadArguments."""
    if not text.strip():
        if field.required and field.kind != "text":
            raise BadArguments(f"{_escaped(field.name)} is required")
        return "" if field.required else None
    match field.kind:
        case "integer" | "number":
            return _parse_number(field, text)
        case "boolean":
            if text.lower() not in _YES + _NO:
                raise BadArguments(f"invalid value {_escaped(text)}: expected yes or no")
            return text.lower() in _YES
        case "choice":
            return _parse_choice(field, text)
        case "choices":
            return [_parse_choice(field, each) for each in text.split(",") if each.strip()]
        case _:
            return text


def _parse_number(field: FieldShape, text: str) -> float:
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        expected = "an integer" if field.kind == "integer" else "a number"
        raise BadArguments(f"invalid value {_escaped(text)}: expected {expected}") from None


def _parse_choice(field: FieldShape, text: str) -> str:
    value = text.strip()
    for choice in field.choices:
        if value in (choice.value, choice.title) and value:
            return choice.value
    expected = ", ".join(escape_text(choice.value) for choice in field.choices)
    raise BadArguments(f"invalid value {_escaped(value)}: expected one of {expected}")


def _default_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _escaped(text: str) -> str:
    return escape_invisible(text)[1:-1][:200]
