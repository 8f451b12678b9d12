"""Jobs: tasks that agents delegate to each other or that schedules create, and the worker that runs them.

The turn of a job runs through the same loop as any other, in its own session. Every state change is committed to the
job's row first, so another process can continue after a crash.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import msgspec

from atlas_agents.agents.loop import RoundsExhausted
from atlas_agents.agents.options import DEFAULT_OPTIONS, TurnOptions
from atlas_agents.agents.run import decode_options, describe_answer
from atlas_agents.agents.schedules import Schedules
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core import errors, store
from atlas_agents.core.aio import Alarm, BackgroundTasks, notify
from atlas_agents.core.messages import UNTRUSTED, Message, user
from atlas_agents.core.telemetry import AGENT_ID, JOB_ATTEMPTS, JOB_ID, JOB_KIND, JOB_STATE, Span, job_traceparent
from atlas_agents.core.tenancy import TeamServices
from atlas_agents.tools.limits import Ticker

if TYPE_CHECKING:
    from atlas_agents.agents.atlas import Atlas

logger = logging.getLogger(__name__)
_MAX_LABEL = 60
_MAX_RESULT = 20_000
_MAX_TASK = 200
_PAGE = 50
_PERMANENT = (
    *(errors.ConfigError, errors.Refused, errors.BadOutput, errors.BrokenHistory, errors.QuotaExceeded),
    RoundsExhausted,
)
"""Error kinds for which a retry is pointless."""


class Jobs:
    """Job queue of an Atlas, `atlas.jobs`.

    `async with atlas.jobs.running():` runs jobs: when one is added, and at every tick.
    """

    def __init__(self, turns: "Atlas", services: TeamServices, ticker: Ticker) -> None:
        self._turns = turns
        self._services = services
        self._store = services.store
        self._ticker = ticker
        self._executor = JobExecutor(turns, services, self._publish, self.wake, self._publish_turn)
        self._changed: asyncio.Event | None = None
        self._background = BackgroundTasks("jobs")
        self._loop_task: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[bool]] = {}
        self._active: set[str] = set()
        self._deadlines: dict[str, Alarm] = {}
        self._last_states: dict[str, store.JobState] = {}
        self._waiters: dict[str, list[asyncio.Future[store.JobRow]]] = {}
        self._on_change: list[Callable[[store.JobRow], object]] = []
        self._on_turn: list[Callable[[AtlasStream, str], object]] = []
        self.schedules = Schedules(services.store, lambda: turns.tenant, services.clock, self.wake)
        """Recurring tasks."""
        services.on_new_work(self.wake)

    async def list(
        self, *, states: Sequence[store.JobState] = (), limit: int = 100, before: int | None = None
    ) -> "list[store.JobRow]":
        """Return jobs, newest first, optionally only those in some states; `before` is a `seq` to continue from."""
        return await self._store.jobs(self._turns.tenant, states=states, limit=limit, before=before)

    async def get(self, id: str) -> store.JobRow:
        """Return a job; raises NotFound if there is none."""
        job = await self._store.job(self._turns.tenant, id)
        if job is None:
            raise errors.NotFound(f"not found: job {id!r}")
        return job

    async def ended(self, id: str) -> store.JobRow:
        """Wait until a job has ended and return it; raises NotFound if there is none."""
        waiter: asyncio.Future[store.JobRow] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(id, []).append(waiter)
        job = await self.get(id)
        return job if job.state not in store.OPEN_JOB else await waiter

    async def add(self, job: store.JobRow) -> store.JobRow:
        """Add a job; if one with this id exists, return that one."""
        (added,) = await self._store.commit(self._turns.tenant, [store.AddJob(job)])
        self.wake()
        return added

    async def cancel(self, id: str, by: str = "") -> store.JobRow:
        """Cancel a job and the jobs it delegated, and notify the asker; raises Conflict if it has ended."""
        return await self._executor.end(await self.get(id), "cancelled", f"cancelled by {by}" if by else "cancelled")

    async def retry(self, id: str) -> store.JobRow:
        """Retry a job that failed, expired or was cancelled; raises Conflict if it is open or done."""
        (job,) = await self._store.commit(self._turns.tenant, [store.RetryJob(id)])
        self._publish(job)
        self.wake()
        return job

    def on_turn(self, callback: Callable[[AtlasStream, str], object]) -> None:
        """Call a function with the stream and the agent id of each turn that a job starts."""
        self._on_turn.append(callback)

    def on_change(self, callback: Callable[[store.JobRow], object]) -> None:
        """Call a function with each job that was added, started, requeued or ended."""
        self._on_change.append(callback)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        """Run jobs for the duration of the block. Call `atlas.recover()` before it.

        Raises StoreInUse if another process runs turns on the same SQLite file, since it may also run these jobs.
        """
        await self._store.orphaned_runs()
        self.start()
        try:
            yield self
        finally:
            await self.close()

    def start(self) -> None:
        """Run jobs until `close`."""
        if self._loop_task is None:
            self._changed = asyncio.Event()
            self._loop_task = self._background.spawn(self._run_loop(self._changed))

    async def close(self) -> None:
        """Stop running jobs. Their turns are not touched; results are collected at the next start."""
        loop_task, self._loop_task = self._loop_task, None
        if loop_task is None:
            return
        self._ticker.unschedule(self._tick)
        tasks: list[asyncio.Task[Any]] = [loop_task, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for deadline in self._deadlines.values():
            deadline.cancel()
        self._deadlines.clear()

    def wake(self) -> None:
        """Internal: check for jobs to run now."""
        if self._changed is not None:
            self._changed.set()

    async def refresh(self, id: str) -> None:
        """Internal: read a job that another process may have changed, and notify subscribers and waiters."""
        self.wake()
        job = await self._store.job(self._turns.tenant, id)
        if job is not None:
            self._publish(job)

    async def is_obsolete(self, row: store.RunRow) -> bool:
        """Internal: return whether a run belongs to a job that has ended meanwhile."""
        id = decode_options(row).chain.job
        job = await self._store.job(row.tenant, id) if id else None
        return bool(id) and (job is None or job.state not in store.OPEN_JOB)

    def _tick(self) -> None:
        self._ticker.schedule(self._tick)
        self.wake()

    async def _run_loop(self, changed: asyncio.Event) -> None:
        self._ticker.schedule(self._tick)
        while True:
            changed.clear()
            try:
                await self.schedules.add_due_jobs()
                await self._start_pending()
            except errors.StoreError as error:
                logger.warning("store unavailable, jobs are delayed: error=%s", error)
            if not self._is_running:  # before Python 3.12, `wait_for` in a driver may lose the cancellation
                return
            await changed.wait()

    @property
    def _is_running(self) -> bool:
        return self._loop_task is not None

    async def _start_pending(self) -> None:
        now = int(self._services.clock.time() * 1000)
        busy = set(self._tasks)  # their rows may be outdated when they have been read
        for job in await self._store.pending_jobs(self._turns.tenant, now):
            if job.state in store.OPEN_JOB and job.deadline is not None and job.deadline <= now:
                await self._expire(job)
            elif job.id in busy or job.id in self._tasks:
                continue
            elif job.state not in store.OPEN_JOB:
                self._spawn(job, self._executor.notify_asker(job))
            elif self._executor.is_waiting(job.id):
                self._spawn(job, self._executor.run(job))
            elif len(self._active) < self._services.delegation.at_once:
                self._active.add(job.id)
                self._spawn(job, self._executor.run(job))

    def _spawn(self, job: store.JobRow, work: Coroutine[Any, Any, bool]) -> None:
        if job.state in store.OPEN_JOB:
            self._publish(job)
        task = self._tasks[job.id] = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._on_done(job, task))
        if job.deadline is not None and job.id not in self._deadlines:
            left = job.deadline / 1000 - self._services.clock.time()
            self._deadlines[job.id] = self._services.clock.call_later(max(0.0, left), self.wake)

    def _on_done(self, job: store.JobRow, task: "asyncio.Task[bool]") -> None:
        """Check for more work after a job made progress; a job without progress waits for the next tick."""
        self._tasks.pop(job.id, None)
        freed_slot = job.id in self._active and self._executor.is_waiting(job.id)
        self._active.discard(job.id)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            logger.error("job task failed: job=%s", job.id, exc_info=error)
        elif freed_slot or task.result():
            self.wake()
        if not self._executor.is_waiting(job.id) and (deadline := self._deadlines.pop(job.id, None)) is not None:
            deadline.cancel()

    async def _expire(self, job: store.JobRow) -> None:
        try:
            await self._executor.end(job, "expired", "deadline exceeded")
        except errors.Conflict:
            logger.debug("job ended before its deadline: job=%s", job.id)

    def _publish(self, job: store.JobRow) -> None:
        """Notify subscribers of a state change, once, and waiters of the end."""
        if self._last_states.get(job.id) != job.state:
            self._last_states[job.id] = job.state
            for callback in self._on_change:
                notify(callback, job)
        if job.state not in store.OPEN_JOB:
            self._last_states.pop(job.id, None)
            for waiter in self._waiters.pop(job.id, ()):
                if not waiter.done():
                    waiter.set_result(job)

    def _publish_turn(self, stream: AtlasStream, agent_id: str) -> None:
        for callback in self._on_turn:
            notify(callback, stream, agent_id)


class JobExecutor:
    """Runs jobs and notifies their askers. Idempotency keys prevent repeated work."""

    def __init__(
        self,
        turns: "Atlas",
        services: TeamServices,
        on_change: Callable[[store.JobRow], None],
        wake: Callable[[], None],
        on_turn: Callable[[AtlasStream, str], None],
    ) -> None:
        self._turns = turns
        self._store = services.store
        self._clock = services.clock
        self._backoff = services.delegation.retry_delays
        self._on_change = on_change
        self._wake = wake
        self._on_turn = on_turn
        self._waiting: dict[str, store.JobRow] = {}

    @property
    def _tenant(self) -> str:
        return self._turns.tenant

    def is_waiting(self, id: str) -> bool:
        """Return whether a job waits for jobs that it delegated."""
        return id in self._waiting

    async def run(self, row: store.JobRow) -> bool:
        """Advance a job: to its end, back to the queue, or to waiting for delegated jobs. False if nothing changed."""
        try:
            if await self._parent_ended(row):
                await self.end(row, "cancelled", f"parent job {row.parent} has ended")
                return True
            claimed, failure = self._waiting.pop(row.id, None), None
            if claimed is None or claimed.epoch != row.epoch:
                (claimed,) = await self._store.commit(self._tenant, [store.ClaimJob(row.id)])
                self._on_change(claimed)
                failure = await self._run_turn(claimed)
            return await self._finish(claimed, failure)
        except (errors.StaleOwner, errors.Conflict):
            logger.info("job was ended or claimed by another process: job=%s", row.id)
        except errors.StoreError as error:
            logger.warning("store unavailable, job is delayed: job=%s error=%s", row.id, error)
        return False

    async def notify_asker(self, job: store.JobRow) -> bool:
        """Report the outcome of a job to its asker, once. Without an asker there is nothing to report."""
        try:
            stream = await self._report(job)
            await self._store.commit(self._tenant, [store.MarkJobNotified(job.id, job.attempts)])
            if stream is not None and job.parent:
                await stream.wait_ended()
        except errors.StoreError as error:
            logger.warning("store unavailable, the outcome is reported later: job=%s error=%s", job.id, error)
            return False
        return True

    async def end(self, job: store.JobRow, state: store.JobState, reason: str) -> store.JobRow:
        """End a job from outside, with its turns and the jobs it delegated; raises Conflict if it has ended."""
        (ended,) = await self._store.commit(self._tenant, [store.SetJob(job.id, state, error=reason)])
        self._record_end(ended)
        self._on_change(ended)
        await self._stop(ended)
        self._wake()
        return ended

    def _trace(self, job: store.JobRow) -> str | msgspec.UnsetType:
        """Return the trace context of the turns of a job: the span of the job, or only that of the asker."""
        if self._turns.telemetry.otel is None:
            return job.traceparent or msgspec.UNSET
        return job_traceparent(job.id, job.traceparent or self._start_span(job).traceparent)

    def _record_end(self, job: store.JobRow) -> None:
        """Record the whole job as a span, whichever processes worked on it."""
        span = self._start_span(job)
        if job.state != "done":
            span.fail(job.state)
        span.end((job.ended_at or job.created_at) / 1000)

    def _start_span(self, job: store.JobRow) -> Span:
        """Start the span of a job. Without one of the asker, it begins a trace, and the sampler decides about it."""
        named = {JOB_ID: job.id, JOB_KIND: job.kind, JOB_STATE: job.state, JOB_ATTEMPTS: job.attempts}
        seed = ("job", job.id)
        return self._turns.telemetry.start(
            f"run_job {job.agent_id}",
            {AGENT_ID: job.agent_id, **named},
            parent=job.traceparent,
            kind="CONSUMER",
            at=job.created_at / 1000,
            seed=seed,
            trace_seed=seed,
        )

    async def _parent_ended(self, job: store.JobRow) -> bool:
        parent = await self._store.job(self._tenant, job.parent) if job.parent else None
        return parent is not None and parent.state not in store.OPEN_JOB

    async def _run_turn(self, job: store.JobRow) -> Exception | None:
        """Run the turn of a job, unless it ran before, and return its error.

        Raises StoreError if the outcome is not known yet.
        """
        try:
            label = _shorten(job.task, _MAX_LABEL)
            await self._store.commit(
                self._tenant, [store.PutSession(job.session, job.agent_id, label, metadata={"job": job.id})]
            )
            options = TurnOptions(
                chain=store.Chain(job.root, job.chain, job.id, job.deadline, job.priority),
                idempotency_key=f"job {job.id} {job.attempts}",
                traceparent=self._trace(job),
            )
            stream = self._turns.start_turn(
                await self._marked(task_message(job), job.asker_session),
                options,
                session=job.session,
                agent_id=job.agent_id,
                user=job.user,
            )
            await self._publish_new_turn(stream, job.agent_id)
            await stream.reply()
        except errors.StoreError:
            raise
        except Exception as failure:  # noqa: BLE001 - whatever the turn raises ends this job, not the others
            return failure
        return None

    async def _publish_new_turn(self, stream: AtlasStream, agent_id: str) -> None:
        accepted = await stream.accepted()
        if accepted.status in ("started", "queued"):
            self._on_turn(stream, agent_id)

    async def _finish(self, job: store.JobRow, failure: Exception | None) -> bool:
        text = ""
        if failure is None:
            if await self._has_open_work(job):
                self._waiting[job.id] = job
                return False
            failure, text = await self._read_outcome(job)
        end = (
            self._retry_or_fail(job, failure, text)
            if failure
            else store.SetJob(job.id, "done", job.epoch, self._turns.hide(text))
        )
        (ended,) = await self._store.commit(self._tenant, [end])
        self._on_change(ended)
        if ended.state not in store.OPEN_JOB:
            self._record_end(ended)
            await self._stop(ended)
        return True

    async def _has_open_work(self, job: store.JobRow) -> bool:
        """Return whether delegated jobs are open or not reported, or turns of its session are unfinished."""
        children = await self._store.child_jobs(self._tenant, job.id)
        if any(child.state in store.OPEN_JOB or not child.notified for child in children):
            return True
        return bool(await self._store.runs(self._tenant, job.session, open_only=True))

    async def _read_outcome(self, job: store.JobRow) -> tuple[Exception | None, str]:
        """Return the error of the last turn in the job's session, or its last reply."""
        (last,) = await self._store.runs(self._tenant, job.session, last=1)
        if last.status in store.OPEN or last.status == "failed":
            return errors.AtlasError(last.error or "the turn failed"), ""
        if last.status == "cancelled":
            return errors.Cancelled("the turn was cancelled"), ""
        rows = await self._store.messages(self._tenant, job.session, limit=_PAGE, last=True)
        messages = [row.message for row in rows if row.run_id == last.id]
        reply = next((each for each in reversed(messages) if each.role == "assistant"), None)
        if reply is not None and reply.is_unfinished:
            return RoundsExhausted(reply), reply.text
        return None, describe_answer(reply) if reply is not None else ""

    def _retry_or_fail(self, job: store.JobRow, failure: Exception, text: str) -> store.SetJob:
        """Return the next state of a failed job: requeued with backoff if attempts are left and a retry may help.

        `text` is what the agent wrote before it ran out of rounds.
        """
        error = self._turns.hide(str(failure) or type(failure).__name__)
        if isinstance(failure, errors.Cancelled):
            return store.SetJob(job.id, "cancelled", job.epoch, error="turn was cancelled")
        if isinstance(failure, _PERMANENT) or (isinstance(failure, errors.ProviderError) and not failure.failover):
            return store.SetJob(job.id, "failed", job.epoch, self._turns.hide(text) or None, error)
        if isinstance(failure, errors.CrashLoop) or job.attempts >= job.allowed:
            return store.SetJob(job.id, "dead", job.epoch, error=error)
        delay = self._backoff[min(job.attempts, len(self._backoff)) - 1]
        return store.SetJob(job.id, "queued", job.epoch, error=error, due_at=int((self._clock.time() + delay) * 1000))

    async def _report(self, job: store.JobRow) -> AtlasStream | None:
        """Start the turn that reports the outcome to the asker; None if there is no asker."""
        parent = await self._store.job(self._tenant, job.parent) if job.parent else None
        if parent is not None and parent.state not in store.OPEN_JOB:
            return None
        if await self._store.session(self._tenant, job.asker_session) is None:
            return None
        deadline = parent.deadline if parent else None
        asked = await self._asker_options(job)
        options = TurnOptions(
            model=asked.model,
            mode=asked.mode,
            requested=asked.requested,
            settings=asked.settings,
            chain=store.Chain(job.root, job.chain[:-1], job.parent, deadline, job.priority),
            idempotency_key=f"answer {job.id} {job.attempts}",
            traceparent=self._trace(job),
        )
        try:
            stream = self._turns.start_turn(
                await self._marked(outcome_message(job), job.session),
                options,
                session=job.asker_session,
                agent_id=job.asker_agent,
                user=job.user,
            )
            await self._publish_new_turn(stream, job.asker_agent)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the agent is gone, or an interceptor refused the message
            logger.warning("failed to report a job: job=%s asker=%s error=%s", job.id, job.asker_agent, error)
            return None
        return stream

    async def _asker_options(self, job: store.JobRow) -> TurnOptions:
        """Return the options of the turn that delegated the job, whose answer the report continues."""
        row = await self._store.run(self._tenant, job.asker_run) if job.asker_run else None
        try:
            return decode_options(row) if row is not None else DEFAULT_OPTIONS
        except errors.UnreadableRow:
            return DEFAULT_OPTIONS

    async def _marked(self, message: Message, session: str) -> Message:
        """Mark a message with the untrusted sources of the session that it comes from."""
        rows = await self._store.messages(self._tenant, session) if session else []
        sources = dict.fromkeys(each for row in rows for each in row.message.untrusted)
        if not sources:
            return message
        return msgspec.structs.replace(message, metadata={**message.metadata, UNTRUSTED: list(sources)})

    async def _stop(self, job: store.JobRow) -> None:
        """Cancel the turns of a job and the jobs it delegated."""
        self._waiting.pop(job.id, None)
        for run in await self._store.runs(self._tenant, job.session, open_only=True):
            await self._turns.cancel(run.id)
        for child in await self._store.child_jobs(self._tenant, job.id):
            if child.state in store.OPEN_JOB:
                await self.end(child, "cancelled", f"parent job {job.id} has ended")


