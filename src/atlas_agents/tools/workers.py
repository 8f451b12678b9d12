"""Plain functions run in processes of their own, kept warm, which can be killed at any moment: the pool of these.

`worker_link` is one of them seen from here, `worker_process` what runs there, `worker_codec` what passes between.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from atlas_agents.core.calling import in_thread
from atlas_agents.tools.worker_codec import MISSING, SMALL, Frame, here, name_of, pack, pack_at_once, unpack_answer
from atlas_agents.tools.worker_link import Worker
from atlas_agents.tools.worker_process import report

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
        self._all: set[Worker] = set()
        self._idle: list[Worker] = []
        self._waiting: deque[asyncio.Future[Worker]] = deque()

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

    async def _take(self) -> Worker:
        if self._idle:
            return self._idle.pop()
        if self.closed:
            raise WorkerDied(_CLOSED)
        place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._grow()
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:
                self._give(place.result())
            raise

    def _give(self, worker: Worker) -> None:
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
                worker = Worker(self._max_result)
            except (OSError, RuntimeError) as error:  # no descriptors or no threads are left
                self._give_up(f"could not be started: {error}")
                return
            self._all.add(worker)
            worker.end.add_done_callback(lambda _, worker=worker: self._forget(worker))
            worker.opening = asyncio.create_task(self._open(worker))

    async def _open(self, worker: Worker) -> None:
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

    def _forget(self, worker: Worker) -> None:
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
