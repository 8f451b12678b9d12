"""The channel: hears Telegram, lets in whom the owner has let in, and hands on what they say.

Telegram tells an update again until a later one is asked for. It is asked for once the last one is dealt with and
written down; what is dealt with twice, because a sudden end came in between, has the same number and happens once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from atlas_agents.builtin_tools.telegram_api import BotApi, BotRefused, BotUnreachable, send
from atlas_agents.builtin_tools.telegram_format import Styled, code_block, joined
from atlas_agents.channels.telegram.approvals import NOT_YOURS, YES, read
from atlas_agents.channels.telegram.state import Pair, Pairing, StateFile
from atlas_agents.channels.telegram.types import (
    PACE,
    Press,
    TelegramMessage,
    TelegramTiming,
    TelegramUser,
    Update,
    UpdateId,
)
from atlas_agents.channels.telegram.user_session import UserSession
from atlas_agents.client.client import GatewayAddress, GatewayClient
from atlas_agents.core.aio import BackgroundTasks, in_thread
from atlas_agents.core.errors import ConfigError, GatewayError
from atlas_agents.core.http import backoff

Command: TypeAlias = Callable[[UserSession, str, int], Awaitable[str]]
HELP = (
    "Write to me, and an agent answers.\n\n"
    "/stop ends what is under way\n"
    "/new begins a new session\n"
    "/agents lists the agents, /agent NAME chooses one"
)


async def _help(guest: UserSession, rest: str, update_id: int) -> str:
    return HELP


async def _stop(guest: UserSession, rest: str, update_id: int) -> str:
    return "Stopping." if await guest.stop() else "There is nothing to stop."


async def _new(guest: UserSession, rest: str, update_id: int) -> str:
    await guest.begin_anew(update_id)
    return "This is a new session."


async def _agents(guest: UserSession, rest: str, update_id: int) -> str:
    chosen = guest.visit.agent
    lines = [
        f"{'→' if (agent.id == chosen if chosen else agent.default) else '•'} {agent.id}"
        + (f": {agent.description}" if agent.description else "")
        for agent in await guest.agents()
    ]
    return "\n".join(lines) or "There are no agents."


async def _agent(guest: UserSession, rest: str, update_id: int) -> str:
    known = {agent.id.casefold(): agent.id for agent in await guest.agents()}
    found = known.get(rest.casefold())
    if found is None:
        return f"Choose one of them: {', '.join(known.values())}"
    guest.visit.agent = found
    return f"{found} answers from now on."


COMMANDS: dict[str, tuple[str, Command]] = {
    "help": ("What can be said here", _help),
    "start": ("What can be said here", _help),
    "stop": ("End what is under way", _stop),
    "new": ("Begin a new session", _new),
    "agents": ("List the agents", _agents),
    "agent": ("Choose who answers", _agent),
}


def parsed(text: str, bot_name: str) -> tuple[Command, str] | None:
    """The command and what follows it; None if it is none, and for an agent to read."""
    if not text.startswith("/"):
        return None
    word, _, rest = text[1:].partition(" ")
    name, _, bot = word.partition("@")
    if bot and bot.casefold() != bot_name.casefold():
        return None
    found = COMMANDS.get(name.casefold())
    return (found[1], rest.strip()) if found else None


logger = logging.getLogger(__name__)
After: TypeAlias = Callable[[], Awaitable[None]] | None
"""What is left to say once an update is dealt with and written down."""
_TRIES = 8
_COUNTS = 86_400.0
"""Telegram forgets what nobody asked for in a day, and after a quiet week it counts anew from anywhere."""
_QUIET = 30.0
_PATIENCE = 30.0
_WANTED = ["message", "callback_query"]


class UserAccess(Protocol):
    """Where guests come in: an address and a token for each, and an end to it."""

    async def let_in(self, user: int) -> GatewayAddress: ...

    def send_away(self, user: int) -> None: ...


class TelegramChannel:
    """`await channel.run()` until it is cancelled. One per bot: Telegram tells two that they are too many."""

    def __init__(
        self, api: BotApi, pairing: Pairing, notebook: StateFile, door: UserAccess, pace: TelegramTiming = PACE
    ) -> None:
        self._api = api
        self._pairing = pairing
        self._notebook = notebook
        self._door = door
        self._pace = pace
        self._guests: dict[int, UserSession] = {}
        self._paired: dict[int, Pair] = {}
        self._told: dict[int, float] = {}
        self._bot_name = ""

    async def run(self) -> None:
        self._paired = await self._pairs()
        tasks = BackgroundTasks("Telegram channel")
        try:
            await self._persistently(self._introduce)
            await self._persistently(self._resume)
            tasks.spawn(self._watch())
            while True:
                for update in await self._persistently(self._poll):
                    await self._take(update)
        finally:
            await tasks.close()
            for guest in self._guests.values():
                await guest.close()
            await self._api.close()

    async def _introduce(self) -> None:
        me = msgspec.convert(await self._api.call("getMe"), TelegramUser)
        self._bot_name = me.username
        shown = [{"command": name, "description": about} for name, (about, _) in COMMANDS.items() if name != "start"]
        await self._api.call("setMyCommands", commands=shown)
        logger.info("the bot @%s listens in Telegram", me.username)

    async def _resume(self) -> None:
        """Go on with what an earlier life owes; what was owed to people who are not let in any more is dropped."""
        notes = self._notebook.notes
        notes.owed = {run: each for run, each in notes.owed.items() if each.user in self._paired}
        notes.questions = {id: each for id, each in notes.questions.items() if each.user in self._paired}
        for user in {each.user for each in (*notes.owed.values(), *notes.questions.values())}:
            await self._guest(user).resume()

    async def _poll(self) -> list[Update]:
        notes = self._notebook.notes
        offset = notes.offset if time.time() - notes.heard_at < _COUNTS else None
        seconds = 0 if notes.trouble else self._pace.poll  # what was in the way may be gone: see at once
        found: list[Any] = await self._api.call(
            "getUpdates", offset=offset, timeout=seconds, allowed_updates=_WANTED, within=seconds + 20
        )
        return [_read(each) for each in found]

    async def _persistently(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do it until it is done, ever more slowly; what is in the way is said once, and shown by `atlas doctor`."""
        attempt = 0
        while True:
            pause = backoff(attempt, self._pace.first, self._pace.most)
            try:
                done = await work()
            except BotRefused as refused:
                await self._trouble(_in_the_way(refused))
                await asyncio.sleep(refused.retry_after or max(pause, self._pace.most / 4))
            except BotUnreachable as lost:
                await self._trouble(str(lost))
                await asyncio.sleep(pause)
            except GatewayError as trouble:
                await self._trouble(str(trouble))
                await asyncio.sleep(pause)
            else:
                await self._trouble("")
                return done
            attempt += 1

    async def _trouble(self, words: str) -> None:
        notes = self._notebook.notes
        if words != notes.trouble:
            if words:
                logger.warning("Telegram is not heard: %s", words)
            notes.trouble = words
            await self._notebook.save()

    async def _take(self, update: Update) -> None:
        """Deal with an update, once; then write down that it is done, and only then answer."""
        after: After = None
        for number in range(1, _TRIES + 1):
            try:
                after = await self._deal(update)
                break
            except GatewayError as trouble:
                if trouble.retryable and number < _TRIES:
                    await asyncio.sleep(backoff(number, self._pace.first, self._pace.most))
                    continue
                after = self._apology(update, str(trouble))
            except Exception:
                logger.exception("an update of Telegram could not be dealt with")
                after = self._apology(update, "something went wrong here")
            break
        self._notebook.notes.offset, self._notebook.notes.heard_at = update.update_id + 1, time.time()
        await self._notebook.save()
        if after is not None:
            await after()

    async def _deal(self, update: Update) -> After:
        self._paired = await self._pairs()
        if update.message is not None:
            return await self._said(update.message, update.update_id)
        return await self._pressed(update.callback_query) if update.callback_query is not None else None

    async def _said(self, said: TelegramMessage, update_id: int) -> After:
        """Only in private: what somebody may do alone with the bot, nobody may do in a group."""
        sender = said.sender
        if sender is None or sender.is_bot or said.chat.type != "private" or said.chat.id != sender.id:
            return None
        if sender.id not in self._paired:
            return await self._stranger(sender)
        if not said.text:
            return lambda: self._tell(sender.id, Styled("I can only read text."))
        guest = self._guest(sender.id)
        if (command := parsed(said.text, self._bot_name)) is not None:
            answer = await command[0](guest, command[1], update_id)
            return lambda: self._tell(sender.id, Styled(answer))
        await guest.say(said.text, update_id)
        return None

    async def _stranger(self, sender: TelegramUser) -> After:
        """A code, now and then, and nothing else."""
        now = time.monotonic()
        self._told = {user: at for user, at in self._told.items() if now - at < _QUIET}
        if sender.id in self._told:
            return None
        code = await in_thread(self._pairing.code_for, sender)
        if code is None:
            return None
        self._told[sender.id] = now
        invitation = "I talk only to people whom my owner lets in. To let you in, they say:\n\n"
        words = joined(invitation, code_block(f"atlas telegram pair {code}"))
        return lambda: self._tell(sender.id, words)

    async def _pressed(self, press: Press) -> After:
        way, approval_id = read(press.data)
        words, under, user = NOT_YOURS, press.message, press.sender.id
        if under is not None and under.chat.id == user and user in self._paired and approval_id:
            words = await self._guest(user).answer(approval_id, yes=way == YES, under=under)
        return lambda: self._quietly(self._api.call("answerCallbackQuery", callback_query_id=press.id, text=words))

    def _apology(self, update: Update, words: str) -> After:
        said = update.message
        if said is None or said.sender is None or said.chat.id != said.sender.id or said.chat.id not in self._paired:
            return None
        return lambda: self._tell(said.chat.id, Styled(f"That did not work: {words}"[:1000]))

    async def _watch(self) -> None:
        """See who was let in or sent away, without waiting for them to write."""
        while True:
            await asyncio.sleep(self._pace.watch)
            before, self._paired = self._paired, await self._pairs()
            for user in self._paired.keys() - before.keys():
                self._told.pop(user, None)
                await self._tell(user, Styled("You are let in. Write to me, or say /help."))
            for user in before.keys() - self._paired.keys():
                self._door.send_away(user)
                if (guest := self._guests.pop(user, None)) is not None:
                    await guest.close()

    async def _pairs(self) -> dict[int, Pair]:
        try:
            return await in_thread(self._pairing.pairs)
        except ConfigError as error:
            logger.error("nobody is let in: %s", error)
            return {}

    def _guest(self, user: int) -> UserSession:
        if user not in self._guests:
            client = GatewayClient(find=lambda: self._door.let_in(user), name="telegram")
            self._guests[user] = UserSession(user, client, self._api, self._notebook, self._pace)
        return self._guests[user]

    async def _tell(self, user: int, words: Styled) -> None:
        await self._quietly(send(self._api, user, words, patience=_PATIENCE))

    async def _quietly(self, saying: Awaitable[Any]) -> None:
        try:
            await saying
        except (BotRefused, BotUnreachable) as trouble:
            logger.info("something could not be said in Telegram: %s", trouble)


def _read(found: Any) -> Update:
    try:
        return msgspec.convert(found, Update)
    except msgspec.ValidationError:  # of a kind that is not known here
        return Update(msgspec.convert(found, UpdateId).update_id)


def _in_the_way(refused: BotRefused) -> str:
    if refused.status != 409:
        return refused.advice
    if "webhook" in refused.description:
        return "this bot has a webhook, which gets all messages: take it away (deleteWebhook), or use another bot"
    return "another program asks for the messages of this bot: end it, or use another bot"
