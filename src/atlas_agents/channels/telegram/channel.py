"""Telegram channel: polls a bot's updates, admits paired users and passes their messages to the gateway.

`TelegramChannel` polls and admits, a `UserSession` per user talks to the gateway, and `COMMANDS` are handled here.

Telegram repeats an update until a later offset is requested. The offset advances after an update was processed and the
state saved. An update that is processed twice because of a crash has the same idempotency key, so it takes effect once.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec

from atlas_agents.builtin_tools.telegram_api import (
    BotApi,
    BotApiError,
    BotUnreachable,
    CallbackQuery,
    TelegramMessage,
    TelegramUser,
    Update,
    send_message,
)
from atlas_agents.builtin_tools.telegram_format import FormattedText, code_block, concat
from atlas_agents.channels.telegram.approvals import ALLOW, NOT_ALLOWED, ApprovalPrompts, parse_callback_data
from atlas_agents.channels.telegram.delivery import TIMING, Delivery, TelegramTiming
from atlas_agents.channels.telegram.state import ActiveSession, PairedUser, Pairing, PendingDelivery, StateFile
from atlas_agents.client import GatewayAddress, GatewayClient, SessionEvent, SessionFeed
from atlas_agents.core.aio import BackgroundTasks, run_in_thread
from atlas_agents.core.errors import ConfigError, GatewayError, Unauthorized
from atlas_agents.core.http import backoff
from atlas_agents.gateway.protocol.admin import AgentsResult
from atlas_agents.gateway.protocol.chat import Aborted
from atlas_agents.gateway.protocol.events import ChatError, ChatFinal
from atlas_agents.gateway.protocol.types import AgentShape

logger = logging.getLogger(__name__)
_DEFAULT_SESSION = "chat"
Reply: TypeAlias = Callable[[], Awaitable[None]] | None
"""Sends a reply after the update was processed and the state saved."""
HELP = (
    "Send me a message and an agent will answer.\n\n"
    "/stop – stop the current answer\n"
    "/new – start a new session\n"
    "/agents – list the agents\n"
    "/agent NAME – switch to another agent"
)
_MAX_ATTEMPTS = 8
_OFFSET_TTL = 86_400.0
"""Telegram keeps updates for a day, and after a week without updates it may restart their ids at any number."""
_CODE_INTERVAL = 30.0
_MAX_RATE_LIMIT_WAIT = 30.0
_ALLOWED_UPDATES = ["message", "callback_query"]


class UserSession:
    """Session of one user with the gateway. The user's gateway token isolates them from other users."""

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
        self._delivery_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._resumed: set[str] = set()
        self._tasks = BackgroundTasks("Telegram user")
        self._lock = asyncio.Lock()

    @property
    def active(self) -> ActiveSession:
        return self._state_file.state.sessions.setdefault(self.user, ActiveSession(_DEFAULT_SESSION))

    async def send(self, text: str, update_id: int, *, forwarded: bool = False) -> None:
        """Send a message to the agent; it steers the running turn. The update id is the idempotency key.

        A forwarded message is untrusted, and gets a turn of its own.
        """
        feed = await self._follow(self.active.session)
        async with self._lock:  # no event of the run is handled before its delivery exists
            key = f"telegram:{self._api.bot_id}:{update_id}"
            source = "telegram: forwarded message" if forwarded else None
            sent = await feed.send(
                text,
                agent_id=self.active.agent,
                when_busy=None if forwarded else "steer",
                idempotency_key=key,
                untrusted=source,
                channel="telegram",
            )
            if sent.run_id in self._resumed:  # Telegram repeats an update whose answer is already being delivered
                return
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
                    self._resumed.add(run_id)
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
        async with self._delivery_locks[delivery.pending.session]:  # an answer is sent after those before it
            await delivery.run()
        del self._deliveries[delivery.run_id]
        await self._close_unused_feeds()

    async def _close_unused_feeds(self) -> None:
        """Stop following sessions that are neither active nor have a pending delivery."""
        used = {self.active.session, *(each.pending.session for each in self._deliveries.values())}
        for session in [session for session in self._feeds if session not in used]:
            with suppress(GatewayError):
                self._delivery_locks.pop(session, None)
                await self._feeds.pop(session).close()


Command: TypeAlias = Callable[[UserSession, str, int], Awaitable[str]]


async def _help(session: UserSession, argument: str, update_id: int) -> str:
    return HELP


async def _stop(session: UserSession, argument: str, update_id: int) -> str:
    return "Stopping." if await session.stop() else "Nothing is running."


async def _new(session: UserSession, argument: str, update_id: int) -> str:
    await session.start_new_session(update_id)
    return "Started a new session."


async def _agents(session: UserSession, argument: str, update_id: int) -> str:
    chosen = session.active.agent
    lines = [
        f"{'→' if (agent.id == chosen if chosen else agent.default) else '•'} {agent.id}"
        + (f": {agent.description}" if agent.description else "")
        for agent in await session.agents()
    ]
    return "\n".join(lines) or "There are no agents."


