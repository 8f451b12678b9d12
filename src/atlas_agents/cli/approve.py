"""Asking a person about a call: exactly what it would do, with nothing hidden in it, and what they may answer."""

import json
import sys
import termios
import time
from typing import Any, cast

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.history import DummyHistory
from prompt_toolkit.input.typeahead import clear_typeahead

from atlas_agents.cli.form import fill, show_form
from atlas_agents.cli.page import Page
from atlas_agents.cli.turn import Asked
from atlas_agents.cli.words import one_line
from atlas_agents.client.client import GatewayClient
from atlas_agents.core.errors import GatewayError
from atlas_agents.core.text import escape_invisible, seen
from atlas_agents.gateway.protocol.types import FormShape

_SHOWN = 8000
_WORDS = {"allow-once": "once", "allow-session": "session", "allow-always": "always", "deny": "no"}
_FILLED = {"send": "allow-once", "no": "deny", "dismiss": "dismiss"}
_COLOURS = {"+": "green", "-": "red", "@": "dim"}
_DECISIONS = {word: decision for decision, word in _WORDS.items()}


class Reply(msgspec.Struct, frozen=True):
    """What the person said; `arguments` are edited ones."""

    decision: str
    arguments: dict[str, Any] | None = None


async def ask_person(asked: Asked, page: Page) -> Reply:
    """Show the question and wait for an answer; KeyboardInterrupt if they press Ctrl-C."""
    prompt: PromptSession[str] = PromptSession(history=DummyHistory())
    page.end()
    try:
        show_question(asked, asked.details, page)
        if asked.form is not None:
            return await _fill(asked.form, page, prompt)
        return await _answer(asked, page, prompt)
    finally:
        page.begin()


def show_question(asked: Asked, arguments: dict[str, Any], page: Page, *, whole: bool = False) -> None:
    """The tool, each argument, where, why, and until when."""
    page.line(f"? {one_line(asked.summary)}", "bold yellow")
    if asked.form is not None:
        show_form(asked.form, page)
        page.line(f"  without an answer it gets none, in {_left(asked)} s", "dim")
        return
    for name, value in arguments.items():
        page.line(f"  {escape_invisible(name)[1:-1]} = {_cut(escape_invisible(value), whole=whole)}")
    if not arguments:
        page.line("  (no arguments)")
    if asked.preview and arguments == asked.details:  # of others nobody knows yet what they would change
        for line in _cut(seen(asked.preview), whole=whole).split("\n"):
            page.line(f"  │ {line}", _COLOURS.get(line[:1], ""))
    if asked.working_dir:
        page.line(f"  in {escape_invisible(asked.working_dir)}", "dim")
    if asked.risk:
        page.line(f"  because of {one_line(asked.risk)}", "dim")
    page.line(f"  without an answer it is no, in {_left(asked)} s", "dim")


def _left(asked: Asked) -> int:
    return max(0, round(asked.expires_at / 1000 - time.time()))


def choices(asked: Asked) -> list[str]:
    """The words that may be answered."""
    words = [_WORDS[option] for option in asked.options if option in _WORDS]
    return [*[word for word in words if word != "no"], "edit", "no"]


async def _answer(asked: Asked, page: Page, prompt: PromptSession[str]) -> Reply:
    arguments, edited = asked.details, False
    while True:
        offered = ["once", "edit", "no"] if edited else choices(asked)
        said = await _read(prompt, f"{', '.join(offered[:-1])} or {offered[-1]}? ")
        word = _meant(said, [*offered, "show"])
        if word == "edit":
            changed = await _edit(arguments, page, prompt)
            if changed is not None:
                arguments, edited = changed, changed != asked.details
                show_question(asked, arguments, page)
        elif word == "show":
            show_question(asked, arguments, page, whole=True)
        elif word is not None:
            return Reply(_DECISIONS[word], arguments if edited and word != "no" else None)


async def _fill(form: FormShape, page: Page, prompt: PromptSession[str]) -> Reply:
    """The values, one after the other; before they are sent they are shown once more."""

    async def read(words: str, default: str) -> str:
        return await _read(prompt, words, default)

    values: dict[str, Any] | None = None if form.fields else {}
    while True:
        offered = [*(["send"] if values is not None else []), *(["answer"] if form.fields else []), "no", "dismiss"]
        word = _meant(await _read(prompt, f"{', '.join(offered[:-1])} or {offered[-1]}? "), offered)
        if word == "answer":
            values = await fill(form, page, read)
            page.line(f"  {escape_invisible(values)}")
        elif word is not None:
            return Reply(_FILLED[word], values if word == "send" else None)


async def _edit(arguments: dict[str, Any], page: Page, prompt: PromptSession[str]) -> dict[str, Any] | None:
    """Other arguments, written as JSON; None if that is what they are not."""
    text = await _read(prompt, "arguments: ", escape_invisible(arguments))
    try:
        changed = json.loads(text)
    except ValueError as error:
        page.line(f"  this is no JSON ({error}); nothing was changed", "red")
        return None
    if not isinstance(changed, dict):
        page.line("  arguments are an object, in { and }; nothing was changed", "red")
        return None
    return cast(dict[str, Any], changed)


async def _read(prompt: PromptSession[str], words: str, default: str = "") -> str:
    """A line from the person. What was typed before they saw the question is no answer to it."""
    clear_typeahead(prompt.app.input)
    if sys.stdin is not None and sys.stdin.isatty():
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    try:
        return (await prompt.prompt_async([("bold", words)], default=default, handle_sigint=False)).strip()
    except EOFError:
        return "no"


def _meant(said: str, words: list[str]) -> str | None:
    """The word, whole or by its first letter; anything else is no answer."""
    return next((word for word in words if said.lower() in (word, word[0])), None) if said else None


def _cut(text: str, *, whole: bool) -> str:
    if whole or len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]} …… {len(text) - _SHOWN:,} characters are not shown: say show …… {text[-half:]}"


async def resolve(client: GatewayClient, asked: Asked, reply: Reply, page: Page) -> bool:
    """Tell the gateway; one that is answered already stays so. False if values do not fit what was asked for."""
    try:
        await client.call(
            "approvals.resolve",
            approval_id=asked.approval_id,
            decision=reply.decision,
            arguments=reply.arguments,
        )
    except GatewayError as error:
        if asked.form is not None and error.kind == "INVALID_PARAMS":
            page.line(f"  {one_line(str(error))}", "red")
            return False
    return True
