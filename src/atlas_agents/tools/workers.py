"""Plain functions run in processes of their own, kept warm, which can be killed at any moment.

A worker runs this very file, loaded by its path: to import the package there would cost more than most calls.
"""

import asyncio
import fcntl
import io
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from importlib import import_module, invalidate_caches
from queue import SimpleQueue
from typing import Any, NoReturn, TypeAlias

_SMALL = 1 << 16  # bytes that are pickled in well under a millisecond, so on the loop itself
_PIECE = 1 << 18
_WORDS = 10_000  # characters of a message; a fault's own `str` may be of any length
_ERROR = 1 << 20
_PATIENCE = 5.0  # seconds until a killed process is taken for dead: one held by the kernel cannot act any more
_HEAD = struct.Struct("!cQ")
_CALL, _READY, _RESULT, _FAULT, _NEWS, _MISSING = b"c", b"!", b"r", b"f", b"n", b"m"

_Values: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_WORKER = "atlas_agents_worker"
_BOOT = """
import sys
from importlib.machinery import SourceFileLoader
name, path, *numbers = sys.argv[1:]
del sys.argv[1:]
module = sys.modules[name] = type(sys)(name)
module.__file__ = path
exec(SourceFileLoader(name, path).get_code(name), module.__dict__)
module.serve(*map(int, numbers))
"""


class WorkerDied(Exception):
    """The process ended while it ran the function (os._exit, a crash, the out-of-memory killer)."""


def report(message: str) -> None:
    """Tell who called how far the function is; outside a worker nothing happens."""
    worker = sys.modules.get(_WORKER)
    if worker is not None and worker.line is not None:
        worker.line.tell(str(message)[:_WORDS])


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

        If this is cancelled, the worker is dead, with all its process group, before CancelledError leaves.
        """
        pool = await self._pool()
        values = (tuple(positional), dict(arguments))
        while True:
            kind, body = await pool.ask(await _pack(function, values, pool.foreign), report)
            if kind != _MISSING:
                break
            module = b"".join(body).decode()
            if module in pool.foreign or module not in sys.modules:
                raise TypeError(f"{_name(function)} cannot be rebuilt in a worker, which does not find {module}")
            pool.foreign.add(module)
        if sum(map(len, body)) <= _SMALL:
            return _unpack(kind, body, function)
        return await _in_thread(_unpack, kind, body, function)

    async def close(self) -> None:
        """Kill this loop's workers, with whatever they run; the object can be used again."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None and pool.keeper is not None:
            await pool.keeper.aclose()

    async def _pool(self) -> "_Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            for other in [other for other in list(self._pools) if other.is_closed()]:
                self._pools.pop(other).abandon()  # that loop was closed without being shut down
            pool = self._pools[loop] = _Pool(*self._sizes)
            pool.keeper = self._keep(loop, pool)
            await anext(pool.keeper)
        return pool

    async def _keep(self, loop: asyncio.AbstractEventLoop, pool: "_Pool") -> AsyncGenerator[None]:
        """A generator that the loop closes at its end, and the workers with it."""
        try:
            yield
        finally:
            if self._pools.get(loop) is pool:
                del self._pools[loop]
            await pool.close()


