"""Plain functions run in processes of their own, kept warm, which can be killed at any moment: the pool of these.

`worker_link` is one of them seen from here, `worker_process` what runs there, `worker_codec` what passes between.
"""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from atlas_agents.core.aio import BackgroundTasks, in_thread
from atlas_agents.tools.worker_codec import (
    CALL,
    HEAD,
    MAX_FAULT,
    MISSING,
    NEWS,
    SMALL,
    Frame,
    framed,
    here,
    name_of,
    pack,
    pack_at_once,
    unpack_answer,
)
from atlas_agents.tools.worker_process import report

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


class WorkerProcess:
    """One process; `end` comes when it is dead and reaped, and says how it died."""

    def __init__(self, max_result: int) -> None:
        loop = asyncio.get_running_loop()
        self.ready = False
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


__all__ = ["WorkerDied", "Workers", "report"]

_CLOSED = "the workers were closed"


class WorkerDied(Exception):
    """The process ended while it ran the function (os._exit, a crash, the out-of-memory killer)."""


class Workers:
    """Processes that run plain functions and can be killed at any moment, one set of them per event loop.

    A loop that ends takes its workers with it; they never outlive this process, however it ends.
    """

    def __init__(self, *, warm: int = 2, at_most: int = 16, max_result: int = 32_000_000) -> None:
        self._sizes = (warm, at_most, max_result)
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    async def run(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        positional: Sequence[Any] = (),
        report: Callable[[str], None] | None = None,
    ) -> Any:
        """Call function(*positional, **arguments) in a worker and give back what it returned, or raise what it raised.

        It runs where this process is now, however long it waits for a worker. If this is cancelled, the worker is dead,
        with all its process group, before CancelledError leaves.
        """
        where = here()
        pool = await self._pool()
        values = (tuple(positional), dict(arguments))
        while True:
            call = pack_at_once(function, values, pool.foreign)
            if call is None:
                call = await in_thread(pack, function, values, frozenset(pool.foreign))
            kind, body = await pool.ask(call, where, report)
            if kind != MISSING:
                break
            module = b"".join(body).decode()
            if module in pool.foreign or module not in sys.modules:
                raise TypeError(f"{name_of(function)} cannot be rebuilt in a worker, which does not find {module}")
            pool.foreign.add(module)
        if sum(map(len, body)) <= SMALL:
            return unpack_answer(kind, body, function)
        return await in_thread(unpack_answer, kind, body, function)

    async def close(self) -> None:
        """Kill this loop's workers, with whatever they run; the object can be used again."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.keeper.aclose()

    async def _pool(self) -> "_Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.closed:
            for other in list(self._pools):
                if other.is_closed() and (left := self._pools.pop(other, None)):
                    left.abandon()  # that loop may have been closed without being shut down
            pool = self._pools[loop] = _Pool(*self._sizes)
            await anext(pool.keeper)
        return pool


class _Pool:
    """The workers of one loop, and who waits for one."""

    def __init__(self, warm: int, at_most: int, max_result: int) -> None:
        self.foreign: set[str] = set()  # modules that a worker cannot import
        self.keeper = self._keep()
        self.closed = False
        self._warm, self._at_most, self._max_result = warm, max(1, at_most), max_result
        self._all: set[WorkerProcess] = set()
        self._tasks = BackgroundTasks("worker pool")
        self._idle: list[WorkerProcess] = []
        self._waiting: deque[asyncio.Future[WorkerProcess]] = deque()

    async def ask(self, call: Sequence[bytes], where: str | None, report: Callable[[str], None] | None) -> Frame:
        """Have a call answered; a worker that was dead before it could begin is passed over."""
        for _ in range(3):
            worker = await self._take()
            try:
                answer = await worker.ask(call, where, report)
            except ConnectionError:
                await worker.bury()
            except EOFError:
                await worker.bury()
                raise WorkerDied(f"the worker {worker.end.result()} before the function had returned") from None
            except BaseException:
                await worker.bury()
                raise
            else:
                self._give(worker)
                return answer
        raise WorkerDied("no worker lived long enough to begin")

    async def _keep(self) -> AsyncGenerator[None]:
        """A generator that the loop closes at its end, and the workers with it."""
        try:
            yield
        finally:
            self.closed = True
            self._turn_away(WorkerDied(_CLOSED))
            dying = list(self._all)
            for worker in dying:
                worker.kill()
            for worker in dying:
                await worker.gone()

    def abandon(self) -> None:
        """Kill and close from outside, when the loop can do nothing more."""
        for worker in self._all:
            worker.kill()
            worker.close()

    async def _take(self) -> WorkerProcess:
        if self._idle:
            return self._idle.pop()
        if self.closed:
            raise WorkerDied(_CLOSED)
        place: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._grow()
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:
                self._give(place.result())
            raise

    def _give(self, worker: WorkerProcess) -> None:
        """Pass it to who has waited longest, else keep it, unless enough are kept."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(worker)
                return
        if len(self._idle) < self._warm and not self.closed:
            self._idle.append(worker)
        else:
            worker.kill()
            worker.close()

    def _grow(self) -> None:
        """Start as many workers as are waited for, and as many as are to be warm."""
        if self.closed:
            return
        coming = sum(not worker.ready for worker in self._all)
        wanted = max(len(self._waiting) - coming, self._warm - len(self._all))
        for _ in range(min(wanted, self._at_most - len(self._all))):
            try:
                worker = WorkerProcess(self._max_result)
            except (OSError, RuntimeError) as error:  # no descriptors or no threads are left
                self._give_up(f"could not be started: {error}")
                return
            self._all.add(worker)
            worker.end.add_done_callback(lambda _, worker=worker: self._forget(worker))
            self._tasks.spawn(self._open(worker))

    async def _open(self, worker: WorkerProcess) -> None:
        try:
            await worker.greet()
        except (EOFError, ConnectionError):
            await worker.bury()
            self._all.discard(worker)
            self._give_up(worker.end.result())
        except BaseException:
            worker.kill()
            worker.close()
            raise
        else:
            self._give(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        """See to a successor, unless it could not even start, or died while nobody needed it: that might go on."""
        self._all.discard(worker)
        was_idle = worker in self._idle
        if was_idle:
            self._idle.remove(worker)
            worker.close()
        if worker.ready and (self._waiting or not was_idle):
            self._grow()

    def _give_up(self, why: str) -> None:
        """Let nobody wait for a worker that will not come; while one lives, its turn may come."""
        if not self._all:
            self._turn_away(WorkerDied(f"a worker {why}, before it could begin"))

    def _turn_away(self, error: Exception) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(error)
