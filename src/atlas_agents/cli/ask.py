"""`atlas ask`: one question, one answer, for scripts and for people in a hurry."""

import select
import sys
from typing import Any, TextIO

import msgspec

from atlas_agents.cli import options as given
from atlas_agents.cli.border import DONE, INTERRUPTED, NO_ANSWER, complain, quiet, run
from atlas_agents.cli.options import Talking
from atlas_agents.cli.reach import Here, for_talking
from atlas_agents.cli.turn import Asked, Ending, Left, Notes, Screen, remark, take_turn
from atlas_agents.cli.who import headline
from atlas_agents.cli.words import called, one_line, trouble
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import new_id

_LONGEST = 4_000_000
_PATIENCE = 10.0


def ask(message: str | None, talking: Talking, *, yes_to: tuple[str, ...] = (), as_json: bool = False) -> int:
    """Answer once; the result is the exit code."""
    quiet()
    return run(lambda: _ask(message, talking, frozenset(yes_to), as_json))


async def _ask(message: str | None, talking: Talking, yes_to: frozenset[str], as_json: bool) -> int:
    settings = None if talking.alone else given.settings()
    question = _question(message)
    if not question:
        raise ConfigError("nothing came in, so there is nothing to answer: give a MESSAGE, or pipe one in")
    screen = _screen(as_json)
    async with for_talking(settings, talking) as here:
        here.hint = screen.hint
        if not as_json:
            print(await headline(here, talking.agent), file=sys.stderr, flush=True)
        key = talking.session or new_id()
        async with here.client.follow(key) as feed:
            sent = await feed.send(question, agent_id=talking.agent)
            try:
                ending = await take_turn(
                    here.client, feed, sent.run_id, screen, lambda asked: _decide(asked, here, yes_to)
                )
            except Left:
                return INTERRUPTED
        return _tell(ending, key, screen, here, as_json=as_json)


async def _decide(asked: Asked, here: Here, yes_to: frozenset[str]) -> None:
    """Nobody is asked here: yes to what the command line names, no to all else. A form is left unanswered."""
    if asked.form is not None:
        words = one_line(f"{asked.form.asker}: {asked.form.message}")
        complain(f"not answered: {words}; atlas chat asks you, and so does the page")
        await here.client.call("approvals.resolve", approval_id=asked.approval_id, decision="dismiss")
        return
    yes = asked.tool_name in yes_to
    if not yes:
        words = called(asked.tool_name, asked.details).removeprefix("→ ")
        complain(f"denied: {words} needs a person's yes; atlas chat asks you, and --yes-to {asked.tool_name} allows it")
    decision = "allow-once" if yes else "deny"
    reason = "" if yes else "nobody was there to ask"
    await here.client.call("approvals.resolve", approval_id=asked.approval_id, decision=decision, reason=reason)


def _tell(ending: Ending, key: str, screen: Screen, here: Here, *, as_json: bool) -> int:
    address = here.choice.address if here.choice else ""
    if as_json:
        print(msgspec.json.encode(_as_json(ending, key, address)).decode())
    elif ending.error is not None:
        complain(trouble(ending.error, ending.kind, address))
    elif not ending.cancelled:
        remark(ending, screen)
        if isinstance(screen, Notes):
            sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            print(ending.text)
    if ending.cancelled:
        return INTERRUPTED
    return NO_ANSWER if ending.error is not None or ending.unfinished else DONE


def _as_json(ending: Ending, key: str, address: str) -> dict[str, Any]:
    usage = msgspec.to_builtins(ending.usage)
    said: dict[str, Any] = {
        "answer": ending.text if ending.message is not None and ending.error is None else None,
        "runId": ending.run_id,
        "sessionKey": key,
        "model": ending.model,
        "usage": usage,
        "steps": ending.steps,
    }
    if ending.cancelled:
        said["cancelled"] = True
    if ending.error is not None:
        said["error"] = {"kind": ending.kind, "message": trouble(ending.error, ending.kind, address)}
    return said


def _screen(as_json: bool) -> Screen:
    if as_json or not is_terminal(sys.stdout):
        return Notes()
    from rich.console import Console

    from atlas_agents.cli.page import Page

    return Page(Console(highlight=False))


def _question(message: str | None) -> str:
    """The message, or what comes in; empty when there is nothing to answer."""
    if message is not None and message != "-":
        if not message.strip():
            raise ConfigError("the message is empty")
        return message
    return _read_input(patient=message == "-")


def _read_input(*, patient: bool) -> str:
    """Standard input to its end. With no person on either side, an input that stays silent counts as empty."""
    if sys.stdin is None:
        return ""
    if is_terminal(sys.stdin):
        print("Type the message, and end it with Ctrl-D on a line of its own.", file=sys.stderr)
    someone = patient or is_terminal(sys.stdin) or is_terminal(sys.stdout)
    if not someone and not select.select([sys.stdin], [], [], _PATIENCE)[0]:
        return ""
    content = sys.stdin.buffer.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise ConfigError(f"the message is longer than {_LONGEST:,} bytes")
    return content.decode("utf-8", "replace").strip()


def is_terminal(file: TextIO | None) -> bool:
    return file is not None and file.isatty()
