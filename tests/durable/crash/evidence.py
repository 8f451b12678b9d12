"""Evidence of a case: runs with their steps, messages and effects, and what clients received."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from atlas_agents import Message, ToolResult
from atlas_agents.core.messages import STEERING_RUN
from atlas_agents.core.store import JournalRow
from crash.evidence_log import LogEntry
from crash.runner import Outcome
from crash.scripts import Send
from crash.stores import JobRecord, RunRecord

_results = msgspec.json.Decoder(ToolResult)
_NAMES = re.compile(r"\b[0-9a-f]{16}\b")


class Trace:
    """One run: its row, its journal, its messages and what its tools did."""

    def __init__(self, row: RunRecord, send: Send | None) -> None:
        self.row = row
        self.send = send
        self.steps: list[JournalRow] = []
        self.messages: list[Message] = []
        self.effects: list[LogEntry] = []

    def steps_of(self, kind: str) -> list[JournalRow]:
        return [step for step in self.steps if step.kind == kind]

    def outcomes(self) -> Iterator[tuple[JournalRow, ToolResult]]:
        return ((step, _results.decode(step.payload)) for step in self.steps_of("outcome"))

    def find_effects(self, call: str) -> list[LogEntry]:
        return [effect for effect in self.effects if effect.call == call]


class Evidence:
    """All evidence of a case, read once."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.script = outcome.case.script
        self.tables = outcome.tables
        self.entries = outcome.entries
        self.client = [entry for entry in outcome.entries if entry.who == "client"]
        self.requests = [entry for entry in outcome.entries if entry.what == "request"]
        sends = {send.key: send for send in self.script.sends}
        sends |= {send.key: send for row in self.tables.runs for send in _job_sends(row, self.tables.jobs)}
        self.traces = {row.id: Trace(row, sends.get(row.key)) for row in self.tables.runs}
        self.sessions: dict[str, list[Message]] = defaultdict(list)
        for step in self.tables.journal:
            self.traces[step.run_id].steps.append(step)
        for line in self.tables.messages:
            message = Message.from_json(line.body)
            self.sessions[line.session].append(message)
            if line.run in self.traces:
                self.traces[line.run].messages.append(message)
        self.strays: list[LogEntry] = []
        for entry in outcome.entries:
            if entry.what == "effect":
                trace = self.traces.get(entry.run)
                trace.effects.append(entry) if trace else self.strays.append(entry)
        for job in self.tables.jobs:  # a stored job is the effect of its delegation
            key = f"{job.asker_run}:{job.asker_call}"
            entry = LogEntry("tool", "effect", 0, 0, job.asker_run, job.asker_call, key, "delegate_task", job.seq)
            trace = self.traces.get(job.asker_run)
            trace.effects.append(entry) if trace else self.strays.append(entry)
        self.audited: list[dict[str, Any]] = [msgspec.json.decode(row.entry) for row in self.tables.audit]

    def find_events(self, *kinds: str) -> Iterable[LogEntry]:
        """Return the records of clients about these events."""
        return (entry for entry in self.client if entry.what in kinds)

    @property
    def cancelled(self) -> bool:
        """Whether a client has cancelled a turn, so that an early end is correct."""
        return any(entry.what == "cancel" for entry in self.client)


def ends(trace: Trace) -> list[dict[str, Any]]:
    return [msgspec.json.decode(step.payload) for step in trace.steps_of("ended")]


def _job_sends(row: RunRecord, jobs: Iterable[JobRecord]) -> Iterator[Send]:
    """Yield the message of a turn that no client sent: of a job, or its report to the asker."""
    for job in jobs:
        if row.key.startswith((f"job {job.id} ", f"answer {job.id} ")):
            yield Send(f"{row.key.split()[0]} of {job.agent}", row.key, row.session)


def without_job_ids(value: Any) -> Any:
    """Return a value without job ids."""
    return json.loads(_NAMES.sub("JOB", json.dumps(value))) if "job" in str(value) else value


def transcript(trace: Trace) -> list[Any]:
    """Return a run as a reader of the conversation sees it, without ids and times."""
    transcript: list[Any] = [trace.row.status]
    for message in trace.messages:
        if STEERING_RUN in message.metadata:
            continue
        transcript.append((message.role, without_job_ids(message.text.split(" #")[0])))
        transcript += [("calls", call.name, call.arguments) for call in message.tool_calls]
        transcript += [("result", result.status, without_job_ids(result.result)) for result in message.tool_results]
    return transcript
