"""The border to a person or a script: what went wrong is said in one line, and the exit code says what kind it was."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
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
