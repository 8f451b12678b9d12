"""Scripted replies of the model, by the scenario that the user's message names, and the tools it calls.

The reply depends on the conversation alone, so a resumed run must reach the same end.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from atlas_agents import (
    ClientTool,
    Happened,
    Message,
    NotHappened,
    ProviderError,
    ToolContext,
    ToolFailed,
    Transient,
    tool,
)
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.messages import STEERING_RUN
from atlas_agents.providers.base import BaseProvider, Capabilities, Chunk, Request, TextChunk, ToolCallChunk
from atlas_agents.testing import Reply, Scripted, calls, fails, says, thinks
from crash.fault_points import in_model
from crash.process_state import STATE

CANARY = "canary-5f0e"


def _delegate(to: str, task: str) -> Reply:
    return calls("delegate_task", target_agent=to, task_description=task)


SHAPE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
REPLIES: dict[str, tuple[Reply, ...]] = {
    "text": (says("Just a few words."),),
    "pure": (calls("look", n=1), says("Seen.")),
    "unsafe": (thinks("Shall I?", "signed") + calls("pay", n=1, password=CANARY), says("Paid.")),
    "keyed": (calls("order", n=1), says("Ordered.")),
    "mixed": (
        says("All at once. ") + calls("look", n=1) + calls("pay", n=2) + calls("order", n=3) + calls("pay", n=4),
        says("All done."),
    ),
    "three rounds": (
        calls("pay", n=1),
        says("And now ") + calls("order", n=2) + calls("pay", n=3),
        calls("look", n=4),
        says("Done."),
    ),
    "yes": (calls("wire", n=1, says="once"), says("Wired.")),
    "no": (calls("wire", n=1, says="no"), says("Not wired.")),
    "edited": (calls("wire", n=1, says="edit"), says("Wired as edited.")),
    "silent": (calls("wire", n=1, says="nothing"), says("Not approved.")),
    "late": (calls("wire", n=1, says="late"), says("Not approved in time.")),
    "both": (calls("pay", n=1) + calls("wire", n=2, says="once") + calls("wire", n=3, says="no"), says("Some of it.")),
    "fails": (calls("stumble", n=1) + calls("pay", n=2), says("One of them failed.")),
    "bug": (calls("break", n=1), says("It broke.")),
    "flaky": (calls("ring", n=1), says("Rung.")),
    "checked": (calls("ship", n=1) + calls("ship", n=2), says("Shipped.")),
    "untold": (calls("post", n=1), says("Posted.")),
    "thread": (calls("press", n=1), says("Pressed.")),
    "stopped": (calls("wait", n=1), says("Not stopped.")),
    "stopped later": (calls("pay", n=1), calls("hold", n=2), says("Not stopped.")),
    "endless": tuple(calls("pay", n=n) for n in range(1, 9)),
    "shape": (says("seven"), says('{"n": 7}')),
    "bad call": (calls("pay", n="many") + calls("nothing", n=1), says("Never mind.")),
    "plan": (
        calls("make_plan", steps=["Pay", "Order"]),
        calls("pay", n=1),
        says("That is paid."),
        calls("make_plan", steps=["Look around"]),
        calls("look", n=2) + calls("order", n=3),
        says("I have looked."),
        says("All as planned."),
    ),
    "steps": (
        says('Thought: I pay.\nAction: pay\nAction Input: {"n": 1}'),
        says('Action: order\nAction Input: {"n": 2}\nAction: look\nAction Input: {"n": 3}'),
        says("Final Answer: Paid and ordered."),
    ),
    "client": (calls("pay", n=1) + calls("hand", n=2) + calls("hand", n=3), says("Handed.")),
    "poison": (calls("die", n=1), says("Alive.")),
    "hand on": (_delegate("b", "unsafe #j"), says("Handed on.")),
    "hand further": (_delegate("b", "ask c #j"), says("Handed on.")),
    "ask c": (_delegate("c", "keyed #k"), says("I asked c.")),
    "hand both": (_delegate("b", "yes #j") + _delegate("c", "broken #k"), says("Handed on.")),
    "hand late": (
        calls("delegate_task", target_agent="b", task_description="stopped later #j", deadline="2 seconds"),
        says("Handed on."),
    ),
    "broken": (fails(ProviderError("no such model", "bad_request")),),
    "answered": (says("Good to know."),),
}
HAND = ClientTool("hand", "Hand something over.", SHAPE)
"""The tool that the client runs."""
STOPPED = ("stopped", "stopped later")
"""Scenarios that the client cancels."""


class ReplayModel(BaseProvider):
    """A model that replays its scenario; with `breaks` it fails after half of a reply."""

    def __init__(self, id: str = "player", *, breaks: bool = False) -> None:
        self.id = id
        self._breaks = breaks

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        is_summary = "You compress the history" in request.system
        shown = tuple(msgspec.Raw(message.to_json()) for message in request.messages)
        STATE.log.record("model", "summary" if is_summary else "request", name=self.id, messages=shown)
        reply = says("<summary>So far.</summary>") if is_summary else next_reply(request.messages)
        if self._breaks:
            reply = Reply(*reply.items[: max(1, len(reply.items) // 2)]) + fails(ProviderError("cut off", "network"))
        await STATE.steering_sent.wait()
        in_model(STATE.points.hit("model before"))
        async for chunk in Scripted(reply).stream(request):
            in_model(STATE.points.hit("model chunk"))
            await STATE.delay()
            yield chunk
        in_model(STATE.points.hit("model after"))


def next_reply(messages: Sequence[Message]) -> Reply:
    """Return the reply that follows the last one since the user's message."""
    last: Message | None = None
    for message in reversed(messages):
        if message.role == "assistant" and last is None:
            last = message
        elif message.role == "user" and not _is_own(message):
            replies = REPLIES["answered" if "state" in message.metadata else message.text.split(" #")[0]]
            if messages[-1].metadata.get("synthetic") and len(replies) == 2:  # the message to correct may be cut off
                return replies[-1]
            known = [_reply_content(reply) for reply in replies]
            return replies[known.index((last.text, _calls(last))) + 1 if last is not None else 0]
    raise AssertionError("a request without a question")