class _Pool:
    """The workers of one loop, and who waits for one."""

    def __init__(self, warm: int, at_most: int, max_result: int) -> None:
        self.foreign: set[str] = set()  # modules that a worker cannot import
        self.keeper: AsyncGenerator[None] | None = None
        self._warm, self._at_most, self._max_result = warm, max(1, at_most), max_result
        self._all: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._waiting: deque[asyncio.Future[_Worker]] = deque()
        self._closed = False

    async def ask(self, call: Sequence[bytes], report: Callable[[str], None] | None) -> tuple[bytes, list[bytes]]:
        """Have a call answered; a worker that was dead before it could begin is passed over."""
        for _ in range(3):
            worker = await self._take()
            try:
                answer = await worker.ask(call, report)
            except ConnectionError:
                await self._bury(worker)
            except EOFError:
                await self._bury(worker)
                raise WorkerDied(f"the worker {worker.end.result()} before the function had returned") from None
            except BaseException:
                await self._bury(worker)
                raise
            else:
                self._give(worker)
                return answer
        raise WorkerDied("no worker lived long enough to begin")

    async def close(self) -> None:
        self._closed = True
        self._turn_away(WorkerDied("the workers were closed"))
        dying = list(self._all)
        for worker in dying:
            worker.kill()
        for worker in dying:
            await _gone(worker.end)

    def abandon(self) -> None:
        """Kill and close from outside, when the loop can do nothing more."""
        for worker in self._all:
            worker.kill()
            worker.close()

    async def _take(self) -> "_Worker":
        if self._idle:
            return self._idle.pop()
        place: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._grow()
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:
                self._give(place.result())
            raise

    def _give(self, worker: "_Worker") -> None:
        """Pass it to who has waited longest, else keep it, unless enough are kept."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(worker)
                return
        if len(self._idle) < self._warm and not self._closed:
            self._idle.append(worker)
        else:
            worker.kill()
            worker.close()

    def _grow(self) -> None:
        """Start as many workers as are waited for, and as many as are to be warm."""
        if self._closed:
            return
        coming = sum(not worker.ready for worker in self._all)
        wanted = max(len(self._waiting) - coming, self._warm - len(self._all))
        for _ in range(min(wanted, self._at_most - len(self._all))):
            worker = _Worker(self._max_result)
            self._all.add(worker)
            worker.end.add_done_callback(lambda _, worker=worker: self._forget(worker))
            worker.opening = asyncio.create_task(self._open(worker))

    async def _open(self, worker: "_Worker") -> None:
        try:
            await worker.greet()
        except (EOFError, ConnectionError):
            await self._bury(worker)
            if not self._all:
                self._turn_away(WorkerDied(f"a worker {worker.end.result()}, before it could begin"))
        except BaseException:
            worker.kill()
            worker.close()
            raise
        else:
            self._give(worker)

    async def _bury(self, worker: "_Worker") -> None:
        """Kill it and wait until it is gone. Only who uses a worker may do this: a line is closed under nobody."""
        worker.kill()
        try:
            await _gone(worker.end)
        finally:
            worker.close()

    def _forget(self, worker: "_Worker") -> None:
        """See to a successor, unless it could not even start, or died while nobody needed it: that might go on."""
        self._all.discard(worker)
        was_idle = worker in self._idle
        if was_idle:
            self._idle.remove(worker)
            worker.close()
        if worker.ready and (self._waiting or not was_idle):
            self._grow()

    def _turn_away(self, error: Exception) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(error)


class _Worker:
    """One process, seen from its parent; `end` comes when it is dead and reaped, and says how it died."""

    def __init__(self, max_result: int) -> None:
        self.ready = False
        self.opening: asyncio.Task[None] | None = None
        self._limit = max(max_result, _ERROR) + _SMALL
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._doomed = False
        self._path: list[str] | None = None
        self._heard = bytearray()
        self._line, line = socket.socketpair()
        self._pulse, pulse = socket.socketpair()
        self._line.setblocking(False)
        self.end: asyncio.Future[str] = _in_thread(self._live, line, pulse, max_result)

    async def greet(self) -> None:
        await self._receive()
        self.ready = True

    async def ask(self, call: Sequence[bytes], report: Callable[[str], None] | None) -> tuple[bytes, list[bytes]]:
        """Send a call and wait for its answer; EOFError if the process ends first."""
        loop = asyncio.get_running_loop()
        where = self._where()
        size = len(where) + sum(map(len, call))
        pieces = [_HEAD.pack(_CALL, size), where, *call]
        for piece in pieces if size > _SMALL else [b"".join(pieces)]:
            await loop.sock_sendall(self._line, piece)
        while True:
            kind, body = await self._receive()
            if kind != _NEWS:
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

    def _where(self) -> bytes:
        """The directory to be in, and the import path if it is not the one last sent."""
        try:
            directory = os.getcwd()
        except OSError:
            directory = None
        path = [str(entry) for entry in sys.path]
        news, self._path = None if path == self._path else path, path
        return pickle.dumps((directory, news))

    async def _receive(self) -> tuple[bytes, list[bytes]]:
        while len(self._heard) < _HEAD.size:
            self._heard += await self._more(_SMALL)
        kind, size = _HEAD.unpack_from(self._heard)
        if size > self._limit:
            raise EOFError
        end = _HEAD.size + size
        body = [bytes(self._heard[_HEAD.size : end])]
        del self._heard[:end]
        missing = size - len(body[0])
        while missing:
            await asyncio.sleep(0)  # as above
            body.append(await self._more(min(missing, _PIECE)))
            missing -= len(body[-1])
        return kind, body

    async def _more(self, at_most: int) -> bytes:
        piece = await asyncio.get_running_loop().sock_recv(self._line, at_most)
        if not piece:
            raise EOFError
        return piece

    def _live(self, line: socket.socket, pulse: socket.socket, max_result: int) -> str:
        """Start the process, outlive it, and say how it ended: the work of a thread."""
        fds = (line.fileno(), pulse.fileno())
        numbers = map(str, (*fds, max_result))
        command = [sys.executable, "-P", "-u", "-c", _BOOT, _WORKER, __file__, *numbers]
        try:
            # What a function prints goes to stderr: stdout may be somebody's protocol.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=fds, start_new_session=True
            )
        except OSError as error:
            return f"could not be started: {error}"
        finally:
            line.close()
            pulse.close()
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
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def _kill_group(self) -> None:
        if self._pid is not None:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)


async def _gone(end: asyncio.Future[str]) -> None:
    """Wait for the end of a killed process, however often this is cancelled meanwhile."""
    alarm = asyncio.get_running_loop().call_later(_PATIENCE, _settle, end, "did not end")
    cancelled = False
    while not end.done():
        try:
            await asyncio.shield(end)
        except asyncio.CancelledError:
            cancelled = True
    alarm.cancel()
    if cancelled:
        raise asyncio.CancelledError


def _in_thread(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Start a daemon thread. `core.calling` has its like, but a worker must not import the package."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is awaited
            error = caught if isinstance(caught, Exception) else RuntimeError(repr(caught))
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, done, result, error)

    threading.Thread(target=work, name="atlas-worker", daemon=True).start()
    return done


def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None = None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


# What both sides speak.


class _TooBig(Exception):
    """More was pickled than there is room for."""


class _Outbox:
    """Takes what a pickler writes, up to a limit; being Python, it lets other threads run every 64 KB."""

    def __init__(self, limit: int) -> None:
        self.pieces: list[bytes] = []
        self._limit = limit
        self._size = 0

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise _TooBig
        self.pieces.append(bytes(piece))

    def add(self, value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> None:
        """Pickle a value; with cloudpickle what the given pickler cannot."""
        count, size = len(self.pieces), self._size
        try:
            pickler(self, 5).dump(value)
        except _TooBig:
            raise
        except Exception:  # noqa: BLE001 - a value's own code may raise anything, and cloudpickle may do without it
            del self.pieces[count:]
            self._size = size
            _cloudpickle().Pickler(self, 5).dump(value)


class _Inbox(io.BytesIO):
    """Gives an unpickler its bytes; being Python, it lets other threads run every 64 KB."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size)


