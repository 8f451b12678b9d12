"""Seeded bugs, which prove that the checks detect violations."""

import asyncio
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from atlas_agents import Answer, Atlas, Message, Question, ToolCall, ToolResult, Usage
from atlas_agents.agents import runtime
from atlas_agents.agents.history import History
from atlas_agents.agents.jobs import JobExecutor
from atlas_agents.agents.options import TurnOptions
from atlas_agents.agents.run import Accepted, Run
from atlas_agents.core.budgets import TurnBudget
from atlas_agents.core.errors import Conflict, NotFound, StoreError
from atlas_agents.core.json import encode
from atlas_agents.core.messages import new_id
from atlas_agents.core.store import (
    AddAudit,
    AnswerApproval,
    JobRow,
    MarkJobNotified,
    MergeRun,
    Reserve,
    ReserveBudget,
    RunStatus,
    Store,
    Write,
)
from atlas_agents.storage import migrations
from atlas_agents.storage.sql import writes
from atlas_agents.storage.sqlite import files as sqlite_files
from atlas_agents.storage.sqlite import statements
from atlas_agents.tools.approvals import Approvals
from atlas_agents.tools.audit import AuditEntry
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.execute import Attempt
from atlas_agents.tools.journal import Journal, JournaledApprovals, SteerRecord


class Bug(msgspec.Struct, frozen=True):
    """A seeded bug: its patch, the suite and script that detect it, and the invariants that it violates."""

    patch: Callable[[], None]
    suite: str
    script: str
    breaks: tuple[str, ...]


def run_then_record() -> None:
    """The intent of a call is recorded with its outcome instead of before the call."""
    record, held = Journal.record_outcome, dict[str, tuple[Any, ...]]()

    async def intend(self: Journal, call: ToolCall, reserve: Reserve | None = None) -> None:
        held[call.id] = (reserve,) if reserve else ()

    async def late(self: Journal, call: ToolCall, result: ToolResult, entry: AuditEntry, usage: Usage) -> None:
        if call.id in held:
            await _step(self)("intent", call.id, encode(call), *held[call.id])
        await record(self, call, result, entry, usage)

    _set(Journal, record_intent=intend, record_outcome=late)


def record_then_run() -> None:
    """The outcome of a call is recorded before it runs."""
    tries: Any = vars(Attempt)["_run_with_retries"]

    async def first(self: Any, context: ToolContext) -> Any:
        await self._finish(f"did {self._approved.call.arguments['n']}", None)
        self._finish = _nothing
        return await tries(self, context)

    _set(Attempt, _run_with_retries=first)


def acknowledge_before_commit() -> None:
    accept = Run.accept

    async def early(self: Run, message: Message) -> list[Message]:
        if self.accepted is not None:
            self.accepted.set_result(Accepted(self.id, "started"))
        return await accept(self, message)

    _set(Run, accept=early)


def split_a_pair() -> None:
    def last(self: History, messages: Sequence[Message], available: float = 0) -> Sequence[Message]:
        return messages[-self.max_messages :] if self.max_messages else messages

    _set(History, select=last)


def ignore_idempotency_key() -> None:
    """A repeated message is accepted as a new one."""

    def unknown(*_: object) -> Generator[Any, Any, None]:
        yield from ()

    _set(writes, find_run_by_key=unknown)
    _schema("CREATE UNIQUE INDEX runs_accepted", "CREATE INDEX runs_accepted")


def write_a_step_twice() -> None:
    parts, statement = statements.PARTS, statements.ADD_JOURNAL
    check = re.sub(r" AND NOT EXISTS \(.*:key\)", "", parts[statement].check)
    parts[statement] = parts[statement]._replace(check=check)


def swallow_audit_errors() -> None:
    async def settle(self: Any, call: ToolCall, result: ToolResult, entry: AuditEntry, usage: Usage) -> None:
        await _step(self)("outcome", call.id, encode(result))
        with suppress(StoreError):
            await self._store.commit(self._tenant, [AddAudit(encode(entry))])

    _set(Journal, record_outcome=settle)