async def _agent(session: UserSession, argument: str, update_id: int) -> str:
    agents = {agent.id.casefold(): agent.id for agent in await session.agents()}
    found = agents.get(argument.casefold())
    if found is None:
        return f"Send /agent NAME with one of: {', '.join(agents.values())}"
    session.active.agent = found
    return f"{found} will answer from now on."


COMMANDS: dict[str, tuple[str, Command]] = {
    "help": ("Show help", _help),
    "start": ("Show help", _help),
    "stop": ("Stop the current answer", _stop),
    "new": ("Start a new session", _new),
    "agents": ("List the agents", _agents),
    "agent": ("Switch to another agent", _agent),
}


def parse_command(text: str, bot_name: str) -> tuple[Command, str] | None:
    """Return a command and its argument; None for a message to an agent."""
    if not text.startswith("/"):
        return None
    word, _, argument = text[1:].partition(" ")
    name, _, bot = word.partition("@")
    if bot and bot.casefold() != bot_name.casefold():
        return None
    found = COMMANDS.get(name.casefold())
    return (found[1], argument.strip()) if found else None


class UserAccess(Protocol):
    """Grants and revokes a user's access to the gateway."""

    async def grant(self, user: int) -> GatewayAddress: ...

    def revoke(self, user: int) -> None: ...


