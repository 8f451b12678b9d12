"""A server as a child process: lines of JSON over its pipes, whatever else it writes there.

The library's own pipes let a line grow without end, so these are ours: a line has a limit, garbage has a budget, and
the child gets no more of our environment than it needs.
"""

import asyncio
import logging
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from atlas_agents.core.errors import ConfigError

logger = logging.getLogger(__name__)
LONGEST_LINE = 8 * 1024 * 1024
MOST_GARBAGE = 16 * 1024 * 1024
_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_PIECE = 64 * 1024
_GRACE = 1.0
_EDGE = 512
_FIRST_ID = re.compile(rb'^\s*\{(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]+|"[^"\\]{1,100}")')
_LAST_ID = re.compile(rb'"id"\s*:\s*([0-9]+|"[^"\\]{1,100}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Child:
    """A server's process and its two streams of messages. `gone` is set when it speaks no more."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.gone = asyncio.Event()
        self.last_words: deque[str] = deque(maxlen=20)
        """The end of what it wrote to standard error."""
        self._name = name
        self._process = process
        self._garbage = 0
        self._heard, self.heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.said, self._said = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen(self) -> None:
        """Its lines as messages, until it ends or says nothing but nonsense."""
        stdout = cast(asyncio.StreamReader, self._process.stdout)
        buffer, skipped = bytearray(), False
        try:
            while piece := await stdout.read(_PIECE):
                *lines, rest = piece.split(b"\n")
                for line in lines:
                    buffer += line
                    await self._take(buffer, skipped)
                    buffer, skipped = bytearray(), False
                buffer += rest
                if len(buffer) > LONGEST_LINE:  # its two ends are enough to tell whose answer it was
                    skipped = True
                    del buffer[_EDGE : len(buffer) - _EDGE]
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            pass
        finally:
            self._heard.close()
            self.gone.set()

    async def speak(self) -> None:
        stdin = cast(asyncio.StreamWriter, self._process.stdin)
        try:
            async for message in self._said:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(line.encode() + b"\n")
                await stdin.drain()
        except (anyio.ClosedResourceError, OSError):
            pass
        finally:
            self.gone.set()

    async def complain(self) -> None:
        """Keep the end of what it says of itself, for whoever looks for the reason of a trouble."""
        stderr = cast(asyncio.StreamReader, self._process.stderr)
        while piece := await stderr.read(_PIECE):
            for line in piece.decode("utf-8", "replace").splitlines()[-20:]:
                self.last_words.append(line[:500])
                logger.debug("%s: %s", self._name, line[:500])

    async def _take(self, line: bytearray, skipped: bool) -> None:
        if not line.strip():
            return
        if skipped:
            await self._heard.send(self._too_long(line))
            return
        try:
            message = types.jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
        except ValueError:
            self._discard(len(line), bytes(line[:80]))
            return
        self._garbage = 0
        await self._heard.send(SessionMessage(message))

    def _too_long(self, line: bytearray) -> SessionMessage | Exception:
        """An answer that nobody could take is still an answer: the call it belongs to has ended."""
        found = _FIRST_ID.search(line) or _LAST_ID.search(line)
        words = f"the server's answer was longer than {LONGEST_LINE:,} bytes"
        logger.warning("%s: a line of more than %d bytes was left out", self._name, LONGEST_LINE)
        if found is None:
            return ValueError(words)
        id = found[1].decode()
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=words)
        return SessionMessage(
            types.JSONRPCError(jsonrpc="2.0", id=id.strip('"') if id.startswith('"') else int(id), error=error)
        )

    def _discard(self, size: int, start: bytes) -> None:
        if self._garbage == 0:
            logger.warning("%s writes what is no MCP to its standard output: %r", self._name, start)
        self._garbage += size + 1
        if self._garbage > MOST_GARBAGE:
            self.last_words.append(f"it wrote {self._garbage:,} bytes that are no MCP to its standard output")
            raise anyio.BrokenResourceError

    async def end(self) -> None:
        """Ask it to end by closing its input; then tell it; then make it, with all that it has started."""
        process = self._process
        with suppress(OSError, RuntimeError):
            if process.stdin is not None:
                process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await process.wait()
                    break
        with suppress(ProcessLookupError, PermissionError):  # what it may have left behind
            os.killpg(process.pid, signal.SIGKILL)
        transport = getattr(process, "_transport", None)  # has no other name, and a pipe that was not read stays open
        if transport is not None:
            transport.close()
        for stream in (self._heard, self.heard, self.said, self._said):
            stream.close()


@asynccontextmanager
async def started(
    name: str, command: str, args: tuple[str, ...], env: dict[str, str], folder: Path
) -> AsyncGenerator[Child, None]:
    """A child as long as the block lasts."""
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**inherited(), **env},
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = "there is no such command" if isinstance(error, FileNotFoundError) else str(error)
        raise ConfigError(f"the MCP server {name} cannot be started with {command!r}: {why}") from error
    child = Child(name, process)
    tasks = [asyncio.create_task(work) for work in (child.listen(), child.speak(), child.complain())]
    try:
        yield child
    finally:
        await _whole(_put_away(child, tasks))


async def _put_away(child: Child, tasks: list[asyncio.Task[None]]) -> None:
    await child.end()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Do it to its end, and only then be cancelled: a child that is not seen to its end stays."""
    doing, cancelled = asyncio.ensure_future(work), False
    while not doing.done():
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def inherited() -> dict[str, str]:
    """What a server is given of our environment: nothing that holds a key."""
    return {key: os.environ[key] for key in _INHERITED if key in os.environ}
