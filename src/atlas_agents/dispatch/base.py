"""The dispatcher of one machine: a run is a task of the process that took it in, and of nobody else."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from atlas_agents.core.errors import NotFound
from atlas_agents.core.events import Event
from atlas_agents.core.store import RunRow

Hear: TypeAlias = Callable[[Event], None]
"""Is called with all that a run says."""


class RunningTurn(Protocol):
    """A run that is run in this process."""

    @property
    def epoch(self) -> int | None:
        """Under which it is run here, once it has begun."""
        ...

    def cancel(self) -> None:
        """Have it stopped; it ends by itself, and says so."""
        ...

    async def over(self) -> None:
        """Wait until it is over here, however it ended."""
        ...


class RunExecutor(Protocol):
    """What a dispatcher can have done in its own process."""

    @property
    def tenant(self) -> str: ...

    async def open_runs(self) -> list[RunRow]:
        """All that were taken in and have not ended, whoever is at them."""
        ...

    async def run_row(self, run_id: str) -> RunRow | None: ...

    async def take_on(self, row: RunRow) -> RunningTurn | None:
        """Go on with a run, from wherever it is. None if it cannot be, and was ended, or is run here already."""
        ...

    def turn(self, run_id: str) -> RunningTurn | None:
        """The run, if it is run here."""
        ...

    async def want_stop(self, run_id: str) -> bool:
        """Write down that a run is to be stopped; False if it has ended, or there is none."""
        ...

    async def answered(self, approval_id: str) -> None:
        """A question has its answer in the store: whoever waits for it here is to hear it."""
        ...

    async def job_changed(self, job_id: str) -> None:
        """Somebody has added, begun or ended a job."""
        ...

    async def jobs_begin(self) -> None:
        """See to the jobs of the tenant, and to its schedules, from now on: nobody else does."""
        ...

    async def jobs_end(self) -> None:
        """See to them no more: somebody else will."""
        ...

    async def look_again(self) -> None:
        """News may have been missed: look at all that is under way here."""
        ...


class Dispatcher(Protocol):
    """One per house, which it serves."""

    @property
    def apart(self) -> bool:
        """Whoever takes a message in leaves the run to others: it is submitted, and may be run by any process. What a
        process remembers of a session is not sure to be the last then."""
        ...

    def serve(self, house: RunExecutor) -> None: ...

    async def submit(self, row: RunRow, hear: Hear) -> RunRow:
        """Have a run run that was taken in, and give its row once it is over. `hear` is told what it says."""
        ...

    async def cancel(self, run_id: str) -> bool:
        """Have a run stopped, wherever it is run; False if there is nothing to stop."""
        ...

    async def wake(self, approval_id: str) -> None:
        """A question was answered: the run that waits for it goes on, wherever it waits."""
        ...

    async def recover(self) -> list[str]:
        """Have every open run run that nobody is at, and say which these are."""
        ...


class Inline:
    """Needs no server. Whoever takes a message in goes on with its run itself, so `submit` is for those that an earlier
    life of the process has left."""

    apart = False
    _house: RunExecutor

    def serve(self, house: RunExecutor) -> None:
        self._house = house

    async def submit(self, row: RunRow, hear: Hear) -> RunRow:
        """What it says is heard where it is taken on."""
        turn = self._house.turn(row.id) or await self._house.take_on(row)
        if turn is not None:
            await turn.over()
        found = await self._house.run_row(row.id)
        if found is None:
            raise NotFound(f"there is no run {row.id!r} any more")
        return found

    async def cancel(self, run_id: str) -> bool:
        turn = self._house.turn(run_id)
        if turn is not None:
            turn.cancel()
        return turn is not None

    async def wake(self, approval_id: str) -> None:
        await self._house.answered(approval_id)

    async def recover(self) -> list[str]:
        """Once, at the start: nobody else may be at work on these runs."""
        rows = [row for row in await self._house.open_runs() if row.tenant == self._house.tenant]
        return [row.id for row in rows if await self._house.take_on(row) is not None]
