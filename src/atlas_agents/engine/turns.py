"""The turns of an Atlas: begun here, left to others, taken on again, stopped."""

import asyncio
import weakref
from typing import Any, cast

import msgspec

from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import Cancelled, Conflict, failure_of
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message
from atlas_agents.core.store import OPEN, AddJournal, ClaimRun, RunRow, SetRun, Store
from atlas_agents.dispatch.port import Dispatcher, Hear
from atlas_agents.engine.here import Here
from atlas_agents.engine.house import House
from atlas_agents.engine.intake import mode_of, nobody_hears, terms_of
from atlas_agents.engine.jobs import Jobs
from atlas_agents.engine.loop import run_turn, take_in
from atlas_agents.engine.roster import Roster
from atlas_agents.engine.run import Accepted, Known, Run, Terms
from atlas_agents.engine.shelf import Shelf
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.tools.ending import Ended, ended_as
from atlas_agents.tools.errand import errand_of
from atlas_agents.tools.journal import Journal, in_step

_PAGE = 50


class Turns:
    """Those that are under way in this process, or were taken in here and are run elsewhere."""

    def __init__(self, house: House, roster: Roster, shelf: Shelf, dispatcher: Dispatcher) -> None:
        self._house = house
        self._roster = roster
        self._shelf = shelf
        self._dispatcher = dispatcher
        self.jobs: Jobs | None = None
        self._live: dict[str, AtlasStream] = {}
        self._far: dict[str, AtlasStream] = {}
        """Of turns that were taken in here and are left to whoever is free."""
        self._running: set[asyncio.Task[None]] = set()
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._stopping = False
        dispatcher.serve(Here(house, self._live, self.take_on, lambda: self.jobs))

    @property
    def _store(self) -> Store:
        return cast(Store, self._house.store)

    def open(
        self,
        session: str | Conversation,
        agent_id: str | None,
        *,
        output: Any = None,
        stream: AtlasStream | None = None,
        max_rounds: int | None = None,
        user: str = "",
        terms: Terms | None = None,
    ) -> Run:
        """A turn that can be taken, or started; nothing has happened yet."""
        agent = self._roster.chosen(agent_id)
        wishes = terms.wishes if terms else None
        run = self._house.open_run(
            agent,
            wishes.within(agent.settings) if wishes else agent.settings,
            agent.context,
            self._shelf.take(session) if isinstance(session, str) else session,
            sink=stream.push if stream else None,
            id=stream.stream_id if stream else None,
            output=output,
            max_rounds=max_rounds,
            user=user,
            kept=isinstance(session, str),
            terms=terms,
        )
        self._runs.add(run)
        return run

    def start(self, stream: AtlasStream, run: Run, message: Message | None) -> AtlasStream:
        """Have it taken by a task of its own; its stream tells of it. One that interrupts stops those before it."""
        far = self._is_far(run)
        streams = self._far if far else self._live
        task = stream.start(run, self.take(run, message, stream))
        if run.terms.when_busy == "interrupt" and not far:
            stream.interrupt([other for other in self._live.values() if other.session == run.conversation.id])
        self._see_to(task)
        streams[run.id] = stream
        task.add_done_callback(lambda _: streams.pop(run.id, None))
        return stream

    def stream(self, run_id: str) -> AtlasStream | None:
        return self._far.get(run_id) or self._live.get(run_id)

    async def follow(self, run_id: str) -> AtlasStream | None:
        """The stream of a turn that is under way, wherever it was taken in and is run; None if there is none."""
        stream = self.stream(run_id)
        if stream is not None or not self._dispatcher.apart:
            return stream
        row = await self._store.run(self._house.tenant, run_id)
        if row is None or row.status not in OPEN:
            return None
        stream = AtlasStream(run_id)
        self._see_to(stream.listen(self._told(row, stream.push)))
        return stream

    async def _told(self, row: RunRow, hear: Hear) -> Message:
        """What comes of a turn elsewhere. To give up waiting here stops it, unless it is this process that ends."""
        try:
            return await self._outcome(await self._dispatcher.submit(row, hear))
        except asyncio.CancelledError:
            if not self._stopping:
                await asyncio.shield(self._dispatcher.cancel(row.id))
            raise

    def _see_to(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def take(self, run: Run, message: Message | None, stream: AtlasStream | None = None) -> Message:
        """Take the turn, or have it taken, and give its answer."""
        try:
            if self._is_far(run):
                return await self._leave_to_others(run, message, stream)
            if run.desk.journal is not None and not run.goes_on and not in_step(run.conversation):
                async with run.line.door:
                    await self._take_on_orphans(run.conversation.id)
            return await run_turn(run, message, mode_of(run))
        except Known as known:
            return await self._again(known.row, cast(AtlasStream, stream))
        finally:
            await self._house.listeners.catch_up()

    async def recover(self) -> list[AtlasStream]:
        """Go on with those that nobody is at."""
        ids = await self._dispatcher.recover()
        return [stream for id in ids if (stream := self._live.get(id))]

    async def take_on(self, row: RunRow) -> AtlasStream | None:
        """Go on with a turn that was taken in, here or elsewhere, before. None if it is under way here already, or its
        agent is gone: then it has failed."""
        to_stop = row.stop or (self.jobs is not None and await self.jobs.is_over(row))
        if row.id in self._live:
            return None
        if row.agent_id not in self._roster:
            await self._end(row, f"there is no agent {row.agent_id!r} any more")
            return None
        stream, errand = AtlasStream(row.id), errand_of(row)
        output, terms = msgspec.json.decode(errand.output), terms_of(errand, row)
        run = self.open(row.session, row.agent_id, output=output, stream=stream, user=row.user, terms=terms)
        self.start(stream, run, None)
        if to_stop:
            stream.cancel()
        return stream

    async def stop(self, grace: float) -> None:
        """Give those under way so many seconds to end, and leave the others for whoever takes them on."""
        if grace and self._running:
            await asyncio.wait(self._running, timeout=grace)
        self._stopping = True
        for run in self._runs:
            if run.desk.journal is not None:
                run.desk.journal.leave()
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _is_far(self, run: Run) -> bool:
        """It is taken in here, and then left to whoever is free."""
        return self._dispatcher.apart and run.desk.journal is not None and not run.goes_on

    async def _end(self, row: RunRow, error: str) -> None:
        epoch = row.epoch + 1
        ended = AddJournal(row.id, epoch, "ended", "", encode(Ended("failed", error)))
        await self._store.commit(row.tenant, [ClaimRun(row.id), ended, SetRun(row.id, epoch, "failed", error)])

    async def _take_on_orphans(self, session: str) -> None:
        """The first time that this process has to do with a session: what was left open there goes first."""
        for row in await self._store.runs(self._house.tenant, session, open_only=True):
            await self.take_on(row)
        await asyncio.sleep(0)  # they take their places in the line

    async def _leave_to_others(self, run: Run, message: Message | None, stream: AtlasStream | None) -> Message:
        """Take a message in, have whoever is free run its turn, and give what came of it."""
        await take_in(run, message)
        row = cast(RunRow, cast(Journal, run.desk.journal).row)
        if run.terms.when_busy == "interrupt":
            await self._interrupt(row)
        reply = await self._told(row, stream.push if stream else nobody_hears)
        if run.output:
            run.value = run.output.read(reply.text)
        return reply

    async def _interrupt(self, row: RunRow) -> None:
        """Stop what was taken in before."""
        for other in await self._store.runs(row.tenant, row.session, open_only=True):
            if other.id == row.id:
                return
            await self._dispatcher.cancel(other.id)

    async def _again(self, row: RunRow, stream: AtlasStream) -> Message:
        """The answer of a turn that was accepted before."""
        live = self.stream(row.id)
        stream.known_as(Accepted(row.id, "in_flight" if row.status in OPEN else "done"))
        if live is not None:
            return await stream.echo(live)
        if row.status in OPEN and self._dispatcher.apart:
            return await self._told(row, stream.push)
        if row.status in OPEN:
            raise Conflict(f"run {row.id!r} is under way in another process")
        return await self._outcome(row)

    async def _outcome(self, row: RunRow) -> Message:
        """The answer of a turn that has ended, or what it came to instead."""
        if row.status == "cancelled":
            raise Cancelled("the turn was cancelled")
        reply = await self._last_word(row) if row.status != "failed" else None
        if reply is None:
            ended = await ended_as(self._store, row)
            raise failure_of(ended.kind if ended else "", row.error or "the turn failed")
        return reply

    async def _last_word(self, row: RunRow) -> Message | None:
        """What the turn said last. It is looked for from the end: a session may be long."""
        speaker, before = "tool" if errand_of(row).call else "assistant", None
        while rows := await self._store.messages(row.tenant, row.session, before=before, limit=_PAGE, last=True):
            for message in (Message.from_json(each.body) for each in reversed(rows) if each.run_id == row.id):
                if message.role == speaker:
                    return message
            before = rows[0].seq
        return None
