"""A loopback server that behaves like Telegram's Bot API for the methods in use, but rejects unknown parameters.

`test_bot_double.py` proves it with aiogram, an independent client.
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

from checks import TIMEOUT

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, Any]
TOKEN = "7000001:AAtest-token-of-the-bot_0123456789abc"
BOT = {"id": 7000001, "is_bot": True, "first_name": "Atlas", "username": "atlas_test_bot"}
_ABILITIES = {"can_join_groups": True, "can_read_all_group_messages": False, "supports_inline_queries": False}
_ENTITY_TYPES = {"bold", "italic", "underline", "strikethrough", "spoiler", "code", "pre", "text_link"}
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


class ErrorResponse(Exception):
    """An error response of the Bot API."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        self.code = code
        self.body: JsonObject = {"ok": False, "error_code": code, "description": description}
        if parameters:
            self.body["parameters"] = parameters


def bad_request(description: str) -> ErrorResponse:
    return ErrorResponse(400, f"Bad Request: {description}")


@dataclass
class Posted:
    """A message of the bot in its current version."""

    id: int
    chat: int
    text: str
    entities: list[JsonObject]
    markup: JsonObject | None
    edits: int = 0
    at: float = field(default_factory=time.monotonic)

    @property
    def buttons(self) -> dict[str, str]:
        return {button["text"]: button["callback_data"] for button in _buttons(self.markup)}

    def marked(self, kind: str) -> list[str]:
        """Return the texts with an entity of this type, counted in UTF-16 as Telegram does."""
        raw = self.text.encode("utf-16-le")
        return [
            raw[2 * each["offset"] : 2 * (each["offset"] + each["length"])].decode("utf-16-le")
            for each in self.entities
            if each["type"] == kind
        ]


@dataclass
class Fault:
    """Fault of the next call of a method: a status, or a connection lost before or after (`done`) the work."""

    method: str
    status: int = 0
    description: str = ""
    retry_after: int = 0
    done: bool = False


@dataclass
class Person:
    """A person who writes to the bot and presses its buttons."""

    double: "BotDouble"
    id: int
    name: str

    @property
    def user(self) -> JsonObject:
        return {"id": self.id, "is_bot": False, "first_name": self.name, "username": self.name.lower()}

    def says(self, text: str | None, *, chat: int | None = None, **more: Any) -> int:
        """Write to the bot, or in a group, and return the id of the update."""
        where = self.id if chat is None else chat
        description = {} if text is None else {"text": text}
        return self.double.update("message", **{**self.double.message(where, self.user), **description, **more})

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
        """Messages of the bot in the chat with this person."""
        return self.double.chats[self.id]


