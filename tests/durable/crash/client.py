"""The client: sends messages, listens, answers what it is asked, cancels, and notes all of it in the world.

It knows what it noted in earlier lives: what was not acknowledged it sends again under the same key.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from atlas_agents import Answer, Atlas, AtlasStream, Question
from atlas_agents.core.errors import AtlasError
from atlas_agents.core.events import Event
from crash.plays import STOPPED
from crash.scripts import Script, Send
from crash.stage import STAGE
from crash.world import Note

_TRIES = 4
_numbers = itertools.count(1)


class Client:
    """All clients of a script, and the person whom they ask."""

    def __init__(self, atlas: Atlas, script: Script, before: Sequence[Note]) -> None:
        self._atlas = atlas
        self._script = script
        self._before = [note for note in before if note.who == "client"]
        self._acked = {note.key: note.run for note in self._before if note.what == "ack"}
        self._stopped = {note.run for note in self._before if note.what == "cancel"}
        self._plays: dict[str, str] = {}
        self._given: set[str] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._streams: list[AtlasStream] = []

    async def live(self, *, again: bool, sends_first: bool) -> None:
        """Go on with what was cut short, then send what is left to send; until every event was received."""
        loop = asyncio.get_running_loop()
        STAGE.points.cancel = lambda: loop.call_soon_threadsafe(self._cancel_all) and None
        if again and not sends_first:
            await self._recover()
        if not (again and sends_first):
            self._see_to_jobs()
        looking = asyncio.create_task(self._look_after_others()) if again and sends_first else None
        await asyncio.gather(*(self._send_all(sends) for sends in self._script.clients))
        if again and sends_first:
            await self._recover()
            self._see_to_jobs()
        while await self._has_jobs() or self._following:
            await asyncio.wait([*self._following, asyncio.create_task(asyncio.sleep(0.005))])
        if looking is not None:
            looking.cancel()

    def _see_to_jobs(self) -> None:
        if self._script.jobs:
            self._atlas.jobs.on_turn(lambda stream, _: self._follow(stream, ""))
            self._atlas.jobs.start()

    async def _has_jobs(self) -> bool:
        """There is something to do, or to tell."""
        if not self._script.jobs or self._atlas.store is None:
            return False
        try:
            return bool(await self._atlas.store.pending_jobs(self._atlas.tenant, 1 << 60))
        except AtlasError:
            return True

    async def _look_after_others(self) -> None:
        """Turns that went on because a message was sent to their session: no client has their streams."""
        seen = set[str]()
        while True:
            for run in set(self._acked.values()) - seen:
                if (stream := self._atlas.stream(run)) is not None:
                    seen.add(run)
                    self._follow(stream, self._play_of(run))
            await asyncio.sleep(0.005)

    async def _recover(self) -> None:
        await self._answer_late()
        for _ in range(2):  # the second time there is nothing left to do
            streams = await self._recovered()
            STAGE.world.note("client", "recovered", text=" ".join(stream.stream_id for stream in streams))
            for stream in streams:
                self._follow(stream, self._play_of(stream.stream_id))

    async def _recovered(self) -> list[AtlasStream]:
        """An unavailable store is reported and tried again."""
        for _ in range(_TRIES):
            try:
                return await self._atlas.recover()
            except AtlasError as error:
                STAGE.world.note("client", "not recovered", text=type(error).__name__)
                await asyncio.sleep(0.002)
        return []

    async def _send_all(self, sends: Sequence[Send]) -> None:
        for send in sends:
            if send.key in self._acked:
                continue
            follower = await self._send(send)
            if follower is None:
                return
            if not send.on:
                await asyncio.wait([follower])

    async def _send(self, send: Send) -> "asyncio.Task[None] | None":
        """Until it is acknowledged; a store that stays away is given up on, until the next life."""
        for _ in range(_TRIES):
            STAGE.world.note("client", "send", key=send.key, text=send.text)
            stream = self._atlas.send(
                send.text,
                session=send.session,
                idempotency_key=send.key,
                output=self._script.shaped if send.shaped else None,
            )
            self._streams.append(stream)
            try:
                accepted = await stream.accepted()
            except AtlasError as error:
                STAGE.world.note("client", "not taken in", key=send.key, text=type(error).__name__)
                await asyncio.sleep(0.002)
                continue
            STAGE.points.here("client ack before")
            STAGE.world.note("client", "ack", key=send.key, run=accepted.run_id, text=accepted.status)
            STAGE.points.here("client ack after")
            return self._follow(stream, send.play)
        return None

    def _follow(self, stream: AtlasStream, play: str) -> "asyncio.Task[None]":
        self._streams.append(stream)
        task = asyncio.create_task(self._listen(stream, play, next(_numbers)))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return task

    async def _listen(self, stream: AtlasStream, play: str, number: int) -> None:
        if stream.stream_id in self._stopped:
            stream.cancel()
        async for event in stream:
            self._note(event, number)
            await self._react(event, stream, play)
        over = ""
        try:
            await stream.reply()
        except AtlasError as error:
            over = type(error).__name__
        STAGE.world.note("client", "over", run=stream.stream_id, stream=number, text=over)

    def _note(self, event: Event, number: int) -> None:
        if event.type in ("message:kept", "message:received", "tool:result"):
            STAGE.points.here(f"client {event.type} before")
        STAGE.world.note("client", event.type, run=event.stream_id, stream=number, **remembered(event))
        if event.type == "message:received":
            STAGE.points.here("client message:received after")

    async def _react(self, event: Event, stream: AtlasStream, play: str) -> None:
        if event.type == "approval:asked" and self._script.asks == "wait":
            STAGE.points.here("approval asked")
            await self._answer(event.question)
        elif event.type == "tool:progress" and play in STOPPED:
            STAGE.world.note("client", "cancel", run=event.stream_id)
            STAGE.points.here("client cancel before")
            stream.cancel()
            STAGE.points.here("client cancel after")

    async def _answer(self, question: Question) -> None:
        wish = question.arguments["says"]
        if wish in ("nothing", "late") or question.id in self._given:
            return
        self._given.add(question.id)
        answer = answer_to(question)
        STAGE.points.here("approval answer before")
        for _ in range(_TRIES):
            try:
                await self._atlas.answer(question.id, answer)
            except AtlasError as error:
                STAGE.world.note("client", "not answered", key=question.id, text=type(error).__name__)
                await asyncio.sleep(0.002)
            else:
                STAGE.world.note("client", "answered", key=question.id, text=answer.decision)
                break
        STAGE.points.here("approval answer after")

    async def _answer_late(self) -> None:
        """Say yes to what was asked in an earlier life, when its time is over: nothing may come of it."""
        if not any(send.play == "late" for send in self._script.sends):
            return
        for note in self._before:
            if note.what == "approval:asked":
                await asyncio.sleep(self._script.deadline)
                try:
                    await self._atlas.answer(note.key, Answer("once", by="ana"))
                except AtlasError as error:
                    STAGE.world.note("client", "not answered", key=note.key, text=type(error).__name__)
                else:
                    STAGE.world.note("client", "answered", key=note.key, text="once")

    def _play_of(self, run: str) -> str:
        """Of a run that goes on; one that was never acknowledged has no client yet."""
        key = next((key for key, known in self._acked.items() if known == run), "")
        return next((send.play for send in self._script.sends if send.key == key), "")

    def _cancel_all(self) -> None:
        for stream in self._streams:
            STAGE.world.note("client", "cancel", run=stream.stream_id)
            stream.cancel()


def remembered(event: Event) -> dict[str, Any]:
    """What a client would remember of an event."""
    match event.type:
        case "stream:chunk" | "stream:thinking":
            return {"text": event.text}
        case "message:kept" | "message:received":
            return {"messages": (msgspec.Raw(event.message.to_json()),)}
        case "tool:called" | "tool:result":
            return {"call": event.call_id, "text": getattr(event, "status", "")}
        case "approval:asked":
            return {"key": event.question.id, "call": event.question.call_id}
        case "approval:answered":
            return {"key": event.approval_id, "text": event.decision}
        case "stream:end":
            return {"text": "cancelled" if event.cancelled else event.error or ""}
        case "error":
            return {"text": event.kind}
        case _:
            return {}


def answer_to(question: Question) -> Answer:
    """What the person says, as the arguments ask for it: the play knows."""
    wish = question.arguments["says"]
    if wish == "edit":
        return Answer("once", arguments={"n": 100, "says": "edit"}, by="ana")
    return Answer(wish if wish == "once" else "no", by="ana")
