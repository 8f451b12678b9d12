"""Check every invariant of a case, and format a readable report of a violation."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from crash import invariants, more_invariants
from crash.evidence import Evidence, transcript
from crash.evidence_log import LogEntry
from crash.fault_points import Plan
from crash.more_invariants import Transcripts
from crash.runner import Outcome

CHECKS: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "I1": invariants.messages_accepted_once,
    "summaries": invariants.summaries_once,
    "I2": invariants.effects_once,
    "I3": invariants.pairs_are_complete,
    "I4": invariants.every_run_ends,
    "steering": invariants.steering_messages_enter_once,
    "I5": invariants.chains_are_valid,
    "I6": invariants.audit_is_complete,
    "I7": invariants.results_are_correct,
    "I8": invariants.effects_are_allowed,
    "I9": more_invariants.events_match_the_store,
    "I11": more_invariants.restart_changes_nothing,
    "I12": more_invariants.counts_are_exact,
    "jobs": more_invariants.jobs_are_done_once,
    "crash loop": more_invariants.crash_loop_is_given_up,
    "snapshot": more_invariants.snapshot_is_what_a_kill_leaves,
    "answers": more_invariants.answers_are_those_of_the_script,
}
_CALM = ("nothing", "kill", "snapshot", "stop", "busy", "full", "lost", "unclear", "io")
"""Faults after which a turn must still reach its regular end."""


def violations(outcome: Outcome, plain: Transcripts) -> list[str]:
    """Return the violations, each with the name of its invariant."""
    evidence = Evidence(outcome)
    found = [f"{name}: {wrong}" for name, check in CHECKS.items() for wrong in check(evidence)]
    if all(plan.fault in _CALM for plan in outcome.case.plans) and outcome.case.jump <= 0:
        found += [f"I10: {wrong}" for wrong in more_invariants.same_end(evidence, plain)]
    return found


def transcripts(outcome: Outcome) -> Transcripts:
    """Return the transcript of each message of a case without faults."""
    evidence = Evidence(outcome)
    return {
        (evidence.script.name, t.send.scenario): transcript(t) for t in evidence.traces.values() if t.send is not None
    }


def format_case(outcome: Outcome, found: Sequence[str]) -> str:
    """Format a failed case: its plan, violations, journals and evidence log."""
    case = outcome.case
    lines = [
        f"CASE {case.script.name}",
        f"  {msgspec.json.encode(case).decode()}",
        *(f"  process {n}: {plan}" for n, plan in enumerate(case.plans, 1)),
    ]
    lines += [
        f"  last process: {Plan(jump=case.jump)}" if case.jump else "",
        f"  processes ended: {' '.join(outcome.ends)}",
        *(f"  VIOLATED {wrong}" for wrong in found),
    ]
    for row in outcome.tables.runs:
        lines.append(f"  run {row.id} in {row.session}: {row.status}, epoch {row.epoch}, key {row.key}, {row.error}")
        steps = [step for step in outcome.tables.journal if step.run_id == row.id]
        lines += [f"    {step.seq:3} {step.kind:9} {step.key:36} {_short(step.payload)}" for step in steps]
    lines += [f"  job {job}" for job in outcome.tables.jobs]
    lines += [f"  audit {row.seq} {_short(row.entry)}" for row in outcome.tables.audit]
    lines += [f"  message {each.session} {each.seq} {_short(each.body)}" for each in outcome.tables.messages]
    return "\n".join([*lines, *(f"  {_format_entry(entry)}" for entry in outcome.entries if entry.what != "passed")])


def _short(body: bytes) -> str:
    text = body.decode()
    return text if len(text) < 160 else f"{text[:157]}…"


def _format_entry(entry: LogEntry) -> str:
    more = [entry.name, str(entry.n or ""), entry.key, entry.text, entry.run[:8], entry.call]
    return f"process {entry.process} {entry.who:7} {entry.what:20} {' '.join(each for each in more if each)}"
