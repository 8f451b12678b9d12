"""One run of a page: a turn that it starts, or the rest of one that had a question."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request

from atlas_agents.core.events import ApprovalAnswered, Event, StreamEnd
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message
from atlas_agents.core.store import OPEN
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.run import WhenBusy
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.gateway.agui.answers import answer, open_questions
from atlas_agents.gateway.agui.asked import RunInput, last_message, snapshot_of
from atlas_agents.gateway.agui.events import AgUiEvent
from atlas_agents.gateway.agui.words import Words
from atlas_agents.gateway.asking import when_busy
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.models import model_of
from atlas_agents.gateway.sse import data
from atlas_agents.gateway.tokens import Grant
from atlas_agents.gateway.trouble import Trouble, of_failure
from atlas_agents.gateway.turns import take_in


class PageRun:
    """Tells a page what happens in its run, as events of a stream."""

    def __init__(self, hub: Hub, who: Grant, request: Request, asked: RunInput, agent: Agent) -> None:
        self._hub = hub
        self._who = who
        self._asked = asked
        self._agent = agent
        self._session = who.prefix + asked.thread_id
        self._busy: WhenBusy = when_busy(request)
        self._message = None if asked.resume else last_message(asked)
        model = model_of(agent, hub.atlas.registry)
        self._words = Words(asked.thread_id, asked.run_id, model, snapshot_of(asked), hub.atlas.hide)
        self._stream: AtlasStream | None = None

    def stop(self) -> None:
        """Stop the turn; one that waits for an answer goes on waiting."""
        if self._stream is not None and not self._words.over:
            self._stream.cancel()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Everything from the first event to the last; a failure is the last one."""
        words = self._words
        yield _lines(words.start())
        try:
            async with aclosing(self._rest() if self._message is None else self._turn(self._message)) as told:
                async for said in told:
                    if said:
                        yield _lines(said)
                    if words.over:
                        return
            raise Trouble(503, "unavailable", "the gateway stops")
        except Exception as failure:  # noqa: BLE001 - the border: the status is told already
            trouble = of_failure(failure, self._hub.atlas.hide)
            yield _lines(words.fail(trouble.message, trouble.code))

    async def _turn(self, message: Message) -> AsyncGenerator[list[AgUiEvent], None]:
        """A new turn. The page's id of the run makes it the same one when the request comes twice."""
        if pending := await open_questions(self._hub, self._session):
            ids = ", ".join([each.id for each in pending])
            raise Trouble(409, "interrupt_pending", f"a question of this thread needs an answer first: {ids}")
        accepted, self._stream = await take_in(
            self._hub,
            self._agent,
            message,
            session=self._session,
            user=self._who.principal.id,
            when_busy=self._busy,
            idempotency_key=f"ag-ui:{self._asked.run_id}",
        )
        if accepted.status == "done":
            async for said in self._past(accepted.run_id, ""):
                yield said
            return
        async for event in self._stream:
            yield self._words.of(event)

    async def _rest(self) -> AsyncGenerator[list[AgUiEvent], None]:
        """What comes after the answer. The turn goes on by itself, so it may be over already, or ended elsewhere."""
        entries = self._asked.resume or []
        row = await self._hub.store.approval(self._hub.atlas.tenant, entries[-1].interrupt_id)
        live = await self._hub.atlas.follow(row.run_id) if row is not None else None  # before the answer lets it end
        question = await answer(self._hub, self._who, self._session, entries)
        if live is None:
            async for said in self._past(question.run_id, question.call_id):
                yield said
            return
        self._stream = live
        async for event in _after(live, question.id):
            yield self._words.of(event)

    async def _past(self, run_id: str, call_id: str) -> AsyncGenerator[list[AgUiEvent], None]:
        """A turn that has ended, from its messages: all of them, or those after a call."""
        store, tenant = self._hub.store, self._hub.atlas.tenant
        row = await store.run(tenant, run_id)
        if row is None or row.status in OPEN:
            raise Trouble(503, "unavailable", "this turn goes on in another process; ask again in a moment")
        rows = [each for each in await store.messages(tenant, self._session) if each.run_id == run_id]
        messages = [Message.from_json(each.body) for each in rows]
        calls = [place for place, each in enumerate(messages) if call_id in [call.id for call in each.tool_calls]]
        for message in messages[calls[0] + 1 if calls else 0 :]:
            yield self._words.replay(message)
        if row.status == "failed":
            yield self._words.fail(self._hub.atlas.hide(row.error or "the turn failed"), "turn_failed")
        yield self._words.done(cancelled=row.status == "cancelled")


async def _after(stream: AtlasStream, question_id: str) -> AsyncGenerator[Event, None]:
    """The events after an answer; if it never came to that, how the turn ended."""
    heard = False
    async for event in stream:
        heard = heard or isinstance(event, StreamEnd)
        if heard:
            yield event
        heard = heard or (isinstance(event, ApprovalAnswered) and event.approval_id == question_id)


def _lines(events: list[AgUiEvent]) -> bytes:
    return b"".join([data(encode(event)) for event in events])
