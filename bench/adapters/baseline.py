"""Lower bound for the cost of a turn: aiohttp, msgspec and a hand-written loop. All ratios refer to it."""

import aiohttp
import msgspec

from adapters._loop import make_agent, make_history, make_responses_turn, make_turn  # noqa: F401
from scenarios import MODEL, SYSTEM, uses_responses

PIP = ["aiohttp", "msgspec"]
IMPORT = "import aiohttp, msgspec"
LONG_TURNS = True
RESPONSES = True


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str = ""


class CallPart(msgspec.Struct):
    index: int
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[CallPart] | None = None


class Choice(msgspec.Struct):
    delta: Delta


class Chunk(msgspec.Struct):
    choices: list[Choice]


class TextEvent(msgspec.Struct):
    delta: str


class ItemEvent(msgspec.Struct):
    item: dict


decode_text = msgspec.json.Decoder(TextEvent).decode
decode_item = msgspec.json.Decoder(ItemEvent).decode
decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_arguments = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def setup(base_url):
    global URL, SESSION, RUN
    URL = base_url + ("/responses" if uses_responses(base_url) else "/chat/completions")
    RUN = responses_turn if uses_responses(base_url) else chat_turn
    SESSION = None


def session():
    """Return the shared HTTP session, created in the running event loop."""
    global SESSION
    if SESSION is None:
        SESSION = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**18)
    return SESSION


async def stream(messages, schemas):
    body = encode({"model": MODEL, "stream": True, "messages": messages, "tools": schemas})
    async with session().post(URL, data=body, headers={"Content-Type": "application/json"}) as reply:
        reply.raise_for_status()
        async for delta in read_deltas(reply.content.iter_any()):
            yield delta


async def read_deltas(pieces):
    """Yield the deltas of a server-sent event stream, which may be split anywhere."""
    rest = b""
    async for piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if event != b"data: [DONE]":
                for choice in decode_chunk(event[6:]).choices:
                    yield choice.delta


TEXT, ITEM = b"event: response.output_text.delta\ndata: ", b"event: response.output_item.done\ndata: "
OPTIONS = {"model": MODEL, "stream": True, "store": False, "include": ["reasoning.encrypted_content"]}


async def stream_responses(items, specs):
    body = encode({**OPTIONS, "instructions": SYSTEM, "input": items, "tools": specs})
    async with session().post(URL, data=body, headers={"Content-Type": "application/json"}) as reply:
        reply.raise_for_status()
        rest = b""
        async for piece in reply.content.iter_any():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                if event.startswith(TEXT):
                    yield decode_text(event[len(TEXT) :]).delta
                elif event.startswith(ITEM):
                    yield decode_item(event[len(ITEM) :]).item


chat_turn = make_turn(stream, decode_arguments)
responses_turn = make_responses_turn(stream_responses, decode_arguments)


def turn(*arguments):
    return RUN(*arguments)