class TelegramChannel:
    """Runs the channel of one bot until it is cancelled. Telegram rejects two programs that poll the same bot."""

    def __init__(
        self,
        api: BotApi,
        pairing: Pairing,
        state_file: StateFile,
        access: UserAccess,
        timing: TelegramTiming = TIMING,
    ) -> None:
        self._api = api
        self._pairing = pairing
        self._state_file = state_file
        self._access = access
        self._timing = timing
        self._sessions: dict[int, UserSession] = {}
        self._paired: dict[int, PairedUser] = {}
        self._code_sent_at: dict[int, float] = {}
        self._bot_name = ""

    async def run(self) -> None:
        self._paired = await self._read_pairs()
        tasks = BackgroundTasks("Telegram channel")
        try:
            await self._retry_forever(self._register_commands)
            await self._retry_forever(self._resume)
            tasks.spawn(self._watch_pairs())
            while True:
                for update in await self._retry_forever(self._poll):
                    await self._process(update)
        finally:
            await tasks.close()
            for session in self._sessions.values():
                await session.close()
            await self._api.close()

    async def _register_commands(self) -> None:
        me = msgspec.convert(await self._api.call("getMe"), TelegramUser)
        self._bot_name = me.username
        shown = [{"command": name, "description": about} for name, (about, _) in COMMANDS.items() if name != "start"]
        await self._api.call("setMyCommands", commands=shown)
        logger.info("Telegram channel started: bot=@%s", me.username)

    async def _resume(self) -> None:
        """Resume deliveries and requests of the last run of the channel; drop those of users no longer paired."""
        state = self._state_file.state
        state.deliveries = {run: each for run, each in state.deliveries.items() if each.user in self._paired}
        state.questions = {id: each for id, each in state.questions.items() if each.user in self._paired}
        for user in {each.user for each in (*state.deliveries.values(), *state.questions.values())}:
            await self._session(user).resume()

    async def _poll(self) -> list[Update]:
        state = self._state_file.state
        offset = state.offset if time.time() - state.polled_at < _OFFSET_TTL else None
        seconds = 0 if state.error else self._timing.poll  # after an error, find out at once whether it is gone
        found: list[Any] = await self._api.call(
            "getUpdates", offset=offset, timeout=seconds, allowed_updates=_ALLOWED_UPDATES, request_timeout=seconds + 20
        )
        return [_decode_update(each) for each in found]

    async def _retry_forever(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Retry with backoff until it succeeds. An error is logged once, and shown by `atlas doctor`."""
        attempt = 0
        while True:
            delay = backoff(attempt, self._timing.min_delay, self._timing.max_delay)
            try:
                result = await work()
            except BotApiError as error:
                await self._set_error(_describe_poll_error(error))
                await asyncio.sleep(error.retry_after or max(delay, self._timing.max_delay / 4))
            except (BotUnreachable, GatewayError) as error:
                await self._set_error(str(error))
                await asyncio.sleep(delay)
            else:
                await self._set_error("")
                return result
            attempt += 1

    async def _set_error(self, message: str) -> None:
        state = self._state_file.state
        if message != state.error:
            if message:
                logger.warning("cannot receive Telegram messages: %s", message)
            state.error = message
            await self._state_file.save()

    async def _process(self, update: Update) -> None:
        """Process an update once, then save the state, and only then reply."""
        reply: Reply = None
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                reply = await self._dispatch(update)
                break
            except GatewayError as error:
                if error.retryable and attempt < _MAX_ATTEMPTS:
                    await asyncio.sleep(backoff(attempt, self._timing.min_delay, self._timing.max_delay))
                    continue
                reply = self._error_reply(update, str(error))
            except Exception:
                logger.exception("Telegram update failed: update=%d", update.update_id)
                reply = self._error_reply(update, "internal error")
            break
        self._state_file.state.offset, self._state_file.state.polled_at = update.update_id + 1, time.time()
        await self._state_file.save()
        if reply is not None:
            await reply()

    async def _dispatch(self, update: Update) -> Reply:
        self._paired = await self._read_pairs()
        if update.message is not None:
            return await self._on_message(update.message, update.update_id)
        return await self._on_button(update.callback_query) if update.callback_query is not None else None

    async def _on_message(self, message: TelegramMessage, update_id: int) -> Reply:
        """Handle a message. Only private chats are served: in a group, others could act through a paired user."""
        sender = message.sender
        if sender is None or sender.is_bot or message.chat.type != "private" or message.chat.id != sender.id:
            return None
        if sender.id not in self._paired:
            return await self._offer_pairing(sender)
        if not message.text:
            return lambda: self._send(sender.id, FormattedText("I can only read text messages."))
        session = self._session(sender.id)
        forwarded = message.forward_origin is not None
        if not forwarded and (command := parse_command(message.text, self._bot_name)) is not None:
            answer = await command[0](session, command[1], update_id)
            return lambda: self._send(sender.id, FormattedText(answer))
        await session.send(message.text, update_id, forwarded=forwarded)
        return None

    async def _offer_pairing(self, sender: TelegramUser) -> Reply:
        """Send an unpaired user a pairing code, at most once per interval."""
        now = time.monotonic()
        self._code_sent_at = {user: at for user, at in self._code_sent_at.items() if now - at < _CODE_INTERVAL}
        if sender.id in self._code_sent_at:
            return None
        code = await run_in_thread(self._pairing.code_for, sender)
        if code is None:
            return None
        self._code_sent_at[sender.id] = now
        text = concat(
            "I only answer people that my owner has paired. To pair you, the owner runs:\n\n",
            code_block(f"atlas telegram pair {code}"),
        )
        return lambda: self._send(sender.id, text)

    async def _on_button(self, query: CallbackQuery) -> Reply:
        button, approval_id = parse_callback_data(query.data)
        text, message, user = NOT_ALLOWED, query.message, query.sender.id
        if message is not None and message.chat.id == user and user in self._paired and approval_id:
            text = await self._session(user).approvals.resolve(approval_id, allow=button == ALLOW, message=message)
        return lambda: self._log_errors(self._api.call("answerCallbackQuery", callback_query_id=query.id, text=text))

    def _error_reply(self, update: Update, error: str) -> Reply:
        message = update.message
        if message is None or message.chat.id not in self._paired or message.sender is None:
            return None
        return lambda: self._send(message.chat.id, FormattedText(f"That failed: {error}"[:1000]))

    async def _watch_pairs(self) -> None:
        """Greet users when they are paired and disconnect them when they are unpaired."""
        while True:
            await asyncio.sleep(self._timing.watch)
            before, self._paired = self._paired, await self._read_pairs()
            for user in self._paired.keys() - before.keys():
                self._code_sent_at.pop(user, None)
                await self._send(user, FormattedText("You are paired. Send me a message, or /help for the commands."))
            for user in before.keys() - self._paired.keys():
                self._access.revoke(user)
                if (session := self._sessions.pop(user, None)) is not None:
                    await session.close()

    async def _read_pairs(self) -> dict[int, PairedUser]:
        try:
            return await run_in_thread(self._pairing.pairs)
        except ConfigError as error:
            logger.error("cannot read the paired Telegram users, none are admitted: %s", error)
            return {}

    def _session(self, user: int) -> UserSession:
        if user not in self._sessions:
            client = GatewayClient(find=lambda: self._access.grant(user), name="telegram")
            self._sessions[user] = UserSession(user, client, self._api, self._state_file, self._timing)
        return self._sessions[user]

    async def _send(self, user: int, text: FormattedText) -> None:
        await self._log_errors(send_message(self._api, user, text, max_wait=_MAX_RATE_LIMIT_WAIT))

    async def _log_errors(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except (BotApiError, BotUnreachable) as error:
            logger.info("Telegram reply not sent: %s", error)


def _decode_update(found: Any) -> Update:
    try:
        return msgspec.convert(found, Update)
    except msgspec.ValidationError:  # an update of an unknown kind
        return Update(int(found["update_id"]))


def _describe_poll_error(error: BotApiError) -> str:
    if error.status != 409:
        return error.advice
    if "webhook" in error.description:
        return "a webhook of this bot receives its messages: remove it (deleteWebhook), or use another bot"
    return "another program receives the messages of this bot: stop it, or use another bot"
