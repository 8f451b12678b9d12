"""The client: sends messages, receives events, answers approvals, cancels, and records everything in the evidence log.

It knows the records of earlier processes: messages that were not acknowledged are sent again under the same key.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from atlas_agents import Answer, Atlas, AtlasStream, ClientResult, Question
from atlas_agents.core.errors import AtlasError
from atlas_agents.core.events import Event
from crash.evidence_log import LogEntry
from crash.process_state import STATE
from crash.replies import HAND, STOPPED
from crash.scripts import Script, Send

_TRIES = 4
T = TypeVar("T")
_numbers = itertools.count(1)


class Client:
    """All clients of a script, and the person who answers approvals."""

    def __init__(self, atlas: Atlas, script: Script, before: Sequence[LogEntry]) -> None:
        self._atlas = atlas
        self._script = script
        self._before = [entry for entry in before if entry.who == "client"]
        self._acked = {entry.key: entry.run for entry in self._before if entry.what == "ack"}
        self._stopped = {entry.run for entry in self._before if entry.what == "cancel"}
        self._answered: set[str] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._streams: list[AtlasStream] = []

    async def run_to_end(self, *, restarted: bool, sends_first: bool) -> None:
        """Recover unfinished turns, send the remaining messages, and wait until every event was received."""
        loop = asyncio.get_running_loop()

        def cancel_soon() -> None:
            loop.call_soon_threadsafe(self._cancel_all)

        STATE.points.cancel = cancel_soon
        if restarted and not sends_first:
            await self._recover()
        if not (restarted and sends_first):
            self._start_jobs()
        follower_task = asyncio.create_task(self._follow_resumed_turns()) if restarted and sends_first else None
        await asyncio.gather(*(self._send_all(sends) for sends in self._script.clients))
        if restarted and sends_first:
            await self._recover()
            self._start_jobs()
        while await self._has_jobs() or self._following:
            await asyncio.wait([*self._following, asyncio.create_task(asyncio.sleep(0.005))])
        if follower_task is not None:
            follower_task.cancel()

    def _start_jobs(self) -> None:
        if self._script.jobs:
            self._atlas.jobs.on_turn(lambda stream, _: self._follow(stream, ""))
            self._atlas.jobs.start()

    async def _has_jobs(self) -> bool:
        """Return whether a job is open or not reported."""
        if not self._script.jobs or self._atlas.store is None:
            return False
        try:
            return bool(await self._atlas.store.pending_jobs(self._atlas.tenant, 1 << 60))
        except AtlasError:
            return True

    async def _follow_resumed_turns(self) -> None:
        """Follow turns that were resumed because a message was sent to their session."""
        seen = set[str]()
        while True:
            for run in set(self._acked.values()) - seen:
                if (stream := self._atlas.stream(run)) is not None:
                    seen.add(run)
                    self._follow(stream, self._find_scenario(run))
            await asyncio.sleep(0.005)

    async def _recover(self) -> None:
        await self._answer_late()
        for _ in range(2):  # the second recovery finds nothing to do
            streams = await self._try(self._atlas.recover, "not recovered") or []
            STATE.log.record("client", "recovered", text=" ".join(stream.stream_id for stream in streams))
            for stream in streams:
                self._follow(stream, self._find_scenario(stream.stream_id))

    async def _try(self, request: Callable[[], Awaitable[T]], failure: str, key: str = "") -> T | None:
        """Repeat a request while the store is unavailable; None if it stays so."""
        for _ in range(_TRIES):
            try:
                return await request()
            except AtlasError as error:
                STATE.log.record("client", failure, key=key, text=type(error).__name__)
                await asyncio.sleep(0.002)
        return None

    async def _send_all(self, sends: Sequence[Send]) -> None:
        for send, after in itertools.zip_longest(sends, sends[1:]):
            if send.key in self._acked:
                continue
            if send.on and after is not None and after.steers:
                STATE.steering_sent.clear()
            follower = await self._send(send)
            if send.steers or follower is None:
                STATE.steering_sent.set()
            if follower is None:
                return
            if not send.on:
                await asyncio.wait([follower])

    async def _send(self, send: Send) -> "asyncio.Task[None] | None":
        """Send a message until it is acknowledged; None if the store stays unavailable."""
        for _ in range(_TRIES):
            STATE.log.record("client", "send", key=send.key, text=send.text)
            stream = self._atlas.send(
                send.text,
                session=send.session,
                idempotency_key=send.key,
                output=self._script.shaped if send.shaped else None,
                when_busy="steer" if send.steers else "queue",
                client_tools=[HAND] if send.scenario == "client" else None,
            )
            self._streams.append(stream)
            try:
                accepted = await stream.accepted()
            except AtlasError as error:
                STATE.log.record("client", "not taken in", key=send.key, text=type(error).__name__)
                await asyncio.sleep(0.002)
                continue
            STATE.points.hit("client ack before")
            STATE.log.record("client", "ack", key=send.key, run=accepted.run_id, text=accepted.status)
            STATE.points.hit("client ack after")
            return self._follow(stream, send.scenario)
        return None

    def _follow(self, stream: AtlasStream, scenario: str) -> "asyncio.Task[None]":
        self._streams.append(stream)
        task = asyncio.create_task(self._listen(stream, scenario, next(_numbers)))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return task

    async def _listen(self, stream: AtlasStream, scenario: str, number: int) -> None:
        if stream.stream_id in self._stopped:
            stream.cancel()
        async for event in stream:
            self._record_event(event, number)
            await self._react(event, stream, scenario)
        over = ""
        try:
            await stream.reply()
        except AtlasError as error:
            over = type(error).__name__
        STATE.log.record("client", "over", run=stream.stream_id, stream=number, text=over)

    def _record_event(self, event: Event, number: int) -> None:
        if event.type in ("message:kept", "message:received", "tool:result"):
            STATE.points.hit(f"client {event.type} before")
        STATE.log.record("client", event.type, run=event.stream_id, stream=number, **event_fields(event))
        if event.type == "message:received":
            STATE.points.hit("client message:received after")

    async def _react(self, event: Event, stream: AtlasStream, scenario: str) -> None:
        if event.type == "approval:asked" and self._script.asks == "wait":
            STATE.points.hit("approval asked")
            await self._answer(event.question)
        elif event.type == "tool:pending":
            STATE.points.hit("client call")
            for call in event.calls:
                await self._post_result(call)
        elif event.type == "tool:progress" and scenario in STOPPED:
            STATE.log.record("client", "cancel", run=event.stream_id)
            STATE.points.hit("client cancel before")
            stream.cancel()
            STATE.points.hit("client cancel after")

    async def _answer(self, question: Question) -> None:
        wanted_answer = question.arguments["says"]
        if wanted_answer in ("nothing", "late") or question.id in self._answered:
            return
        self._answered.add(question.id)
        answer = make_answer(question)
        STATE.points.hit("approval answer before")
        if await self._try(partial(self._atlas.answer, question.id, answer), "not answered", question.id):
            STATE.log.record("client", "answered", key=question.id, text=answer.decision)
        STATE.points.hit("approval answer after")

    async def _post_result(self, call: Question) -> None:
        """Post a result twice, as a client does that got no response; the result is the same in every process."""
        n, key = call.arguments["n"], f"{call.run_id}:{call.call_id}"
        STATE.log.record("tool", "effect", name=call.tool, n=n, run=call.run_id, call=call.call_id, key=key)
        STATE.points.hit("client result before")
        post = partial(self._atlas.post_results, [ClientResult(call.id, n)])
        if await self._try(post, "not posted", call.id) and await self._try(post, "not posted", call.id):
            STATE.log.record("client", "answered", key=call.id, text="once")
        STATE.points.hit("client result after")

    async def _answer_late(self) -> None:
        """Approve requests of an earlier process after their deadline, which must have no effect."""
        if not any(send.scenario == "late" for send in self._script.sends):
            return
        for entry in self._before:
            if entry.what == "approval:asked":
                await asyncio.sleep(self._script.deadline)
                if await self._try(partial(self._atlas.answer, entry.key, Answer("once", by="ana")), "not answered"):
                    STATE.log.record("client", "answered", key=entry.key, text="once")

    def _find_scenario(self, run: str) -> str:
        """Return the scenario of a resumed run; empty if it was never acknowledged."""
        key = next((key for key, known in self._acked.items() if known == run), "")
        return next((send.scenario for send in self._script.sends if send.key == key), "")

    def _cancel_all(self) -> None:
        for stream in self._streams:
            STATE.log.record("client", "cancel", run=stream.stream_id)
            stream.cancel()


def event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event that are recorded."""
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


def make_answer(question: Question) -> Answer:
    """Return the answer that the arguments of the call demand."""
    wanted_answer = question.arguments["says"]
    if wanted_answer == "edit":
        return Answer("once", arguments={"n": 100, "says": "edit"}, by="ana")
    return Answer(wanted_answer if wanted_answer == "once" else "no", by="ana")
