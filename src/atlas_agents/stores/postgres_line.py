"""A connection to Postgres that does not wait for ever: a server that answers nothing is taken for one that is gone.

The system sees no fault in it: a stopped process keeps its connections, and its machine goes on acknowledging what
arrives. So this side looks at the clock, and hangs up.
"""

import asyncio
import contextlib
import os
import socket
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

R = TypeVar("R")


class Connection(psycopg.AsyncConnection[TupleRow]):
    """Each question to the server must be answered within `answer_timeout` seconds, or the session is lost."""

    answer_timeout = 10.0

    async def wait(self, gen: PQGen[R], *more: Any, **named: Any) -> R:
        """All that is asked goes through here."""
        hung_up = False

        def hang_up() -> None:
            nonlocal hung_up
            hung_up = True
            with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

        timer = asyncio.get_running_loop().call_later(self.answer_timeout, hang_up)
        try:
            return await super().wait(gen, *more, **named)
        except psycopg.OperationalError as error:
            if hung_up:
                raise psycopg.OperationalError(f"no answer for {self.answer_timeout:g} seconds") from error
            raise
        finally:
            timer.cancel()