class _Plain(pickle.Pickler):
    """Pickles built-in types and nothing else: a class of `__main__` has a name that means nothing to a worker."""

    def reducer_override(self, obj: Any, /) -> NoReturn:
        raise pickle.PicklingError(type(obj).__name__)


def _cloudpickle() -> Any:
    """Imported when first needed: most calls do without, and a worker starts faster."""
    return import_module("cloudpickle")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)[:_WORDS]


def _words(error: BaseException, say: Callable[[BaseException], str] = str) -> str:
    try:
        return say(error)[:_WORDS]
    except Exception:  # noqa: BLE001 - the message is the fault's own code
        return "its message cannot be read"


# The parent's side: a call is packed, an answer unpacked.


async def _pack(function: Callable[..., Any], values: _Values, foreign: set[str]) -> list[bytes]:
    """A call as bytes: the function by reference where a worker can find it, else by value."""
    reference = _reference(function, foreign)
    if reference is not None:
        small = _Outbox(_SMALL)
        with suppress(Exception):
            _Plain(small, 5).dump(reference)
            _Plain(small, 5).dump(values)
            return small.pieces
    return await _in_thread(_pack_slowly, function, reference, values, frozenset(foreign))


def _reference(function: Callable[..., Any], foreign: set[str]) -> tuple[str, str] | None:
    """The module and the attributes that lead to this very function; `@tool` puts it behind `.function`."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module not in sys.modules or module == "__main__" or module in foreign:
        return None
    try:
        found = reduce(getattr, path.split("."), sys.modules[module])
    except AttributeError:
        return None
    if found is function:
        return module, path
    return (module, f"{path}.function") if getattr(found, "function", None) is function else None


def _pack_slowly(
    function: Callable[..., Any], reference: tuple[str, str] | None, values: _Values, foreign: frozenset[str]
) -> list[bytes]:
    out = _Outbox(sys.maxsize)
    out.add(reference)
    with _by_value(foreign):
        if reference is None:
            _add_or_say(out, function, f"{_name(function)} cannot be sent to a worker")
        try:
            out.add(values, _Plain)
        except Exception:
            for name, value in [*enumerate(values[0], 1), *values[1].items()]:
                _add_or_say(out, value, f"argument {name!r} of {_name(function)} cannot be sent to a worker")
            raise
    return out.pieces


def _add_or_say(out: _Outbox, value: Any, complaint: str) -> None:
    try:
        out.add(value, _Plain)
    except Exception as error:
        raise TypeError(f"{complaint}: {_words(error)}") from error


_registering = threading.Lock()


@contextmanager
def _by_value(names: frozenset[str]) -> Generator[None]:
    """For a while, cloudpickle sends what lives in these modules by value; its register is the whole process's."""
    if not names:
        yield
        return
    cloudpickle = _cloudpickle()
    with _registering:
        mine = [
            sys.modules[name] for name in names - cloudpickle.list_registry_pickle_by_value() if name in sys.modules
        ]
        try:
            for module in mine:
                cloudpickle.register_pickle_by_value(module)
            yield
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)


