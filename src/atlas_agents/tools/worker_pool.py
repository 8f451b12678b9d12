"""Worker pool: runs plain functions in warm processes that can be killed at any moment.

`worker_process` is the code that runs in them, `worker_codec` the protocol between the two.
"""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from atlas_agents.core.aio import BackgroundTasks, run_in_thread
from atlas_agents.tools import worker_codec
from atlas_agents.tools.worker_process import progress_text, report, run_generator

__all__ = ["WorkerDied", "Workers", "progress_text", "report", "run_generator"]

OnProgress: TypeAlias = Callable[[str], None]
_CLOSED_MESSAGE = "the worker pool was closed"
_MAX_READ = 1 << 18
_KILL_TIMEOUT = 5.0  # seconds after which a killed process counts as dead, even if the kernel holds it

# An empty module replaces the package while the worker loads its two files. They stay loaded under their names, so that
# a function that imports the package gets the `report` that is connected. The codec comes first: importing it from the
# replaced package would import the real one.
_BOOTSTRAP = """
import sys
_, _, folder, *numbers = sys.argv
del sys.argv[1:]
package = sys.modules["atlas_agents.tools"] = type(sys)("atlas_agents.tools")
package.__path__ = [folder]
from atlas_agents.tools.worker_codec import CALL
from atlas_agents.tools.worker_process import serve
del sys.modules["atlas_agents.tools"]
serve(*map(int, numbers))
"""


class WorkerProcess:
    """One worker process. `end` is set to a description of its end once it is dead and reaped."""

    def __init__(self, max_result: int) -> None:
        loop = asyncio.get_running_loop()
        self.ready = False
        self.end: asyncio.Future[str] = loop.create_future()
        self._limit = max(max_result, worker_codec.MAX_FAULT) + worker_codec.SMALL
        self._lock = threading.RLock()  # the garbage collector may call `kill` in a thread that holds it
        self._pid: int | None = None
        self._killed = False
        self._path: list[str] | None = None
        self._buffer = bytearray()
        self._socket, child_socket = socket.socketpair()
        self._watch, child_watch = socket.socketpair()
        self._socket.setblocking(False)
        arguments = (loop, child_socket, child_watch, max_result)
        threading.Thread(target=self._supervise, args=arguments, name="atlas-worker", daemon=True).start()

    async def wait_until_ready(self) -> None:
        """Wait until the process is ready; raises EOFError if it ends first."""
        await self._receive()
        self.ready = True

    async def call(
        self, request: Sequence[bytes], directory: str | None, report: OnProgress | None
    ) -> worker_codec.Frame:
        """Send a call and return its answer; raises EOFError if the process ends first."""
        loop = asyncio.get_running_loop()
        chunks = worker_codec.frame(worker_codec.CALL, [self._pack_environment(directory), *request])
        if sum(map(len, chunks)) <= worker_codec.SMALL:
            chunks = [b"".join(chunks)]
        for chunk in chunks:
            await loop.sock_sendall(self._socket, chunk)
        while True:
            kind, body = await self._receive()
            if kind != worker_codec.PROGRESS:
                return kind, body
            if report is not None:
                loop.call_soon(report, b"".join(body).decode())
            await asyncio.sleep(0)  # a receive that does not block does not let other tasks run

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            self._kill_group()

    def close(self) -> None:
        self._socket.close()
        self._watch.close()

    async def wait_until_dead(self) -> None:
        """Wait for the end of the killed process, even if this wait is cancelled."""
        timer = asyncio.get_running_loop().call_later(_KILL_TIMEOUT, self._set_end, "did not exit")
        cancelled = False
        while not self.end.done():
            try:
                await asyncio.shield(self.end)
            except asyncio.CancelledError:
                cancelled = True
        timer.cancel()
        if cancelled:
            raise asyncio.CancelledError

    async def kill_and_wait(self) -> None:
        """Kill the process and wait for its end. Only for the current user of the worker: it closes the socket."""
        self.kill()
        try:
            await self.wait_until_dead()
        finally:
            self.close()

    def _pack_environment(self, directory: str | None) -> bytes:
        """Pickle the working directory, and the import path if it changed since the last call."""
        path = [str(entry) for entry in sys.path]
        new_path, self._path = None if path == self._path else path, path
        return pickle.dumps((directory, new_path))

    async def _receive(self) -> worker_codec.Frame:
        while len(self._buffer) < worker_codec.HEADER.size:
            self._buffer += await self._read(worker_codec.SMALL)
        kind, size = worker_codec.HEADER.unpack_from(self._buffer)
        if size > self._limit:
            raise EOFError
        end = worker_codec.HEADER.size + size
        body = [bytes(self._buffer[worker_codec.HEADER.size : end])]
        del self._buffer[:end]
        missing = size - len(body[0])
        while missing:
            await asyncio.sleep(0)  # let other tasks run, as in `call`
            body.append(await self._read(min(missing, _MAX_READ)))
            missing -= len(body[-1])
        return kind, body

    async def _read(self, limit: int) -> bytes:
        chunk = await asyncio.get_running_loop().sock_recv(self._socket, limit)
        if not chunk:
            raise EOFError
        return chunk

    def _supervise(
        self, loop: asyncio.AbstractEventLoop, child_socket: socket.socket, child_watch: socket.socket, max_result: int
    ) -> None:
        """Start the process, wait for its end and report it to the loop. Runs in a thread."""
        try:
            process = _start(child_socket, child_watch, max_result)
        except (OSError, TypeError, ValueError) as error:  # an embedded interpreter has no executable
            how = f"could not be started: {error}"
        else:
            how = self._wait_and_reap(process)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._set_end, how)

    def _wait_and_reap(self, process: subprocess.Popen[bytes]) -> str:
        with self._lock:
            self._pid = process.pid
            if self._killed:
                self._kill_group()
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            process.wait()
        with self._lock:
            self._kill_group()  # before it is reaped: until then its id cannot be reused
            self._pid = None
            code = process.wait()
        if code >= 0:
            return f"exited with code {code}"
        return "was killed by " + next((s.name for s in signal.Signals if s == -code), f"signal {-code}")

    def _kill_group(self) -> None:
        if self._pid is not None:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)

    def _set_end(self, how: str) -> None:
        if not self.end.done():
            self.end.set_result(how)


