"""Text deltas that are written together become one event if events are delivered only after they are written."""

from typing import Any

import msgspec

from atlas_agents.core.store import AddEvents
from atlas_agents.gateway.events import RunLog
from atlas_agents.gateway.protocol.events import ChatDelta, ChatFinal, ChatReasoning, ChatReset
from atlas_agents.gateway.protocol.types import UsageShape


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


def test_deltas_keep_their_numbers_without_merging() -> None:
    log = RunLog("r", "s")
    log.add(delta("One "))
    log.add(delta("two"))
    assert written(log) == [(1, "One "), (2, "two")]
