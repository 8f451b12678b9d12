"""`atlas chat`: a conversation at the prompt, or one answer where there is nobody to talk with."""

import asyncio
import logging
import select
import sys
from typing import TextIO

import msgspec

from atlas_agents.cli.choice import Choice, choose
from atlas_agents.cli.toys import TOYS
from atlas_agents.cli.turn import Notes, Screen, take_turn
from atlas_agents.cli.words import one_line, sentence
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import AtlasError, Cancelled, ConfigError
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.atlas import Atlas
from atlas_agents.providers.demo import QUESTION

DONE, NO_ANSWER, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
_INSTRUCTION = "You talk with a person in a terminal. Be brief. Use a tool when it helps."
_LONGEST = 4_000_000
_PATIENCE = 10.0
_PAUSE = 0.03


class Options(msgspec.Struct, frozen=True):
    """What the command was called with."""

    message: str | None = None
    model: str | None = None
    system: str | None = None
    base_url: str | None = None
    tools: bool = True


def chat(options: Options) -> int:
    """Talk, or answer once; the result is the exit code."""
    logging.basicConfig(handlers=[logging.NullHandler()])  # a stack trace is no way to talk to a person
    seen = _is_terminal(sys.stdout)
    try:
        choice = choose(options.model, options.base_url, Environment(), pause=_PAUSE if seen else 0)
        if options.message is None and seen and _is_terminal(sys.stdin):
            return asyncio.run(_converse(options, choice))
        question = _question(options.message, choice)
        return asyncio.run(_answer_once(question, options, choice)) if question else DONE
    except ConfigError as error:
        _complain(sentence(error))
        return WRONG_USE
    except BrokenPipeError:  # whoever read the answer has had enough; no words about that
        raise
    except Exception as error:  # noqa: BLE001 - the border to a person: whatever broke is said in a sentence
        _complain(sentence(error))
        return NO_ANSWER


def _atlas(options: Options, choice: Choice) -> Atlas:
    agent = Agent(
        "assistant",
        model=choice.route,
        system_prompt=_INSTRUCTION if options.system is None else options.system,
        tools=TOYS if options.tools else (),
    )
    return Atlas(agents=[agent])


async def _converse(options: Options, choice: Choice) -> int:
    from atlas_agents.cli.talk import Talk

    async with _atlas(options, choice) as atlas:
        await Talk(atlas, choice).run()
    return DONE


async def _answer_once(question: str, options: Options, choice: Choice) -> int:
    screen = _screen()
    print(choice.headline, file=sys.stderr, flush=True)
    async with _atlas(options, choice) as atlas:
        try:
            reply = await take_turn(atlas.send(question), screen)
        except Cancelled:
            return INTERRUPTED
        except AtlasError as error:
            _complain(sentence(error, choice.address))
            return NO_ANSWER
    if isinstance(screen, Notes):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        print(reply.text)
    return NO_ANSWER if reply.tool_calls else DONE


def _screen() -> Screen:
    if not _is_terminal(sys.stdout):
        return Notes()
    from rich.console import Console

    from atlas_agents.cli.page import Page

    return Page(Console(highlight=False))


def _question(message: str | None, choice: Choice) -> str:
    """The message, or what comes in; empty when there is nothing to answer."""
    if message is not None and message != "-":
        if not message.strip():
            raise ConfigError("the message is empty")
        return message
    if question := _read_input(patient=message == "-"):
        return question
    if choice.is_demo:
        print(f"Nothing came in, so the demo asks itself: {QUESTION}", file=sys.stderr)
        return QUESTION
    _complain("nothing came in, so there is nothing to answer: give a MESSAGE, pipe one in, or use a terminal")
    return ""


def _read_input(*, patient: bool) -> str:
    """Standard input to its end. With no person on either side, an input that stays silent counts as empty."""
    if sys.stdin is None:
        return ""
    if _is_terminal(sys.stdin):
        print("Type the message, and end it with Ctrl-D on a line of its own.", file=sys.stderr)
    someone = patient or _is_terminal(sys.stdin) or _is_terminal(sys.stdout)
    if not someone and not select.select([sys.stdin], [], [], _PATIENCE)[0]:
        return ""
    content = sys.stdin.buffer.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise ConfigError(f"the message is longer than {_LONGEST:,} bytes")
    return content.decode("utf-8", "replace").strip()


def _is_terminal(file: TextIO | None) -> bool:
    return file is not None and file.isatty()


def _complain(words: str) -> None:
    print(f"atlas: {one_line(words)}", file=sys.stderr, flush=True)