def _start(child_socket: socket.socket, child_watch: socket.socket, max_result: int) -> subprocess.Popen[bytes]:
    """Start the process with its ends of the two sockets; output of functions goes to stderr."""
    with child_socket, child_watch:
        fds = (child_socket.fileno(), child_watch.fileno())
        arguments = ["atlas_agents_worker", os.path.dirname(__file__), *map(str, (*fds, max_result))]
        return subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", _BOOTSTRAP, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout may carry a protocol
            pass_fds=fds,
            start_new_session=True,
        )


class WorkerDied(Exception):
    """The process ended while it ran the function: os._exit, a crash, or the out-of-memory killer."""


class Workers:
    """Worker pools, one per event loop.

    Workers end with their event loop or with this object, whichever is first, and never outlive this process.
    """

    def __init__(self, *, warm: int = 2, at_most: int = 16, max_result: int = 32_000_000) -> None:
        self._sizes = (warm, at_most, max_result)
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        finalizer = weakref.finalize(self, _abandon_pools, self._pools)
        finalizer.atexit = False  # pyrefly: ignore[missing-attribute] - it is a property; workers end with this process

    async def run(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        positional: Sequence[Any] = (),
        report: OnProgress | None = None,
    ) -> Any:
        """Call function(*positional, **arguments) in a worker; return its result, or raise its exception.

        It runs in the working directory at the time of this call. If this is cancelled, the worker and its process
        group are dead before CancelledError is raised. Raises NotSendable, before anything has run, if the call cannot
        be pickled.
        """
        directory = worker_codec.working_directory()
        pool = await self._pool()
        values = (tuple(positional), dict(arguments))
        while True:
            request = worker_codec.try_pack(function, values, pool.unimportable)
            if request is None:
                request = await run_in_thread(worker_codec.pack, function, values, frozenset(pool.unimportable))
            kind, body = await pool.call(request, directory, report)
            if kind != worker_codec.MISSING_MODULE:
                break
            module = b"".join(body).decode()
            if module in pool.unimportable or module not in sys.modules:
                raise worker_codec.NotSendable(
                    f"cannot send {worker_codec.function_name(function)} to a worker, which cannot import {module}"
                )
            pool.unimportable.add(module)
        if sum(map(len, body)) <= worker_codec.SMALL:
            return worker_codec.unpack_answer(kind, body, function)
        return await run_in_thread(worker_codec.unpack_answer, kind, body, function)

    async def close(self) -> None:
        """Kill the workers of this event loop and their child processes. The object can be used again."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.closer.aclose()

    async def _pool(self) -> "_Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.closed:
            for other in list(self._pools):
                if other.is_closed() and (unused := self._pools.pop(other, None)):
                    unused.abandon(other)  # the loop may have been closed without shutting down its generators
            pool = self._pools[loop] = _Pool(*self._sizes)
            await anext(pool.closer)
        return pool


def _abandon_pools(pools: Mapping[asyncio.AbstractEventLoop, "_Pool"]) -> None:
    for loop, pool in pools.items():
        pool.abandon(loop)


class _Pool:
    """The workers of one event loop, and the queue of calls that wait for one."""

    def __init__(self, warm: int, at_most: int, max_result: int) -> None:
        self.unimportable: set[str] = set()  # modules that a worker cannot import
        self.closer = self._close_with_loop()
        self.closed = False
        self._warm, self._at_most, self._max_result = warm, max(1, at_most), max_result
        self._all: set[WorkerProcess] = set()
        self._tasks = BackgroundTasks("worker pool")
        self._idle: list[WorkerProcess] = []
        self._waiting: deque[asyncio.Future[WorkerProcess]] = deque()

    async def call(
        self, request: Sequence[bytes], directory: str | None, report: OnProgress | None
    ) -> worker_codec.Frame:
        """Send a call to a free worker; if that died before it could start, use another."""
        for _ in range(3):
            worker = await self._acquire()
            try:
                answer = await worker.call(request, directory, report)
            except ConnectionError:
                await worker.kill_and_wait()
            except EOFError:
                await worker.kill_and_wait()
                raise WorkerDied(f"the worker {worker.end.result()} before the function returned") from None
            except BaseException:
                await worker.kill_and_wait()
                raise
            else:
                self._release(worker)
                return answer
        raise WorkerDied("three workers died before they could start the function")

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        """Async generator that kills the workers when the event loop closes it on shutdown."""
        try:
            yield
        finally:
            self.closed = True
            self._fail_waiters(WorkerDied(_CLOSED_MESSAGE))
            workers = list(self._all)
            for worker in workers:
                worker.kill()
            for worker in workers:
                await worker.wait_until_dead()

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Kill the workers without waiting, from any thread. Their loop closes them, unless it is closed itself."""
        self.closed = True
        for worker in list(self._all):
            worker.kill()
            if loop.is_closed():
                worker.close()

    async def _acquire(self) -> WorkerProcess:
        if self._idle:
            return self._idle.pop()
        if self.closed:
            raise WorkerDied(_CLOSED_MESSAGE)
        waiter: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._grow()
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                self._release(waiter.result())
            raise

    def _release(self, worker: WorkerProcess) -> None:
        """Pass a worker to the longest waiting call; else keep it warm, or kill it if enough are warm."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        if len(self._idle) < self._warm and not self.closed:
            self._idle.append(worker)
        else:
            worker.kill()
            worker.close()

    def _grow(self) -> None:
        """Start workers for the waiting calls, and to keep enough warm."""
        if self.closed:
            return
        starting = sum(not worker.ready for worker in self._all)
        wanted = max(len(self._waiting) - starting, self._warm - len(self._all))
        for _ in range(min(wanted, self._at_most - len(self._all))):
            try:
                worker = WorkerProcess(self._max_result)
            except (OSError, RuntimeError) as error:  # out of file descriptors or threads
                self._fail_if_none(f"could not be started: {error}")
                return
            self._all.add(worker)
            worker.end.add_done_callback(lambda _, worker=worker: self._on_end(worker))
            self._tasks.spawn(self._start_worker(worker))

    async def _start_worker(self, worker: WorkerProcess) -> None:
        try:
            await worker.wait_until_ready()
        except (EOFError, ConnectionError):
            await worker.kill_and_wait()
            self._all.discard(worker)
            self._fail_if_none(worker.end.result())
        except BaseException:
            worker.kill()
            worker.close()
            raise
        else:
            self._release(worker)

    def _on_end(self, worker: WorkerProcess) -> None:
        """Replace an ended worker, unless it could not start or died while idle: that might repeat endlessly."""
        self._all.discard(worker)
        was_idle = worker in self._idle
        if was_idle:
            self._idle.remove(worker)
            worker.close()
        if worker.ready and (self._waiting or not was_idle):
            self._grow()

    def _fail_if_none(self, reason: str) -> None:
        """Fail the waiting calls if no worker is left that could take them."""
        if not self._all:
            self._fail_waiters(WorkerDied(f"a worker {reason} before it could start the function"))

    def _fail_waiters(self, error: Exception) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)
