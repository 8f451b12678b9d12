"""Checks the invariants after a conformance test: stored rows, recorded side effects, and what a client received.

Uses the checks of the crash tests, plus checks of what only a gateway and a queue can get wrong.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg
from conformance_client import ReconnectingClient
from conformance_processes import DispatcherSetup
from crash.checker import CHECKS, format_case
from crash.evidence import Evidence
from crash.evidence_log import read
from crash.more_invariants import Transcripts, same_end
from crash.replies import REPLIES
from crash.runner import Case, Outcome
from crash.stores import QUERIES, SqliteDatabase, Tables, tables

from atlas_agents.core.store import OPEN
from atlas_agents.providers.base import TextChunk, ToolCallChunk
from checks import wait_until

Frame: TypeAlias = dict[str, Any]
_UNSTORED_EVENTS = ("chat.started", "chat.delta", "chat.reasoning", "tool.progress")
_SKIPPED_CHECKS = ("I9", "I11")
"""Checks of in-process events and of a restart; here, received frames are checked instead."""


async def check_invariants(setup: DispatcherSetup, client: ReconnectingClient) -> Evidence:
    """Raise AssertionError with the full history unless all invariants hold."""
    await wait_until(lambda: asyncio.to_thread(_is_idle, setup))
    stored = _rows(setup)
    entries = [*read(setup.home / "world"), *client.entries]
    outcome = Outcome(Case(client.script()), stored, entries, ())
    evidence = Evidence(outcome)
    violations = [
        f"{name}: {each}" for name, check in CHECKS.items() if name not in _SKIPPED_CHECKS for each in check(evidence)
    ]
    violations += [f"I10: {each}" for each in same_end(evidence, _expected_stories(evidence))]
    replayed = await client.replay()
    violations += [f"I9: {each}" for each in _check_frames(client, evidence, replayed, inline=setup.inline)]
    assert not violations, format_case(outcome, violations)
    return evidence


def _rows(setup: DispatcherSetup) -> Tables:
    if not setup.where.startswith("postgresql:"):
        return SqliteDatabase(setup.home).rows()
    with psycopg.connect(setup.where, options=f"-c search_path={setup.schema}") as connection:
        return tables([connection.execute(query).fetchall() for query in QUERIES])


def _is_idle(setup: DispatcherSetup) -> bool:
    """Return whether no run is open, all job results are delivered and the queue is empty."""
    stored = _rows(setup)
    if any(run.status in OPEN for run in stored.runs) or not all(job.notified for job in stored.jobs):
        return False
    if setup.inline:
        return True
    with psycopg.connect(setup.where, options=f"-c search_path={setup.schema}") as connection:
        return connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchall() == [(0,)]


def _expected_stories(evidence: Evidence) -> Transcripts:
    """Return how each play ends without a failure."""
    expected: Transcripts = {}
    for scenario, replies in REPLIES.items():
        transcript: list[Any] = ["done", ("user", scenario)]
        for reply in replies:
            called = [item.call for item in reply.items if isinstance(item, ToolCallChunk)]
            transcript.append(("assistant", "".join(item.text for item in reply.items if isinstance(item, TextChunk))))
            transcript += [("calls", call.name, call.arguments) for call in called]
            if called:
                transcript.append(("tool", ""))
                transcript += [("result", "ok", f"did {call.arguments.get('n')}") for call in called]
        if scenario in PLAIN_PLAYS:
            expected[evidence.script.name, scenario] = transcript
    return expected


PLAIN_PLAYS = ("text", "pure", "keyed", "mixed", "three rounds")
"""Plays that are not cancelled and do not delegate."""


def _check_frames(
    client: ReconnectingClient, evidence: Evidence, replayed: dict[str, list[Frame]], *, inline: bool
) -> Iterator[str]:
    """Check that the client received every frame once and in order, as replayed later and as stored."""
    for run, frames in client.received.items():
        seen = [frame["data"]["seq"] for frame in frames]
        if seen != sorted(set(seen)):
            yield f"run {run} was received out of order, or twice: {seen}"
        if _without_unstored(frames, replayed[run], inline=inline) != replayed[run]:
            yield f"run {run}: received\n    {_summarise(frames)}\nbut replayed as\n    {_summarise(replayed[run])}"
        row, last = evidence.traces[run].row, frames[-1]
        wanted = "chat.error" if row.status == "failed" else "chat.final"
        if last["event"] != wanted or bool(last["data"].get("cancelled")) != (row.status == "cancelled"):
            yield f"run {run} is stored as {row.status}, but its last frame is {last}"
        results = {f["data"]["toolCallId"]: f["data"]["status"] for f in frames if f["event"] == "tool.result"}
        stored = {step.key: result.status for step, result in evidence.traces[run].outcomes()}
        if results != stored and not evidence.cancelled:
            yield f"run {run}: received call results {results}, stored {stored}"


def _without_unstored(received: list[Frame], expected: list[Frame], *, inline: bool) -> list[Frame]:
    """Drop frames that the inline dispatcher may send before it stores them; a resumed run withdraws them."""
    stored: list[Frame] = []
    for frame, following in zip(received, [*received[1:], None], strict=True):
        withdrawn = following is not None and (following["event"] == "chat.reset" or following not in expected)
        if frame in expected or not (inline and withdrawn and frame["event"] in _UNSTORED_EVENTS):
            stored.append(frame)
    return stored


def _summarise(frames: list[Frame]) -> str:
    return " ".join(f"{frame['data']['seq']}:{frame['event']}" for frame in frames)


def statuses(evidence: Evidence) -> dict[str, int]:
    """Count calls by status."""
    counts: dict[str, int] = {}
    for trace in evidence.traces.values():
        for _, result in trace.outcomes():
            counts[result.status] = counts.get(result.status, 0) + 1
    return counts
