"""Invariants I9 to I12: what clients received, the end of a run, repeated recovery, and counters."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from atlas_agents import Message
from crash.evidence import Evidence, Trace, ends, transcript
from crash.evidence_log import LogEntry
from crash.replies import STOPPED
from crash.scripts import POISON

Transcripts = dict[tuple[str, str], list[Any]]
"""Transcripts of runs without faults, by script and scenario."""
_STORE = ("StoreBusy", "StoreFull", "StoreLost", "StoreError", "StaleOwner", "ShuttingDown", "Conflict")

_ENDED_OTHERWISE = (*STOPPED, "poison")
_NO_USAGE = {"input": 0, "output": 0, "cached": 0}


def events_match_the_store(evidence: Evidence) -> Iterator[str]:
    """I9: whatever a client received is in the journal, and was there before the client received it."""
    for entry in evidence.client:
        if entry.what in ("message:received", "tool:result", "approval:asked", "approval:answered", "message:kept"):
            trace = evidence.traces.get(entry.run)
            if trace is None:
                yield f"{entry.what} was received from a run that does not exist"
            else:
                yield from _received(entry, trace, evidence)
    yield from _nothing_after_the_end(evidence)
    yield from _text_is_complete(evidence)


def _nothing_after_the_end(evidence: Evidence) -> Iterator[str]:
    """No run is resumed after a client received its end, and nothing is asked that was answered."""
    over: dict[str, int] = {}
    answered = set[str]()
    for entry in evidence.client:
        if entry.what == "message:received" or (entry.what == "error" and entry.text not in _STORE):
            over[entry.run] = entry.process
        elif entry.what == "recovered":
            for run in entry.text.split():
                if over.get(run, entry.process) < entry.process:
                    yield f"run {run} went on in process {entry.process}, and a client had received its end before"
        elif entry.what == "answered":
            answered.add(f"{entry.process} {entry.key}")
        elif entry.what == "approval:asked" and any(
            f"{process} {entry.key}" in answered for process in range(1, entry.process)
        ):
            yield f"the question {entry.key} was asked again in process {entry.process}, and it had its answer"


def _received(entry: LogEntry, trace: Trace, evidence: Evidence) -> Iterator[str]:
    if entry.messages and Message.from_json(bytes(entry.messages[0])) not in trace.messages:
        yield f"a message of run {trace.row.id} was received ({entry.what}), and it is not kept"
    if entry.what == "message:received" and trace.row.status != "done":
        yield f"the answer of run {trace.row.id} was received, and it is {trace.row.status}"
    if entry.what == "tool:result" and not evidence.cancelled:
        recorded = [result.status for step, result in trace.outcomes() if step.key == entry.call]
        if recorded != [entry.text]:
            yield f"call {entry.call} was received as {entry.text}, and the journal has {recorded}"
    kept = {step.key for step in trace.steps_of(entry.what.removeprefix("approval:"))}
    if entry.what.startswith("approval:") and not evidence.cancelled and entry.key not in kept:
        yield f"{entry.what} was received of {entry.key}, and it is not kept"


def _text_is_complete(evidence: Evidence) -> Iterator[str]:
    """The text since the last reset, call or step equals the answer, or is empty if an earlier process received it."""
    texts: dict[tuple[int, int], str] = defaultdict(str)
    for entry in evidence.client:
        stream_key = (entry.process, entry.stream)
        if entry.what in ("stream:reset", "tool:called", "plan:updated"):
            texts[stream_key] = ""
        elif entry.what == "stream:chunk":
            texts[stream_key] += entry.text
        elif entry.what == "message:received":
            text = Message.from_json(bytes(entry.messages[0])).text
            if texts[stream_key] not in ("", text):
                yield f"{texts[stream_key]!r} was received of run {entry.run}, and the answer is {text!r}"


def same_end(evidence: Evidence, plain: Transcripts) -> Iterator[str]:
    """I10: an interrupted run ends as without faults, except for unknown results."""
    for trace in evidence.traces.values():
        send = trace.send
        if send is None:
            yield f"run {trace.row.id} is of no message that was sent"
            continue
        wanted = plain.get((evidence.script.like or evidence.script.name, send.scenario))
        if (
            wanted is None
            or send.steers
            or send.scenario in _ENDED_OTHERWISE
            or _denied_by_a_clock_jump(trace, evidence)
        ):
            continue
        if any(not _alike(is_, was) for is_, was in zip(transcript(trace), wanted, strict=False)) or len(
            transcript(trace)
        ) != len(wanted):
            yield f"run {trace.row.id} ended otherwise:\n    {transcript(trace)}\nthan it should:\n    {wanted}"


def _denied_by_a_clock_jump(trace: Trace, evidence: Evidence) -> bool:
    """Whether the clock jumped past the deadline of a question, so that the call was correctly denied."""
    jumped = any(plan.jump for plan in evidence.outcome.case.plans)
    longest = 1000 * evidence.script.deadline
    return jumped and any(trace.steps[-1].at - step.at > longest for step in trace.steps_of("asked"))


def _alike(is_: Any, was: Any) -> bool:
    return is_ == was or (is_[:1] == ("result",) and is_[1] == "unknown" and was[0] == "result") or _found_out(is_, was)


def _found_out(is_: Any, was: Any) -> bool:
    """A reconciled result equals the original one."""
    return is_[:3] == ("result", "ok", "found out") and was[:2] == ("result", "ok")


def crash_loop_is_given_up(evidence: Evidence) -> Iterator[str]:
    """A turn that ends every process is failed with this error, and the next one works."""
    if evidence.script != POISON or not evidence.outcome.case.plans:
        return
    found = [(run.status, (run.error or "")[:28]) for run in evidence.tables.runs]
    wanted = [("failed", "the process crashed 5 times "), ("done", "")]
    killed, last = evidence.outcome.ends[:-1], evidence.outcome.ends[-1:]
    if found != wanted or set(killed) != {"killed"} or last != ("done",):
        yield f"{evidence.outcome.ends} {found} instead of {wanted}"


def snapshot_is_what_a_kill_leaves(evidence: Evidence) -> Iterator[str]:
    for name in evidence.outcome.changed_files:
        yield f"{name} differs"


def answers_are_those_of_the_script(evidence: Evidence) -> Iterator[str]:
    """Without faults, the answers are those that the script names."""
    wanted = evidence.script.ends
    if evidence.outcome.case.plans or not wanted:
        return
    answers = [transcript(trace)[-1][1] for trace in evidence.traces.values()]
    if len(answers) != len(wanted) or any(text != end for text, end in zip(answers, wanted, strict=True) if end):
        yield f"the answers are {answers}, not {wanted}"


def jobs_are_done_once(evidence: Evidence) -> Iterator[str]:
    """Delegated jobs run and are reported once, and no other jobs run."""
    asked = Counter(
        (trace.row.id, step.key)
        for trace in evidence.traces.values()
        for step, result in trace.outcomes()
        if result.status == "ok" and "'job_id'" in str(result.result)
    )
    kept = Counter((job.asker_run, job.asker_call) for job in evidence.tables.jobs)
    if asked != kept:
        yield f"handed on is {dict(asked)}, and there are the jobs {dict(kept)}"
    every = evidence.tables.jobs
    for job in every:
        if job.state in ("queued", "running") or not job.notified:
            yield f"the job {job.id} is {job.state}, and reported: {job.notified}"
        reports = [
            m for m in evidence.sessions[job.asker_session] if m.metadata.get("job") == job.id and "state" in m.metadata
        ]
        if not reports and any(job.asker_session == other.session and other.state != "done" for other in every):
            continue  # its parent had ended before
        if len(reports) != 1 or reports[0].metadata["state"] != job.state:
            yield f"of the job {job.id}, which is {job.state}, its asker received {[m.metadata for m in reports]}"
        tasks = [m for m in evidence.sessions[job.session] if m.text == job.task]
        if len(tasks) != job.attempts:
            yield f"the task of the job {job.id} was given {len(tasks)} times, in {job.attempts} attempts"
        last = next((m.text for m in reversed(evidence.sessions[job.session]) if m.role == "assistant"), "")
        if job.state == "done" and job.result != last:
            yield f"the job {job.id} came to {job.result!r}, and {last!r} was the last reply"


def restart_changes_nothing(evidence: Evidence) -> Iterator[str]:
    """I11: after everything has ended, another start finds nothing to do."""
    restarted = [entry.n for entry in evidence.entries if entry.what == "recovered again"]
    if not restarted or not all(restarted):
        yield "another start found something to do, or did not come to its end"
    first: dict[int, set[str]] = {}
    for entry in evidence.find_events("recovered"):
        runs = set(entry.text.split())
        if runs & first.get(entry.process, set()):
            yield f"in process {entry.process} a run was recovered twice: {runs}"
        first.setdefault(entry.process, set()).update(runs)


def counts_are_exact(evidence: Evidence) -> Iterator[str]:
    """I12: the daily counter equals the number of intents, and the usage of a run and of all equals that of replies."""
    intents = sum(len(trace.steps_of("intent")) for trace in evidence.traces.values())
    used = sum(count for _, _, count in evidence.tables.counters)
    wanted = intents if evidence.script.per_day else 0
    if used != wanted:
        yield f"{used} calls are counted, and there are {wanted} intents"
    tokens: Counter[str] = Counter()
    for trace in evidence.traces.values():
        used = _recorded_usage(trace)
        for end in ends(trace):
            if end["status"] == "done" and end.get("used", {}).get("usage", _NO_USAGE) != used:
                yield f"run {trace.row.id} reports {end.get('used')}, and its replies took {used}"
        tokens += Counter({"in": used["input"], "out": used["output"], "turns": bool(trace.steps_of("reply"))})
    kept = Counter({"in": 0, "out": 0, "turns": 0})
    for _, taken, given, turns in evidence.tables.usage:
        kept.update({"in": taken, "out": given, "turns": turns})
    if +kept != +tokens:
        yield f"the usage is {dict(kept)}, and the replies took {dict(tokens)}"
    if evidence.script.budget:
        yield from _budgets_are_exact(evidence, intents, tokens["in"] + tokens["out"])


def _recorded_usage(trace: Trace) -> dict[str, int]:
    """Return what the replies and the summaries of a run used."""
    used = Counter(_NO_USAGE)
    for step in [*trace.steps_of("reply"), *trace.steps_of("summary")]:
        if step.payload != b"null":
            used.update(Message.from_json(step.payload).metadata["usage"])
    return dict(used)


def _budgets_are_exact(evidence: Evidence, intents: int, tokens: int) -> Iterator[str]:
    """Nothing stays reserved. What was used is that of the replies and of attempts that were withdrawn or cancelled."""
    replies = sum(len(trace.steps_of("reply")) for trace in evidence.traces.values())
    if left := [row for row in evidence.tables.budgets if row[1] or row[0].startswith("turn/")]:
        yield f"budgets of runs that have ended: {left}"
    for key, _, used, requests, calls in evidence.tables.budgets:
        withdrawn = requests - replies
        if calls != intents or withdrawn < 0 or (used != tokens if not withdrawn else used <= tokens):
            expected = f"{tokens} tokens, {replies} requests and {intents} calls"
            yield f"the budget {key} counts {used} tokens, {requests} requests and {calls} calls, not {expected}"
