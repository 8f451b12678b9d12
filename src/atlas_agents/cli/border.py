"""The border to a person or a script: what went wrong is said in one line, and the exit code says what kind it was."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from atlas_agents.cli.words import one_line, sentence
from atlas_agents.core.errors import ConfigError

DONE, NO_ANSWER, WRONG_USE, INTERRUPTED = 0, 1, 2, 130


def complain(words: str) -> None:
    print(f"atlas: {one_line(words, 600)}", file=sys.stderr, flush=True)


def run(work: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Do the work of a command; its exit code, 0 if it names none."""
    return guarded(lambda: asyncio.run(work()))


def guarded(work: Callable[[], int | None]) -> int:
    """The same for work that waits for nothing."""
    try:
        code = work()
        sys.stdout.flush()
        return code or DONE
    except ConfigError as error:
        complain(sentence(error))
        return WRONG_USE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has had enough; no words about that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_ANSWER
    except Exception as error:  # noqa: BLE001 - whatever broke is said in a sentence
        complain(sentence(error))
        return NO_ANSWER


def quiet() -> None:
    """Keep log lines out of what a person reads: what matters is said in sentences."""
    logging.basicConfig(handlers=[logging.NullHandler()])


def confirmed(question: str) -> bool:
    """A person's yes; where there is no person it has to be said with --yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(f"{question} There is nobody here to ask: say --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def one_of(start: str, keys: Iterable[str], what: str) -> str:
    """The one key that begins so; a whole one counts whatever else begins so."""
    matching = [key for key in keys if key.startswith(start)]
    if start in matching:
        return start
    if len(matching) > 1:
        raise ConfigError(f"{len(matching)} {what}s begin with {start!r}: write more of it")
    if not matching:
        raise ConfigError(f"there is no {what} {start!r}: atlas {what}s list shows those there are")
    return matching[0]
