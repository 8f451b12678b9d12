"""Lower bound for the cost of a turn: aiohttp, msgspec and a hand-written loop. All ratios refer to it."""

import aiohttp
import msgspec

from adapters._loop import make_agent, make_history, make_turn  # noqa: F401
from scenarios import MODEL

PIP = ["aiohttp", "msgspec"]
IMPORT = "import aiohttp, msgspec"
LONG_TURNS = True


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


decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_arguments = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def setup(base_url):
    global URL, SESSION
    URL = base_url + "/chat/completions"
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


turn = make_turn(stream, decode_arguments)
