"""A server on loopback that behaves like Telegram's bot API for the methods that are used, and is stricter.

Telegram forgives parameters that it does not know; this one does not. `test_bot_double.py` lets aiogram, which nobody
here wrote, talk to it.
"""

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

from aiohttp import web

T = TypeVar("T")
Shape: TypeAlias = dict[str, Any]
TOKEN = "7000001:AAtest-token-of-the-bot_0123456789abc"
BOT = {"id": 7000001, "is_bot": True, "first_name": "Atlas", "username": "atlas_test_bot"}
_ABILITIES = {"can_join_groups": True, "can_read_all_group_messages": False, "supports_inline_queries": False}
_MARKS = {"bold", "italic", "underline", "strikethrough", "spoiler", "code", "pre", "text_link"}
_ACTIONS = {"typing", "upload_photo", "upload_document"}
_TEXT = {"chat_id", "text", "entities", "parse_mode", "link_preview_options", "reply_markup"}
PARAMETERS: dict[str, set[str]] = {
    "getme": set(),
    "getupdates": {"offset", "limit", "timeout", "allowed_updates"},
    "sendmessage": {*_TEXT, "disable_notification", "protect_content", "reply_parameters"},
    "editmessagetext": {*_TEXT, "message_id"},
    "sendchataction": {"chat_id", "action"},
    "answercallbackquery": {"callback_query_id", "text", "show_alert", "cache_time"},
    "setmycommands": {"commands"},
    "deletewebhook": {"drop_pending_updates"},
}


