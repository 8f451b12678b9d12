"""A thread that does one kind of work, all that waits at a time, and reports back to the loops that asked."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from atlas_agents.core.errors import StoreError

J = TypeVar("J")


class Ticket(Generic[J]):
    """A job that somebody waits for, and what became of it."""

    __slots__ = ("error", "future", "job", "loop", "result")

    def __init__(self, job: J, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Tell who waits, on the loop that waits; who was cancelled does not."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Lane(Generic[J]):
    """`work` is called on the thread with all tickets that wait; it must settle each and may not raise."""

    def __init__(self, name: str, work: Callable[[Sequence[Ticket[J]]], None], *, at_most: int = 256) -> None:
        self._work = work
        self._at_most = at_most
        self._waiting: deque[Ticket[J]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def do(self, job: J) -> Any:
        """Wait for the job's turn. Cancelling stops the waiting; the work itself may still be done."""
        return await self._put(job, last=False)

    async def close(self, last: J) -> None:
        """Take nothing more; what waits is still done, then `last`, then the thread ends."""
        await asyncio.shield(self._put(last, last=True))

    def _put(self, job: J, *, last: bool) -> asyncio.Future[Any]:
        ticket = Ticket(job, asyncio.get_running_loop())
        with self._wake:
            if self._closing:
                raise StoreError("the store is closed")
            self._closing = last
            self._waiting.append(ticket)
            self._wake.notify()
        return ticket.future

    def _loop(self) -> None:
        while tickets := self._take():
            try:
                self._work(tickets)
            except BaseException as error:  # noqa: BLE001  whoever waits must hear of it, and the lane goes on
                for ticket in tickets:
                    ticket.error = ticket.error or error
            _report(tickets)
            del tickets

    def _take(self) -> list[Ticket[J]]:
        """All that waits; nothing once closed and done."""
        with self._wake:
            while not self._waiting and not self._closing:
                self._wake.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._at_most))]


def _report(tickets: Sequence[Ticket[Any]]) -> None:
    for loop in {ticket.loop for ticket in tickets}:
        mine = [ticket for ticket in tickets if ticket.loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue


def _settle(tickets: Sequence[Ticket[Any]]) -> None:
    for ticket in tickets:
        ticket.settle()
