"""A gateway with scripted agents: `page_gateway.py HOME [PORT]`. It prints its port as the first line."""

import asyncio
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from page_model import PageModel, wait_for_release

from atlas_agents import Agent, Approvals, Atlas, Image, ToolContext, ToolFailed, tool
from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.approvals import Choice, Field, Form
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import configure_logging
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sqlite import SqliteStore


@tool
async def get_weather(city: str) -> dict[str, object]:
    """Return the weather of a city."""
    return {"city": city, "sky": "clear", "degrees": 21}


@tool(confirm=True)
async def run_command(command: str) -> str:
    """Run a command on this machine."""
    return f"ran {command}"


def preview_note(arguments: dict[str, Any]) -> str:
    return f"--- note\n+++ note\n-milk\n+{arguments['note']}"


@tool(confirm=True, preview=preview_note)
async def write_note(note: str) -> str:
    """Replace a note."""
    return f"wrote {note}"


@tool(timeout=600)
async def build(lines: int, context: ToolContext) -> str:
    """Write lines of output, then wait until the test releases the tool."""
    for number in range(1, lines + 1):
        context.progress(f"[{number:4}] cc -c part{number}.c")
    await asyncio.to_thread(wait_for_release)
    return f"built {lines}"


@tool(effect="pure")
async def draw(title: str) -> dict[str, Any]:
    """Draw an image."""
    return {"title": title, "plot": Image.of(make_png(240, 160))}


def make_png(width: int, height: int) -> bytes:
    """Return a PNG with a colour gradient."""
    rows = [b"\0" + b"".join(bytes((x, 120, y)) for x in range(width)) for y in range(height)]

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack("!I", len(body)) + kind + body + struct.pack("!I", zlib.crc32(kind + body))

    header = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@tool
async def order(what: str, context: ToolContext) -> str:
    """Order something; size, count and other details are asked from the user."""
    fields = (
        Field("size", "choice", "Size", "Size of the cup", required=True, choices=(Choice("s", "Small"), Choice("l"))),
        Field("count", "integer", "Count", default=2, least=1, most=9),
        Field("mail", "text", "Mail", "Where to send the <b>bill</b>", format="email"),
        Field("with", "choices", "With", choices=(Choice("milk"), Choice("sugar"))),
        Field("gift", "boolean", "Gift"),
    )
    filled = await context.ask(Form("the MCP server shop", f"Which \u202e{what}?\n<img src=x>", fields))
    return f"{filled.action} {filled.values}"


@tool
async def pay(context: ToolContext) -> str:
    """Pay on a web page."""
    return (await context.ask(Form("the MCP server shop", "Pay.", url="https://pay.example.org/bill"))).action


@tool
async def always_fail() -> str:
    """Fail."""
    raise ToolFailed("it always fails")


def make_agents() -> list[Agent]:
    tools = [get_weather, build, draw, run_command, write_note, order, pay, always_fail, delegate_task]
    tools += [bash_tool(Path.cwd()), *file_tools(Path.cwd())]
    return [
        Agent("helper", model=PageModel(), tools=tools, name="Helper", hands_off_to=["writer"]),
        Agent(
            "writer",
            model="page/scripted-writer",
            name="Writer",
            description="Writes letters.",
            budget="agent tokens=1000000 per=day",
        ),
        Agent("planner", model=PageModel(), tools=[get_weather, build], name="Planner", mode="plan"),
    ]


async def serve(
    home: Path,
    port: int,
    agents: list[Agent],
    *,
    prepare: Callable[[SqliteStore], Awaitable[None]] | None = None,
    **options: Any,
) -> None:
    """Serve these agents until the process is stopped."""
    configure_logging()
    store = SqliteStore(home / "atlas.db")
    await store.open()
    if prepare is not None:
        await prepare(store)
    registry = Registry()
    registry.register("page", lambda _: PageModel())
    atlas = Atlas(agents, store=store, registry=registry, approve=Approvals(wait=True), **options)
    gateway = Gateway(atlas, GatewaySettings(home=home, port=port, grace=0.5))
    await gateway.serve(lambda ready: print(ready.port, flush=True))
    await store.close()


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, make_agents()))