def _unpack(kind: bytes, body: list[bytes], function: Callable[..., Any]) -> Any:
    """What the function returned, or raise what it raised. The bytes came over a socket that only the worker has."""
    stream = _Inbox(b"".join(body))
    if kind == _RESULT:
        try:
            return pickle.load(stream)  # noqa: S301
        except Exception as error:
            raise TypeError(f"the result of {_name(function)} cannot be rebuilt here: {_words(error)}") from error
    kind_of_error, words = pickle.load(stream)  # noqa: S301
    try:
        error = pickle.load(stream)  # noqa: S301
    except Exception:  # noqa: BLE001 - the fault's class may ask for more than its text, or be unknown here
        error = None
    if isinstance(error, Exception) and _words(error) == words:
        raise error
    raise RuntimeError(f"{kind_of_error}: {words}")


# The worker's side. `line` is set in a worker alone.

line: "_Line | None" = None


class _Line:
    """A worker's end of the socket."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        self._calls: SimpleQueue[bytes] = SimpleQueue()
        self._busy = False
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, kind: bytes, pieces: Sequence[bytes] = ()) -> None:
        with self._lock:
            self._busy = False
            self._socket.sendall(b"".join([_HEAD.pack(kind, sum(map(len, pieces))), *pieces]))

    def tell(self, message: str) -> None:
        """Send news of the call under way; a thread that outlives its call has nobody to tell."""
        body = message.encode(errors="replace")
        with self._lock:
            if self._busy:
                self._socket.sendall(_HEAD.pack(_NEWS, len(body)) + body)

    def next_call(self) -> bytes:
        call = self._calls.get()
        self._busy = True
        return call

    def close(self) -> None:
        os.close(self._socket.detach())  # `close` would wait for the stream that is listened to

    def _listen(self) -> None:
        """Listen also while a function runs: the end of the line is the end of the parent, and of all that is here."""
        with suppress(OSError), self._socket.makefile("rb") as stream:
            while len(head := stream.read(_HEAD.size)) == _HEAD.size:
                self._calls.put(stream.read(_HEAD.unpack(head)[1]))
        os.killpg(os.getpgrp(), signal.SIGKILL)


def serve(fd: int, pulse: int, max_result: int) -> None:
    """Be a worker: answer calls until the parent ends."""
    global line
    _die_with_parent(pulse)
    os.register_at_fork(after_in_child=_leave_line)
    line = _Line(fd)
    line.send(_READY)
    while True:
        line.send(*_answer(line.next_call(), max_result))


def _leave_line() -> None:
    """A fork of the worker is not the worker: it neither answers nor keeps the line open."""
    global line
    if line is not None:
        line.close()
    line = None


def _die_with_parent(pulse: int) -> None:
    """Let the kernel kill this group when the parent's end closes: C code may keep the listening thread from it."""
    os.set_inheritable(pulse, False)
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(pulse, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(pulse, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(pulse, fcntl.F_SETFL, os.O_ASYNC)


def _answer(call: bytes, max_result: int) -> tuple[bytes, list[bytes]]:
    """Do a call, whatever comes of it."""
    stream = io.BytesIO(call)
    try:
        function = _load_function(stream)
        positional, named = pickle.load(stream)  # noqa: S301
    except ModuleNotFoundError as error:
        return _MISSING, [(error.name or "?").encode()]
    except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
        return _fault(TypeError(f"the call cannot be rebuilt in a worker: {_words(error, repr)}"))
    try:
        result = function(*positional, **named)
    except BaseException as error:  # noqa: BLE001 - this is the border around a tool's body
        return _fault(error)
    out = _Outbox(max_result)
    try:
        out.add(result)
    except _TooBig:
        return _fault(ValueError(f"the result of {_name(function)} is larger than {max_result / 1e6:g} MB"))
    except BaseException as error:  # noqa: BLE001 - as above
        what = f"the result of {_name(function)}, a {type(result).__name__},"
        return _fault(TypeError(f"{what} cannot be sent back from a worker: {_words(error)}"))
    return _RESULT, out.pieces


def _load_function(stream: io.BytesIO) -> Callable[..., Any]:
    directory, path = pickle.load(stream)  # noqa: S301
    if directory is not None:
        with suppress(OSError):
            os.chdir(directory)
    if path is not None:
        sys.path[:] = path
        invalidate_caches()
    reference = pickle.load(stream)  # noqa: S301
    if reference is None:
        return pickle.load(stream)  # noqa: S301
    module, attributes = reference
    try:
        return reduce(getattr, attributes.split("."), import_module(module))
    except BaseException as error:  # importing runs code
        raise ModuleNotFoundError(_words(error), name=module) from error


def _fault(error: BaseException) -> tuple[bytes, list[bytes]]:
    """An error as bytes: its words, which always arrive, then itself, where it can be pickled."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        error = RuntimeError(
            f"the function raised {_words(error, repr)}"
        )  # the parent's loop would take it for its own
    out = _Outbox(_ERROR)
    out.add((type(error).__name__, _words(error)))
    count = len(out.pieces)
    try:
        error.add_note("In the worker:\n" + "".join(traceback.format_exception(error))[-_WORDS:])
        out.add(error)
    except BaseException:  # noqa: BLE001 - as above
        del out.pieces[count:]
    return _FAULT, out.pieces
