"""The only loop in the house.

A turn is one user message and all that follows from it. It goes in rounds: the model speaks, the tools it asked for
answer, and again, until it asks for none. Who listens stands behind `run.emit`, how the model is spoken to behind
`run.provider`, how tools are governed behind `run.answer`; none of them changes what is written here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from atlas_agents.core.errors import BadOutput, kind_of
from atlas_agents.core.events import ErrorRaised, MessageReceived, MessageSent, StreamEnd, StreamStart
from atlas_agents.core.messages import Message, user
from atlas_agents.engine.listen import listen
from atlas_agents.engine.output import Output
from atlas_agents.engine.run import Known, Run
from atlas_agents.engine.stage import WHOLE_TURN, Stage

Mode: TypeAlias = Callable[[Run], Awaitable[Message]]


class RoundsSpent(Exception):
    """The model still wants tools, but its rounds are used up; `partial` is what it said last."""

    def __init__(self, partial: Message) -> None:
        super().__init__("Max iterations reached")
        self.partial = partial


async def rounds(run: Run) -> Message:
    """Let the model and its tools take turns until the model has said its last word."""
    reply = Message("assistant", ())
    for _ in range(run.max_rounds):
        reply = run.add(await listen(run))
        if reply.tool_calls:
            await run.answer(reply.tool_calls)
            if run.stage.enough():
                return reply
        elif reply.metadata.get("stop_reason") != "pause":
            return reply
    raise RoundsSpent(reply)


async def run_turn(run: Run, message: Message | None, mode: Mode = rounds) -> Message:
    """Take a user message to its answer, and say how it ended whatever happens."""
    try:
        reply = await _taken(run, await take_in(run, message), mode)
    except Known:
        raise
    except asyncio.CancelledError:
        await run.end("cancelled")
        if not run.left:
            run.emit(StreamEnd(run.id, run.usage, cancelled=True))
        raise
    except Exception as failure:  # told to all who listen, then to the caller
        if not run.left:
            run.emit(StreamEnd(run.id, run.usage, error=str(failure)))
            run.emit(ErrorRaised(run.id, str(failure), kind_of(failure)))
        raise
    run.emit(StreamEnd(run.id, run.usage))
    run.emit(MessageReceived(run.id, reply))
    return reply


async def _taken(run: Run, messages: Sequence[Message], mode: Mode) -> Message:
    """Wait for its turn, and take it. The next one's comes when it is written down how this one ended."""
    async with run.line.turn:
        try:
            await _open(run, messages)
            reply = await _last_word(run, mode)
            await run.end("done")
        except asyncio.CancelledError:
            await run.end("cancelled")
            raise
        except Exception as failure:
            await run.end("failed", failure)
            raise
        return reply


async def _last_word(run: Run, mode: Mode) -> Message:
    """The answer, or what there is of one when the rounds are used up."""
    try:
        return await mode(run)
    except RoundsSpent as spent:
        run.rounds_spent = True
        return spent.partial


async def shaped(run: Run, mode: Mode = rounds) -> Message:
    """The same, for an answer of a wanted shape: one that does not fit may be mended once."""
    wanted = cast(Output, run.output)
    reply = await mode(run)
    try:
        run.value = wanted.read(reply.text)
    except BadOutput as problem:
        run.say_instead(reply.text, "")
        run.add_own(user(f"Your answer does not fit: {problem}\n{wanted.instruction}", synthetic=True))
        reply = await rounds(run)
        run.value = wanted.read(reply.text)
    return reply


async def chained(run: Run, mode: Mode = rounds) -> Message:
    """One agent after the other, each with what was said before."""
    *before, last = run.terms.team.then
    run.stage = Stage()
    reply = await mode(run)
    for agent_id in (*before, last):
        run.hand_over(agent_id)
        run.stage = WHOLE_TURN if agent_id == last else Stage()
        run.add_own(user("Go on from the answer above: do your part, and give the whole result.", synthetic=True))
        reply = await rounds(run)
    return reply


async def take_in(run: Run, message: Message | None) -> list[Message]:
    """In the order in which they came. Between the doors nothing is awaited, so that it stays the order."""
    if run.goes_on or message is None:
        return []
    async with run.line.door:
        return await run.take_in(message)


async def _open(run: Run, messages: Sequence[Message]) -> None:
    begun = await run.begin(messages)
    if begun:
        *_, run.question = [run.join(each) for each in begun]
        if not run.goes_on:
            run.emit(MessageSent(run.id, run.question))
    run.emit(StreamStart(run.id, run.settings.id))
