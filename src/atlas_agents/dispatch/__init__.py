"""Dispatchers: decide which process executes an accepted run, and reassign the runs of processes that died."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from atlas_agents.core.errors import NotFound, StoreError
from atlas_agents.core.events import Event
from atlas_agents.core.store import RunRow

OnEvent: TypeAlias = Callable[[Event], None]
"""Receives every event of a run."""


class RunningTurn(Protocol):
    """A run that executes in this process."""

    @property
    def epoch(self) -> int | None:
        """The owner epoch under which the run executes here, once it has started."""
        ...

    def cancel(self) -> None:
        """Request cancellation; the run ends and reports that itself."""
        ...

    async def wait_ended(self) -> None:
        """Wait until the run has ended here, whatever its outcome."""
        ...


class RunExecutor(Protocol):
    """Port: operations of a dispatcher's own process."""

    @property
    def tenant(self) -> str: ...

    async def orphaned_runs(self) -> list[RunRow]:
        """Return all accepted runs that have not ended; raises StoreInUse if another process may be executing them."""
        ...

    async def run_row(self, run_id: str) -> RunRow | None: ...

    async def resume_run(self, row: RunRow) -> RunningTurn | None:
        """Resume a run from its last recorded step; None if it already runs here or was ended because it cannot."""
        ...

    def running_turn(self, run_id: str) -> RunningTurn | None:
        """Return the run if it executes here."""
        ...

    async def request_stop(self, run_id: str) -> bool:
        """Record the request to stop a run; False if it has ended or does not exist."""
        ...

    async def deliver_answer(self, approval_id: str) -> None:
        """Deliver an approval answer from the store to the run that waits for it here."""
        ...

    async def refresh_job(self, job_id: str) -> None:
        """Handle a job that was added, started or ended by another process."""
        ...

    async def start_jobs(self) -> None:
        """Start processing the tenant's jobs and schedules; this process is now the only one that does."""
        ...

    async def stop_jobs(self) -> None:
        """Stop processing jobs and schedules; another process takes over."""
        ...

    async def recheck(self) -> None:
        """Re-read the state of everything that runs here: notifications may have been lost."""
        ...


class Dispatcher(Protocol):
    """Dispatcher port; one per runtime."""

    @property
    def is_remote(self) -> bool:
        """Whether accepted runs may execute in other processes. A process's own view of a session may then be stale."""
        ...

    def serve(self, executor: RunExecutor) -> None:
        """Set the executor of this process; called once, before any other method."""
        ...

    async def submit(self, row: RunRow, on_event: OnEvent) -> RunRow:
        """Run an accepted run to completion and return its final row. `on_event` receives its events."""
        ...

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run, wherever it executes; False if there is nothing to cancel."""
        ...

    async def wake(self, approval_id: str) -> None:
        """Resume the run that waits for an answered approval, in whichever process it waits."""
        ...

    async def recover(self) -> list[str]:
        """Resume every open run without an owner and return their ids; none where a leader does this all the time."""
        ...


class Inline:
    """Dispatcher for a single process, without a server. The process that accepts a message executes its run, so
    `submit` only handles runs that were left over from before a restart."""

    is_remote = False
    _executor: RunExecutor

    def serve(self, executor: RunExecutor) -> None:
        self._executor = executor

    async def submit(self, row: RunRow, on_event: OnEvent) -> RunRow:
        """Resume the run; its events are emitted where it was resumed."""
        turn = self._executor.running_turn(row.id) or await self._executor.resume_run(row)
        if turn is not None:
            await turn.wait_ended()
        found = await self._executor.run_row(row.id)
        if found is None:
            raise NotFound(f"not found: run {row.id!r}")
        return found

    async def cancel(self, run_id: str) -> bool:
        turn = self._executor.running_turn(run_id)
        if turn is not None:
            turn.cancel()
        return turn is not None

    async def wake(self, approval_id: str) -> None:
        await self._executor.deliver_answer(approval_id)

    async def recover(self) -> list[str]:
        """Resume open runs once at startup; raises StoreInUse while another process may execute them."""
        resumed: list[str] = []
        for listed in await self._executor.orphaned_runs():
            if listed.tenant != self._executor.tenant or self._executor.running_turn(listed.id) is not None:
                continue
            try:
                row = await self._executor.run_row(listed.id)  # it may have ended here since it was listed
            except StoreError:  # an ended run cannot be claimed; failing here would lose the streams of the others
                row = listed
            if row is not None and row.ended_at is None and await self._executor.resume_run(row) is not None:
                resumed.append(row.id)
        return resumed
