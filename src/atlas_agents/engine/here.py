"""What a dispatcher can have done in this process: runs taken on, stopped and woken, jobs seen to."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.store import RunRow, StopRun
from atlas_agents.engine.house import House
from atlas_agents.engine.jobs import Jobs
from atlas_agents.engine.stream import AtlasStream

TakeOn: TypeAlias = Callable[[RunRow], Awaitable[AtlasStream | None]]


class Here:
    """An Atlas as its dispatcher sees it; `live` are the turns that it runs itself."""

    def __init__(
        self, house: House, live: Mapping[str, AtlasStream], take_on: TakeOn, jobs: Callable[[], Jobs | None]
    ) -> None:
        self._house = house
        self._live = live
        self._take_on = take_on
        self._jobs = jobs

    @property
    def tenant(self) -> str:
        return self._house.tenant

    async def open_runs(self) -> list[RunRow]:
        return await self._house.store.open_runs() if self._house.store is not None else []

    async def run_row(self, run_id: str) -> RunRow | None:
        return await self._house.store.run(self.tenant, run_id) if self._house.store is not None else None

    async def take_on(self, row: RunRow) -> AtlasStream | None:
        return await self._take_on(row)

    def turn(self, run_id: str) -> AtlasStream | None:
        return self._live.get(run_id)

    async def want_stop(self, run_id: str) -> bool:
        if self._house.store is None:
            return False
        try:
            await self._house.store.commit(self.tenant, [StopRun(run_id)])
        except (Conflict, NotStored):
            return False
        return True

    async def answered(self, approval_id: str) -> None:
        await self._house.answered(approval_id)

    async def job_changed(self, job_id: str) -> None:
        if (jobs := self._jobs()) is not None:
            await jobs.changed(job_id)

    async def jobs_begin(self) -> None:
        if (jobs := self._jobs()) is not None:
            jobs.start()

    async def jobs_end(self) -> None:
        if (jobs := self._jobs()) is not None:
            await jobs.close()

    async def look_again(self) -> None:
        for run_id, stream in list(self._live.items()):
            row = await self.run_row(run_id)
            if row is not None and row.stop:
                stream.cancel()
        for question in self._house.governance.approvals.pending:
            await self.answered(question.id)
        if (jobs := self._jobs()) is not None:
            jobs.wake()
