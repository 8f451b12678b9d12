"""A row of the tables of odd streams: what the server sends, and all that must come of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from wire_turns import Room, Turn, Wire, room

from atlas_agents import ToolCall
from fault_server import FaultServer, Script, Step, response
from sse_events import a, o

PAY = '{"to":"bob","amount":5}'
PAID = [("bob", 5)]
OK = ("ok", None)
BAD = ("error", "bad_arguments")
MISSING = ("error", "not_found")
DONE = {"openai": response(*o.says("Done.")), "anthropic": response(*a.says("Done."))}
Look = Callable[[Room, Turn], object]


def anything(_: Room, __: Turn) -> None:
    """Nothing more to look at."""


@dataclass(frozen=True)
class Odd:
    """What the server sends, one script per request, and what must be seen."""

    id: str
    wire: Wire
    scripts: Sequence[Script]
    text: str = "Hi"
    paid: Sequence[tuple[str, int]] = ()
    results: Sequence[tuple[str, str | None]] = ()
    look: Look = anything
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    async def check(self) -> None:
        """Take the turn, compare, and take another."""
        async with room(self.wire, FaultServer(*self.scripts)) as here:
            turn = await here.turn()
            assert turn.reply is not None, turn.error
            assert turn.reply.text == self.text
            assert here.paid == list(self.paid)
            assert turn.results == list(self.results)
            assert turn.resets == 0
            found = turn.reply.metadata
            assert {name: found.get(name) for name in self.metadata} == self.metadata
            self.look(here, turn)
            await here.next_turn_works()
            assert here.requests == [len(self.scripts) + 1]


def say(id: str, wire: Wire, *body: Step, text: str = "Hi", look: Look = anything, **metadata: Any) -> Odd:
    """One answer, without tools."""
    return Odd(id, wire, [response(*body)], text, look=look, metadata=metadata)


def act(
    id: str,
    wire: Wire,
    body: Sequence[bytes],
    paid: Sequence[tuple[str, int]] = (),
    results: Sequence[tuple[str, str | None]] | None = None,
    look: Look = anything,
) -> Odd:
    """One answer with calls, and then the last word; without `results`, all calls succeed."""
    return Odd(id, wire, [response(*body), DONE[wire.name]], "Done.", paid, results or [OK] * len(paid), look)


def refused(id: str, wire: Wire, body: Sequence[bytes]) -> Odd:
    """One answer with a call whose arguments nobody may act on: kept as it came, answered with an error."""
    return act(id, wire, body, results=[BAD], look=_unread)


def every(rows: Sequence[Odd]) -> pytest.MarkDecorator:
    cases: list[ParameterSet] = [pytest.param(row, id=f"{row.id} ({row.wire})") for row in rows]
    return pytest.mark.parametrize("row", cases)


def o_calls(*pieces: bytes, finish: str = "tool_calls") -> list[bytes]:
    return [*pieces, *o.end_with(finish)]


def a_tool(arguments: str, *, id: Any = "c1", name: str = "pay", stop: str = "tool_use") -> list[bytes]:
    return [a.start(), *a.tool_block(0, id, name, arguments), *a.end_with(stop)]


def calls_of(turn: Turn) -> list[ToolCall]:
    return [call for message in turn.added for call in message.tool_calls]


def _unread(_: Room, turn: Turn) -> None:
    assert [call.arguments for call in calls_of(turn)] == [{}]
    assert all(call.malformed for call in calls_of(turn))
