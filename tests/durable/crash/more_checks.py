"""The invariants I9 to I12: what clients saw, how it ended, that recovering again changes nothing, and the counts."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from atlas_agents import Message
from crash.evidence import Evidence, Trace, story
from crash.plays import STOPPED
from crash.world import Note

Stories = dict[tuple[str, str], list[Any]]
"""How runs end when nothing goes wrong, by script and by play."""
_STORE = ("StoreBusy", "StoreFull", "StoreLost", "StoreError", "Fenced", "Left", "Conflict")


def clients_saw_the_truth(evidence: Evidence) -> Iterator[str]:
    """I9: whatever a client received is in the journal, and was there before the client received it."""
    for note in evidence.client:
        if note.what in ("message:received", "tool:result", "approval:asked", "approval:answered", "message:kept"):
            trace = evidence.traces.get(note.run)
            if trace is None:
                yield f"{note.what} was received from a run that does not exist"
            else:
                yield from _received(note, trace, evidence)
    yield from _nothing_after_the_end(evidence)
    yield from _words_are_whole(evidence)


def _nothing_after_the_end(evidence: Evidence) -> Iterator[str]:
    """No run is resumed after a client received its end, and nothing is asked that was answered."""
    over: dict[str, int] = {}
    answered = set[str]()
    for note in evidence.client:
        if note.what == "message:received" or (note.what == "error" and note.text not in _STORE):
            over[note.run] = note.life
        elif note.what == "recovered":
            for run in note.text.split():
                if over.get(run, note.life) < note.life:
                    yield f"run {run} went on in life {note.life}, and a client had received its end before"
        elif note.what == "answered":
            answered.add(f"{note.life} {note.key}")
        elif note.what == "approval:asked" and any(f"{life} {note.key}" in answered for life in range(1, note.life)):
            yield f"the question {note.key} was asked again in life {note.life}, and it had its answer"


def _received(note: Note, trace: Trace, evidence: Evidence) -> Iterator[str]:
    if note.messages and Message.from_json(bytes(note.messages[0])) not in trace.messages:
        yield f"a message of run {trace.row.id} was received ({note.what}), and it is not kept"
    if note.what == "message:received" and trace.row.status != "done":
        yield f"the answer of run {trace.row.id} was received, and it is {trace.row.status}"
    if note.what == "tool:result" and not evidence.cancelled:
        recorded = [result.status for step, result in trace.outcomes() if step.key == note.call]
        if recorded != [note.text]:
            yield f"call {note.call} was received as {note.text}, and the journal has {recorded}"
    kept = {step.key for step in trace.of(note.what.removeprefix("approval:"))}
    if note.what.startswith("approval:") and not evidence.cancelled and note.key not in kept:
        yield f"{note.what} was received of {note.key}, and it is not kept"


def _words_are_whole(evidence: Evidence) -> Iterator[str]:
    """Words since the last reset, call or step are the answer's; none, for one that an earlier process received."""
    words: dict[tuple[int, int], str] = defaultdict(str)
    for note in evidence.client:
        place = (note.life, note.stream)
        if note.what in ("stream:reset", "tool:called", "plan:updated"):
            words[place] = ""
        elif note.what == "stream:chunk":
            words[place] += note.text
        elif note.what == "message:received":
            text = Message.from_json(bytes(note.messages[0])).text
            if words[place] not in ("", text):
                yield f"{words[place]!r} was received of run {note.run}, and the answer is {text!r}"


def same_end(evidence: Evidence, plain: Stories) -> Iterator[str]:
    """I10: a run that was cut short comes to the same end, except for results that cannot be known."""
    for trace in evidence.traces.values():
        send = trace.send
        if send is None:
            yield f"run {trace.row.id} is of no message that was sent"
            continue
        wanted = plain.get((evidence.script.like or evidence.script.name, send.play))
        if wanted is None or send.play in STOPPED:
            continue
        if any(not _alike(is_, was) for is_, was in zip(story(trace), wanted, strict=False)) or len(
            story(trace)
        ) != len(wanted):
            yield f"run {trace.row.id} ended otherwise:\n    {story(trace)}\nthan it should:\n    {wanted}"


def _alike(is_: Any, was: Any) -> bool:
    return is_ == was or (is_[:1] == ("result",) and is_[1] == "unknown" and was[0] == "result") or _found_out(is_, was)


def _found_out(is_: Any, was: Any) -> bool:
    """What was found out later is as good as what was seen."""
    return is_[:3] == ("result", "ok", "found out") and was[:2] == ("result", "ok")


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
            continue  # what it was for had ended before
        if len(reports) != 1 or reports[0].metadata["state"] != job.state:
            yield f"of the job {job.id}, which is {job.state}, its asker received {[m.metadata for m in reports]}"
        tasks = [m for m in evidence.sessions[job.session] if m.text == job.task]
        if len(tasks) != job.attempts:
            yield f"the task of the job {job.id} was given {len(tasks)} times, in {job.attempts} attempts"
        last = next((m.text for m in reversed(evidence.sessions[job.session]) if m.role == "assistant"), "")
        if job.state == "done" and job.result != last:
            yield f"the job {job.id} came to {job.result!r}, and {last!r} was the last reply"


def again_changes_nothing(evidence: Evidence) -> Iterator[str]:
    """I11: after all has ended, another start finds nothing to do."""
    again = [note.n for note in evidence.notes if note.what == "recovered again"]
    if not again or not all(again):
        yield "another start found something to do, or did not come to its end"
    first: dict[int, set[str]] = {}
    for note in evidence.seen("recovered"):
        runs = set(note.text.split())
        if runs & first.get(note.life, set()):
            yield f"in life {note.life} a run was recovered twice: {runs}"
        first.setdefault(note.life, set()).update(runs)


def counts_are_exact(evidence: Evidence) -> Iterator[str]:
    """I12: a day's counter is the number of its intents, and the sums of usage are those of the replies."""
    intents = sum(len(trace.of("intent")) for trace in evidence.traces.values())
    used = sum(count for _, _, count in evidence.tables.counters)
    wanted = intents if evidence.script.per_day else 0
    if used != wanted:
        yield f"{used} calls are counted, and there are {wanted} intents"
    tokens: Counter[str] = Counter()
    for trace in evidence.traces.values():
        for step in trace.of("reply"):
            usage = Message.from_json(step.payload).metadata["usage"]
            tokens["in"] += usage["input"]
            tokens["out"] += usage["output"]
        tokens["turns"] += bool(trace.of("reply"))
    kept = Counter({"in": 0, "out": 0, "turns": 0})
    for _, taken, given, turns in evidence.tables.usage:
        kept.update({"in": taken, "out": given, "turns": turns})
    if +kept != +tokens:
        yield f"the usage is {dict(kept)}, and the replies took {dict(tokens)}"
