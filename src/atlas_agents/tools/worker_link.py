"""One worker seen from its parent: started, asked, killed and outlived."""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from atlas_agents.tools.worker_codec import CALL, HEAD, MAX_FAULT, NEWS, SMALL, Frame, framed

_PIECE = 1 << 18
_PATIENCE = 5.0  # seconds until a killed process is taken for dead: one held by the kernel cannot act any more

# While the worker loads its own two files, a bare module stands for the package around them. They stay loaded under
# their names, so that a function which imports the package finds the `report` that is connected.
_BOOT = """
import sys
_, _, folder, *numbers = sys.argv
del sys.argv[1:]
package = sys.modules["atlas_agents.tools"] = type(sys)("atlas_agents.tools")
package.__path__ = [folder]
from atlas_agents.tools.worker_process import serve
del sys.modules["atlas_agents.tools"]
serve(*map(int, numbers))
"""


class Worker:
    """One process; `end` comes when it is dead and reaped, and says how it died."""

    def __init__(self, max_result: int) -> None:
        loop = asyncio.get_running_loop()
        self.ready = False
        self.opening: asyncio.Task[None] | None = None
        self.end: asyncio.Future[str] = loop.create_future()
        self._limit = max(max_result, MAX_FAULT) + SMALL
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._doomed = False
        self._path: list[str] | None = None
        self._heard = bytearray()
        self._line, line = socket.socketpair()
        self._pulse, pulse = socket.socketpair()
        self._line.setblocking(False)
        arguments = (loop, line, pulse, max_result)
        threading.Thread(target=self._live, args=arguments, name="atlas-worker", daemon=True).start()

    async def greet(self) -> None:
        """Wait until it is ready; EOFError if the process ends first."""
        await self._receive()
        self.ready = True

    async def ask(self, call: Sequence[bytes], where: str | None, report: Callable[[str], None] | None) -> Frame:
        """Send a call and wait for its answer; EOFError if the process ends first."""
        loop = asyncio.get_running_loop()
        pieces = framed(CALL, [self._place(where), *call])
        if sum(map(len, pieces)) <= SMALL:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            await loop.sock_sendall(self._line, piece)
        while True:
            kind, body = await self._receive()
            if kind != NEWS:
                return kind, body
            if report is not None:
                loop.call_soon(report, b"".join(body).decode())
            await asyncio.sleep(0)  # a receive that need not wait does not let others run

    def kill(self) -> None:
        with self._lock:
            self._doomed = True
            self._kill_group()

    def close(self) -> None:
        self._line.close()
        self._pulse.close()

    async def gone(self) -> None:
        """Wait for the end of the killed process, however often this is cancelled meanwhile."""
        alarm = asyncio.get_running_loop().call_later(_PATIENCE, self._settle, "did not end")
        cancelled = False
        while not self.end.done():
            try:
                await asyncio.shield(self.end)
            except asyncio.CancelledError:
                cancelled = True
        alarm.cancel()
        if cancelled:
            raise asyncio.CancelledError

    async def bury(self) -> None:
        """Kill it and wait until it is gone. Only who uses a worker may do this: a line is closed under nobody."""
        self.kill()
        try:
            await self.gone()
        finally:
            self.close()

    def _place(self, where: str | None) -> bytes:
        """The directory to be in, and the import path if it is not the one last sent."""
        path = [str(entry) for entry in sys.path]
        news, self._path = None if path == self._path else path, path
        return pickle.dumps((where, news))

    async def _receive(self) -> Frame:
        while len(self._heard) < HEAD.size:
            self._heard += await self._more(SMALL)
        kind, size = HEAD.unpack_from(self._heard)
        if size > self._limit:
            raise EOFError
        end = HEAD.size + size
        body = [bytes(self._heard[HEAD.size : end])]
        del self._heard[:end]
        missing = size - len(body[0])
        while missing:
            await asyncio.sleep(0)  # as in `ask`
            body.append(await self._more(min(missing, _PIECE)))
            missing -= len(body[-1])
        return kind, body

    async def _more(self, at_most: int) -> bytes:
        piece = await asyncio.get_running_loop().sock_recv(self._line, at_most)
        if not piece:
            raise EOFError
        return piece

    def _live(
        self, loop: asyncio.AbstractEventLoop, line: socket.socket, pulse: socket.socket, max_result: int
    ) -> None:
        """Start the process, outlive it, and tell the loop how it ended: the work of a thread."""
        try:
            process = _start(line, pulse, max_result)
        except (OSError, TypeError, ValueError) as error:  # an embedded interpreter has no executable
            how = f"could not be started: {error}"
        else:
            how = self._outlive(process)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._settle, how)

    def _outlive(self, process: subprocess.Popen[bytes]) -> str:
        with self._lock:
            self._pid = process.pid
            if self._doomed:
                self._kill_group()
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            process.wait()
        with self._lock:
            self._kill_group()  # before it is reaped: until then its number cannot be a stranger's
            code = process.wait()
            self._pid = None
        if code >= 0:
            return f"exited with code {code}"
        return "was killed by " + next((s.name for s in signal.Signals if s == -code), f"signal {-code}")

    def _kill_group(self) -> None:
        if self._pid is not None:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)

    def _settle(self, how: str) -> None:
        if not self.end.done():
            self.end.set_result(how)


def _start(line: socket.socket, pulse: socket.socket, max_result: int) -> subprocess.Popen[bytes]:
    """Start the process with its ends of the two sockets; what a function prints goes to stderr."""
    with line, pulse:
        fds = (line.fileno(), pulse.fileno())
        arguments = ["atlas_agents_worker", os.path.dirname(__file__), *map(str, (*fds, max_result))]
        return subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout may be somebody's protocol
            pass_fds=fds,
            start_new_session=True,
        )