def _is_own(message: Message) -> bool:
    """Return whether the message belongs to a running turn: a plan step, an observation, or a steering message."""
    added = message.metadata.get("synthetic") or message.metadata.get(STEERING_RUN)
    return bool(added) or message.text.startswith("Observation:")


def _reply_content(reply: Reply) -> tuple[str, list[Any]]:
    called = [item.call for item in reply.items if isinstance(item, ToolCallChunk)]
    text = "".join(item.text for item in reply.items if isinstance(item, TextChunk))
    return text, [(call.name, call.arguments) for call in called]


def _calls(message: Message) -> list[Any]:
    return [(call.name, call.arguments) for call in message.tool_calls]


async def _act(context: ToolContext, name: str, n: int) -> str:
    """Record one effect, with fault points around it."""
    for point in ("before", "in", "after"):
        if point == "after":
            _effect(context, name, n)
        fault = STATE.points.hit(f"tool {point}")
        if fault == "timeout":
            await asyncio.sleep(60)
        elif fault == "exception":
            raise RuntimeError("a bug in the tool")
    await STATE.delay()
    return f"did {n}"


def _effect(context: ToolContext, name: str, n: int) -> None:
    key = context.idempotency_key
    STATE.log.record("tool", "effect", name=name, n=n, run=context.run_id, call=context.call_id, key=key)


def _happened(key: str) -> bool:
    return any(entry.what == "effect" and entry.key == key for entry in STATE.log.all())


async def query_outcome(key: str) -> Happened | NotHappened:
    """Query the outcome of a call."""
    if STATE.points.hit("reconcile before") == "exception":
        raise RuntimeError("a bug in reconcile")
    found = Happened("found out") if _happened(key) else NotHappened()
    STATE.points.hit("reconcile after")
    return found


async def report_unknown(key: str) -> None:
    """The outcome is unknown."""
    STATE.points.hit("reconcile before")


@tool(effect="pure")
async def look(n: int, context: ToolContext) -> str:
    """Look."""
    return await _act(context, "look", n)


@tool
async def pay(n: int, context: ToolContext, password: str = "") -> str:
    """Pay."""
    return await _act(context, "pay", n)


@tool(effect="keyed")
async def order(n: int, context: ToolContext) -> str:
    """Order under an idempotency key."""
    return await _act(context, "order", n)


@tool(confirm=True)
async def wire(n: int, says: str, context: ToolContext) -> str:
    """Wire money, if it is approved."""
    return await _act(context, "wire", n)


@tool
async def stumble(n: int, context: ToolContext) -> str:
    """Fail with a message."""
    STATE.points.hit("tool before")
    raise ToolFailed("not found")


@tool(name="break")
async def break_(n: int, context: ToolContext) -> str:
    """Act, then raise an unexpected exception."""
    await _act(context, "break", n)
    raise RuntimeError("a bug")


@tool
async def ring(n: int, context: ToolContext) -> str:
    """Unavailable the first time."""
    tried = sum(entry.what == "try" and entry.key == context.idempotency_key for entry in STATE.log.all())
    STATE.log.record("tool", "try", name="ring", key=context.idempotency_key)
    if not tried:
        raise Transient("unavailable")
    return await _act(context, "ring", n)


@tool(reconcile=query_outcome)
async def ship(n: int, context: ToolContext) -> str:
    """Ship; the outcome can be queried."""
    return await _act(context, "ship", n)


@tool(reconcile=report_unknown)
async def post(n: int, context: ToolContext) -> str:
    """Post; the outcome stays unknown."""
    return await _act(context, "post", n)


@tool(in_process=True)
def press(n: int, context: ToolContext) -> str:
    """Work in a thread."""
    STATE.points.hit("tool before")
    _effect(context, "press", n)
    STATE.points.hit("tool after")
    return f"did {n}"


@tool(effect="pure")
async def wait(n: int, context: ToolContext) -> str:
    """Wait until it is cancelled."""
    context.progress("waiting")
    await asyncio.sleep(60)
    return await _act(context, "wait", n)


@tool
async def hold(n: int, context: ToolContext) -> str:
    """Act, and then wait until it is cancelled."""
    done = await _act(context, "hold", n)
    context.progress("waiting")
    await asyncio.sleep(60)
    return done


@tool(effect="pure")
async def die(n: int, context: ToolContext) -> str:
    """End the process."""
    STATE.points.hit("tool poison")
    return await _act(context, "die", n)


TOOLS = (look, pay, order, wire, stumble, break_, ring, ship, post, press, wait, hold, die, delegate_task)
EFFECTS = {**{each.name: each.effect for each in TOOLS}, HAND.name: "keyed"}
