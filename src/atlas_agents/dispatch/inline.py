"""The dispatcher of one machine: a run is a task of the process that took it in, and of nobody else."""

from atlas_agents.core.errors import NotStored
from atlas_agents.core.store import RunRow
from atlas_agents.dispatch.port import Hear, House


class Inline:
    """Needs no server. Whoever takes a message in goes on with its run itself, so `submit` is for those that an earlier
    life of the process has left."""

    apart = False
    _house: House

    def serve(self, house: House) -> None:
        self._house = house

    async def submit(self, row: RunRow, hear: Hear) -> RunRow:
        """What it says is heard where it is taken on."""
        turn = self._house.turn(row.id) or await self._house.take_on(row)
        if turn is not None:
            await turn.over()
        found = await self._house.run_row(row.id)
        if found is None:
            raise NotStored(f"there is no run {row.id!r} any more")
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