def accept_a_stale_approval() -> None:
    """Late answers count."""

    async def answer(store: Store, tenant: str, approvals: Approvals, id: str, answer: Answer, _: object) -> Question:
        row = await store.approval(tenant, id)
        if row is None:
            raise NotFound(id)
        await store.commit(tenant, [AnswerApproval(id, encode(answer))])
        approvals.deliver(id, answer)
        return msgspec.json.decode(row.question, type=Question)

    _set(runtime, answer_stored_question=answer)


def emit_the_end_before_it_is_stored() -> None:
    end = Run.end
    going = set[asyncio.Task[None]]()

    async def later(self: Run, status: RunStatus, failure: Exception | None = None) -> None:
        task = asyncio.create_task(end(self, status, failure))
        going.add(task)
        task.add_done_callback(going.discard)

    _set(Run, end=later)


def emit_a_result_before_it_is_stored() -> None:
    from atlas_agents.tools.pipeline import ToolCallExecution

    record: Any = vars(ToolCallExecution)["_record"]

    async def early(self: Any, result: ToolResult, *, ran_ok: bool) -> ToolResult:
        self.result = self._emit_result(result)
        await asyncio.sleep(0)
        return await record(self, result, ran_ok=ran_ok)

    _set(ToolCallExecution, _record=early)


def no_intent() -> None:
    _set(Journal, record_intent=_nothing)


def reassign_message_ids() -> None:
    """A resumed run gives its messages new ids."""

    def other_id(self: Run) -> str:
        return new_id()

    _set(Run, _next_own_id=other_id)


def rerun_started_calls() -> None:
    """A call without outcome runs again, whatever its effect class."""

    def settled(self: Journal, call: ToolCall, **_: object) -> bool:
        return self.outcome(call) is not None

    def never(*_: object) -> bool:
        return False

    _set(Journal, has_intent=never, is_settled=settled)


def never_end() -> None:
    _set(Run, end=_nothing)


def count_separately() -> None:
    """The daily counter is committed separately."""
    intend = Journal.record_intent

    async def apart(self: Any, call: ToolCall, *counts: Reserve | ReserveBudget) -> None:
        await intend(self, call)
        if counts:
            await self._store.commit(self._tenant, counts)

    _set(Journal, record_intent=apart)


def settle_separately() -> None:
    """What a model call used is counted after its reply was recorded."""
    take, late = TurnBudget.take_settled, dict[TurnBudget, Any]()

    def later(self: TurnBudget) -> Any:
        settled, late[self] = late.get(self, []), take(self)
        return settled

    _set(TurnBudget, take_settled=later)


def forget_answers() -> None:
    """Answers given to an earlier process are lost."""
    ask = JournaledApprovals.save_question

    async def anew(self: JournaledApprovals, question: Question) -> tuple[Question, Answer | None]:
        return (await ask(self, question))[0], None

    _set(JournaledApprovals, save_question=anew)


def disable_fencing() -> None:
    """A stale owner can write."""

    def check(run_id: str, status: str, *_: object) -> None:
        if status not in ("queued", "running", "waiting"):
            raise Conflict(f"the run {run_id!r} has ended")

    _set(writes, check_owner=check)


def store_job_separately() -> None:
    """A job is committed after the outcome of its call instead of with it."""
    settle = Journal.record_outcome

    async def apart(
        self: Any, call: ToolCall, result: ToolResult, entry: AuditEntry, usage: Usage, *more: Write
    ) -> None:
        await settle(self, call, result, entry, usage)
        if more:
            await self._store.commit(self._tenant, more)

    _set(Journal, record_outcome=apart)


def mark_notified_before_reporting() -> None:
    """A job is marked as reported before its asker is notified."""
    notify = JobExecutor.notify_asker

    async def early(self: Any, job: JobRow) -> bool:
        await self._store.commit(self._tenant, [MarkJobNotified(job.id, job.attempts)])
        return await notify(self, job)

    _set(JobExecutor, notify_asker=early)


def drop_report_keys() -> None:
    """The outcome of a job is reported again each time."""
    start: Callable[..., Any] = Atlas.start_turn

    def without_job_ids(self: Atlas, message: Message, options: TurnOptions, **more: Any) -> Any:
        key = options.idempotency_key
        if key.startswith("answer"):
            options = msgspec.structs.replace(options, idempotency_key=f"{key} {new_id()}")
        return start(self, message, options, **more)

    _set(Atlas, start_turn=without_job_ids)


