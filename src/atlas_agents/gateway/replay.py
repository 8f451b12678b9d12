"""Feeding one listener what it missed of a run, as fast as it reads, until it is up to date."""

from atlas_agents.core.store import Store
from atlas_agents.gateway.channel import Channel, Listener
from atlas_agents.gateway.protocol.events import name_of
from atlas_agents.gateway.runlog import Entry, RunLog

_PAGE = 256


class Replay:
    """From a number on: out of the store, then out of memory, and then live, without a gap and without a repeat."""

    def __init__(
        self, store: Store, tenant: str, channel: Channel, listener: Listener, run_id: str, after: int
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._channel = channel
        self._listener = listener
        self._run_id = run_id
        self._seq = after
        channel.behind[listener, run_id] = self

    async def run(self, log: RunLog | None) -> None:
        """`log` is the run's, if it is under way here."""
        try:
            while self._wanted:
                entries = log.after(self._seq) if log is not None else None
                if entries is None:
                    entries = await self._written(log)
                    if not entries and log is None:
                        return
                elif not entries:
                    return  # up to date: from this very tick on it hears the run live
                if not await self._send(entries):
                    return
        finally:
            if self._wanted:
                del self._channel.behind[self._listener, self._run_id]

    @property
    def _wanted(self) -> bool:
        """Nobody has asked for another replay of the same run since, or gone away."""
        return self._channel.behind.get((self._listener, self._run_id)) is self

    async def _written(self, log: RunLog | None) -> list[Entry]:
        """The next ones out of the store. What is on the disk there and was not told yet will be told live."""
        first = log.first if log is not None else 0
        rows = await self._store.events(self._tenant, self._run_id, after=self._seq, limit=_PAGE)
        last = log.told if log is not None else rows[-1].seq if rows else 0
        entries = [Entry(row.seq, name_of(row.body), row.body) for row in rows if row.seq <= last]
        if not entries and log is not None:  # up to what is at hand nothing was said, or it was lost with its process
            self._seq = max(self._seq, first - 1)
        return entries

    async def _send(self, entries: list[Entry]) -> bool:
        for entry in entries:
            frame = self._channel.frame(entry, self._listener)
            if frame is not None and not (await self._listener.room() and self._wanted and self._listener.put(frame)):
                return False
            self._seq = entry.seq
        return True
