"""Invariants I1 to I8: each function yields violations, judged from rows and the evidence log alone."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from atlas_agents import Message
from atlas_agents.core.messages import STEERING_RUN
from atlas_agents.core.store import OPEN
from atlas_agents.storage.hash_chain import find_audit_break, find_journal_break
from crash.evidence import Evidence, Trace, ends
from crash.evidence_log import LogEntry
from crash.replies import CANARY, EFFECTS
from crash.stores import ApprovalRecord

_HARMLESS = ("declined", "limit", "not_found", "not_permitted", "bad_arguments")
"""Error kinds that guarantee that nothing has happened."""


def messages_accepted_once(evidence: Evidence) -> Iterator[str]:
    """I1: each acknowledged message appears exactly once, in order."""
    for entry in evidence.find_events("ack"):
        trace = evidence.traces.get(entry.run)
        if trace is None or trace.row.key != entry.key:
            yield f"the message {entry.key} was acknowledged as run {entry.run}, and there is no such run"
    texts = {message.text for messages in evidence.sessions.values() for message in messages}
    for send in evidence.script.sends:
        if send.text not in texts and not evidence.cancelled:
            yield f"the message {send.text!r} is nowhere"
    yield from _in_order(evidence)


def _in_order(evidence: Evidence) -> Iterator[str]:
    for session, messages in evidence.sessions.items():
        texts = [
            message.text for message in messages if message.role == "user" and message.metadata.keys() <= {STEERING_RUN}
        ]
        for text, count in Counter(texts).items():
            if count > 1:
                yield f"in session {session} there is {text!r} {count} times"
        for sends in evidence.script.clients:
            wanted = [send.text for send in sends if send.session == session and send.text in texts and not send.steers]
            if [text for text in texts if text in wanted] != wanted:
                yield f"in session {session} the order is {texts}, and {wanted} was sent"
    places = Counter((line.session, line.seq) for line in evidence.tables.messages)
    if any(places[session, seq] != 1 for session in evidence.sessions for seq in range(1, _count(evidence, session))):
        yield "the messages of a session have gaps in their numbers"


def _count(evidence: Evidence, session: str) -> int:
    return len(evidence.sessions[session]) + 1


def summaries_once(evidence: Evidence) -> Iterator[str]:
    """Each summary is recorded once, together with its message, and what it covers is still there."""
    for trace in evidence.traces.values():
        recorded = [Message.from_json(step.payload) for step in trace.steps_of("summary") if step.payload != b"null"]
        stored = [message for message in trace.messages if "summary" in message.metadata]
        if recorded != stored:
            yield f"run {trace.row.id} recorded {len(recorded)} summaries and stored {len(stored)}"
        ids = {message.id for messages in evidence.sessions.values() for message in messages}
        for message in stored:
            if message.metadata["summary"]["through"] not in ids:
                yield f"summary {message.id} covers a message that is gone"
    if evidence.script.compacts and not any(trace.steps_of("summary") for trace in evidence.traces.values()):
        ended = len(evidence.traces) == len(evidence.script.sends)
        if ended and not evidence.cancelled and all(trace.row.status == "done" for trace in evidence.traces.values()):
            yield "nothing was summarised"


def effects_once(evidence: Evidence) -> Iterator[str]:
    """I2: an unsafe call has its effect at most once, a keyed one under one key only."""
    for trace in evidence.traces.values():
        unsafe = Counter((effect.name, effect.n) for effect in trace.effects if EFFECTS[effect.name] == "unsafe")
        for (name, n), count in unsafe.items():
            if count > 1:
                yield f"{name}({n}) of run {trace.row.id} happened {count} times"
        keyed = {(effect.name, effect.n, effect.key) for effect in trace.effects if EFFECTS[effect.name] == "keyed"}
        if len({(name, n) for name, n, _ in keyed}) != len(keyed):
            yield f"a keyed call of run {trace.row.id} was made under several keys: {sorted(keyed)}"
        if any(effect.key != f"{trace.row.id}:{effect.call}" for effect in trace.effects):
            yield f"a call of run {trace.row.id} was made under a foreign key"


def pairs_are_complete(evidence: Evidence) -> Iterator[str]:
    """I3: every call is followed by its one result, in the store and in every request."""
    for session, messages in evidence.sessions.items():
        if (index := unpaired(messages)) is not None:
            yield f"session {session} is broken at message {index + 1}"
    for number, request in enumerate(evidence.requests, 1):
        messages = [Message.from_json(bytes(raw)) for raw in request.messages]
        if (index := unpaired(messages)) is not None:
            yield f"request {number} (process {request.process}) is broken at message {index + 1}"
        if messages and messages[0].role not in ("user", "system"):
            yield f"request {number} (process {request.process}) begins with {messages[0].role}"


def unpaired(messages: Sequence[Message]) -> int | None:
    """Return the index at which a call and its result are separated."""
    wanted: list[str] = []
    for index, message in enumerate(messages):
        answered = [result.call_id for result in message.tool_results]
        if answered != wanted or (answered and message.role != "tool"):
            return index
        wanted = [call.id for call in message.tool_calls]
        if wanted and message.role != "assistant":
            return index
    return len(messages) if wanted else None


def every_run_ends(evidence: Evidence) -> Iterator[str]:
    """I4: each run ends in exactly one way, and none hangs."""
    for end in evidence.outcome.ends:
        if end in ("stuck", "broken"):
            yield f"a process ended {end}: {evidence.outcome.ends}"
    for entry in evidence.entries:
        if entry.who == "runner" and entry.what == "stuck":
            yield f"in process {entry.process} a client waited in vain"
    for trace in evidence.traces.values():
        row, found = trace.row, ends(trace)
        if row.status in OPEN:
            yield f"run {row.id} has not ended: it is {row.status}"
        elif len(found) > 1 or (found and trace.steps[-1].kind != "ended"):
            yield f"run {row.id} goes on after its end"
        elif [end["status"] for end in found] != [row.status] and trace.steps:
            yield f"run {row.id} is {row.status}, and its journal says {found}"
        elif not trace.steps and row.status != "cancelled" and not (trace.send and trace.send.steers):
            yield f"run {row.id} is {row.status} and never began"


def steering_messages_enter_once(evidence: Evidence) -> Iterator[str]:
    """A steering message is in the turn that recorded it and nowhere else, or has a turn of its own."""
    entered = Counter[str]()
    for trace in evidence.traces.values():
        recorded: list[str] = []
        for step in trace.steps_of("steer"):
            record = msgspec.json.decode(step.payload)
            recorded += record["messages"]
            entered.update(record["runs"])
        stored = [message.id for message in trace.messages if STEERING_RUN in message.metadata]
        if recorded != stored:
            yield f"the messages {recorded} entered run {trace.row.id}, and it has {stored}"
    for run, trace in evidence.traces.items():
        ended_without_a_turn = trace.row.status == "done" and not trace.steps
        if entered[run] != ended_without_a_turn:
            yield f"the message of run {run} entered {entered[run]} turns, and it is {trace.row.status}"


def chains_are_valid(evidence: Evidence) -> Iterator[str]:
    """I5: no journal has a gap or a repetition, and every hash chain is valid."""
    for trace in evidence.traces.values():
        if (index := find_journal_break(trace.steps)) is not None:
            yield f"the journal of run {trace.row.id} is broken at {index}"
        for (kind, key), count in Counter((step.kind, step.key) for step in trace.steps).items():
            if count > 1:
                yield f"the journal of run {trace.row.id} has {kind} {key} {count} times"
    if (index := find_audit_break(evidence.tables.audit)) is not None:
        yield f"the audit log is broken at {index}"


def audit_is_complete(evidence: Evidence) -> Iterator[str]:
    """I6: one audit record for each outcome, of the same status, without secrets."""
    audited = Counter((entry["meta"]["run_id"], entry["meta"]["call_id"]) for entry in evidence.audited)
    settled = Counter(
        (trace.row.id, step.key) for trace in evidence.traces.values() for step in trace.steps_of("outcome")
    )
    for run, call in (audited - settled) + (settled - audited):
        yield f"call {call} of run {run}: {settled[run, call]} outcomes, {audited[run, call]} audit records"
    recorded = {(t.row.id, step.key): result.status for t in evidence.traces.values() for step, result in t.outcomes()}
    for entry in evidence.audited:
        meta = entry["meta"]
        if meta["status"] != recorded.get((meta["run_id"], meta["call_id"])):
            yield f"call {meta['call_id']} is {meta['status']} in the audit log and not in the journal"
        if meta["duration_ms"] < 0:
            yield f"call {meta['call_id']} took {meta['duration_ms']} ms"
    if CANARY in json.dumps(evidence.audited):
        yield "the audit log holds a secret"


def results_are_correct(evidence: Evidence) -> Iterator[str]:
    """I7: ok is reported only for what happened, and what is reported as not done did not happen."""
    for trace in evidence.traces.values():
        kept = {result.call_id: result for message in trace.messages for result in message.tool_results}
        for step, result in trace.outcomes():
            happened = bool(trace.find_effects(step.key))
            is_plan = '"steps"' in json.dumps(result.result)  # the record is the effect
            if result.status == "ok" and not happened and not is_plan:
                yield f"call {step.key} of run {trace.row.id} is called ok, and it had no effect"
            if result.error in _HARMLESS and happened and result.status != "unknown" and _acts(trace, step.key):
                yield f"call {step.key} of run {trace.row.id} is called {result.error}, and it had an effect"
            if step.key in kept and kept[step.key] != result:
                yield f"call {step.key} of run {trace.row.id} is kept as {kept[step.key].status}, not {result.status}"
        settled = {step.key for step in trace.steps_of("outcome")}
        for call in kept.keys() - settled:
            if not evidence.cancelled:
                yield f"call {call} of run {trace.row.id} has a result and no outcome"


def _acts(trace: Trace, call: str) -> bool:
    return any(EFFECTS[effect.name] != "pure" for effect in trace.find_effects(call))


def effects_are_allowed(evidence: Evidence) -> Iterator[str]:
    """I8: nothing happened without an intent, nor without an approval of exactly this where one is needed, nor over the
    limit."""
    for stray in evidence.strays:
        yield f"{stray.name}({stray.n}) happened for a run that does not exist"
    for trace in evidence.traces.values():
        intents = {step.key: step for step in trace.steps_of("intent")}
        for effect in trace.effects:
            intent = intents.get(effect.call)
            if intent is None:
                yield f"{effect.name}({effect.n}) of run {trace.row.id} happened without an intent"
            elif effect.name == "wire":
                yield from _approved(trace, effect, intent.seq, evidence.tables.approvals)
    most = evidence.script.per_day
    counted = Counter(step.at // 86_400_000 for trace in evidence.traces.values() for step in trace.steps_of("intent"))
    if most and any(n > most for n in counted.values()):
        yield f"more was done than a day allows: {dict(counted)}"


def _approved(trace: Trace, effect: LogEntry, before: int, kept: Sequence[ApprovalRecord]) -> Iterator[str]:
    what = f"{effect.name}({effect.n}) of run {trace.row.id}"
    rows = {row.id: row for row in kept}
    questions = {step.key: msgspec.json.decode(step.payload) for step in trace.steps_of("asked")}
    for step in trace.steps_of("answered"):
        question, answer, row = questions.get(step.key), msgspec.json.decode(step.payload), rows.get(step.key)
        if question is None or question["call_id"] != effect.call or answer["decision"] == "no" or step.seq > before:
            continue
        if row is None or row.answered_at is None or row.answered_at > question["expires_at"] * 1000:
            yield f"{what} happened by an approval that came too late"
        if (answer.get("arguments") or question["arguments"])["n"] != effect.n:
            yield f"{what} is not what was approved"
        return
    yield f"{what} happened without an approval"