class Refusal(Exception):
    """An answer that is no."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        self.code = code
        self.body: Shape = {"ok": False, "error_code": code, "description": description}
        if parameters:
            self.body["parameters"] = parameters


def bad(words: str) -> Refusal:
    return Refusal(400, f"Bad Request: {words}")


@dataclass
class Posted:
    """A message of the bot as it stands in a chat now."""

    id: int
    chat: int
    text: str
    entities: list[Shape]
    markup: Shape | None
    edits: int = 0
    at: float = field(default_factory=time.monotonic)

    @property
    def buttons(self) -> dict[str, str]:
        return {button["text"]: button["callback_data"] for button in _buttons(self.markup)}

    def marked(self, kind: str) -> list[str]:
        """The texts under a mark, counted in UTF-16 as Telegram does."""
        raw = self.text.encode("utf-16-le")
        return [
            raw[2 * each["offset"] : 2 * (each["offset"] + each["length"])].decode("utf-16-le")
            for each in self.entities
            if each["type"] == kind
        ]


@dataclass
class Fault:
    """What the next call of a method comes to: a status, or a line that breaks after the work was `done`, or before."""

    method: str
    status: int = 0
    description: str = ""
    retry_after: int = 0
    done: bool = False


@dataclass
class Person:
    """Somebody who can write to the bot and press its buttons."""

    double: "BotDouble"
    id: int
    name: str

    @property
    def user(self) -> Shape:
        return {"id": self.id, "is_bot": False, "first_name": self.name, "username": self.name.lower()}

    def says(self, text: str | None, *, chat: int | None = None, **more: Any) -> int:
        """Write to the bot, or in a group; the number of the update."""
        where = self.id if chat is None else chat
        words = {} if text is None else {"text": text}
        return self.double.update("message", **{**self.double.message(where, self.user), **words, **more})

    def presses(self, message: Posted, button: str, *, chat: int | None = None) -> int:
        query = str(len(self.double.queries) + 1)
        self.double.queries[query] = None
        shown = {**self.double.message(chat or message.chat, BOT), "message_id": message.id, "text": message.text}
        return self.double.update(
            "callback_query",
            id=query,
            **{"from": self.user},
            message=shown,
            chat_instance="1",
            data=message.buttons[button],
        )

    @property
    def sees(self) -> list[Posted]:
        """What the bot has written in the chat with this person."""
        return self.double.chats[self.id]


class BotDouble:
    """`url` is the base for clients; `chats` has what was sent, `calls` all calls, `previews` what would be fetched."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[tuple[str, Shape]] = []
        self.chats: defaultdict[int, list[Posted]] = defaultdict(list)
        self.previews: list[str] = []
        self.queries: dict[str, str | None] = {}
        self.faults: list[Fault] = []
        self.blocked: set[int] = set()
        self.webhook = False
        self.commands: list[dict[str, str]] = []
        self.people: dict[int, Person] = {}
        self.groups: dict[int, str] = {}
        self.channels: dict[str, int] = {}
        self._updates: list[Shape] = []
        self._all: list[Shape] = []
        self._last_update = 500
        self._last_message = 0
        self._news = asyncio.Event()
        self._moved = asyncio.Event()
        self._poll: asyncio.Future[None] | None = None
        self._methods: dict[str, Callable[[Shape], Awaitable[Any]]] = {
            "getme": self._me,
            "getupdates": self._get_updates,
            "sendmessage": self._send,
            "editmessagetext": self._edit,
            "sendchataction": self._act,
            "answercallbackquery": self._answer_query,
            "setmycommands": self._set_commands,
            "deletewebhook": self._delete_webhook,
        }

    def person(self, id: int, name: str) -> Person:
        self.people[id] = Person(self, id, name)
        return self.people[id]

    def update(self, kind: str, **content: Any) -> int:
        """Something has happened that the bot is to hear of."""
        self._last_update += 1
        self._all.append({"update_id": self._last_update, kind: content})
        self._updates.append(self._all[-1])
        self._news.set()
        return self._last_update

    def again(self, offset: int) -> None:
        """Tell all updates from this one on again, as if nobody had asked for later ones."""
        self._updates = [each for each in self._all if each["update_id"] >= offset]
        self._news.set()

    def message(self, chat: int, sender: Shape) -> Shape:
        self._last_message += 1
        return {
            "message_id": self._last_message,
            "date": int(time.time()),
            "chat": self._chat(chat),
            "from": sender,
        }

    def count(self, method: str) -> int:
        return sum(1 for name, _ in self.calls if name == method.lower())

    async def until(self, seen: Callable[[], T]) -> T:
        """Wait until something is so; looked at after every call, and now and then."""
        async with asyncio.timeout(20):
            while not (found := seen()):
                self._moved.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._moved.wait(), 0.05)
        return found

    def _chat(self, id: int) -> Shape:
        if id in self.people:
            return {"id": id, "type": "private", "first_name": self.people[id].name}
        if id in self.groups:
            return {"id": id, "type": "supergroup", "title": self.groups[id]}
        return {"id": id, "type": "channel", "title": "a channel"}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        found = re.fullmatch(r"/bot([^/]+)/(\w+)", request.path)
        if found is None:
            return _json(404, {"ok": False, "error_code": 404, "description": "Not Found"})
        if found[1] != TOKEN:
            return _json(401, {"ok": False, "error_code": 401, "description": "Unauthorized"})
        method = found[2].lower()
        fault = next((each for each in self.faults if each.method.lower() == method), None)
        try:
            params = await _params(request)
            self.calls.append((method, params))
            if fault is not None:
                self.faults.remove(fault)
                await self._fail(fault, method, params)
            return _json(200, {"ok": True, "result": await self._do(method, params)})
        except Refusal as refusal:
            return _json(refusal.code, refusal.body)
        except ConnectionAbortedError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        finally:
            self._moved.set()

    async def _fail(self, fault: Fault, method: str, params: Shape) -> None:
        if fault.done:
            await self._do(method, params)
        if fault.retry_after:
            words = f"Too Many Requests: retry after {fault.retry_after}"
            raise Refusal(429, words, retry_after=fault.retry_after)
        if fault.status:
            raise Refusal(fault.status, fault.description)
        raise ConnectionAbortedError

    async def _do(self, method: str, params: Shape) -> Any:
        if method not in self._methods:
            raise Refusal(404, "Not Found")
        if unknown := set(params) - PARAMETERS[method]:
            raise bad(f"unknown parameters {sorted(unknown)}")
        return await self._methods[method](params)

    async def _me(self, params: Shape) -> Any:
        return {**BOT, **_ABILITIES}

    async def _get_updates(self, params: Shape) -> Any:
        """What is below the offset was received, and is forgotten. Of two who ask, the first is sent away."""
        if self.webhook:
            words = "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
            raise Refusal(409, f"Conflict: {words}")
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(None)
        mine = self._poll = asyncio.get_running_loop().create_future()
        offset, limit = int(params.get("offset", 0)), int(params.get("limit", 100))
        if not 1 <= limit <= 100:
            raise bad("limit must be from 1 to 100")
        self._updates = [each for each in self._updates if each["update_id"] >= offset]
        end = time.monotonic() + min(float(params.get("timeout", 0)), 50)
        while not self._wanted(params) and time.monotonic() < end and not mine.done():
            self._news.clear()
            waiting = asyncio.create_task(self._news.wait())
            await asyncio.wait({waiting, mine}, timeout=end - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if mine.done():
            words = "terminated by other getUpdates request; make sure that only one bot instance is running"
            raise Refusal(409, f"Conflict: {words}")
        mine.set_result(None)
        return self._wanted(params)[:limit]

    def _wanted(self, params: Shape) -> list[Shape]:
        kinds: list[str] = params.get("allowed_updates") or []
        return [each for each in self._updates if not kinds or any(kind in each for kind in kinds)]

    async def _send(self, params: Shape) -> Any:
        chat = self._addressed(params)
        text, marks = _content(params)
        markup = _markup(params)
        self._preview(text, params)
        message = self.message(chat, BOT)
        self.chats[chat].append(Posted(message["message_id"], chat, text, marks, markup))
        return self._shown(message, text, marks, markup)

    async def _edit(self, params: Shape) -> Any:
        chat = self._addressed(params)
        found = [each for each in self.chats[chat] if each.id == int(params.get("message_id", 0))]
        if not found:
            raise bad("message to edit not found")
        text, marks = _content(params)
        markup = _markup(params)
        if (text, marks, markup) == (found[0].text, found[0].entities, found[0].markup):
            raise bad(
                "message is not modified: specified new message content and reply markup are exactly the same "
                "as a current content and reply markup of the message"
            )
        self._preview(text, params)
        found[0].text, found[0].entities, found[0].markup = text, marks, markup
        found[0].edits += 1
        message = {**self.message(chat, BOT), "message_id": found[0].id, "edit_date": int(time.time())}
        return self._shown(message, text, marks, markup)

    def _addressed(self, params: Shape) -> int:
        given = params.get("chat_id")
        if given in (None, ""):
            raise bad("chat_id is empty")
        if str(given) in self.channels:
            return self.channels[str(given)]
        if not re.fullmatch(r"-?\d+", str(given)):
            raise bad("chat not found")
        chat = int(str(given))
        if chat in self.blocked:
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        if chat not in self.people and chat not in self.groups:
            raise bad("chat not found")
        return chat

    def _preview(self, text: str, params: Shape) -> None:
        addresses = re.findall(r"https?://\S+", text)
        options: Shape = params.get("link_preview_options") or {}
        if addresses and not options.get("is_disabled"):
            self.previews.append(addresses[0])

    def _shown(self, message: Shape, text: str, marks: list[Shape], markup: Shape | None) -> Shape:
        more = {"entities": marks} if marks else {}
        return {**message, "text": text, **more, **({"reply_markup": markup} if markup else {})}

    async def _act(self, params: Shape) -> Any:
        self._addressed(params)
        if params.get("action") not in _ACTIONS:
            raise bad("wrong parameter action in request")
        return True

    async def _answer_query(self, params: Shape) -> Any:
        id = str(params.get("callback_query_id"))
        if id not in self.queries or self.queries[id] is not None:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        if len(str(params.get("text", ""))) > 200:
            raise bad("MESSAGE_TOO_LONG")
        self.queries[id] = str(params.get("text", ""))
        return True

    async def _set_commands(self, params: Shape) -> Any:
        commands: list[dict[str, str]] = params.get("commands", [])
        for each in commands:
            if not re.fullmatch(r"[a-z0-9_]{1,32}", each["command"]) or not 1 <= len(each["description"]) <= 256:
                raise bad("BOT_COMMAND_INVALID")
        self.commands = commands
        return True

    async def _delete_webhook(self, params: Shape) -> Any:
        self.webhook = False
        return True


def _json(status: int, body: Shape) -> web.Response:
    parameters: Shape = body.get("parameters", {})
    after = parameters.get("retry_after")
    return web.json_response(body, status=status, headers={"Retry-After": str(after)} if after else None)


async def _params(request: web.Request) -> Shape:
    """JSON, a form or a query; in the latter two what has a shape of its own is JSON inside."""
    if request.content_type == "application/json":
        found = json.loads(await request.text() or "{}")
        if not isinstance(found, dict):
            raise bad("can't parse JSON object")
        return cast(Shape, found)
    plain = {key: str(value) for key, value in {**request.query, **await request.post()}.items()}
    read = {"entities", "link_preview_options", "reply_markup", "allowed_updates", "commands", "reply_parameters"}
    return {key: json.loads(value) if key in read else value for key, value in plain.items()}


def _content(params: Shape) -> tuple[str, list[Shape]]:
    """Text without the space around it, and its marks moved with it; each must fit in and cross no other."""
    if params.get("parse_mode"):
        raise bad("this double takes entities, not parse_mode")
    given = str(params.get("text") or "")
    text = given.strip()
    if not text:
        raise bad("message text is empty")
    if _units(text) > 4096:
        raise bad("message is too long" if "message_id" not in params else "MESSAGE_TOO_LONG")
    away = _units(given[: len(given) - len(given.lstrip())])
    marks: list[Shape] = []
    given_marks: list[Shape] = params.get("entities") or []
    for each in given_marks:
        _check_mark(each, given)
        start, end = each["offset"] - away, each["offset"] + each["length"] - away
        start, end = max(0, start), min(_units(text), end)
        if start < end:
            marks.append({**each, "offset": start, "length": end - start})
    _check_nesting(marks)
    return text, marks


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _check_mark(mark: Shape, text: str) -> None:
    if mark.get("type") not in _MARKS:
        raise bad(f"can't parse entities: unknown type {mark.get('type')}")
    raw = text.encode("utf-16-le")
    offset, length = mark["offset"], mark["length"]
    if length < 1 or offset < 0 or 2 * (offset + length) > len(raw):
        raise bad(f"entity beginning at UTF-16 offset {offset} ends after the end of the text")
    for place in (offset, offset + length):
        try:
            raw[: 2 * place].decode("utf-16-le")
        except UnicodeDecodeError:
            raise bad(f"entity at UTF-16 offset {place} cuts a character in two") from None


def _check_nesting(marks: list[Shape]) -> None:
    ranges = [(each["offset"], each["offset"] + each["length"], each["type"]) for each in marks]
    for first, last, kind in ranges:
        for start, end, other in ranges:
            if first < start < last < end:
                raise bad("entities cross each other")
            if kind in ("code", "pre") and first <= start < end <= last and other not in ("code", "pre"):
                raise bad("there is nothing inside of code")


def _markup(params: Shape) -> Shape | None:
    markup: Shape | None = params.get("reply_markup")
    for button in _buttons(markup):
        if not button.get("text"):
            raise bad("text buttons are unallowed in the inline keyboard")
        if not 1 <= len(str(button.get("callback_data", "")).encode()) <= 64:
            raise bad("BUTTON_DATA_INVALID")
    return markup if _buttons(markup) else None


def _buttons(markup: Shape | None) -> list[Shape]:
    rows: list[list[Shape]] = markup.get("inline_keyboard", []) if markup else []
    return [button for row in rows for button in row]


@asynccontextmanager
async def bot_double() -> AsyncGenerator[BotDouble, None]:
    """One that answers while the block lasts."""
    double = BotDouble()
    app = web.Application(client_max_size=1 << 20)
    app.router.add_route("*", "/{rest:.*}", double.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    double.url = f"http://{host}:{port}"
    try:
        yield double
    finally:
        await runner.cleanup()
