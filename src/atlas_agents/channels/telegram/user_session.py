"""A person who was let in: their line to the gateway, the sessions they hear, what is on its way to them."""

import asyncio
import logging
from contextlib import suppress

import msgspec

from atlas_agents.builtin_tools.telegram_api import BotApi
from atlas_agents.channels.telegram.approvals import ApprovalPrompts
from atlas_agents.channels.telegram.delivery import Delivery
from atlas_agents.channels.telegram.state import ActiveSession, PendingDelivery, StateFile
from atlas_agents.channels.telegram.types import TelegramMessage, TelegramTiming
from atlas_agents.client.client import GatewayClient, SessionEvent, SessionFeed
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import GatewayError, Unauthorized
from atlas_agents.gateway.protocol.admin import AgentsFound
from atlas_agents.gateway.protocol.chat import Aborted
from atlas_agents.gateway.protocol.events import ChatError, ChatFinal
from atlas_agents.gateway.protocol.types import AgentShape

logger = logging.getLogger(__name__)
FIRST = "chat"


class UserSession:
    """All that is done for one person. Their token, and so the gateway, keeps them apart from everybody else."""

    def __init__(
        self, user: int, client: GatewayClient, api: BotApi, notebook: StateFile, pace: TelegramTiming
    ) -> None:
        self.user = user
        self._client = client
        self._api = api
        self._notebook = notebook
        self._pace = pace
        self._asking = ApprovalPrompts(user, client, api, notebook)
        self._feeds: dict[str, SessionFeed] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._tasks = BackgroundTasks("Telegram user")
        self._door = asyncio.Lock()

    @property
    def visit(self) -> ActiveSession:
        return self._notebook.notes.visits.setdefault(self.user, ActiveSession(FIRST))

    async def say(self, text: str, update_id: int) -> None:
        """Hand a message over; said again with the same number, it is the same message."""
        feed = await self._listened(self.visit.session)
        async with self._door:  # what the run says is not heard before it is known here
            key = f"telegram:{self._api.bot_id}:{update_id}"
            sent = await feed.send(text, agent_id=self.visit.agent, idempotency_key=key)
            self._owe(
                sent.run_id,
                self._notebook.notes.owed.setdefault(sent.run_id, PendingDelivery(self.user, feed.session_key)),
            )

    async def resume(self) -> None:
        """Go on with what an earlier life owes this person."""
        owed = {run: each for run, each in self._notebook.notes.owed.items() if each.user == self.user}
        for run_id, each in owed.items():
            try:
                await self._client.call("chat.wait", run_id=run_id, timeout_ms=0)
            except GatewayError as trouble:
                if trouble.retryable:
                    raise
                self._notebook.notes.owed.pop(run_id)  # nobody knows of it any more
            else:
                await self._listened(each.session)
        await self._asking.clean_up()

    async def stop(self) -> int:
        """Stop what is under way in their session; how much that was."""
        answer = await self._client.call("chat.abort", session_key=self.visit.session)
        return len(msgspec.convert(answer, Aborted).aborted)

    async def begin_anew(self, update_id: int) -> None:
        """Be in a new session from now on; answers of the old one still come."""
        self._notebook.notes.visits[self.user] = ActiveSession(f"{FIRST}-{update_id}", self.visit.agent)
        await self._leave_unused()

    async def agents(self) -> tuple[AgentShape, ...]:
        return msgspec.convert(await self._client.call("agents.list"), AgentsFound).agents

    async def answer(self, approval_id: str, *, yes: bool, under: TelegramMessage) -> str:
        """Answer a question by its button; what to say to whoever pressed it."""
        return await self._asking.answer(approval_id, yes=yes, under=under)

    async def close(self) -> None:
        await self._tasks.close()
        await self._client.close()

    async def _listened(self, session: str) -> SessionFeed:
        """The feed of a session; of the runs in it that are owed, from their first event on."""
        if session not in self._feeds:
            feed = self._client.follow(session)
            for run_id, owed in self._notebook.notes.owed.items():
                if (owed.user, owed.session) == (self.user, session):
                    feed.positions[run_id] = 0
                    self._owe(run_id, owed)
            self._feeds[session] = feed
            self._tasks.spawn(self._hear(feed))
        return self._feeds[session]

    async def _hear(self, feed: SessionFeed) -> None:
        while True:
            try:
                async for event in feed:
                    async with self._door:
                        self._take(event)
            except Unauthorized:
                return
            except GatewayError as trouble:
                logger.info("a session is not heard: %s", trouble)
                await asyncio.sleep(self._pace.first)
            else:
                return

    def _take(self, event: SessionEvent) -> None:
        delivery = self._deliveries.get(event.run_id)
        if delivery is None:  # somebody else's, by another door
            return
        self._tasks.spawn(self._asking.hear(event, delivery))
        delivery.hear(event)
        if isinstance(event, ChatFinal | ChatError):
            self._tasks.spawn(self._asking.close(event.run_id))

    def _owe(self, run_id: str, owed: PendingDelivery) -> None:
        if run_id not in self._deliveries:
            delivery = self._deliveries[run_id] = Delivery(run_id, owed, self._api, self._notebook, self._pace)
            self._tasks.spawn(self._deliver(delivery))

    async def _deliver(self, delivery: Delivery) -> None:
        await delivery.run()
        del self._deliveries[delivery.run_id]
        await self._leave_unused()

    async def _leave_unused(self) -> None:
        """Hear no more of sessions that nobody is in and that owe nothing."""
        used = {self.visit.session, *(each.owed.session for each in self._deliveries.values())}
        for session in [session for session in self._feeds if session not in used]:
            with suppress(GatewayError):
                await self._feeds.pop(session).close()
