"""Table rows for unusual streams: what the server sends, and the expected turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from wire_setup import WIRES, Turn, Wire, WireSetup, open_setup

from atlas_agents import ToolCall
from fault_server import FaultServer, Script, Step, response
from sse_events import a, o

PAY = '{"to":"bob","amount":5}'
PAID = [("bob", 5)]
OK = ("ok", None)
BAD = ("error", "bad_arguments")
MISSING = ("error", "not_found")
DONE = {wire.name: response(*wire.builder.says("Done.")) for wire in WIRES}
Look = Callable[[WireSetup, Turn], object]


def no_check(_: WireSetup, __: Turn) -> None:
    """Check nothing else."""


@dataclass(frozen=True)
class StreamCase:
    """What the server sends, one script per request, and the expected outcome."""

    id: str
    wire: Wire
    scripts: Sequence[Script]
    text: str = "Hi"
    paid: Sequence[tuple[str, int]] = ()
    results: Sequence[tuple[str, str | None]] = ()
    look: Look = no_check
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    async def check(self) -> None:
        """Run the turn, compare its outcome, and run another turn."""
        async with open_setup(self.wire, FaultServer(*self.scripts)) as setup:
            turn = await setup.turn()
            assert turn.reply is not None, turn.error
            assert turn.reply.text == self.text
            assert setup.paid == list(self.paid)
            assert turn.results == list(self.results)
            assert turn.resets == 0
            found = turn.reply.metadata
            assert {name: found.get(name) for name in self.metadata} == self.metadata
            self.look(setup, turn)
            await setup.next_turn_works()
            assert setup.requests == [len(self.scripts) + 1]


def text_case(id: str, wire: Wire, *body: Step, text: str = "Hi", look: Look = no_check, **metadata: Any) -> StreamCase:
    """One response without tool calls."""
    return StreamCase(id, wire, [response(*body)], text, look=look, metadata=metadata)


def call_case(
    id: str,
    wire: Wire,
    body: Sequence[bytes],
    paid: Sequence[tuple[str, int]] = (),
    results: Sequence[tuple[str, str | None]] | None = None,
    look: Look = no_check,
) -> StreamCase:
    """One response with tool calls, then a final answer; without `results`, all calls succeed."""
    return StreamCase(id, wire, [response(*body), DONE[wire.name]], "Done.", paid, results or [OK] * len(paid), look)


def malformed_case(id: str, wire: Wire, body: Sequence[bytes]) -> StreamCase:
    """One response with a malformed call: stored verbatim and answered with an error."""
    return call_case(id, wire, body, results=[BAD], look=_malformed_call)


def make_params(rows: Sequence[StreamCase]) -> pytest.MarkDecorator:
    cases: list[ParameterSet] = [pytest.param(row, id=f"{row.id} ({row.wire})") for row in rows]
    return pytest.mark.parametrize("row", cases)


def o_calls(*pieces: bytes, finish: str = "tool_calls") -> list[bytes]:
    return [*pieces, *o.end_with(finish)]


def a_tool(arguments: str, *, id: Any = "c1", name: str = "pay", stop: str = "tool_use") -> list[bytes]:
    return [a.start(), *a.tool_block(0, id, name, arguments), *a.end_with(stop)]


def calls_in(turn: Turn) -> list[ToolCall]:
    return [call for message in turn.added for call in message.tool_calls]


def _malformed_call(_: WireSetup, turn: Turn) -> None:
    assert [call.arguments for call in calls_in(turn)] == [{}]
    assert all(call.malformed for call in calls_in(turn))
