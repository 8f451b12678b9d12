"""Judges what a dispatcher has left behind: the rows, the world outside and what a client heard, by the invariants.

The checks are those of the crash cases; what is checked here besides is what only a gateway and a queue can get wrong.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg
from conform_listener import Listener
from conform_troupe import Setting
from crash.checker import CHECKS, readable
from crash.evidence import Evidence
from crash.more_checks import Stories, same_end
from crash.plays import PLAYS
from crash.runner import Case, Outcome
from crash.stores import QUERIES, SqlitePlace, Tables, tables
from crash.world import read

from atlas_agents.core.store import OPEN
from atlas_agents.providers.base import TextChunk, ToolCallChunk
from checks import until

Frame: TypeAlias = dict[str, Any]
_AT_ONCE = ("chat.started", "chat.delta", "chat.reasoning", "chat.message", "tool.progress")
_NOT_HERE = ("I9", "I11")
"""They judge notes of the engine's own events, and of another start; what clients hear is judged by frames."""


async def judged(setting: Setting, listener: Listener) -> Evidence:
    """AssertionError with the whole story unless all invariants hold."""
    await until(lambda: asyncio.to_thread(_is_quiet, setting), patience=30.0)
    found = _rows(setting)
    notes = [*read(setting.home / "world"), *listener.notes]
    outcome = Outcome(Case(listener.script()), found, notes, ())
    evidence = Evidence(outcome)
    wrong = [f"{name}: {each}" for name, check in CHECKS.items() if name not in _NOT_HERE for each in check(evidence)]
    wrong += [f"I10: {each}" for each in same_end(evidence, _stories(evidence))]
    replayed = await listener.replayed()
    wrong += [f"I9: {each}" for each in _frames(listener, evidence, replayed, inline=setting.inline)]
    assert not wrong, readable(outcome, wrong)
    return evidence


def _rows(setting: Setting) -> Tables:
    if not setting.where.startswith("postgresql:"):
        return SqlitePlace(setting.home).rows()
    with psycopg.connect(setting.where, options=f"-c search_path={setting.schema}") as connection:
        return tables([connection.execute(query).fetchall() for query in QUERIES])


def _is_quiet(setting: Setting) -> bool:
    """No run is open, every job is told, and nothing is left in the queue."""
    found = _rows(setting)
    if any(run.status in OPEN for run in found.runs) or not all(job.notified for job in found.jobs):
        return False
    if setting.inline:
        return True
    with psycopg.connect(setting.where, options=f"-c search_path={setting.schema}") as connection:
        return connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchall() == [(0,)]


def _stories(evidence: Evidence) -> Stories:
    """How each play ends where nothing goes wrong."""
    told: Stories = {}
    for play, replies in PLAYS.items():
        story: list[Any] = ["done", ("user", play)]
        for reply in replies:
            called = [item.call for item in reply.items if isinstance(item, ToolCallChunk)]
            story.append(("assistant", "".join(item.text for item in reply.items if isinstance(item, TextChunk))))
            story += [("calls", call.name, call.arguments) for call in called]
            if called:
                story.append(("tool", ""))
                story += [("result", "ok", f"did {call.arguments.get('n')}") for call in called]
        if play in PLAIN:
            told[evidence.script.name, play] = story
    return told


PLAIN = ("text", "pure", "keyed", "mixed", "three rounds")
"""Plays that nobody stops, and that hand nothing on."""


def _frames(listener: Listener, evidence: Evidence, replayed: dict[str, list[Frame]], *, inline: bool) -> Iterator[str]:
    """What a client heard in pieces is what is told in one piece, each number once, and true."""
    for run, frames in listener.heard.items():
        seen = [frame["data"]["seq"] for frame in frames]
        if seen != sorted(set(seen)):
            yield f"run {run} was heard out of order, or twice: {seen}"
        if _kept(frames, replayed[run], inline=inline) != replayed[run]:
            yield f"run {run} was heard as\n    {_short(frames)}\nand is told now as\n    {_short(replayed[run])}"
        row, last = evidence.traces[run].row, frames[-1]
        wanted = "chat.error" if row.status == "failed" else "chat.final"
        if last["event"] != wanted or bool(last["data"].get("cancelled")) != (row.status == "cancelled"):
            yield f"run {run} is {row.status}, and was heard to end with {last}"
        results = {f["data"]["toolCallId"]: f["data"]["status"] for f in frames if f["event"] == "tool.result"}
        kept = {step.key: result.status for step, result in evidence.traces[run].outcomes()}
        if results != kept and not evidence.cancelled:
            yield f"the calls of run {run} were heard as {results}, and are kept as {kept}"


def _kept(heard: list[Frame], told: list[Frame], *, inline: bool) -> list[Frame]:
    """What was heard, without what may have been heard before it was written: where one process does both, words of the
    last moment, which are withdrawn when the run goes on."""
    kept: list[Frame] = []
    for frame, following in zip(heard, [*heard[1:], None], strict=True):
        withdrawn = following is not None and (following["event"] == "chat.reset" or following not in told)
        if frame in told or not (inline and withdrawn and frame["event"] in _AT_ONCE):
            kept.append(frame)
    return kept


def _short(frames: list[Frame]) -> str:
    return " ".join(f"{frame['data']['seq']}:{frame['event']}" for frame in frames)


def statuses(evidence: Evidence) -> dict[str, int]:
    """How many calls ended how."""
    found: dict[str, int] = {}
    for trace in evidence.traces.values():
        for _, result in trace.outcomes():
            found[result.status] = found.get(result.status, 0) + 1
    return found