def forget_summaries() -> None:
    """A summary is stored, but a resumed run does not know of it and writes it again."""

    def forget(self: Any) -> None:
        return None

    _set(Journal, next_summary=forget)


def merge_separately() -> None:
    """The queued run of a steering message ends after its message has entered, not with it."""

    async def apart(self: Any, entering: Mapping[str, Sequence[Message]]) -> list[str]:
        messages = [message for each in entering.values() for message in each]
        record = SteerRecord(tuple(entering), tuple([message.id for message in messages]))
        for message in messages:
            self.add(message)
        await _step(self)("steer", str(self._reply_count), encode(record))
        await self._store.commit(self._tenant, [MergeRun(run) for run in entering])
        return list(entering)

    _set(Journal, record_steering=apart)


BUGS: dict[str, Bug] = {
    "run, then record": Bug(run_then_record, "kills", "one unsafe call", ("I2",)),
    "record, then run": Bug(record_then_run, "kills", "one unsafe call", ("I7",)),
    "acknowledged before the commit": Bug(acknowledge_before_commit, "kills", "text only", ("I1",)),
    "a pair is split": Bug(split_a_pair, "kills", "short memory", ("I3",)),
    "the key is not unique": Bug(ignore_idempotency_key, "kills", "text only", ("I1",)),
    "a step may be written twice": Bug(write_a_step_twice, "errors", "one unsafe call", ("I5",)),
    "an audit error is swallowed": Bug(swallow_audit_errors, "kills", "one pure call", ("I6",)),
    "a stale approval counts": Bug(accept_a_stale_approval, "kills", "answered too late", ("I8",)),
    "the end is emitted before it is stored": Bug(
        emit_the_end_before_it_is_stored, "kills", "text only", ("I9", "I11")
    ),
    "a result is emitted before it is stored": Bug(
        emit_a_result_before_it_is_stored, "kills", "one unsafe call", ("I9",)
    ),
    "no intent is written": Bug(no_intent, "kills", "one unsafe call", ("I8",)),
    "own messages have other names": Bug(reassign_message_ids, "kills", "three rounds", ("I3",)),
    "an intent without outcome is tried again": Bug(rerun_started_calls, "kills", "one unsafe call", ("I2",)),
    "the end is not written": Bug(never_end, "kills", "text only", ("I4",)),
    "the day is counted apart": Bug(count_separately, "kills", "the day is spent", ("I12",)),
    "a budget is settled late": Bug(settle_separately, "kills", "the day is spent", ("I12",)),
    "an answer is forgotten": Bug(forget_answers, "kills", "approved", ("I9",)),
    "a summary is forgotten": Bug(forget_summaries, "kills", "summarised", ("I10",)),
    "a steering message enters apart": Bug(merge_separately, "kills", "steered", ("steering",)),
    "a job is kept apart": Bug(store_job_separately, "kills", "handed on", ("jobs",)),
    "a job is marked as reported too early": Bug(mark_notified_before_reporting, "kills", "handed on", ("jobs", "I11")),
    "the answer of a job has no name": Bug(drop_report_keys, "kills", "handed on", ("jobs",)),
    "no one is fenced": Bug(disable_fencing, "zombies", "four calls at once", ("I9",)),
}


def _set(owner: Any, **broken: Any) -> None:
    for name, value in broken.items():
        if not hasattr(owner, name):
            raise AssertionError(f"{owner} has no {name!r} to break")
        setattr(owner, name, value)


def _schema(old: str, new: str) -> None:
    steps = tuple(step.replace(old, new) for step in migrations.STEPS["sqlite"])
    if steps == migrations.STEPS["sqlite"]:
        raise AssertionError(f"the schema does not say {old!r}")
    migrations.STEPS["sqlite"] = steps
    sqlite_files._empty_file.cache_clear()


def _step(journal: Any) -> Callable[..., Any]:
    return journal._write_step


async def _nothing(*_: object) -> None:
    """Do nothing."""