class BotDouble:
    """`url` is the base URL, `chats` has the sent messages, `calls` all calls, `previews` the URLs it would fetch."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[tuple[str, JsonObject]] = []
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
        self._updates: list[JsonObject] = []
        self._all: list[JsonObject] = []
        self._last_update = 500
        self._last_message = 0
        self._update_added = asyncio.Event()
        self._called = asyncio.Event()
        self._poll: asyncio.Future[None] | None = None
        self._methods: dict[str, Callable[[JsonObject], Awaitable[Any]]] = {
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
        """Add an update for the bot."""
        self._last_update += 1
        self._all.append({"update_id": self._last_update, kind: content})
        self._updates.append(self._all[-1])
        self._update_added.set()
        return self._last_update

    def repeat_updates(self, offset: int) -> None:
        """Deliver all updates from this offset on again."""
        self._updates = [each for each in self._all if each["update_id"] >= offset]
        self._update_added.set()

    def message(self, chat: int, sender: JsonObject) -> JsonObject:
        self._last_message += 1
        return {
            "message_id": self._last_message,
            "date": int(time.time()),
            "chat": self._chat(chat),
            "from": sender,
        }

    def count(self, method: str) -> int:
        return sum(1 for name, _ in self.calls if name == method.lower())

    async def until(self, condition: Callable[[], T]) -> T:
        """Wait until a condition holds; it is checked after every call and every 50 ms."""
        async with asyncio.timeout(TIMEOUT):
            while not (found := condition()):
                self._called.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._called.wait(), 0.05)
        return found

    def _chat(self, id: int) -> JsonObject:
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
            return _json(200, {"ok": True, "result": await self._run_method(method, params)})
        except ErrorResponse as error:
            return _json(error.code, error.body)
        except ConnectionAbortedError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        finally:
            self._called.set()

    async def _fail(self, fault: Fault, method: str, params: JsonObject) -> None:
        if fault.done:
            await self._run_method(method, params)
        if fault.retry_after:
            description = f"Too Many Requests: retry after {fault.retry_after}"
            raise ErrorResponse(429, description, retry_after=fault.retry_after)
        if fault.status:
            raise ErrorResponse(fault.status, fault.description)
        raise ConnectionAbortedError

    async def _run_method(self, method: str, params: JsonObject) -> Any:
        if method not in self._methods:
            raise ErrorResponse(404, "Not Found")
        if unknown := set(params) - PARAMETERS[method]:
            raise bad_request(f"unknown parameters {sorted(unknown)}")
        return await self._methods[method](params)

    async def _me(self, params: JsonObject) -> Any:
        return {**BOT, **_ABILITIES}

    async def _get_updates(self, params: JsonObject) -> Any:
        """Confirm the updates below the offset and wait for new ones. A second poll ends the first."""
        if self.webhook:
            description = (
                "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
            )
            raise ErrorResponse(409, f"Conflict: {description}")
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(None)
        this_poll = self._poll = asyncio.get_running_loop().create_future()
        offset, limit = int(params.get("offset", 0)), int(params.get("limit", 100))
        if not 1 <= limit <= 100:
            raise bad_request("limit must be from 1 to 100")
        self._updates = [each for each in self._updates if each["update_id"] >= offset]
        end = time.monotonic() + min(float(params.get("timeout", 0)), 50)
        while not self._pending_updates(params) and time.monotonic() < end and not this_poll.done():
            self._update_added.clear()
            waiting = asyncio.create_task(self._update_added.wait())
            await asyncio.wait(
                {waiting, this_poll}, timeout=end - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
            )
            waiting.cancel()
        if this_poll.done():
            description = "terminated by other getUpdates request; make sure that only one bot instance is running"
            raise ErrorResponse(409, f"Conflict: {description}")
        this_poll.set_result(None)
        return self._pending_updates(params)[:limit]

    def _pending_updates(self, params: JsonObject) -> list[JsonObject]:
        kinds: list[str] = params.get("allowed_updates") or []
        return [each for each in self._updates if not kinds or any(kind in each for kind in kinds)]

    async def _send(self, params: JsonObject) -> Any:
        chat = self._resolve_chat(params)
        text, entities = _parse_text(params)
        markup = _markup(params)
        self._preview(text, params)
        message = self.message(chat, BOT)
        self.chats[chat].append(Posted(message["message_id"], chat, text, entities, markup))
        return self._encode_message(message, text, entities, markup)

    async def _edit(self, params: JsonObject) -> Any:
        chat = self._resolve_chat(params)
        found = [each for each in self.chats[chat] if each.id == int(params.get("message_id", 0))]
        if not found:
            raise bad_request("message to edit not found")
        text, entities = _parse_text(params)
        markup = _markup(params)
        if (text, entities, markup) == (found[0].text, found[0].entities, found[0].markup):
            raise bad_request(
                "message is not modified: specified new message content and reply markup are exactly the same "
                "as a current content and reply markup of the message"
            )
        self._preview(text, params)
        found[0].text, found[0].entities, found[0].markup = text, entities, markup
        found[0].edits += 1
        message = {**self.message(chat, BOT), "message_id": found[0].id, "edit_date": int(time.time())}
        return self._encode_message(message, text, entities, markup)

    def _resolve_chat(self, params: JsonObject) -> int:
        given = params.get("chat_id")
        if given in (None, ""):
            raise bad_request("chat_id is empty")
        if str(given) in self.channels:
            return self.channels[str(given)]
        if not re.fullmatch(r"-?\d+", str(given)):
            raise bad_request("chat not found")
        chat = int(str(given))
        if chat in self.blocked:
            raise ErrorResponse(403, "Forbidden: bot was blocked by the user")
        if chat not in self.people and chat not in self.groups:
            raise bad_request("chat not found")
        return chat

    def _preview(self, text: str, params: JsonObject) -> None:
        addresses = re.findall(r"https?://\S+", text)
        options: JsonObject = params.get("link_preview_options") or {}
        if addresses and not options.get("is_disabled"):
            self.previews.append(addresses[0])

    def _encode_message(
        self, message: JsonObject, text: str, entities: list[JsonObject], markup: JsonObject | None
    ) -> JsonObject:
        more = {"entities": entities} if entities else {}
        return {**message, "text": text, **more, **({"reply_markup": markup} if markup else {})}

    async def _act(self, params: JsonObject) -> Any:
        self._resolve_chat(params)
        if params.get("action") not in _ACTIONS:
            raise bad_request("wrong parameter action in request")
        return True

    async def _answer_query(self, params: JsonObject) -> Any:
        id = str(params.get("callback_query_id"))
        if id not in self.queries or self.queries[id] is not None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        if len(str(params.get("text", ""))) > 200:
            raise bad_request("MESSAGE_TOO_LONG")
        self.queries[id] = str(params.get("text", ""))
        return True

    async def _set_commands(self, params: JsonObject) -> Any:
        commands: list[dict[str, str]] = params.get("commands", [])
        for each in commands:
            if not re.fullmatch(r"[a-z0-9_]{1,32}", each["command"]) or not 1 <= len(each["description"]) <= 256:
                raise bad_request("BOT_COMMAND_INVALID")
        self.commands = commands
        return True

    async def _delete_webhook(self, params: JsonObject) -> Any:
        self.webhook = False
        return True


def _json(status: int, body: JsonObject) -> web.Response:
    parameters: JsonObject = body.get("parameters", {})
    after = parameters.get("retry_after")
    return web.json_response(body, status=status, headers={"Retry-After": str(after)} if after else None)


async def _params(request: web.Request) -> JsonObject:
    """Read parameters from JSON, a form or a query; forms and queries contain objects as JSON."""
    if request.content_type == "application/json":
        found = json.loads(await request.text() or "{}")
        if not isinstance(found, dict):
            raise bad_request("can't parse JSON object")
        return cast(JsonObject, found)
    plain = {key: str(value) for key, value in {**request.query, **await request.post()}.items()}
    read = {"entities", "link_preview_options", "reply_markup", "allowed_updates", "commands", "reply_parameters"}
    return {key: json.loads(value) if key in read else value for key, value in plain.items()}


def _parse_text(params: JsonObject) -> tuple[str, list[JsonObject]]:
    """Return the stripped text and its shifted entities; each must be within the text and not overlap partially."""
    if params.get("parse_mode"):
        raise bad_request("this double takes entities, not parse_mode")
    given = str(params.get("text") or "")
    text = given.strip()
    if not text:
        raise bad_request("message text is empty")
    if _utf16_length(text) > 4096:
        raise bad_request("message is too long" if "message_id" not in params else "MESSAGE_TOO_LONG")
    shift = _utf16_length(given[: len(given) - len(given.lstrip())])
    entities: list[JsonObject] = []
    given_entities: list[JsonObject] = params.get("entities") or []
    for each in given_entities:
        _check_entity(each, given)
        start, end = each["offset"] - shift, each["offset"] + each["length"] - shift
        start, end = max(0, start), min(_utf16_length(text), end)
        if start < end:
            entities.append({**each, "offset": start, "length": end - start})
    _check_nesting(entities)
    return text, entities


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _check_entity(entity: JsonObject, text: str) -> None:
    if entity.get("type") not in _ENTITY_TYPES:
        raise bad_request(f"can't parse entities: unknown type {entity.get('type')}")
    raw = text.encode("utf-16-le")
    offset, length = entity["offset"], entity["length"]
    if length < 1 or offset < 0 or 2 * (offset + length) > len(raw):
        raise bad_request(f"entity beginning at UTF-16 offset {offset} ends after the end of the text")
    for position in (offset, offset + length):
        try:
            raw[: 2 * position].decode("utf-16-le")
        except UnicodeDecodeError:
            raise bad_request(f"entity at UTF-16 offset {position} cuts a character in two") from None


def _check_nesting(entities: list[JsonObject]) -> None:
    ranges = [(each["offset"], each["offset"] + each["length"], each["type"]) for each in entities]
    for first, last, kind in ranges:
        for start, end, other in ranges:
            if first < start < last < end:
                raise bad_request("entities cross each other")
            if kind in ("code", "pre") and first <= start < end <= last and other not in ("code", "pre"):
                raise bad_request("code must not contain other entities")


def _markup(params: JsonObject) -> JsonObject | None:
    markup: JsonObject | None = params.get("reply_markup")
    for button in _buttons(markup):
        if not button.get("text"):
            raise bad_request("text buttons are unallowed in the inline keyboard")
        if not 1 <= len(str(button.get("callback_data", "")).encode()) <= 64:
            raise bad_request("BUTTON_DATA_INVALID")
    return markup if _buttons(markup) else None


def _buttons(markup: JsonObject | None) -> list[JsonObject]:
    rows: list[list[JsonObject]] = markup.get("inline_keyboard", []) if markup else []
    return [button for row in rows for button in row]


@asynccontextmanager
async def bot_double() -> AsyncGenerator[BotDouble, None]:
    """Serve a double inside the block."""
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
