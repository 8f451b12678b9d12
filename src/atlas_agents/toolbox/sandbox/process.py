"""A process that was started, seen from outside: read without waiting, watched, and ended with all that it started."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from atlas_agents.core.errors import SandboxUnavailable
from atlas_agents.toolbox.sandbox.ending import MARK, end_all, new_mark
from atlas_agents.toolbox.sandbox.keep import Output
from atlas_agents.toolbox.sandbox.ports import Job, OnOutput, Outcome, Stopped, Stream
from atlas_agents.toolbox.sandbox.watch import Watch

_PIECE = 1 << 16
_LAST_WORDS = 0.5  # seconds for what is still in the pipes of a process that has ended
_END = 2.0


class Confined:
    """One process in its own session. What ends the run early, a limit or the caller, kills all of it."""

    first: Callable[[], int | None] | None = None
    """Tells the first process of the PID namespace that it lives in, which dies with it, if there is one."""
    gently = False
    """It adopts what it started, and ends it when asked to."""
    _process: asyncio.subprocess.Process

    def __init__(self, job: Job, *, on_output: OnOutput | None, spill: Path | None) -> None:
        limits = job.limits
        self._job = job
        self._output = Output(limits.keep, limits.output, on_output, spill, lambda: self._stop("output"))
        self._mark = new_mark()
        self._began = time.monotonic()
        self._stopped: Stopped | None = None
        self._streams: dict[Stream, int] = {}
        self._all_read = asyncio.Event()
        self._struck = False
        self._watch: Watch | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def open(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str],
        stdin: bytes | socket.socket | None,
        merge: bool,
        pass_fds: Sequence[int] = (),
        cwd: str | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        reading2, writing2 = (-1, writing) if merge else os.pipe()
        source = stdin.fileno() if isinstance(stdin, socket.socket) else asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL if stdin is None else source,
                stdout=writing,
                stderr=writing2,
                env=env if self.first else {**env, MARK: self._mark},
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        except OSError as error:
            for end in {reading, reading2} - {-1}:
                os.close(end)
            self._output.close()
            raise SandboxUnavailable(f"{argv[0]} could not be started: {error.strerror}", "see to that") from None
        finally:
            for end in {writing, writing2}:
                os.close(end)
        self._listen(loop, "stdout", reading)
        if not merge:
            self._listen(loop, "stderr", reading2)
        limits = self._job.limits
        self._timer = loop.call_later(limits.seconds, self._stop, "time")
        if isinstance(stdin, bytes):
            self._feeding = asyncio.create_task(self._feed(stdin))
        self._watch = Watch(self._job, self._process.pid, first=self.first, over=self._over_from(loop))

    async def wait(self) -> Outcome:
        try:
            code = await self._process.wait()
            self._put_away()
            self._strike()  # what it left behind, where that did not end with it
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._all_read.wait()
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.create_task(self.kill()))
            raise
        self._close()
        signalled = _signal_of(code)
        return Outcome(
            exit_code=None if signalled or self._stopped else code,
            signal=signalled,
            stdout=self._output.kept("stdout"),
            stderr=self._output.kept("stderr"),
            stopped=self._stopped,
            duration=round(time.monotonic() - self._began, 3),
            spilled=self._output.spilled,
        )

    async def kill(self) -> None:
        self._strike()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END):
                await self._process.wait()
        self._put_away()
        self._close()

    def drain(self) -> None:
        for stream in tuple(self._streams):
            while self._read(stream):
                pass

    def renew(self, seconds: float) -> None:
        """From now on it has this long, and may write as much as at first."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._stop, "time")
        self._output.renew()

    def _over_from(self, loop: asyncio.AbstractEventLoop) -> Callable[[Stopped], None]:
        def over(what: Stopped) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._stop, what)

        return over

    def _stop(self, what: Stopped) -> None:
        if self._stopped is None and self._process.returncode is None:
            self._stopped = what
        self._strike()

    def _strike(self) -> None:
        process = self._process
        if self.first:
            if process.returncode is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
        elif not self._struck:
            self._struck = True
            end_all(process.pid, self._mark, gently=self.gently and process.returncode is None)

    def _listen(self, loop: asyncio.AbstractEventLoop, stream: Stream, reading: int) -> None:
        os.set_blocking(reading, False)
        self._streams[stream] = reading
        loop.add_reader(reading, self._read, stream)

    def _read(self, stream: Stream) -> bool:
        """Read a piece; whether there may be more at once."""
        reading = self._streams.get(stream)
        if reading is None:
            return False
        try:
            piece = os.read(reading, _PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self._forget(stream)
            return False
        self._output.add(stream, piece)
        return True

    def _forget(self, stream: Stream) -> None:
        reading = self._streams.pop(stream, None)
        if reading is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(reading)
            os.close(reading)
        if not self._streams:
            self._all_read.set()

    async def _feed(self, words: bytes) -> None:
        if (line := self._process.stdin) is not None:
            with suppress(ConnectionError):
                line.write(words)
                await line.drain()
            line.close()

    def _put_away(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
        if self._watch is not None:
            self._watch.end()

    def _close(self) -> None:
        self.drain()
        for stream in tuple(self._streams):
            self._forget(stream)
        self._output.close()


def _signal_of(code: int) -> int | None:
    """Of a process that a signal ended, which; a sandbox tells it as a shell does, by 128 and more."""
    number = -code if code < 0 else code - 128
    return number if 0 < number < signal.NSIG and (code < 0 or code > 128) else None
