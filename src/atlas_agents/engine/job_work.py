"""One job at a time: its turn, what it came to, and telling whoever asked."""

import logging
from collections.abc import Callable
from typing import Protocol

from atlas_agents.core.errors import (
    AtlasError,
    BadOutput,
    BrokenHistory,
    Cancelled,
    ConfigError,
    Conflict,
    Fenced,
    PlanSpent,
    PoisonedRun,
    ProviderError,
    Refused,
    StoreError,
)
from atlas_agents.core.jobs import OPEN_JOB, Chain, ClaimJob, JobRow, JobState, SetJob, TellJob
from atlas_agents.core.messages import Message
from atlas_agents.core.office import Office
from atlas_agents.core.store import OPEN, PutSession
from atlas_agents.engine.job_words import answer_of, task_of
from atlas_agents.engine.stream import AtlasStream

logger = logging.getLogger(__name__)
_LABEL = 60
_LAST = 50
_FINAL = (ConfigError, Refused, BadOutput, BrokenHistory, PlanSpent)
"""What another attempt would not change."""


class Turns(Protocol):
    """Whoever takes turns: an Atlas."""

    @property
    def tenant(self) -> str: ...

    def hide(self, text: str) -> str: ...

    async def cancel(self, run_id: str) -> bool: ...

    def send(
        self, message: Message, *, session: str, agent_id: str, user: str, idempotency_key: str, chain: Chain
    ) -> AtlasStream: ...


