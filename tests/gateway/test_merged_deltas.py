"""Text deltas that are written together share a row, and become one event if events are delivered after that only."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from atlas_agents.core.store import AddEvents, EventRow, ReserveEvents, Store, Write
from atlas_agents.gateway.events import BATCH_DELAY, TEXT_DELAY, LogWriter, RunLog, split_rows
from atlas_agents.gateway.protocol.events import (
    ChatDelta,
    ChatFinal,
    ChatReasoning,
    ChatReset,
    RunEvent,
    ToolCalling,
    ToolSettled,
    encode_event,
)
from atlas_agents.gateway.protocol.types import UsageShape
from atlas_agents.testing import VirtualClock


def delta(text: str) -> ChatDelta:
    return ChatDelta("r", text)


def written(log: RunLog) -> list[tuple[int, str]]:
    """Write the pending events and return them."""
    found: list[tuple[int, str]] = []
    for write in log.pending_writes():
        if isinstance(write, AddEvents):
            bodies: list[tuple[int, Any]] = [(seq, msgspec.json.decode(body)) for seq, body in write.events]
            found += [(seq, body["data"].get("text", body["event"])) for seq, body in bodies]
    log.mark_written(512)
    return found


def test_deltas_are_merged_until_they_are_written() -> None:
    log = RunLog("r", "s", merge_deltas=True)
    for word in ("One ", "two ", "three "):
        log.add(delta(word))
    log.add(ChatReasoning("r", "why"))
    log.add(ChatReasoning("r", "?"))
    log.add(delta("four "))
    assert written(log) == [(1, "One two three "), (2, "why?"), (3, "four ")]
    log.add(delta("five"))
    log.add(ChatReset("r", 2))
    log.add(delta("six"))
    assert written(log) == [(4, "five"), (5, "chat.reset"), (6, "six")]


def test_events_being_written_do_not_change() -> None:
    log = RunLog("r", "s", merge_deltas=True)
    log.add(delta("One "))
    first = log.pending_writes()
    log.add(delta("two"))
    log.mark_written(512)
    assert written(log) == [(2, "two")]
    assert isinstance(first[-1], AddEvents) and len(first[-1].events) == 1


def test_merged_delta_has_a_limit_and_the_terminal_event_is_separate() -> None:
    log = RunLog("r", "s", merge_deltas=True)
    for _ in range(300):
        log.add(delta("0123456789"))
    log.add(ChatFinal("r", UsageShape(1, 1), cancelled=True))
    *words, (_, last) = written(log)
    assert [len(text) for _, text in words] == [1020, 1020, 960]
    assert last == "chat.final"


def test_partial_message_contains_each_delta_once() -> None:
    log = RunLog("r", "s", merge_deltas=True)
    log.add(delta("One "))
    log.add(delta("two "))
    written(log)
    log.take_deliverable()
    log.add(delta("three "))
    log.take_deliverable()
    log.add(delta("four"))
    (part,) = log.partial.parts
    assert msgspec.to_builtins(part)["text"] == "One two three four"


def rows_of(log: RunLog) -> list[EventRow]:
    """Write the pending events and return their rows."""
    rows = [
        EventRow("r", *row) for write in log.pending_writes() if isinstance(write, AddEvents) for row in write.events
    ]
    log.mark_written(512)
    return rows


@pytest.mark.parametrize(
    "texts", [("One ", "two"), ('"', "\\", "\n\t", "\x00"), ("ä", "", "日本", "😀 é"), ("\ud800", "x")]
)
def test_deltas_that_share_a_row_keep_their_numbers_and_bytes(texts: tuple[str, ...]) -> None:
    log = RunLog("r", "s")
    for text in texts:
        log.add(delta(text))
    log.add(ChatReasoning("r", "why"))
    log.add(ChatReset("r", 2))
    log.add(delta("end"))
    rows = rows_of(log)
    assert [row.seq for row in rows] == [len(texts), len(texts) + 1, len(texts) + 2, len(texts) + 3]
    entries = [(row.seq, row.body) for row in split_rows(rows, 0)]
    assert entries == [(seq, encode_event(event)) for seq, event in enumerate(expected(texts), 1)]
    for after in range(len(entries) + 1):
        assert [(row.seq, row.body) for row in split_rows(rows, after)] == entries[after:]


def expected(texts: tuple[str, ...]) -> list[RunEvent]:
    return [*map(delta, texts), ChatReasoning("r", "why"), ChatReset("r", 2), delta("end")]


def test_deltas_of_a_repeated_write_are_read_once() -> None:
    log = RunLog("r", "s")
    log.add(delta("One "))
    log.add(delta("two "))
    (first,) = [each for each in log.pending_writes() if isinstance(each, AddEvents)]  # committed, but that is unknown
    log.add(delta("three"))
    rows = [EventRow("r", *row) for row in first.events] + rows_of(log)
    assert [row.seq for row in rows] == [2, 3]
    events = split_rows(rows, 0)
    assert [(row.seq, msgspec.json.decode(row.body)["data"]["text"]) for row in events] == [
        (1, "One "),
        (2, "two "),
        (3, "three"),
    ]


def test_long_texts_do_not_share_one_row() -> None:
    log = RunLog("r", "s")
    for _ in range(10):
        log.add(delta("x" * 20_000))
    rows = rows_of(log)
    assert [row.seq for row in rows] == [4, 8, 10]
    assert len(split_rows(rows, 0)) == 10


class RowStore:
    """Keeps the rows of events by run; every reservation succeeds. A commit takes `delay` seconds."""

    def __init__(self, clock: VirtualClock) -> None:
        self.rows: dict[str, list[int]] = {}
        self.commits, self.delay = 0, 0.0
        self._clock = clock

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[int | None]:
        self.commits += 1
        if self.delay:
            await self._clock.sleep(self.delay)
        for write in writes:
            if isinstance(write, AddEvents):
                self.rows.setdefault(write.run_id, []).extend(seq for seq, _ in write.events)
        return [512 if isinstance(write, ReserveEvents) else None for write in writes]


class Writing:
    """A running LogWriter on a virtual clock."""

    def __init__(self, *, is_worker: bool = False) -> None:
        self.clock = VirtualClock()
        self.store = RowStore(self.clock)
        delays = (BATCH_DELAY, BATCH_DELAY if is_worker else TEXT_DELAY)
        self.writer = LogWriter(
            *(cast(Store, self.store), "t", self._deliver, RunLog.hand_over, self.clock, *delays), is_worker=is_worker
        )

    def _deliver(self, log: RunLog) -> None:
        log.take_deliverable()

    async def __aenter__(self) -> "Writing":
        self._task = asyncio.create_task(self.writer.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def emit(self, log: RunLog, event: RunEvent) -> None:
        at_once = log.add(event)
        log.take_deliverable()
        self.writer.add(log, at_once=at_once)
        await self.clock.advance(0.001)


async def test_text_of_a_run_waits_for_its_own_time_while_other_runs_are_written() -> None:
    async with Writing() as writing:
        talking, calling = RunLog("talking", "s1"), RunLog("calling", "s2")
        await writing.emit(talking, delta("first "))  # reserves numbers, so it is written at once
        for number in range(20):
            await writing.emit(talking, delta("word "))
            await writing.emit(calling, ToolCalling("r", f"c{number}", "note", {}))
        assert len(writing.store.rows["calling"]) == 20
        assert writing.store.rows["talking"] == [1]
        await writing.clock.advance(TEXT_DELAY)
        assert writing.store.rows["talking"] == [1, 21]


async def test_text_is_written_with_the_next_event_of_its_own_run() -> None:
    async with Writing() as writing:
        log = RunLog("r", "s")
        for word in ("first ", "second ", "third "):
            await writing.emit(log, delta(word))
        await writing.emit(log, ToolCalling("r", "c", "note", {}))
        assert writing.store.rows["r"] == [1, 3, 4]
        await writing.clock.advance(TEXT_DELAY)
        assert writing.store.rows["r"] == [1, 3, 4]


async def test_texts_that_are_almost_due_are_written_together() -> None:
    async with Writing() as writing:
        logs = [RunLog(f"r{number}", "s") for number in range(3)]
        for log in logs:
            await writing.emit(log, delta("first "))
        for log in logs:
            await writing.emit(log, delta("second "))
            await writing.clock.advance(BATCH_DELAY * 0.8)
        await writing.clock.advance(TEXT_DELAY - 2 * BATCH_DELAY)
        assert [writing.store.rows[log.run_id] for log in logs] == [[1, 2], [1, 2], [1]]
        await writing.clock.advance(2 * BATCH_DELAY)
        assert writing.store.rows["r2"] == [1, 2]


async def test_flush_writes_text_that_is_not_due() -> None:
    async with Writing() as writing:
        log = RunLog("r", "s")
        await writing.emit(log, delta("first "))
        await writing.emit(log, delta("second "))
        await writing.writer.flush(10)
        assert writing.store.rows["r"] == [1, 2]


async def test_worker_collects_the_events_of_a_run_while_other_runs_are_written() -> None:
    async with Writing(is_worker=True) as writing:
        calling, ending = RunLog("calling", "s1", merge_deltas=True), RunLog("ending", "s2", merge_deltas=True)
        await writing.emit(calling, ToolCalling("r", "c", "note", {}))
        await writing.emit(calling, ToolSettled("r", "c", "note", "ok", "done", 1))
        await writing.emit(ending, ChatFinal("r", UsageShape(1, 1)))
        assert (writing.store.rows, writing.store.commits) == ({"ending": [1]}, 1)
        await writing.clock.advance(BATCH_DELAY)
        assert (writing.store.rows["calling"], writing.store.commits) == ([1, 2], 2)


async def test_worker_collects_events_for_longer_while_commits_are_slow() -> None:
    async with Writing(is_worker=True) as writing:
        slow, log = RunLog("slow", "s1", merge_deltas=True), RunLog("r", "s2", merge_deltas=True)
        writing.store.delay = 1.5 * BATCH_DELAY
        await writing.emit(slow, ChatFinal("r", UsageShape(1, 1)))
        await writing.clock.advance(writing.store.delay)
        await writing.emit(log, ToolCalling("r", "c", "note", {}))
        await writing.clock.advance(2 * BATCH_DELAY)
        assert writing.store.commits == 1
        await writing.clock.advance(TEXT_DELAY)
        assert writing.store.rows["r"] == [1]
