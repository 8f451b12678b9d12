"""A paired user's connection to the gateway: their sessions, the answers being delivered, and their approvals."""

import asyncio
import logging
from contextlib import suppress

import msgspec

from atlas_agents.builtin_tools.telegram_api import BotApi
from atlas_agents.channels.telegram.approvals import ApprovalPrompts
from atlas_agents.channels.telegram.delivery import Delivery
from atlas_agents.channels.telegram.state import ActiveSession, PendingDelivery, StateFile
from atlas_agents.channels.telegram.types import TelegramTiming
from atlas_agents.client.client import GatewayClient, SessionEvent, SessionFeed
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import GatewayError, Unauthorized
from atlas_agents.gateway.protocol.admin import AgentsResult
from atlas_agents.gateway.protocol.chat import Aborted
from atlas_agents.gateway.protocol.events import ChatError, ChatFinal
from atlas_agents.gateway.protocol.types import AgentShape

logger = logging.getLogger(__name__)
_DEFAULT_SESSION = "chat"


class UserSession:
    """Everything that the channel does for one user. The user's gateway token separates them from other users."""

    def __init__(
        self, user: int, client: GatewayClient, api: BotApi, state_file: StateFile, timing: TelegramTiming
    ) -> None:
        self.user = user
        self.approvals = ApprovalPrompts(user, client, api, state_file)
        self._client = client
        self._api = api
        self._state_file = state_file
        self._timing = timing
        self._feeds: dict[str, SessionFeed] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._tasks = BackgroundTasks("Telegram user")
        self._lock = asyncio.Lock()

    @property
    def active(self) -> ActiveSession:
        return self._state_file.state.sessions.setdefault(self.user, ActiveSession(_DEFAULT_SESSION))

    async def send(self, text: str, update_id: int) -> None:
        """Send a message to the agent. The update id is the idempotency key."""
        feed = await self._follow(self.active.session)
        async with self._lock:  # no event of the run is handled before its delivery exists
            key = f"telegram:{self._api.bot_id}:{update_id}"
            sent = await feed.send(text, agent_id=self.active.agent, idempotency_key=key)
            pending = PendingDelivery(self.user, feed.session_key)
            self._start_delivery(sent.run_id, self._state_file.state.deliveries.setdefault(sent.run_id, pending))

    async def resume(self) -> None:
        """Continue the deliveries that were unfinished when the channel last stopped."""
        deliveries = self._state_file.state.deliveries
        for run_id, pending in [item for item in deliveries.items() if item[1].user == self.user]:
            try:
                await self._client.call("chat.wait", run_id=run_id, timeout_ms=0)
            except GatewayError as error:
                if error.retryable:
                    raise
                deliveries.pop(run_id)  # the gateway no longer has the run
            else:
                await self._follow(pending.session)
        await self.approvals.clean_up()

    async def stop(self) -> int:
        """Cancel the runs of the active session and return how many there were."""
        answer = await self._client.call("chat.abort", session_key=self.active.session)
        return len(msgspec.convert(answer, Aborted).aborted)

    async def start_new_session(self, update_id: int) -> None:
        """Switch to a new session; answers of the old one are still delivered."""
        new = ActiveSession(f"{_DEFAULT_SESSION}-{update_id}", self.active.agent)
        self._state_file.state.sessions[self.user] = new
        await self._close_unused_feeds()

    async def agents(self) -> tuple[AgentShape, ...]:
        return msgspec.convert(await self._client.call("agents.list"), AgentsResult).agents

    async def close(self) -> None:
        await self._tasks.close()
        await self._client.close()

    async def _follow(self, session: str) -> SessionFeed:
        """Return the feed of a session. Runs with a pending delivery are read from their first event."""
        if session not in self._feeds:
            feed = self._client.follow(session)
            for run_id, pending in self._state_file.state.deliveries.items():
                if (pending.user, pending.session) == (self.user, session):
                    feed.positions[run_id] = 0
                    self._start_delivery(run_id, pending)
            self._feeds[session] = feed
            self._tasks.spawn(self._read_feed(feed))
        return self._feeds[session]

    async def _read_feed(self, feed: SessionFeed) -> None:
        while True:
            try:
                async for event in feed:
                    async with self._lock:
                        self._handle(event)
            except Unauthorized:
                return
            except GatewayError as error:
                logger.info("session feed interrupted: user=%d error=%s", self.user, error)
                await asyncio.sleep(self._timing.min_delay)
            else:
                return

    def _handle(self, event: SessionEvent) -> None:
        delivery = self._deliveries.get(event.run_id)
        if delivery is None:  # a run that was started through another client
            return
        self._tasks.spawn(self.approvals.handle(event, delivery))
        delivery.add(event)
        if isinstance(event, ChatFinal | ChatError):
            self._tasks.spawn(self.approvals.close(event.run_id))

    def _start_delivery(self, run_id: str, pending: PendingDelivery) -> None:
        if run_id not in self._deliveries:
            delivery = Delivery(run_id, pending, self._api, self._state_file, self._timing)
            self._deliveries[run_id] = delivery
            self._tasks.spawn(self._deliver(delivery))

    async def _deliver(self, delivery: Delivery) -> None:
        await delivery.run()
        del self._deliveries[delivery.run_id]
        await self._close_unused_feeds()

    async def _close_unused_feeds(self) -> None:
        """Stop following sessions that are neither active nor have a pending delivery."""
        used = {self.active.session, *(each.pending.session for each in self._deliveries.values())}
        for session in [session for session in self._feeds if session not in used]:
            with suppress(GatewayError):
                await self._feeds.pop(session).close()