class Work:
    """Does jobs and tells of them. Whatever it finds done already, by its name, it does not do again."""

    def __init__(
        self, turns: Turns, office: Office, changed: Callable[[JobRow], None], wake: Callable[[], None]
    ) -> None:
        self._turns = turns
        self._store = office.store
        self._clock = office.clock
        self._pauses = office.delegation.pauses
        self._changed = changed
        self._wake = wake
        self._held: dict[str, JobRow] = {}
        self.on_turn: Callable[[AtlasStream, str], object] = _nobody
        """Called with the stream of a turn that is new here, and the agent that takes it."""

    @property
    def _tenant(self) -> str:
        return self._turns.tenant

    def holds(self, id: str) -> bool:
        """It waits for others."""
        return id in self._held

    async def do(self, row: JobRow) -> bool:
        """Take a job as far as it goes now: to its end, back into the queue, or to where it waits for others. False if
        it is as it was, and must wait."""
        try:
            if await self._is_orphan(row):
                await self.end(row, "cancelled", f"the job {row.parent}, which it was for, has ended")
                return True
            held, failure = self._held.pop(row.id, None), None
            if held is None or held.epoch != row.epoch:
                (held,) = await self._store.commit(self._tenant, [ClaimJob(row.id)])
                self._changed(held)
                failure = await self._turn(held)
            return await self._settle(held, failure)
        except (Fenced, Conflict):
            logger.info("the job %s was ended by somebody else, or another process is at it", row.id)
        except StoreError as trouble:
            logger.warning("the job %s waits until the store is back: %s", row.id, trouble)
        return False

    async def tell(self, job: JobRow) -> bool:
        """Tell whoever asked, once. Where there is nobody any more, nobody is told."""
        try:
            stream = await self._answer(job)
            await self._store.commit(self._tenant, [TellJob(job.id, job.attempts)])
            if stream is not None and job.parent:
                await _over(stream)
        except StoreError as trouble:
            logger.warning("what came of the job %s is told when the store is back: %s", job.id, trouble)
            return False
        return True

    async def end(self, job: JobRow, state: JobState, why: str) -> JobRow:
        """End a job from outside: its turns are stopped, and so is what was asked for in it. Conflict if it is over."""
        (ended,) = await self._store.commit(self._tenant, [SetJob(job.id, state, error=why)])
        self._changed(ended)
        await self._stop(ended)
        self._wake()
        return ended

    async def _is_orphan(self, job: JobRow) -> bool:
        parent = await self._store.job(self._tenant, job.parent) if job.parent else None
        return parent is not None and parent.state not in OPEN_JOB

    async def _turn(self, job: JobRow) -> Exception | None:
        """Let the agent take its turn; what went wrong, if something did. A turn that was taken before is not taken
        again. StoreError where nothing can be said of it yet."""
        line = " ".join(job.task.split())
        label = line if len(line) <= _LABEL else f"{line[: _LABEL - 1]}…"
        try:
            await self._store.commit(
                self._tenant, [PutSession(job.session, job.agent_id, label, metadata={"job": job.id})]
            )
            stream = self._turns.send(
                task_of(job),
                session=job.session,
                agent_id=job.agent_id,
                user=job.user,
                idempotency_key=f"job {job.id} {job.attempts}",
                chain=Chain(job.root, job.chain, job.id, job.deadline, job.priority),
            )
            await self._take(stream, job.agent_id)
            await stream.reply()
        except StoreError:
            raise
        except Exception as failure:  # noqa: BLE001 - whatever a turn raises ends its job, not the others
            return failure
        return None

    async def _take(self, stream: AtlasStream, agent_id: str) -> None:
        accepted = await stream.accepted()
        if accepted.status in ("started", "queued"):
            self.on_turn(stream, agent_id)

    async def _settle(self, job: JobRow, failure: Exception | None) -> bool:
        text = ""
        if failure is None:
            if await self._waits(job):
                self._held[job.id] = job
                return False
            failure, text = await self._last_word(job)
        end = self._failed(job, failure) if failure else SetJob(job.id, "done", job.epoch, self._turns.hide(text))
        (ended,) = await self._store.commit(self._tenant, [end])
        self._changed(ended)
        if ended.state not in OPEN_JOB:
            await self._stop(ended)
        return True

    async def _waits(self, job: JobRow) -> bool:
        """For jobs that it gave out itself, or for its own turn with their answers."""
        children = await self._store.jobs_under(self._tenant, job.id)
        if any(child.state in OPEN_JOB or not child.told for child in children):
            return True
        return bool(await self._store.runs(self._tenant, job.session, open_only=True))

    async def _last_word(self, job: JobRow) -> tuple[Exception | None, str]:
        """How the last turn of its session ended, and what was said last in it."""
        last = (await self._store.runs(self._tenant, job.session))[-1]
        if last.status in OPEN or last.status == "failed":
            return AtlasError(last.error or "the turn failed"), ""
        if last.status == "cancelled":
            return Cancelled("the turn was cancelled"), ""
        rows = await self._store.messages(self._tenant, job.session, limit=_LAST, last=True)
        said = [Message.from_json(row.body) for row in rows if row.run_id == last.id]
        return None, next((each.text for each in reversed(said) if each.role == "assistant"), "")

    def _failed(self, job: JobRow, failure: Exception) -> SetJob:
        """What becomes of it: another attempt later, if one may help and there is one left."""
        words = self._turns.hide(str(failure) or type(failure).__name__)
        if isinstance(failure, Cancelled):
            return SetJob(job.id, "cancelled", job.epoch, error="its turn was stopped")
        if isinstance(failure, _FINAL) or (isinstance(failure, ProviderError) and not failure.failover):
            return SetJob(job.id, "failed", job.epoch, error=words)
        if isinstance(failure, PoisonedRun) or job.attempts >= job.allowed:
            return SetJob(job.id, "dead", job.epoch, error=words)
        pause = self._pauses[min(job.attempts, len(self._pauses)) - 1]
        return SetJob(job.id, "queued", job.epoch, error=words, due_at=int((self._clock.time() + pause) * 1000))

    async def _answer(self, job: JobRow) -> AtlasStream | None:
        """The turn in which whoever asked hears of it; None if nobody is there to hear."""
        parent = await self._store.job(self._tenant, job.parent) if job.parent else None
        if parent is not None and parent.state not in OPEN_JOB:
            return None
        if await self._store.session(self._tenant, job.asker_session) is None:
            return None
        try:
            stream = self._turns.send(
                answer_of(job),
                session=job.asker_session,
                agent_id=job.asker_agent,
                user=job.user,
                idempotency_key=f"answer {job.id} {job.attempts}",
                chain=Chain(job.root, job.chain[:-1], job.parent, parent.deadline if parent else None, job.priority),
            )
            await self._take(stream, job.asker_agent)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - an agent that is gone, or an interceptor: it cannot be told
            logger.warning("%s cannot be told of the job %s: %s", job.asker_agent, job.id, error)
            return None
        return stream

    async def _stop(self, job: JobRow) -> None:
        """End its turns, and what was asked for in it."""
        self._held.pop(job.id, None)
        for run in await self._store.runs(self._tenant, job.session, open_only=True):
            await self._turns.cancel(run.id)
        for child in await self._store.jobs_under(self._tenant, job.id):
            if child.state in OPEN_JOB:
                await self.end(child, "cancelled", f"the job {job.id}, which it was for, has ended")


async def _over(stream: AtlasStream) -> None:
    """However it ends."""
    async for _ in stream:
        pass


def _nobody(stream: AtlasStream, agent_id: str) -> None:
    """Nobody listens."""