def outcome_message(job: store.JobRow) -> Message:
    """Build the message that reports a job to its asker. The same job always gives the same text."""
    text = f"The job {job.id}, which you delegated to {job.agent_id}, {_describe_end(job)}"
    return user(f"{text}\n\n(Task: {_shorten(job.task, _MAX_TASK)})", job=job.id, state=job.state, agent=job.agent_id)


def task_message(job: store.JobRow) -> Message:
    """Build the message with which the agent receives its task."""
    metadata: dict[str, str] = {"job": job.id}
    if job.asker_agent:
        metadata["asked_by"] = job.asker_agent
    if job.kind == "schedule":
        metadata["schedule"] = job.session.partition("schedules/")[2].partition("/jobs/")[0]
    return user(job.task, **metadata)


def _describe_end(job: store.JobRow) -> str:
    match job.state:
        case "done":
            return f"is done. The answer of {job.agent_id}:\n\n{_cut_result(job)}"
        case "expired":
            return f"missed its deadline, {_format_time(job.deadline)}, and was stopped."
        case "cancelled":
            error = job.error or "cancelled"
            return f"was {error}." if error.startswith("cancelled") else f"was cancelled: {error}."
        case "dead":
            return f"failed after {job.attempts} attempts: {job.error}"
        case _:
            so_far = f". The text of {job.agent_id} so far:\n\n{_cut_result(job)}" if job.result else ""
            return f"failed: {job.error}{so_far}"


def _cut_result(job: store.JobRow) -> str:
    text = job.result or "(empty)"
    if len(text) <= _MAX_RESULT:
        return text
    return f"{text[:_MAX_RESULT]}…\n(The answer was cut off; the full text is stored with the job.)"


def _shorten(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _format_time(milliseconds: int | None) -> str:
    return datetime.fromtimestamp((milliseconds or 0) / 1000, UTC).isoformat(timespec="seconds")
